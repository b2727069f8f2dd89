//! The ledger as what processes the messages of a worker.

use std::fmt;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::gate::{Answer, Failure};
use hapax_core::ledger::{Entry, HandlerFailure, Work};
use sqlx::PgConnection;

use super::{SqlxBatchHandler, SqlxRunner};
use crate::sqlx::SqlxLedger;

/// Writes the effects of messages by sqlx.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle the jobs of a worker",
    label = "does not implement `HandleSqlxJobs`",
    note = "implement `HandleSqlxJobs<A>` for it; `A` is the type of its answers"
)]
pub trait HandleSqlxJobs<A>: Send + Sync + 'static {
    /// Writes the effects of these entries in the open transaction of this connection, and nothing else. `jobs` are all
    /// jobs of the batch; [`Entry::index`] is the place of an entry's job. Returns one answer for each entry.
    fn handle(
        &self,
        transaction: &mut PgConnection,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>> + Send;
}

impl SqlxRunner {
    /// The processor of a worker's messages: each batch is one transaction, with the rows of the ledger and what the
    /// handler writes. A panic counts as a failure; everything is rolled back.
    ///
    /// Failures are counted in the database. The operation is closed after 8 of them, unless the terms say otherwise.
    ///
    /// Let the pool have a connection for each batch that the worker runs at once.
    pub fn process<A, H>(&self, handler: H) -> SqlxProcess<A, H>
    where
        A: Answer + Sync,
        H: HandleSqlxJobs<A>,
    {
        let ledger = SqlxLedger { terms: self.ledger.terms.clone().counting(), ..self.ledger.clone() };
        SqlxProcess { runner: Self { ledger, ..self.clone() }, handler, answer: PhantomData }
    }
}

/// A runner over sqlx with a handler; see [`SqlxRunner::process`].
pub struct SqlxProcess<A, H> {
    runner: SqlxRunner,
    handler: H,
    answer: PhantomData<fn() -> A>,
}

impl<A, H> fmt::Debug for SqlxProcess<A, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxProcess").field("runner", &self.runner).finish_non_exhaustive()
    }
}

#[async_trait]
impl<A, H> Process for SqlxProcess<A, H>
where
    A: Answer + Sync,
    H: HandleSqlxJobs<A>,
{
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let work = jobs.iter().map(Work::from).collect();
        let handler = BatchOfSqlxJobs { handler: &self.handler, jobs: &jobs };
        self.runner.run_to_end(work, handler).await.into_verdicts()
    }
}

/// A handler with the jobs of its batch.
struct BatchOfSqlxJobs<'j, H> {
    handler: &'j H,
    jobs: &'j [Job],
}

impl<A: Answer, H: HandleSqlxJobs<A>> SqlxBatchHandler<A> for BatchOfSqlxJobs<'_, H> {
    async fn handle(&self, transaction: &mut PgConnection, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        // Unwind safe: after a panic the transaction is rolled back, and the entries are dropped.
        let handled = AssertUnwindSafe(self.handler.handle(transaction, self.jobs, entries)).catch_unwind().await;
        handled.unwrap_or_else(|_panic| Err(HandlerFailure::of_any(Failure::unknown("the handler panicked"))))
    }
}
