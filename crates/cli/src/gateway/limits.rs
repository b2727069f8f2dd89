//! The limits that protect the gateway against hostile clients, each with its reason.

pub(crate) mod shares;
pub(crate) mod trusted_proxies;

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

/// The bytes that a client may send on an HTTP/2 stream before the gateway reads them: the initial window of RFC 9113.
/// They stay in memory.
pub(crate) const WINDOW: u32 = (64 << 10) - 1;

/// The same for all streams of an HTTP/2 connection together: three bodies that wait for an API leave room for others.
/// Larger windows would be memory that only the number of connections bounds.
pub(crate) const CONNECTION_WINDOW: u32 = 256 << 10;

/// Streams that a client may open and reset before they are accepted; more end the connection.
pub(crate) const RESET_STREAMS: usize = 20;

/// Bodies of protected requests up to this size are always admitted over HTTP/1. At the limit of connections they
/// occupy 32 MiB. An HTTP/2 connection may have a hundred at once, so there every byte is counted. The same holds for
/// answers that wait for their clients.
pub(crate) const SMALL_BODY: usize = 8 << 10;

/// The memory that larger bodies share, in bytes; a body beyond it gets 503 `overloaded`. A body stays in memory until
/// the API has answered.
pub(crate) const BODY_MEMORY: usize = 16 << 20;

/// The bytes of one piece of an answer on an HTTP/2 stream. The client must take each piece within the stall limit.
pub(crate) const ANSWER_PIECE: usize = 64 << 10;

/// Bytes that a client has sent once an HTTP/2 connection has begun: the preface, and an empty SETTINGS frame.
pub(crate) const HTTP2_START: u64 = 24 + 9;

/// How long an upload may be slower than its least rate at its start, unless the stall limit is shorter.
pub(crate) const UPLOAD_GRACE: Duration = Duration::from_secs(10);

/// Client connections at once. Further ones wait in the system's backlog.
const CONNECTIONS: usize = 4096;

/// The limits that a user or a test may change. Their defaults are those of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    /// Time from the end of one request to the end of the head of the next.
    pub(crate) idle: Duration,
    /// Time for a TLS handshake, for the first bytes of HTTP/2 after it, and for a connection to end
    /// after it was asked to and has no request left.
    pub(crate) handshake: Duration,
    /// Time for the whole body of a protected request, which stays in memory while it arrives.
    pub(crate) body: Duration,
    /// Time between two frames of a streamed body, and time for a client to read a part of a response.
    pub(crate) stall: Duration,
    /// The least rate of an upload in bytes per second. 0 is no limit.
    pub(crate) upload_rate: usize,
    /// The bytes of all answers that wait for their clients.
    pub(crate) answer_memory: usize,
    /// The percentage of each resource that one address may hold.
    pub(crate) address_share: usize,
    /// The protected requests that may run at once. The gate enforces this limit.
    pub(crate) in_flight: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            idle: Duration::from_secs(75),
            handshake: Duration::from_secs(10),
            body: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            upload_rate: 500,
            answer_memory: 64 << 20,
            address_share: 50,
            in_flight: 4096,
        }
    }
}

/// The limits in the help of the command.
pub(crate) const HELP: &str = "\
Limits: 4096 connections, further ones wait to be accepted. 32 KiB and 100 fields for the head of a request (431). 10 \
s for a TLS handshake and for the start of HTTP/2 after it (--handshake-timeout). 75 s for the first head, also for \
the start of HTTP/2 without TLS, and from one request to the head of the next; as long for a WebSocket without a \
byte, or up to twice as long (--idle-timeout). 60 s for the body of a protected request (408, nothing is recorded; \
--request-body-timeout), and for each part of another body (--stall-timeout). 500 bytes per second for an upload, \
after 10 s or a shorter --stall-timeout (408; --upload-rate). 5 s without data and 30 s in all for the rest of a body \
over HTTP/1 that is refused. 16 MiB for the bodies of protected requests that are longer than 8 KiB, all together \
(503 `overloaded`). 64 MiB for answers that clients have not read (503 `overloaded`; --answer-memory). 60 s for a \
client to read a part of a response. 100 requests at once on an HTTP/2 connection, and 256 KiB of bodies that the API \
has not read. One address holds at most 50 % of the connections, of both memories and of the running requests \
(--address-share, --trusted-proxy). Under overload, requests start round-robin by tenant (by address if there is \
none), and connections by address. To the API: 10 s, or half of --upstream-timeout, for a connection (502, nothing \
was sent); 100 requests at once on an HTTP/2 connection, more open another.";

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
            format!("{} s for the first head", limits.idle.as_secs()),
            format!("{} s for the body", limits.body.as_secs()),
            format!("{} s for a client to read", limits.stall.as_secs()),
            format!("{} s for a TLS handshake", limits.handshake.as_secs()),
            format!("{} bytes per second for an upload, after {} s", limits.upload_rate, UPLOAD_GRACE.as_secs()),
            format!("{} MiB for answers", limits.answer_memory >> 20),
            format!("at most {} %", limits.address_share),
            format!("{STREAMS} requests at once"),
            format!("{} KiB of bodies", CONNECTION_WINDOW >> 10),
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
