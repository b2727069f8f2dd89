use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Handler, HandlerFailure};

use super::SpannerTransaction;

/// A handler of one call or of many.
pub(super) trait SpannerBatch<A> {
    fn handle(
        &self,
        transaction: &SpannerTransaction,
        entries: &mut [Entry],
    ) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>>;
}

pub(super) struct OneSpannerCall<H>(pub(super) H);

impl<A, H> SpannerBatch<A> for OneSpannerCall<H>
where
    H: AsyncFn(&SpannerTransaction, &mut Entry) -> Result<A, Failure<A>>,
{
    async fn handle(
        &self,
        transaction: &SpannerTransaction,
        entries: &mut [Entry],
    ) -> Result<Vec<A>, HandlerFailure<A>> {
        let answer = (self.0)(transaction, &mut entries[0]).await;
        answer.map(|answer| vec![answer]).map_err(|failure| HandlerFailure::of(0, failure))
    }
}

pub(super) struct ManySpannerCalls<H>(pub(super) H);

impl<A, H> SpannerBatch<A> for ManySpannerCalls<H>
where
    H: AsyncFn(&SpannerTransaction, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
{
    async fn handle(
        &self,
        transaction: &SpannerTransaction,
        entries: &mut [Entry],
    ) -> Result<Vec<A>, HandlerFailure<A>> {
        (self.0)(transaction, entries).await
    }
}

/// A handler with its transaction.
pub(super) struct SpannerHandler<'t, H> {
    pub(super) handler: &'t H,
    pub(super) transaction: &'t SpannerTransaction,
}

impl<A, H: SpannerBatch<A>> Handler<A> for SpannerHandler<'_, H> {
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        self.handler.handle(self.transaction, entries).await
    }
}
