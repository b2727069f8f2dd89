//! The operations that a backend provides: five, each one atomic step and safe to repeat.
//!
//! [`contract`] lists the clauses; the conformance suite names them by number. A store only stores:
//! [`machine`](crate::machine) decides what a record becomes, and [`Protocol`] carries out its decisions over a store.

pub mod contract {
    #![doc = include_str!("store/contract.md")]
}
mod inspect;
mod memory;
mod protocol;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::RecordKey;
use crate::machine::{Begin, Change, Claim, Complete, Completed, Grant, Observed, Renewed};
use crate::record::{Completion, Phase, Record, State, StoredAnswer, Timestamp, Token};

pub use inspect::{Chunk, Finding, Inspect, RecordStatus, Scan, ScanPosition, Scanned, Severity};
pub use memory::{Memory, MemorySettings};
pub use protocol::Protocol;

/// A store of records. The [`contract`] defines each operation.
///
/// # Cancel safety
/// Dropping the future of an operation leaves its outcome unknown: the step may still happen. Repeating it is always
/// safe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let (ask, _, _) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// use std::sync::Arc;
/// use hapax::Store;
/// use hapax::machine::{Claim, Renewed};
/// use hapax::store::{Inserted, Memory};
///
/// let store: Arc<dyn Store> = Arc::new(Memory::new());
/// let Inserted::Granted(grant) = store.begin(&ask).await? else { panic!("the store was empty") };
/// assert_eq!(store.renew(&grant.rk, &Claim::from(&grant)).await?, Renewed::Yes);
/// assert!(store.read(&grant.rk).await?.is_running());
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of records",
    label = "does not implement `Store`",
    note = "pass `hapax::store::Memory`, or a store of `hapax::stores`, each of which is a feature of hapax"
)]
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Grants the operation if it has no live record, otherwise returns what is stored.
    ///
    /// # Errors
    /// As every operation of this trait: `NotApplied`, `Unknown`, `Damaged`.
    async fn begin(&self, ask: &Begin) -> Result<Inserted>;

    /// Starts the lease again if [`machine::renew`](crate::machine::renew) decides so.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed>;

    /// Records an answer if [`machine::complete`](crate::machine::complete) decides so.
    ///
    /// # Errors
    /// See [`Store::begin`]. A full store never refuses it.
    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed>;

    /// Returns the record, expired or not, with the store's clock and high-water mark.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn read(&self, rk: &RecordKey) -> Result<Observed>;

    /// A handle to the same store with a connection of its own, for calls that must not queue behind those of this
    /// handle. Use it on the executor on which it was created.
    ///
    /// # Errors
    /// `NotApplied` if the store accepts no further connection now.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>>;

    /// Writes a change if the record has not changed since `seen` was read. A renewal and an expiry are changes.
    ///
    /// # Errors
    /// See [`Store::begin`].
    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped>;

    /// The recorded answer itself, if the record has only a pointer to it. Call it for an answer that is given to
    /// somebody, and not within the time limit of the store: the answer lies elsewhere.
    ///
    /// # Errors
    /// - `Damaged`: the answer is gone or was altered. The effect happened all the same, and must not happen again.
    /// - `NotApplied`: the answer cannot be fetched now, or this store knows no place but its own.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn fetch(&self, completion: Completion) -> Result<Completion> {
        match completion.form {
            StoredAnswer::Whole => Ok(completion),
            StoredAnswer::Pointer => Err(Error::new(
                ErrorKind::NotApplied,
                "the answer is not in the store: name the bucket in which this and every other process keeps answers",
            )),
        }
    }
}

/// The reply of a store to a begin. [`machine::begin`](crate::machine::begin) decides about a record that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// There was no live record; the grant is written.
    Granted(Grant),
    /// A live record exists; nothing was written.
    Found(Observed),
}

/// The reply of a store to a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The change is written.
    Yes,
    /// The record changed since it was read; nothing was written.
    Changed,
}

/// A record with the instants at which it was last written and at which it expires, for stores that keep instants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record.
    pub record: Record,
    /// When it was written or last renewed.
    pub armed_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
}

impl StoredRecord {
    /// The stored form of a change that is written at this instant.
    pub fn at(now: Timestamp, change: &Change) -> Self {
        Self { record: change.record.clone(), armed_at: now, expires_at: now.plus(change.lifetime.into()) }
    }

    /// Whether the record is expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }
}

/// The condition of a swap, for stores that keep instants: the record was not written, renewed or removed since it was
/// read, and it did not expire.
///
/// ```
/// use std::collections::HashMap;
/// use hapax::machine::{Change, Observed};
/// use hapax::store::{StoredRecord, Swapped, is_unchanged};
/// use hapax::{RecordKey, Timestamp};
///
/// type Rows = HashMap<RecordKey, StoredRecord>;
///
/// fn swap(rows: &mut Rows, rk: RecordKey, seen: &Observed, next: &Change, now: Timestamp) -> Swapped {
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
        // The clock may have stepped back since the read, and the record may be live again.
        (Some(stored), None) => stored.is_expired(now) && seen.record.as_ref() == Some(&stored.record),
        (Some(stored), Some(record)) => {
            // Every write and every renewal moves the expiry, so an equal expiry shows that there was none.
            let is_same_life = stored.expires_at == seen.now.plus(seen.life_left) || Mutant::SwapIgnoresRenewal.is_on();
            !stored.is_expired(now) && is_same_life && stored.record == *record
        }
        (None, Some(_)) => false,
    }
}

/// The observation of a store that keeps instants. An expired record is part of it, with no life left, so that its
/// token counts.
pub fn observe(stored: Option<&StoredRecord>, now: Timestamp, token_high_water: Token) -> Observed {
    let lease_left = stored.map(|stored| match &stored.record.state {
        State::Open(Phase::InProgress, holding) => stored.armed_at.plus(holding.lease.into()).since(now),
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => Duration::ZERO,
    });
    Observed {
        record: stored.map(|stored| stored.record.clone()),
        lease_left: lease_left.unwrap_or_default(),
        life_left: stored.map(|stored| life_left(stored, now)).unwrap_or_default(),
        now,
        token_high_water,
    }
}

fn life_left(stored: &StoredRecord, now: Timestamp) -> Duration {
    let left = stored.expires_at.since(now);
    if Mutant::ExpiredIsLive.is_on() { left.max(Duration::from_micros(1)) } else { left }
}
