//! The ledger as what processes the messages of a worker.

use std::fmt;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::gate::{Answer, Failure};
use hapax_core::ledger::{Entry, HandlerFailure, Work};

use super::handlers::SpannerBatch;
use super::{SpannerLedger, SpannerTransaction};

/// Writes the effects of messages in Spanner.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle the jobs of a worker in Spanner",
    label = "does not implement `HandleSpannerJobs`",
    note = "implement `HandleSpannerJobs<A>` for it; `A` is the type of its answers"
)]
pub trait HandleSpannerJobs<A>: Send + Sync + 'static {
    /// Writes the effects of these entries in this transaction, and nothing else. `jobs` are all jobs of the batch;
    /// [`Entry::index`] is the place of an entry's job. Returns one answer for each entry.
    fn handle(
        &self,
        transaction: &SpannerTransaction,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>> + Send;
}

impl SpannerLedger {
    /// Processes the messages of a worker: each batch is one transaction, with the rows of the ledger and what the
    /// handler writes. A panic counts as a failure; everything is rolled back.
    ///
    /// Failures are counted in the database. The operation is closed after 8 of them, unless the terms say otherwise.
    pub fn process<A, H>(&self, handler: H) -> SpannerProcess<A, H>
    where
        A: Answer + Sync,
        H: HandleSpannerJobs<A>,
    {
        let ledger = Self { terms: self.terms.clone().counting(), ..self.clone() };
        SpannerProcess { ledger, handler, answer: PhantomData }
    }
}

/// A ledger in Spanner with a handler; see [`SpannerLedger::process`].
pub struct SpannerProcess<A, H> {
    ledger: SpannerLedger,
    handler: H,
    answer: PhantomData<fn() -> A>,
}

impl<A, H> fmt::Debug for SpannerProcess<A, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerProcess").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

#[async_trait]
impl<A, H> Process for SpannerProcess<A, H>
where
    A: Answer + Sync,
    H: HandleSpannerJobs<A>,
{
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let work = jobs.iter().map(Work::from).collect();
        let handler = SpannerJobs { handler: &self.handler, jobs: &jobs };
        self.ledger.run_to_end(work, handler).await.into_verdicts()
    }
}

/// A handler with the jobs of its batch.
struct SpannerJobs<'j, H> {
    handler: &'j H,
    jobs: &'j [Job],
}

impl<A: Answer, H: HandleSpannerJobs<A>> SpannerBatch<A> for SpannerJobs<'_, H> {
    async fn handle(
        &self,
        transaction: &SpannerTransaction,
        entries: &mut [Entry],
    ) -> Result<Vec<A>, HandlerFailure<A>> {
        // Unwind safe: after a panic the transaction is rolled back, and the entries are dropped.
        let handled = AssertUnwindSafe(self.handler.handle(transaction, self.jobs, entries)).catch_unwind().await;
        handled.unwrap_or_else(|_panic| Err(HandlerFailure::of_any(Failure::unknown("the handler panicked"))))
    }
}
