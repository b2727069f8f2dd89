//! The clock of the service, from the field `Date` of its replies. Without I/O; the caller gives the times.
//!
//! A reply shows that the clock of the service was in its second at some moment between sending and receiving. As an
//! offset to the boot-time clock of this host that is an interval. The intervals of many replies have a common part,
//! which is as short as a round trip within a second or two of traffic.
//!
//! | row | a reply | does |
//! |---|---|---|
//! | **K1** | the first one | is kept. It counts when three replies over two connections agree |
//! | **K2** | agrees with the clock as it is known, and not with a rival | narrows the clock, and ends the rival |
//! | **K3** | agrees with both | changes nothing |
//! | **K4** | misses the clock by less than 250 ms | widens it: another host of the service has sent it |
//! | **K5** | misses it by more, and agrees with no rival | is a rival: the clock was stepped, or one host is wrong |
//! | **K6** | agrees with the rival only | confirms it. With three replies over two connections it is the clock |
//!
//! While there is a rival, both clocks count: a lease ends only when it has ended by both, and a write is stamped by
//! the later one.

use std::net::SocketAddr;
use std::time::Duration;

use hapax_core::Timestamp;
use parking_lot::Mutex;

const SECOND: i64 = 1_000_000;

/// A miss that is less than this, in microseconds, is another host of the service, and no step of its clock.
const JITTER: i64 = 250_000;

/// How many replies must agree on a step.
const PROOF: u32 = 3;

/// How much one of the two clocks may run ahead of the other, in microseconds a second.
const DRIFT: u128 = 200;

/// A clock that is known less exactly than this, in microseconds, is read once more before a record is written.
const COARSE: i64 = 1_500_000;

/// What a reply says of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatedReply {
    /// The second that the clock showed.
    pub(super) date: Timestamp,
    /// Before its request was sent, on the boot-time clock.
    pub(super) sent: Duration,
    /// When it arrived, on the boot-time clock.
    pub(super) received: Duration,
    /// Our end of the connection.
    pub(super) connection: Option<SocketAddr>,
}

/// The clock of the service.
#[derive(Debug, Default)]
pub(super) struct ServiceClock(Mutex<ClockState>);

#[derive(Debug, Default)]
struct ClockState {
    known: Option<Belief>,
    rival: Option<Belief>,
    last_stamp: Timestamp,
}

/// The instants that the clock may show now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockRange {
    pub(super) earliest: Timestamp,
    pub(super) latest: Timestamp,
}

/// The clock of the service minus the boot-time clock, in microseconds: from `least` to `most`.
#[derive(Clone, Copy, Debug)]
struct Offset {
    least: i64,
    most: i64,
    /// When that held, on the boot-time clock.
    at: Duration,
}

/// An offset, and the replies that agree on it.
#[derive(Clone, Copy, Debug)]
struct Belief {
    offset: Offset,
    replies: u32,
    first: Option<SocketAddr>,
    has_second: bool,
}

impl ServiceClock {
    /// Takes a reply into account.
    pub(super) fn judge(&self, reply: &DatedReply) {
        let (mut state, seen) = (self.0.lock(), Offset::of(reply));
        let ClockState { known, rival, .. } = &mut *state;
        let Some(known) = known else {
            *known = Some(Belief::new(seen, reply)); // K1
            return;
        };
        known.offset = known.offset.grown(reply.received);
        if let Some(rival) = rival {
            rival.offset = rival.offset.grown(reply.received);
        }
        let agrees = rival.map(|rival| rival.offset.meets(seen));
        match (known.offset.meets(seen), agrees) {
            (true, Some(true)) => {} // K3
            (true, Some(false) | None) => {
                known.confirm(seen, reply);
                *rival = None; // K2
            }
            (false, Some(true)) => *rival = rival.and_then(|rival| known.challenged_by(rival, seen, reply)), // K6
            (false, Some(false) | None) if known.offset.gap(seen) < JITTER => {
                known.offset = known.offset.hull(seen); // K4
                *rival = None;
            }
            (false, Some(false) | None) => *rival = Some(Belief::new(seen, reply)), // K5
        }
    }

