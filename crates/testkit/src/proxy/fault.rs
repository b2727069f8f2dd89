use std::time::Duration;

/// The direction of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// How far a request gets, and what happens to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutPoint {
    /// The request never reaches the server. The connection stays open and loses everything that the client sends.
    Silently,
    /// The request never reaches the server, and the connection is reset.
    Unsent,
    /// The request is sent, and the client's connection is reset at once. The server executes it now or later.
    Sent,
    /// The server has replied; the reply is lost, and the connection reset. If several requests are in flight on the
    /// connection, the reply may belong to another one.
    Answered,
}

/// A network fault. [`times`](Self::times) and [`after`](Self::after) count pieces (the bytes of one read) or
/// connections; each variant says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Each piece is delayed, and the order is kept. Counts per piece.
    Latency {
        /// The delay.
        delay: Duration,
        /// The largest random deviation from the delay.
        jitter: Duration,
    },
    /// Each piece arrives in portions, one after the other. Counts per piece.
    Drip {
        /// The size of a portion, 1 or more.
        bytes: usize,
        /// The time before each portion.
        every: Duration,
    },
    /// Bytes in this direction are lost while the connection stays open, even after the fault is removed. Counts per
    /// connection.
    HalfOpen(Direction),
    /// The connection is reset after this many more bytes in this direction. Counts per connection.
    ResetAfter {
        /// The direction that is counted.
        direction: Direction,
        /// The number of bytes that still arrive.
        bytes: u64,
    },
    /// A fault at a request that contains these bytes. Counts once for each piece with these bytes.
    Cut {
        /// How far the request gets.
        at: CutPoint,
        /// Bytes of the request. An empty list matches every request.
        matching: Vec<u8>,
    },
    /// The client receives these bytes, which the server did not send, ahead of a piece from the server. Counts per
    /// piece.
    Stray(Vec<u8>),
    /// A new connection is accepted and reset at once. Counts per connection.
    Reject,
}

impl NetworkFault {
    /// A [`Cut`](Self::Cut) at a request that contains these bytes.
    pub fn cut(at: CutPoint, matching: impl AsRef<[u8]>) -> Self {
        Self::Cut { at, matching: matching.as_ref().to_owned() }
    }

    /// Limits how often the fault takes effect.
    pub fn times(self, times: usize) -> FaultRule {
        FaultRule::from(self).times(times)
    }

    /// Skips this many pieces or connections first.
    pub fn after(self, skipped: usize) -> FaultRule {
        FaultRule::from(self).after(skipped)
    }
}

/// A fault, and how often it takes effect: always, unless limited.
#[derive(Clone, Debug)]
pub struct FaultRule {
    pub(super) fault: NetworkFault,
    pub(super) skip: usize,
    pub(super) left: Option<usize>,
}

impl FaultRule {
    /// Limits how often the fault takes effect.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { left: Some(times), ..self }
    }

    /// Skips this many pieces or connections first.
    #[must_use]
    pub fn after(self, skipped: usize) -> Self {
        Self { skip: skipped, ..self }
    }

    /// Whether the fault takes effect no more.
    pub(super) fn is_used_up(&self) -> bool {
        self.left == Some(0)
    }

    /// Counts one piece or connection that the fault could affect. Returns whether the fault takes effect on it.
    pub(super) fn takes_effect(&mut self) -> bool {
        if self.is_used_up() {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.left = self.left.map(|left| left - 1);
        true
    }
}

impl From<NetworkFault> for FaultRule {
    fn from(fault: NetworkFault) -> Self {
        Self { fault, skip: 0, left: None }
    }
}

/// What the proxy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Accepted connections.
    pub connections: u64,
    /// Connections rejected by [`NetworkFault::Reject`].
    pub rejected: u64,
    /// Connections reset because the server could not be reached.
    pub unreachable: u64,
    /// Connections reset by [`Proxy::reset`](super::Proxy::reset).
    pub resets: u64,
    /// Connections affected by [`NetworkFault::Cut`] and [`NetworkFault::ResetAfter`], also those that stay open.
    pub cuts: u64,
    /// Directions of connections that lose all bytes by [`NetworkFault::HalfOpen`].
    pub half_open: u64,
    /// Pieces preceded by extra bytes by [`NetworkFault::Stray`].
    pub strays: u64,
    /// Pieces delayed by [`NetworkFault::Latency`] and [`NetworkFault::Drip`].
    pub held_up: u64,
}
