//! What a store saw, and what the machine decides from it.

use std::time::Duration;

use crate::record::{Holding, Phase, Record, Seconds, State, Timestamp, Token};

/// What a store saw for one record key, read in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The stored record, also when it is expired. [`Observed::live`] leaves expired records out.
    pub record: Option<Record>,
    /// The remaining lease. Zero when the lease expired, and for every record that is not in progress.
    pub lease_left: Duration,
    /// The remaining life of the record. A record with no life left counts as absent.
    pub life_left: Duration,
    /// The store's clock.
    pub now: Timestamp,
    /// The largest token that the store knows of, under any record key.
    pub token_high_water: Token,
}

impl Observed {
    /// The live record: its lifetime has not ended, whatever its lease.
    pub fn live(&self) -> Option<&Record> {
        self.record.as_ref().filter(|_| !self.life_left.is_zero())
    }

    /// Whether an attempt is in progress and its lease has not expired.
    pub fn is_running(&self) -> bool {
        let phase = self.live().and_then(|record| record.state.phase());
        phase == Some(Phase::InProgress) && !self.lease_left.is_zero()
    }

    /// The live record, if it is open: no answer is recorded.
    pub(super) fn open(&self) -> Option<(&Record, Phase, &Holding)> {
        let record = self.live()?;
        match &record.state {
            State::Completed(_) => None,
            State::Open(phase, holding) => Some((record, *phase, holding)),
        }
    }

    /// When the record was last written or renewed, which started its lease and its life.
    pub(super) fn armed_at(&self, holding: &Holding) -> Timestamp {
        let age = Duration::from(holding.lifetime).saturating_sub(self.life_left);
        Timestamp(self.now.0.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// What the machine decided about an operation.
///
/// ```
/// use hapax::machine::{Decision, Observed};
/// use hapax::store::{Store, Swapped};
/// use hapax::{RecordKey, Result};
///
/// /// Returns `None` if the record changed since it was read. The caller then reads and decides again.
/// async fn carry_out<R>(
///     store: &dyn Store,
///     rk: &RecordKey,
///     decide: fn(&Observed) -> Decision<R>,
/// ) -> Result<Option<R>> {
///     let seen = store.read(rk).await?;
///     match decide(&seen) {
///         Decision::Reply(reply) => Ok(Some(reply)),
///         Decision::Change(next, reply) => Ok((store.swap(rk, &seen, &next).await? == Swapped::Yes).then_some(reply)),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision<R> {
    /// Write nothing and return this reply.
    Reply(R),
    /// Write this change if the record is still the observed one, then return this reply.
    Change(Change, R),
}

impl<R> Decision<R> {
    /// The same decision with another reply.
    pub fn map<S>(self, convert: impl FnOnce(R) -> S) -> Decision<S> {
        match self {
            Self::Reply(reply) => Decision::Reply(convert(reply)),
            Self::Change(change, reply) => Decision::Change(change, convert(reply)),
        }
    }
}

/// A record to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new record. Its lease starts when it is written.
    pub record: Record,
    /// How long the record lives after it is written.
    pub lifetime: Seconds,
}
