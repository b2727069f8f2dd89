//! What a backend must be able to do: five operations, each one atomic step and safe to repeat.
//!
//! [`contract`] has the clauses, each with a number that the conformance suite names. A store stores; what a record becomes is
//! judged by [`machine`](crate::machine) alone. [`Protocol`] carries every row of its table out over a store.

pub mod contract {
    #![doc = include_str!("store/contract.md")]
}
mod memory;
mod protocol;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::chaos;
use crate::error::Result;
use crate::key::RecordKey;
use crate::machine::{Begin, Change, Claim, Complete, Completed, Grant, Observed, Renewed};
use crate::record::{Phase, Record, State, Timestamp, Token};

pub use memory::{Memory, MemorySettings};
pub use protocol::Protocol;

/// A place for records. See the [`contract`] for what each operation promises.
///
/// # Cancel safety
/// A dropped future means *unknown*: the step may still be carried out. Repeating it is always safe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax_core::Result<()> {
/// # let (ask, _, _) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// use std::sync::Arc;
/// use hapax_core::Store;
/// use hapax_core::machine::{Claim, Renewed};
/// use hapax_core::store::{Inserted, Memory};
///
/// let store: Arc<dyn Store> = Arc::new(Memory::new());
/// let Inserted::Granted(grant) = store.begin(&ask).await? else { panic!("the store was empty") };
/// assert_eq!(store.renew(&grant.rk, &Claim::from(&grant)).await?, Renewed::Yes);
/// assert!(store.read(&grant.rk).await?.is_running());
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Grants the operation if there is no live record for it, else shows what there is.
    ///
    /// # Errors
    /// As every operation of this trait: `NotApplied`, `Unknown`, `Damaged`.
    async fn begin(&self, ask: &Begin) -> Result<Inserted>;

    /// Arms the lease anew, as [`machine::renew`](crate::machine::renew) judges.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed>;

    /// Records an answer, as [`machine::complete`](crate::machine::complete) judges.
    ///
    /// # Errors
    /// See [`Store::begin`]. A full store never refuses it.
    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed>;

    /// Shows the record.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn read(&self, rk: &RecordKey) -> Result<Observed>;

    /// A handle to the same store that shares no connection with this one, for a caller who must get through when this one is
    /// congested. It belongs to the executor that it is asked for on.
    ///
    /// # Errors
    /// `NotApplied` if no further connection can be had for now.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>>;

    /// Writes a change if nothing changed since `seen` was read; a renewal is a change.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped>;
}

/// The reply of a store to a begin.
///
/// ```
/// use hapax_core::machine::{Begin, Begun, Decision, begin};
/// use hapax_core::store::Inserted;
///
/// /// A store says what is there; what that means for the caller, the machine says.
/// fn judged(inserted: Inserted, ask: &Begin) -> Decision<Begun> {
///     match inserted {
///         Inserted::Granted(grant) => Decision::Reply(Begun::Granted(grant)),
///         Inserted::Found(seen) => begin(&seen, ask),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// There was no live record; the grant is written.
    Granted(Grant),
    /// This is there; nothing was written.
    Found(Observed),
}

/// The reply of a store to a swap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax_core::Result<()> {
/// # use hapax_core::Store;
/// # use hapax_core::store::Memory;
/// # let (ask, grant, _) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// # let store = Memory::new();
/// use hapax_core::machine::first_grant;
/// use hapax_core::store::Swapped;
///
/// let seen = store.read(&grant.rk).await?;
/// let (change, _) = first_grant(&ask, &seen);
/// assert_eq!(store.swap(&grant.rk, &seen, &change).await?, Swapped::Yes);
/// // Nobody who saw the same may write over it.
/// assert_eq!(store.swap(&grant.rk, &seen, &change).await?, Swapped::Changed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The change is written.
    Yes,
    /// The record is no longer what was seen; nothing was written.
    Changed,
}

/// Upkeep, apart from the operations of the protocol.
///
/// # Cancel safety
/// A dropped sweep may or may not have removed what expired; a dropped check changed nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use hapax_core::store::Memory;
/// # let store = Memory::new();
/// use hapax_core::Inspect;
///
/// for finding in store.check().await? {
///     println!("{:?}: {}", finding.severity, finding.message);
/// }
/// // Every minute or so: a few at a time, so that no call waits for long.
/// while store.sweep(1000).await? > 0 {}
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Removes up to `limit` expired records and says how many went. Zero means that this pass is through.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; sweeping again is safe.
    async fn sweep(&self, limit: usize) -> Result<usize>;

    /// Looks whether the store can be used, and how well.
    ///
    /// # Errors
    /// The reason why it cannot be asked at all.
    async fn check(&self) -> Result<Vec<Finding>>;
}

