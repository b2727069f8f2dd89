//! Finds out whether a connection leads straight to a server process.
//!
//! A pooler in transaction mode gives the same client another server process for each transaction. Statements that were
//! prepared in one of them are unknown in the others, or worse, have the name of another client's statement. So
//! statements are prepared only if the process that answers is the one that greeted the client: a pooler greets its
//! clients with a number of its own, because it has to route their requests to cancel.

use tokio::io::{AsyncReadExt, duplex};
use tokio_postgres::{Client, Error, NoTls};

/// The length of a request to cancel that names a process and its key of 4 bytes.
const CANCEL_REQUEST: usize = 16;

/// Whether the process that answers has the number with which the client was greeted. The connection must not use TLS:
/// the driver would first ask the memory below for TLS.
///
/// # Errors
/// As the query for the number.
pub(super) async fn is_direct(client: &Client) -> Result<bool, Error> {
    let Some(greeted_by) = greeting_process(client).await else { return Ok(false) };
    let answered_by = client.query_typed(include_str!("process.sql"), &[]).await?;
    Ok(answered_by.first().and_then(|row| row.try_get(0).ok()) == Some(greeted_by))
}

/// The number of the process that greeted the client. The driver shows it only in a request to cancel, which is written
/// to memory here.
async fn greeting_process(client: &Client) -> Option<i32> {
    let (mut request, theirs) = duplex(64);
    let written = client.cancel_token().cancel_query_raw(theirs, NoTls).await;
    written.ok()?;
    let mut bytes = [0; CANCEL_REQUEST];
    request.read_exact(&mut bytes).await.ok()?;
    let [.., a, b, c, d, _, _, _, _] = bytes;
    Some(i32::from_be_bytes([a, b, c, d]))
}