    /// The instants that the clock may show at this time. None before the first reply.
    pub(super) fn range(&self, now: Duration) -> Option<ClockRange> {
        self.0.lock().range(now)
    }

    /// Whether records may be written by it: three replies over two connections have agreed on it.
    pub(super) fn is_proven(&self) -> bool {
        self.0.lock().known.is_some_and(|known| known.is_proven())
    }

    /// Whether it need not be asked for: it is proven, no reply disagrees, and it is known to a second or so.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        let state = self.0.lock();
        let is_proven = state.known.is_some_and(|known| known.is_proven()) && state.rival.is_none();
        is_proven && state.range(now).is_some_and(|range| range.width() <= COARSE)
    }

    /// The instant of a write: the latest one that the clock may show, and never twice the same. None before the first
    /// reply.
    pub(super) fn stamp(&self, now: Duration) -> Option<Timestamp> {
        let mut state = self.0.lock();
        let latest = state.range(now)?.latest;
        let last = state.last_stamp;
        // After a step back the stamps begin again.
        let is_near = last.since(latest) < Duration::from_secs(2);
        state.last_stamp = if is_near { latest.max(Timestamp(last.0 + 1)) } else { latest };
        Some(state.last_stamp)
    }
}

impl ClockState {
    fn range(&self, now: Duration) -> Option<ClockRange> {
        let known = self.known?.offset.grown(now);
        let hull = self.rival.map_or(known, |rival| known.hull(rival.offset.grown(now)));
        let shown = |offset: i64| Timestamp(u64::try_from(micros(now).saturating_add(offset)).unwrap_or_default());
        Some(ClockRange { earliest: shown(hull.least), latest: shown(hull.most) })
    }
}

impl ClockRange {
    /// In microseconds.
    fn width(self) -> i64 {
        micros(self.latest.since(self.earliest))
    }

    pub(super) fn uncertainty(self) -> Duration {
        self.latest.since(self.earliest)
    }
}

impl Offset {
    fn of(reply: &DatedReply) -> Self {
        let date = i64::try_from(reply.date.0).unwrap_or(i64::MAX / 2);
        let (sent, received) = (micros(reply.sent), micros(reply.received));
        Self { least: date - received, most: date + SECOND - sent, at: reply.received }
    }

    /// The offset at a later time: the two clocks do not run at quite the same pace.
    fn grown(self, now: Duration) -> Self {
        let passed = now.saturating_sub(self.at).as_micros();
        let drift = i64::try_from(passed * DRIFT / 1_000_000).unwrap_or(i64::MAX / 4);
        if drift == 0 {
            // The time since then still counts.
            return self;
        }
        Self { least: self.least - drift, most: self.most + drift, at: self.at.max(now) }
    }

    fn meets(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }

    fn narrowed(self, other: Self) -> Self {
        Self { least: self.least.max(other.least), most: self.most.min(other.most), at: self.at.min(other.at) }
    }

    fn hull(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most), at: self.at.min(other.at) }
    }

    /// How far the two miss each other.
    fn gap(self, other: Self) -> i64 {
        (other.least - self.most).max(self.least - other.most)
    }
}

impl Belief {
    fn new(offset: Offset, reply: &DatedReply) -> Self {
        Self { offset, replies: 1, first: reply.connection, has_second: false }
    }

    fn confirm(&mut self, seen: Offset, reply: &DatedReply) {
        self.offset = self.offset.narrowed(seen);
        self.replies = self.replies.saturating_add(1);
        // A connection that is not known may be the first one.
        self.has_second |= reply.connection.is_some() && self.first.is_some() && reply.connection != self.first;
    }

    fn is_proven(&self) -> bool {
        self.replies >= PROOF && self.has_second
    }

    /// Gives way to a rival that has enough replies. Returns the rival if it has not.
    fn challenged_by(&mut self, mut rival: Self, seen: Offset, reply: &DatedReply) -> Option<Self> {
        rival.confirm(seen, reply);
        if !rival.is_proven() {
            return Some(rival);
        }
        *self = rival;
        None
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests;
