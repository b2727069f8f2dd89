use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the client sends.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// How far a request comes before its connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It never reaches the server, and the client is not told: the connection stays open, and what the client sends on it is lost.
    Silently,
    /// It never reaches the server, and the connection is reset.
    Unsent,
    /// It is sent, and the client's connection is reset at once: the server carries it out now or later.
    Sent,
    /// The server has answered; the answer is lost, and the connection reset. If others are under way on the same connection, it may
    /// have answered one of those.
    Answered,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Each piece arrives this much later, more or less by up to `jitter`, and in order. It hits pieces.
    Latency {
        /// How much later.
        delay: Duration,
        /// How much more or less.
        jitter: Duration,
    },
    /// Each piece arrives in portions of so many bytes, one each time. It hits pieces.
    Drip {
        /// The size of a portion, 1 or more.
        bytes: usize,
        /// The time before each.
        every: Duration,
    },
    /// What is sent in this direction is lost while the connection stays open, also after the fault is gone. It hits connections.
    HalfOpen(Direction),
    /// So many more bytes arrive in this direction, then the connection is reset. It hits connections.
    ResetAfter {
        /// The direction that is counted.
        direction: Direction,
        /// How many bytes arrive.
        bytes: u64,
    },
    /// The connection is lost on the request in which these bytes are. It hits pieces with them, once each.
    Cut {
        /// How far the request comes.
        at: Moment,
        /// Bytes of the request; none are in every request.
        matching: Vec<u8>,
    },
    /// These bytes, which nobody sent, reach the client ahead of a piece. It hits pieces of what the server sends.
    Stray(Vec<u8>),
    /// A new connection is accepted, and reset at once. It hits connections.
    Reject,
}

impl Fault {
    /// Loses the connection on a request with these bytes.
    pub fn cut(at: Moment, matching: impl AsRef<[u8]>) -> Self {
        Self::Cut { at, matching: matching.as_ref().to_owned() }
    }

    /// Hits so often at most.
    pub fn times(self, times: usize) -> Rule {
        Rule::from(self).times(times)
    }

    /// Lets so many go by first.
    pub fn after(self, skipped: usize) -> Rule {
        Rule::from(self).after(skipped)
    }
}

/// A fault, and when it hits; without more, always.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) fault: Fault,
    pub(super) skip: usize,
    pub(super) left: Option<usize>,
}

impl Rule {
    /// Hits so often at most.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { left: Some(times), ..self }
    }

    /// Lets so many go by first.
    #[must_use]
    pub fn after(self, skipped: usize) -> Self {
        Self { skip: skipped, ..self }
    }

    /// Whether it hits this time.
    pub(super) fn hits(&mut self) -> bool {
        if self.left == Some(0) {
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

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self { fault, skip: 0, left: None }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Of these, rejected by [`Fault::Reject`].
    pub rejected: u64,
    /// Of these, reset because the server could not be reached.
    pub unreachable: u64,
    /// Connections reset by [`Proxy::reset`](super::Proxy::reset).
    pub resets: u64,
    /// Connections lost by [`Fault::Cut`] and [`Fault::ResetAfter`].
    pub cuts: u64,
    /// Directions of connections that became deaf by [`Fault::HalfOpen`].
    pub half_open: u64,
    /// Pieces with strange bytes ahead by [`Fault::Stray`].
    pub strays: u64,
    /// Pieces held up by [`Fault::Latency`] and [`Fault::Drip`].
    pub held_up: u64,
}
