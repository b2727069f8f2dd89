//! The ledger as what processes the messages of a worker.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::gate::{Answer, Failure};
use hapax_core::ledger::{Entry, HandlerFailure, Work};
use rusqlite::{Connection, Transaction};

use super::SqliteLedger;
use crate::sqlite::opened_file::SqliteFile;

/// How long a worker waits that finds its file moved.
const PAUSE: Duration = Duration::from_secs(1);

impl SqliteLedger {
    /// What processes the messages of a worker: each batch is one transaction of this connection, with the rows of the
    /// ledger and what the handler writes. It blocks its caller, as SQLite does: give the worker a runtime with several
    /// threads.
    ///
    /// The handler gets all jobs of the batch, and the entries of those that are new; [`Entry::index`] is the place of
    /// an entry's job. It returns one answer for each entry. A panic counts as a failure; everything is rolled back.
    ///
    /// Failures are counted in the database. The operation is closed after 8 of them, unless the terms say otherwise.
    ///
    /// While the file of the connection is not at its path, nothing is processed: see [`SqliteFile`].
    pub fn process<A, H>(&self, connection: Connection, handler: H) -> SqliteProcess<H>
    where
        A: Answer,
        H: Fn(&Transaction<'_>, &[Job], &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> + Send + Sync + 'static,
    {
        // A database in memory has no path.
        let path = connection.path().filter(|path| !path.is_empty());
        let file = path.map(|path| SqliteFile::at(Path::new(path)));
        let ledger = Self::new(self.terms.clone().counting());
        SqliteProcess { ledger, connection: Mutex::new(connection), file, handler }
    }
}

/// A ledger with a handler; see [`SqliteLedger::process`].
pub struct SqliteProcess<H> {
    ledger: SqliteLedger,
    connection: Mutex<Connection>,
    /// An error if the file had gone already when the process was made.
    file: Option<Result<SqliteFile>>,
    handler: H,
}

impl<H> SqliteProcess<H> {
    /// Whether the file of the connection is no longer at its path.
    fn has_lost_file(&self) -> bool {
        let lost = self.file.as_ref().and_then(|file| match file {
            Ok(file) => file.check().err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        });
        if let Some(error) = &lost {
            tracing::error!(error, "The ledger's file cannot be used; its messages wait.");
        }
        lost.is_some()
    }
}

impl<H> fmt::Debug for SqliteProcess<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteProcess").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

#[async_trait]
impl<A, H> Process for SqliteProcess<H>
where
    A: Answer,
    H: Fn(&Transaction<'_>, &[Job], &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> + Send + Sync + 'static,
{
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let paused = || vec![Verdict::Pause { after: PAUSE }; jobs.len()];
        if self.has_lost_file() {
            return paused();
        }
        let work = jobs.iter().map(Work::from).collect();
        // A handler that panicked left no transaction open.
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let handler = |transaction: &Transaction<'_>, entries: &mut [Entry]| {
            let handled = catch_unwind(AssertUnwindSafe(|| (self.handler)(transaction, &jobs, entries)));
            handled.unwrap_or_else(|_panic| Err(HandlerFailure::of_any(Failure::unknown("the handler panicked"))))
        };
        let verdicts = self.ledger.run_to_end(&mut connection, work, handler).into_verdicts();
        // What was committed in a file that went meanwhile may not be in the one that is kept.
        if self.has_lost_file() { paused() } else { verdicts }
    }
}
