//! Notifications of the server.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, ready};

use futures_util::future::select;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::ConnectionPool;
use crate::postgres::call_error::PostgresCallError;

impl ConnectionPool {
    /// Opens a connection beside those of the pool, runs this statement, and calls `notified` once, and then for each
    /// notification, until the connection ends.
    ///
    /// # Cancel safety
    /// If dropped, the connection is closed.
    pub(crate) async fn listen(&self, statement: &str, notified: impl Fn()) -> Result<(), PostgresCallError> {
        let parts = &self.connector;
        let config = parts.url.config().map_err(PostgresCallError::Judged)?;
        let Some(tls) = parts.tls()? else {
            let (client, connection) = config.connect(NoTls).await.map_err(PostgresCallError::NotConnected)?;
            return heed(client, connection, statement, notified).await;
        };
        let connected = config.connect(MakeRustlsConnect::new(tls)).await;
        let (client, connection) = connected.map_err(PostgresCallError::NotConnected)?;
        heed(client, connection, statement, notified).await
    }
}

/// Runs the statement on the connection, and reads notifications until it ends.
async fn heed<S, T>(
    client: Client,
    mut connection: Connection<S, T>,
    statement: &str,
    notified: impl Fn(),
) -> Result<(), PostgresCallError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let messages = poll_fn(|context| {
        while let Some(message) = ready!(connection.poll_message(context)) {
            if let AsyncMessage::Notification(_) = message? {
                notified();
            }
        }
        Poll::Ready(Ok(()))
    });
    let statement = async {
        client.batch_execute(statement).await?;
        notified();
        // The connection ends when its client is dropped.
        std::future::pending().await
    };
    let ended = select(pin!(messages), pin!(statement)).await.factor_first().0;
    ended.map_err(PostgresCallError::Sent)
}
