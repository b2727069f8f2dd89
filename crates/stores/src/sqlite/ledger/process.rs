//! The ledger as what processes the messages of a worker.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::gate::{Answer, Failure};
use hapax_core::ledger::{Entry, HandlerFailure, Work};
use rusqlite::{Connection, Transaction};

use super::SqliteLedger;

impl SqliteLedger {
    /// What processes the messages of a worker: each batch is one transaction of this connection, with the rows of the
    /// ledger and what the handler writes. It blocks its caller, as SQLite does: give the worker a runtime with several
    /// threads.
    ///
    /// The handler gets all jobs of the batch, and the entries of those that are new; [`Entry::index`] is the place of
    /// an entry's job. It returns one answer for each entry. A panic counts as a failure; everything is rolled back.
    ///
    /// Failures are counted in the database. The operation is closed after 8 of them, unless the terms say otherwise.
    pub fn process<A, H>(&self, connection: Connection, handler: H) -> SqliteProcess<H>
    where
        A: Answer,
        H: Fn(&Transaction<'_>, &[Job], &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> + Send + Sync + 'static,
    {
        SqliteProcess { ledger: Self::new(self.terms.clone().counting()), connection: Mutex::new(connection), handler }
    }
}

/// A ledger with a handler; see [`SqliteLedger::process`].
pub struct SqliteProcess<H> {
    ledger: SqliteLedger,
    connection: Mutex<Connection>,
    handler: H,
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
        let work = jobs.iter().map(Work::from).collect();
        // A handler that panicked left no transaction open.
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let handler = |transaction: &Transaction<'_>, entries: &mut [Entry]| {
            let handled = catch_unwind(AssertUnwindSafe(|| (self.handler)(transaction, &jobs, entries)));
            handled.unwrap_or_else(|_panic| Err(HandlerFailure::of_any(Failure::unknown("the handler panicked"))))
        };
        self.ledger.run_to_end(&mut connection, work, handler).into_verdicts()
    }
}
