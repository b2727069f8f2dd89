//! Ports for servers that may have to restart on the same port.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Below the system's range for outgoing connections, so that none of them takes a port while its server is down. A
/// server may also use the ports 5,000 and 10,000 above its own, which belong to no other server.
const FIRST: u64 = 10_000;
const COUNT: u64 = 5_000;

/// A loopback address on which nothing listens now. Another process may take it before the caller does.
pub(crate) fn free() -> io::Result<SocketAddr> {
    listen()?.local_addr()
}

/// Several such addresses.
pub(crate) fn several(count: usize) -> io::Result<Vec<SocketAddr>> {
    // All are held until all are known, so that they differ.
    let listeners = (0..count).map(|_| listen()).collect::<io::Result<Vec<_>>>()?;
    listeners.iter().map(TcpListener::local_addr).collect()
}

/// Listens on a free port of the range.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let start = RandomState::new().hash_one(std::process::id());
    let mut ports = (0..COUNT).filter_map(|step| u16::try_from(FIRST + start.wrapping_add(step) % COUNT).ok());
    let listener = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    listener.ok_or_else(|| io::Error::other("every port is taken"))
}
