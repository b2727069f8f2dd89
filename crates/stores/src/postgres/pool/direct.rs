//! Finds out whether a connection leads straight to a server process, and pins the search path of one.
//!
//! A pooler in transaction mode gives the same client another server process for each transaction. Statements that were
//! prepared in one of them are unknown in the others, or worse, have the name of another client's statement; and a
//! setting would be that of other clients, too. So both are done only if the process that answers is the one that
//! greeted the client: a pooler greets its clients with a number of its own, because it has to route their requests to
//! cancel.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// Sets the search path of the session to the system's schema if the process that answers has the number with which the
/// client was greeted. Returns whether it has.
///
/// # Errors
/// As the statement.
pub(super) async fn pin(client: &Client) -> Result<bool, Error> {
    let Some(greeted_by) = greeting_process(client).await else { return Ok(false) };
    let pinned = client.query_typed(include_str!("pin.sql"), &[(&greeted_by, Type::INT4)]).await?;
    Ok(!pinned.is_empty())
}

/// Whether the process that answers has the number with which the client was greeted.
///
/// # Errors
/// As the statement.
pub(super) async fn is_direct(client: &Client) -> Result<bool, Error> {
    let Some(greeted_by) = greeting_process(client).await else { return Ok(false) };
    let found = client.query_typed(include_str!("is_direct.sql"), &[(&greeted_by, Type::INT4)]).await?;
    Ok(!found.is_empty())
}

/// The number of the process that greeted the client. The driver shows it only in a request to cancel, which is written
/// to memory here.
async fn greeting_process(client: &Client) -> Option<i32> {
    let (mut ours, theirs) = duplex(64);
    // What a server with TLS replies. Without TLS, nobody reads it.
    ours.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(theirs, NoEncryption).await.ok()?;
    let mut request = Vec::new();
    ours.read_to_end(&mut request).await.ok()?;
    // The request ends with the number and a key of 4 bytes.
    let [.., a, b, c, d, _, _, _, _] = request[..] else { return None };
    Some(i32::from_be_bytes([a, b, c, d]))
}

/// Takes the memory for an encrypted stream.
struct NoEncryption;

struct PlainStream(DuplexStream);

impl TlsConnect<DuplexStream> for NoEncryption {
    type Stream = PlainStream;
    type Error = Infallible;
    type Future = Ready<Result<PlainStream, Infallible>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(PlainStream(stream)))
    }
}

impl TlsStream for PlainStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
