//! The limits that protect the gateway against hostile clients, each with its reason.

use std::time::Duration;

/// Request line and header fields together, in bytes; a longer head gets 431. The same as nginx: enough for large
/// cookies and tokens.
pub(crate) const HEAD_BYTES: usize = 32 << 10;

/// Header fields of one request; more fields get 431. Browsers and proxies stay far below.
pub(crate) const HEAD_FIELDS: usize = 100;

/// The most bytes that one read takes from an HTTP/1 connection: less than hyper's first buffer of 8 KiB, so that it
/// never grows.
pub(crate) const READ_CAP: u64 = (8 << 10) - 1;

/// Concurrent requests on one HTTP/2 connection: the least that RFC 9113 recommends.
pub(crate) const STREAMS: u32 = 100;

/// The bytes that a client may send on an HTTP/2 connection before the gateway reads them: the initial window of RFC
/// 9113. They stay in memory.
pub(crate) const WINDOW: u32 = (64 << 10) - 1;

/// Streams that a client may open and reset before they are accepted; more end the connection.
pub(crate) const RESET_STREAMS: usize = 20;

/// Bodies of protected requests up to this size are always admitted. At the limit of connections they occupy 32 MiB.
pub(crate) const SMALL_BODY: usize = 8 << 10;

/// The memory that larger bodies share, in bytes; a body beyond it gets 503 `overloaded`. A body stays in memory until
/// the API has answered.
pub(crate) const BODY_MEMORY: usize = 16 << 20;

/// Client connections at once. Further ones wait in the system's backlog.
const CONNECTIONS: usize = 4096;

/// Time from the end of one request to the end of the head of the next. Longer than the 60 s of common load balancers:
/// they close an idle connection first, and never send a request into a connection that the gateway is closing.
const IDLE: Duration = Duration::from_secs(75);

/// Time for a TLS handshake, which takes a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Time for the whole body of a protected request, which has at most a few MiB and stays in memory while it arrives.
const BODY: Duration = Duration::from_secs(60);

/// Time between two frames of a streamed body, and time for a client to read a part of a response.
const STALL: Duration = Duration::from_secs(60);

/// The limits that tests shorten.
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

/// The limits in the help of the command.
pub(crate) const HELP: &str = "\
Limits: 4096 connections, further ones wait to be accepted. 32 KiB and 100 fields for the head of a request (431). \
75 s from one request to the head of the next. 60 s for the body of a protected request (408, nothing is recorded; \
--request-body-timeout), and for each part of another body. 16 MiB for the bodies of protected requests that are \
longer than 8 KiB, all together (503 `overloaded`). 60 s for a client to read a part of a response. 10 s for a TLS \
handshake. 100 requests at once on an HTTP/2 connection. Under overload, requests start round-robin by tenant (by \
address if there is none), and connections by address. To the API: 10 s, or half of --upstream-timeout, for a \
connection (502, nothing was sent); 100 requests at once on an HTTP/2 connection, more open another.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::forward::CONNECT;
    use crate::upstream::http2::API_STREAMS;

    #[test]
    fn the_help_states_the_actual_limits() {
        let limits = Limits::default();
        for stated in [
            format!("{} connections", limits.connections),
            format!("{} KiB and {HEAD_FIELDS} fields", HEAD_BYTES >> 10),
            format!("{} s from one", limits.idle.as_secs()),
            format!("{} s for the body", limits.body.as_secs()),
            format!("{} s for a client to read", limits.stall.as_secs()),
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
            assert!(HELP.contains(&stated), "{stated}");
        }
    }
}
