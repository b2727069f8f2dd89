//! Where a gate keeps the completions that its store has not confirmed.

mod entry;
mod file;
mod memory;

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::key::RecordKey;
use crate::machine::Complete;
use crate::record::{Seconds, Timestamp};

pub use file::{FileJournal, FileJournalSettings};
pub use memory::MemoryJournal;

/// A durable list of completions: what was appended and is not done comes back after a crash.
///
/// ```
/// use hapax_core::Journal;
/// use hapax_core::store::Protocol;
///
/// /// Records what an earlier process left.
/// async fn adopt(journal: &dyn Journal, protocol: Protocol<'_>) -> hapax_core::Result<()> {
///     for (number, spilled) in journal.replay().await? {
///         protocol.complete(&spilled.rk, &spilled.complete).await?;
///         journal.done(number).await?;
///     }
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait Journal: fmt::Debug + Send + Sync + 'static {
    /// Keeps an entry; it is safe when this returns.
    ///
    /// # Errors
    /// `NotApplied` when there is no room, `Unknown` when it may or may not be safe.
    ///
    /// # Cancel safety
    /// Dropped, the entry may or may not be kept; kept twice, it does no harm.
    async fn append(&self, entry: &Spilled) -> Result<Number>;

    /// Forgets an entry that the store has.
    ///
    /// # Errors
    /// As [`Journal::append`]. An entry that is not forgotten is completed again, which changes nothing.
    ///
    /// # Cancel safety
    /// Dropped, the entry may or may not be forgotten.
    async fn done(&self, number: Number) -> Result<()>;

    /// What was appended and is not done, oldest first.
    ///
    /// # Errors
    /// `Damaged` for a journal of which nothing can be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn replay(&self) -> Result<Vec<(Number, Spilled)>>;
}

/// Names an entry of a journal.
///
/// ```
/// use std::collections::BTreeMap;
/// use hapax_core::journal::Number;
///
/// // An implementation of its own gives them in order, so that the oldest entry is the first.
/// let mut entries = BTreeMap::from([(Number(2), "later"), (Number(1), "earlier")]);
/// assert_eq!(entries.pop_first(), Some((Number(1), "earlier")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

/// A completion that a store has not confirmed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax_core::Result<()> {
/// use std::time::Duration;
/// use hapax_core::journal::{MemoryJournal, Spilled};
/// use hapax_core::machine::{Claim, Complete};
/// use hapax_core::{Fingerprint, Journal, Owner, RecordKey, Seconds, Timestamp, Token};
///
/// let complete = Complete {
///     claim: Claim { owner: Owner([1; 16]), token: Token(7) },
///     fingerprint: Fingerprint::NONE,
///     answer: "charged".into(),
///     retention: Seconds(24 * 3600),
///     age: Duration::ZERO,
/// };
/// let ended = Timestamp(1_800_000_000_000_000);
/// let rk = RecordKey::from_bytes([7; 16]);
/// let journal = MemoryJournal::new();
/// let number = journal.append(&Spilled { rk, complete, unknown_retention: Seconds(30 * 24 * 3600), ended }).await?;
/// assert_eq!(journal.replay().await?[0].0, number);
/// journal.done(number).await?;
/// assert!(journal.replay().await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Spilled {
    /// The record.
    pub rk: RecordKey,
    /// The completion; its age counts from `ended`.
    pub complete: Complete,
    /// How long it is worth trying: as long as the record would live without it.
    pub unknown_retention: Seconds,
    /// When the handler ended, by the wall clock.
    pub ended: Timestamp,
}