/// What a check found.
///
/// ```
/// use hapax_core::store::{Finding, Severity};
///
/// let remedy = "this file system is shared by several hosts; move the file to a local disk";
/// let finding = Finding { severity: Severity::Refuse, message: remedy.into() };
/// assert_eq!(finding.severity, Severity::Refuse);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found, and the remedy.
    pub message: String,
}

/// How bad a finding is.
///
/// ```
/// use hapax_core::store::{Finding, Severity};
///
/// /// Whether a service may start on a store of which this was found.
/// fn may_start(findings: &[Finding]) -> bool {
///     findings.iter().all(|finding| match finding.severity {
///         Severity::Refuse => false,
///         Severity::Warn => true,
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The store must not be used like this.
    Refuse,
    /// It works, with less than the full guarantee.
    Warn,
}

/// A record as stores hold it that keep instants: when it was last written or renewed, and when it expires.
///
/// ```
/// # let (ask, _, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// # let (change, _) = hapax_core::machine::first_grant(&ask, &seen);
/// use std::time::Duration;
/// use hapax_core::Timestamp;
/// use hapax_core::store::StoredRecord;
///
/// let now = Timestamp(1_800_000_000_000_000);
/// let row = StoredRecord::at(now, &change);
/// assert!(!row.is_expired(now.plus(Duration::from_secs(3599))) && row.is_expired(now.plus(Duration::from_secs(3600))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record.
    pub record: Record,
    /// When it was written or last renewed.
    pub armed_at: Timestamp,
    /// When its life ends.
    pub expires_at: Timestamp,
}

impl StoredRecord {
    /// Arms a change at this instant.
    pub fn at(now: Timestamp, change: &Change) -> Self {
        Self { record: change.record.clone(), armed_at: now, expires_at: now.plus(change.lifetime.into()) }
    }

    /// Whether its life ended.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }
}

/// Whether what is stored is still what was seen: neither written nor renewed since, and neither expired nor come to life.
/// The condition of a swap, for stores that keep instants.
///
/// ```
/// use std::collections::HashMap;
/// use hapax_core::machine::{Change, Observed};
/// use hapax_core::store::{StoredRecord, Swapped, is_unchanged};
/// use hapax_core::{RecordKey, Timestamp};
///
/// fn swap(rows: &mut HashMap<RecordKey, StoredRecord>, rk: RecordKey, seen: &Observed, next: &Change, now: Timestamp) -> Swapped {
///     if !is_unchanged(rows.get(&rk), seen, now) {
///         return Swapped::Changed;
///     }
///     rows.insert(rk, StoredRecord::at(now, next));
///     Swapped::Yes
/// }
/// ```
pub fn is_unchanged(stored: Option<&StoredRecord>, seen: &Observed, now: Timestamp) -> bool {
    match (stored, seen.live()) {
        (None, None) => true,
        (Some(armed), None) => armed.is_expired(now) && seen.record.as_ref() == Some(&armed.record),
        (Some(armed), Some(record)) => {
            let same_life = armed.expires_at == seen.now.plus(seen.life_left) || chaos::on("swap_ignores_renewal");
            !armed.is_expired(now) && same_life && armed.record == *record
        }
        (None, Some(_)) => false,
    }
}

/// What a store sees that keeps instants. A record past its life is shown with no life left, so that its token still counts.
///
/// ```
/// # let (ask, _, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// # let (change, _) = hapax_core::machine::first_grant(&ask, &seen);
/// use std::time::Duration;
/// use hapax_core::store::{StoredRecord, observe};
/// use hapax_core::{Timestamp, Token};
///
/// let now = Timestamp(1_800_000_000_000_000);
/// let row = StoredRecord::at(now, &change);
/// let seen = observe(Some(&row), now.plus(Duration::from_secs(10)), Token(0));
/// assert_eq!(seen.lease_left, Duration::from_secs(20), "of a lease of 30 s");
/// ```
pub fn observe(armed: Option<&StoredRecord>, now: Timestamp, token_high_water: Token) -> Observed {
    let lease_left = armed.map(|armed| match &armed.record.state {
        State::Open(Phase::InProgress, holding) => armed.armed_at.plus(holding.lease.into()).since(now),
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => Duration::ZERO,
    });
    Observed {
        record: armed.map(|armed| armed.record.clone()),
        lease_left: lease_left.unwrap_or_default(),
        life_left: armed.map(|armed| life_left(armed, now)).unwrap_or_default(),
        now,
        token_high_water,
    }
}

fn life_left(stored: &StoredRecord, now: Timestamp) -> Duration {
    let left = stored.expires_at.since(now);
    if chaos::on("expired_is_live") { left.max(Duration::from_micros(1)) } else { left }
}
