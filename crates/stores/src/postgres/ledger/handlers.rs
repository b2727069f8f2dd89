use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Handler, HandlerFailure};

use super::PostgresTransaction;

/// A handler of one call or of many.
pub(super) trait BatchHandler<A> {
    fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        entries: &mut [Entry],
    ) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>>;
}

pub(super) struct One<H>(pub(super) H);

impl<A, H> BatchHandler<A> for One<H>
where
    H: AsyncFn(&PostgresTransaction<'_>, &mut Entry) -> Result<A, Failure<A>>,
{
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        entries: &mut [Entry],
    ) -> Result<Vec<A>, HandlerFailure<A>> {
        let answer = (self.0)(transaction, &mut entries[0]).await;
        answer.map(|answer| vec![answer]).map_err(|failure| HandlerFailure::of(0, failure))
    }
}

pub(super) struct Many<H>(pub(super) H);

impl<A, H> BatchHandler<A> for Many<H>
where
    H: AsyncFn(&PostgresTransaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
{
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        entries: &mut [Entry],
    ) -> Result<Vec<A>, HandlerFailure<A>> {
        (self.0)(transaction, entries).await
    }
}

/// A handler with its transaction.
pub(super) struct PostgresHandler<'t, H> {
    pub(super) handler: &'t H,
    pub(super) transaction: &'t PostgresTransaction<'t>,
}

impl<A, H: BatchHandler<A>> Handler<A> for PostgresHandler<'_, H> {
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        self.handler.handle(self.transaction, entries).await
    }
}
