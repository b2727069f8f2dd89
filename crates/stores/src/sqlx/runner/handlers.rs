use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Handler, HandlerFailure};
use sqlx::PgConnection;

use super::statements::SharedTransaction;

/// A handler of one call or of many.
pub(super) trait SqlxBatchHandler<A> {
    fn handle(
        &self,
        transaction: &mut PgConnection,
        entries: &mut [Entry],
    ) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>>;
}

pub(super) struct SqlxOne<H>(pub(super) H);

impl<A, H> SqlxBatchHandler<A> for SqlxOne<H>
where
    H: AsyncFn(&mut PgConnection, &mut Entry) -> Result<A, Failure<A>>,
{
    async fn handle(&self, transaction: &mut PgConnection, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        let answer = (self.0)(transaction, &mut entries[0]).await;
        answer.map(|answer| vec![answer]).map_err(|failure| HandlerFailure::of(0, failure))
    }
}

pub(super) struct SqlxMany<H>(pub(super) H);

impl<A, H> SqlxBatchHandler<A> for SqlxMany<H>
where
    H: AsyncFn(&mut PgConnection, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
{
    async fn handle(&self, transaction: &mut PgConnection, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        (self.0)(transaction, entries).await
    }
}

/// A handler with its transaction.
pub(super) struct SqlxHandler<'t, 'c, H> {
    pub(super) handler: &'t H,
    pub(super) transaction: &'t SharedTransaction<'c>,
}

impl<A, H: SqlxBatchHandler<A>> Handler<A> for SqlxHandler<'_, '_, H> {
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        let mut transaction = self.transaction.lock().await;
        self.handler.handle(&mut transaction, entries).await
    }
}
