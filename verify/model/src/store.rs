//! The store: one slot for each record key, read and changed in atomic steps.

use std::time::Duration;

use hapax_core::machine::{Change, Observed};
use hapax_core::store::{StoredRecord, is_unchanged};
use hapax_core::{Record, Seconds, Timestamp, Token};

use crate::ask::Reply;
use crate::kept::{Held, Kept, clock};

/// How many record keys there are at most.
pub(crate) const KEYS: usize = 2;

/// An instant later than any that a token is minted from.
const LATER: Duration = Duration::from_secs(1);

/// Everything that the store knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) slots: [Slot; KEYS],
    pub(crate) mark: u8,
}

/// What is stored under one record key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) record: Option<Kept>,
    pub(crate) lease: Lease,
    /// Past its life, and not swept yet.
    pub(crate) expired: bool,
}

/// How far the lease of a record in progress has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Lease {
    #[default]
    Over,
    Runs,
    /// More of it is left than it is long: the store's clock stepped back. It does not end by itself.
    Overlong,
}

/// A change on its way to the store, with what must still stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Swap {
    pub(crate) seen: Option<Kept>,
    pub(crate) seen_expired: bool,
    pub(crate) seen_lapsed: bool,
    /// Whether the record was armed anew, as the same value, since it was seen. Stores tell by its expiry.
    pub(crate) renewed: bool,
    pub(crate) next: Kept,
    pub(crate) reply: Reply,
}

impl Slot {
    /// The record, unless it expired.
    pub(crate) fn live(&self) -> Option<&Kept> {
        self.record.as_ref().filter(|_| !self.expired)
    }

    /// Whether the lease of what is there is over, also for good.
    pub(crate) fn lapsed(&self) -> bool {
        let abandoned = self.record.as_ref().and_then(Kept::in_progress).is_some_and(Held::is_abandoned);
        abandoned || self.lease == Lease::Over
    }

    /// What a step sees.
    pub(crate) fn observe(&self, now: u8, mark: u8) -> Observed {
        let lease = self.record.as_ref().and_then(Kept::in_progress).map(|held| held.lease).unwrap_or_default();
        let lease = Duration::from_millis(lease.into());
        Observed {
            record: self.record.as_ref().map(Record::from),
            lease_left: match self.lease {
                Lease::Over => Duration::ZERO,
                Lease::Runs => lease,
                Lease::Overlong => 2 * lease,
            },
            life_left: if self.expired { Duration::ZERO } else { LATER },
            now: clock(now),
            token_high_water: Token(mark.into()),
        }
    }

    /// The change, on its way and bound to what is there now.
    pub(crate) fn swap(&self, change: &Change, reply: Reply) -> Swap {
        Swap {
            seen: self.record,
            seen_expired: self.expired,
            seen_lapsed: self.lapsed(),
            renewed: false,
            next: Kept::from(&change.record),
            reply,
        }
    }

    /// Whether the swap's condition holds: the core's own, on instants that say no more than whether the record was armed anew.
    pub(crate) fn admits(&self, swap: &Swap) -> bool {
        let (then, now) = (Timestamp(0), Timestamp(1));
        let expires = match (self.expired, swap.renewed) {
            (true, _) => now,
            (false, false) => then.plus(LATER),
            (false, true) => then.plus(2 * LATER),
        };
        let stored =
            self.record.as_ref().map(|kept| StoredRecord { record: kept.into(), armed_at: then, expires_at: expires });
        let seen = Observed {
            record: swap.seen.as_ref().map(Record::from),
            lease_left: Duration::ZERO,
            life_left: if swap.seen_expired { Duration::ZERO } else { LATER },
            now: then,
            token_high_water: Token(0),
        };
        is_unchanged(stored.as_ref(), &seen, now)
    }

    /// Writes a record, and arms its lease and its life.
    pub(crate) fn write(&mut self, next: Kept) {
        let runs = next.in_progress().is_some_and(|held| !held.is_abandoned());
        *self = Self { record: Some(next), lease: if runs { Lease::Runs } else { Lease::Over }, expired: false };
    }

    /// The lease runs out; the record, too, if it lives no longer.
    pub(crate) fn lapse(&mut self) {
        self.lease = Lease::Over;
        let held = self.record.as_ref().and_then(Kept::in_progress);
        self.expired |=
            held.is_some_and(|held| Duration::from(Seconds(held.lifetime)) <= Duration::from_millis(held.lease.into()));
    }
}
