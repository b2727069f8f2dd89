//! Ports for servers that may have to come back on the same one.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Below the ports that the system gives to outgoing connections, so that none of those takes a port while its server is down. A node
/// of a cluster takes the port 10,000 above as well.
const FIRST: u64 = 10_000;
const COUNT: u64 = 12_000;

/// An address of this machine alone on which nothing listens now. Another process may be quicker.
pub(crate) fn free() -> io::Result<SocketAddr> {
    listen()?.local_addr()
}

/// Listens on one of them.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let start = RandomState::new().hash_one(std::process::id());
    let mut ports = (0..COUNT).filter_map(|step| u16::try_from(FIRST + start.wrapping_add(step) % COUNT).ok());
    let listener = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    listener.ok_or_else(|| io::Error::other("every port is taken"))
}
