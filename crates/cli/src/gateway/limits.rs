//! Every limit that holds against a hostile client, with its reason.

use std::time::Duration;

/// Request line and header fields together, in bytes; more is 431. As nginx takes by default: room for large cookies and tokens.
pub(crate) const HEAD_BYTES: usize = 32 << 10;

/// Header fields of one request; more are 431. No browser and no proxy comes near it.
pub(crate) const HEAD_FIELDS: usize = 100;

/// What is read at once of an HTTP/1 connection, in bytes: it must not fill the first buffer of hyper, of 8 KiB.
pub(crate) const READ_CAP: u64 = (8 << 10) - 1;

/// Requests at once on one HTTP/2 connection, as RFC 9113 recommends at least.
pub(crate) const STREAMS: u32 = 100;

/// What a client may send on an HTTP/2 connection before it is read, in bytes: as much as RFC 9113 starts with. It is kept in memory.
pub(crate) const WINDOW: u32 = (64 << 10) - 1;

/// Streams that a client opens and resets before they were looked at; more end the connection.
pub(crate) const RESET_STREAMS: usize = 20;

/// Bodies of protected requests up to this size always find room in memory. At the limit of connections they take 32 MiB.
pub(crate) const SMALL_BODY: usize = 8 << 10;

/// What larger ones share, in bytes; beyond it they are 503 `overloaded`. They are kept until the API has answered.
pub(crate) const BODY_MEMORY: usize = 16 << 20;

/// Connections of clients at once. The next ones wait in the backlog of the system.
const CONNECTIONS: usize = 4096;

/// From the end of one request to the end of the head of the next. Longer than the 60 s for which common load balancers keep
/// a connection: they close it first, and send no request into a connection that is just being closed.
const IDLE: Duration = Duration::from_secs(75);

/// A TLS handshake takes a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The whole body of a protected request, which is at most a few MiB: it is kept in memory while it arrives.
const BODY: Duration = Duration::from_secs(60);

/// Between two pieces of a body that streams, and for a client to take a piece of an answer.
const STALL: Duration = Duration::from_secs(60);

/// Until there is a connection to the API; at most half of what the API has in all, so that it is known that nothing was sent.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// Requests at once on one HTTP/2 connection to the API: as many as RFC 9113 wants every server to take. Further ones get a
/// connection of their own.
pub(crate) const API_STREAMS: usize = 100;

/// The limits that tests make shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) idle: Duration,
    pub(crate) handshake: Duration,
    pub(crate) body: Duration,
    pub(crate) stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: CONNECTIONS, idle: IDLE, handshake: HANDSHAKE, body: BODY, stall: STALL }
    }
}

/// For the help of the command.
pub(crate) const HELP: &str = "\
Limits: 4096 connections, more wait to be accepted; 32 KiB and 100 fields for the head of a request (431); 75 s from one \
request to the head of the next; 60 s for the body of a protected request (408, nothing is recorded; --request-body-timeout), and \
for each piece of another body; 16 MiB for the bodies of protected requests that are longer than 8 KiB, all together (503 \
`overloaded`); 60 s for a client to take a piece of an answer; 10 s for a TLS handshake; 100 requests at once on an HTTP/2 \
connection. While more comes than a core can serve, requests start in turn, tenant by tenant (by address without one), and so do \
connections, by address. To the API: 10 s, or half of --upstream-timeout, for a connection (502, nothing was sent); 100 requests \
at once on an HTTP/2 connection, more get another.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_tells_the_limits_that_hold() {
        let limits = Limits::default();
        for told in [
            format!("{} connections", limits.connections),
            format!("{} KiB and {HEAD_FIELDS} fields", HEAD_BYTES >> 10),
            format!("{} s from one", limits.idle.as_secs()),
            format!("{} s for the body", limits.body.as_secs()),
            format!("{} s for a client to take", limits.stall.as_secs()),
            format!("{} s for a TLS handshake", limits.handshake.as_secs()),
            format!("{STREAMS} requests at once"),
            format!("{} s, or half of --upstream-timeout, for a connection", CONNECT.as_secs()),
            format!("{API_STREAMS} requests at once on an HTTP/2 connection, more"),
            format!(
                "{} MiB for the bodies of protected requests that are longer than {} KiB",
                BODY_MEMORY >> 20,
                SMALL_BODY >> 10
            ),
        ] {
            assert!(HELP.contains(&told), "{told}");
        }
    }
}
