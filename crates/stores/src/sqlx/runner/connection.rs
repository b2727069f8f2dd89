use sqlx::pool::PoolConnection;
use sqlx::postgres::Postgres;
use sqlx::{Connection, PgPool, Transaction};

/// A connection of the pool. If it is dropped before its [end](Self::end), it is closed, and the server rolls back:
/// another user of the pool never gets it with an open transaction.
pub(super) struct HeldConnection(Option<PoolConnection<Postgres>>);

impl HeldConnection {
    pub(super) async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    fn get(&self) -> &PoolConnection<Postgres> {
        self.0.as_ref().expect("the connection is here until its end")
    }

    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
        self.0.as_mut().expect("the connection is here until its end").begin_with(begin).await
    }

    /// Whether a transaction or a savepoint is open, as far as the driver knows.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.get().is_in_transaction()
    }

    /// Returns the connection to the pool: the server has answered, and no transaction is open.
    pub(super) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        if let Some(mut connection) = self.0.take() {
            connection.close_on_drop();
        }
    }
}
