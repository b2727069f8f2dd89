//! Maintenance of a store, and what operators see of it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::key::RecordKey;
use crate::machine::Observed;
use crate::record::{Phase, Record, State, Timestamp};
use crate::store::{StoredRecord, Swapped, observe};

/// Maintenance of a store, apart from the operations of the protocol.
///
/// # Cancel safety
/// A dropped sweep may have removed some expired records, and a dropped purge may have removed its record. A dropped
/// check or scan changed nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use hapax::store::Memory;
/// # let store = Memory::new();
/// use hapax::Inspect;
///
/// for finding in store.check().await? {
///     println!("{:?}: {}", finding.severity, finding.message);
/// }
/// // About once a minute, in small batches, so that no other call waits for long.
/// while store.sweep(1000).await? > 0 {}
///
/// use hapax::store::{Scan, RecordStatus};
///
/// // Every record whose outcome is unknown, in chunks.
/// let mut scan = Scan::new(100).only(&[RecordStatus::Lapsed, RecordStatus::Indeterminate]);
/// loop {
///     let chunk = store.scan(&scan).await?;
///     for found in &chunk.records {
///         println!("{} under token {}", found.rk, found.record.token.0);
///     }
///     let Some(next) = chunk.next else { break };
///     scan = scan.from(next);
/// }
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not list its records",
    label = "does not implement `Inspect`",
    note = "pass a store of `hapax::stores`, or implement `Inspect`"
)]
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Removes up to `limit` expired records and returns how many it removed. Zero means that the pass is finished.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; sweeping again is safe.
    async fn sweep(&self, limit: usize) -> Result<usize>;

    /// Returns the live records of a part of the store, filtered. It writes nothing, and does not wait for attempts.
    ///
    /// A scan goes from its first chunk to the one without `next`. It returns at least once each record that exists
    /// from its beginning to its end and fits the filter all the time, however often the record changes meanwhile. It
    /// may return a record twice, and may leave out one that comes, goes or changes its status during the scan. Each
    /// record is as it was at one instant during the call.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; the same part can be asked for again. A damaged record is no error: the chunk names
    /// it.
    async fn scan(&self, ask: &Scan) -> Result<Chunk>;

    /// Removes a live record if it has not changed since `seen` was read, and raises the high-water mark to its token.
    /// [`Protocol::purge`](crate::store::Protocol::purge) decides which records may be removed; call that.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; purging again is safe.
    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped>;

    /// Checks whether the store can be used, and with which limits.
    ///
    /// # Errors
    /// The reason why the store cannot be reached.
    async fn check(&self) -> Result<Vec<Finding>>;

    /// Counts the live records whose outcome is held as unknown. `None` if the store cannot count them without reading
    /// every record.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; counting again is safe.
    async fn count_unknown(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// A problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether the store may be used despite it.
    pub severity: Severity,
    /// The problem and its remedy.
    pub message: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The store must not be used in this state.
    Refuse,
    /// The store works, with less than the full guarantee.
    Warn,
}

/// What is known about an operation, as an operator sees it. Each live record has one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordStatus {
    /// An attempt holds the lease.
    Running,
    /// The lease of the attempt has expired, or the attempt has abandoned it: the outcome is unknown.
    Lapsed,
    /// The effect happened, and the answer is recorded.
    Completed,
    /// Known not applied.
    Released,
    /// The outcome is unknown, and the next begin is refused.
    Indeterminate,
    /// Closed after too many attempts.
    Dead,
}

impl RecordStatus {
    /// The status of the live record that was seen; `None` if there was none.
    pub fn of(seen: &Observed) -> Option<Self> {
        Some(match &seen.live()?.state {
            State::Completed(_) => Self::Completed,
            State::Open(Phase::InProgress, holding) if seen.lease_left.is_zero() || holding.is_abandoned() => {
                Self::Lapsed
            }
            State::Open(Phase::InProgress, _) => Self::Running,
            State::Open(Phase::Released, _) => Self::Released,
            State::Open(Phase::Indeterminate, _) => Self::Indeterminate,
            State::Open(Phase::Dead, _) => Self::Dead,
        })
    }
}

/// Which part of a store a scan reads, and which of its records it returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    from: Option<ScanPosition>,
    limit: usize,
    only: Option<Vec<RecordStatus>>,
    idle_for: Duration,
}

impl Scan {
    /// From the beginning of the store, `limit` records a chunk before they are filtered. A store may read somewhat
    /// more. Memory is needed for that many answers.
    pub fn new(limit: usize) -> Self {
        Self { from: None, limit: limit.max(1), only: None, idle_for: Duration::ZERO }
    }

    /// From where the last chunk ended: its `next`.
    #[must_use]
    pub fn from(mut self, position: ScanPosition) -> Self {
        self.from = Some(position);
        self
    }

    /// Only records with one of these statuses.
    #[must_use]
    pub fn only(mut self, statuses: &[RecordStatus]) -> Self {
        self.only = Some(statuses.to_vec());
        self
    }

    /// Only records that were neither written nor renewed for this long: see [`Scanned::idle`].
    #[must_use]
    pub fn idle_for(mut self, idle: Duration) -> Self {
        self.idle_for = idle;
        self
    }

    /// How many records a chunk reads.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Where the chunk begins; `None` at the beginning of the store.
    pub fn position(&self) -> Option<&ScanPosition> {
        self.from.as_ref()
    }

    /// The record as a chunk returns it, for stores: `None` if it has expired or the filter leaves it out.
    pub fn admit(&self, rk: RecordKey, seen: Observed, idle: Duration) -> Option<Scanned> {
        let status = RecordStatus::of(&seen)?;
        let is_wanted = self.only.as_ref().is_none_or(|only| only.contains(&status)) && idle >= self.idle_for;
        is_wanted.then_some(Scanned { rk, status, idle, life_left: seen.life_left, record: seen.record? })
    }

    /// As [`admit`](Self::admit), for stores that keep instants.
    pub fn admit_stored(&self, rk: RecordKey, stored: &StoredRecord, now: Timestamp) -> Option<Scanned> {
        self.admit(rk, observe(Some(stored), now, stored.record.token), now.since(stored.armed_at))
    }
}

/// Where a scan continues. Only the store that returned it can read it, and only until its server starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPosition(pub Bytes);

/// A part of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The records that fit the filter. There may be none, even if the scan goes on.
    pub records: Vec<Scanned>,
    /// The keys of records that cannot be read.
    pub damaged: Vec<RecordKey>,
    /// Where the next chunk begins; `None` if this was the last one.
    pub next: Option<ScanPosition>,
}

/// A live record that a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The key of the record.
    pub rk: RecordKey,
    /// The record.
    pub record: Record,
    /// Its status by the clock of the store.
    pub status: RecordStatus,
    /// How long ago the record was written or last renewed, by the clock of the store. For a completed record, a store
    /// that keeps no instants tells about how long ago it was granted.
    pub idle: Duration,
    /// The remaining life of the record.
    pub life_left: Duration,
}
