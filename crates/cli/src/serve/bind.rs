//! The addresses of a process.

use std::io;
use std::net::SocketAddr;

use anyhow::anyhow;
use tokio::net::TcpListener;

use crate::serve::exit::CommandError;

/// Listens on an address. The error says what to do.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, CommandError> {
    let bound = TcpListener::bind(address).await;
    let why = |error| anyhow!("cannot listen on {address}: {}", bind_failure(&error));
    bound.map_err(why).map_err(CommandError::cannot_start)
}

fn bind_failure(error: &io::Error) -> String {
    let known = BIND_FAILURES.iter().find(|(kind, _)| *kind == error.kind());
    known.map_or_else(|| error.to_string(), |(_, cause)| (*cause).to_owned())
}

const BIND_FAILURES: [(io::ErrorKind, &str); 3] = [
    (io::ErrorKind::AddrInUse, "another process listens there; stop it or choose another port"),
    (io::ErrorKind::AddrNotAvailable, "it is not an address of this host; 0.0.0.0 means all of them"),
    (io::ErrorKind::PermissionDenied, "this user may not use the port; choose one above 1023"),
];
