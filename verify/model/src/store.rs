//! The store: one slot for each record key, read and changed in atomic steps.

use std::time::Duration;

use hapax_core::machine::{Change, Observed};
use hapax_core::store::{StoredRecord, is_unchanged};
use hapax_core::{Record, Seconds, Timestamp, Token};

use crate::record::{ModelHolding, ModelRecord, clock};
use crate::reply::ProtocolReply;

/// The largest number of record keys.
pub(crate) const KEYS: usize = 2;

/// The lifetime of a record that has not expired: longer than any run of the model's clock.
const LONG_LIFE: Duration = Duration::from_secs(1);

/// The content of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelStore {
    pub(crate) slots: [StoreSlot; KEYS],
    pub(crate) mark: u8,
}

/// The record under one record key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StoreSlot {
    pub(crate) record: Option<ModelRecord>,
    pub(crate) lease: LeaseStatus,
    /// Whether the record has expired and is not swept yet.
    pub(crate) expired: bool,
}

/// The lease of a record in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum LeaseStatus {
    #[default]
    Over,
    Runs,
    /// More time is left than the lease is long, because the store's clock stepped back. It does not expire by itself.
    Overlong,
}

/// A change on its way to the store, with the record that must still be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PendingSwap {
    pub(crate) seen: Option<ModelRecord>,
    pub(crate) seen_expired: bool,
    pub(crate) seen_lapsed: bool,
    /// Whether the record was re-armed with the same value since it was read. Stores detect that by its expiry.
    pub(crate) renewed: bool,
    pub(crate) next: ModelRecord,
    pub(crate) reply: ProtocolReply,
}

impl StoreSlot {
    /// The record, unless it has expired.
    pub(crate) fn live(&self) -> Option<&ModelRecord> {
        self.record.as_ref().filter(|_| !self.expired)
    }

    /// Whether the lease has expired, or the grant was abandoned.
    pub(crate) fn lapsed(&self) -> bool {
        let abandoned = self.record.as_ref().and_then(ModelRecord::in_progress).is_some_and(ModelHolding::is_abandoned);
        abandoned || self.lease == LeaseStatus::Over
    }

    /// The record as one step observes it.
    pub(crate) fn observe(&self, now: u8, mark: u8) -> Observed {
        let lease = self.record.as_ref().and_then(ModelRecord::in_progress).map(|held| held.lease).unwrap_or_default();
        let lease = Duration::from_millis(lease.into());
        Observed {
            record: self.record.as_ref().map(Record::from),
            lease_left: match self.lease {
                LeaseStatus::Over => Duration::ZERO,
                LeaseStatus::Runs => lease,
                LeaseStatus::Overlong => 2 * lease,
            },
            life_left: if self.expired { Duration::ZERO } else { LONG_LIFE },
            now: clock(now),
            token_high_water: Token(mark.into()),
        }
    }

    /// Returns the swap that writes this change if the record is still the present one.
    pub(crate) fn pending_swap(&self, change: &Change, reply: ProtocolReply) -> PendingSwap {
        PendingSwap {
            seen: self.record,
            seen_expired: self.expired,
            seen_lapsed: self.lapsed(),
            renewed: false,
            next: ModelRecord::from(&change.record),
            reply,
        }
    }

    /// Whether the swap's condition holds, as the core's `is_unchanged` decides. The model's records have no instants,
    /// so the ones here only encode two facts: whether the record has expired, and whether it was re-armed.
    pub(crate) fn admits(&self, swap: &PendingSwap) -> bool {
        let (then, now) = (Timestamp(0), Timestamp(1));
        let expires = match (self.expired, swap.renewed) {
            (true, _) => now,
            (false, false) => then.plus(LONG_LIFE),
            (false, true) => then.plus(2 * LONG_LIFE),
        };
        let stored =
            self.record.as_ref().map(|kept| StoredRecord { record: kept.into(), armed_at: then, expires_at: expires });
        let seen = Observed {
            record: swap.seen.as_ref().map(Record::from),
            lease_left: Duration::ZERO,
            life_left: if swap.seen_expired { Duration::ZERO } else { LONG_LIFE },
            now: then,
            token_high_water: Token(0),
        };
        is_unchanged(stored.as_ref(), &seen, now)
    }

    /// Writes a record and arms its lease and its lifetime.
    pub(crate) fn write(&mut self, next: ModelRecord) {
        let runs = next.in_progress().is_some_and(|held| !held.is_abandoned());
        *self = Self {
            record: Some(next),
            lease: if runs { LeaseStatus::Runs } else { LeaseStatus::Over },
            expired: false,
        };
    }

    /// The lease expires. The record expires too if its lifetime is no longer than the lease.
    pub(crate) fn lapse(&mut self) {
        self.lease = LeaseStatus::Over;
        let held = self.record.as_ref().and_then(ModelRecord::in_progress);
        self.expired |=
            held.is_some_and(|held| Duration::from(Seconds(held.lifetime)) <= Duration::from_millis(held.lease.into()));
    }
}
