//! Journals: where a gate keeps completions that its store has not confirmed.

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

/// A durable list of completions. An entry that was appended and is not done survives a crash.
///
/// ```
/// use hapax_core::Journal;
/// use hapax_core::store::Protocol;
///
/// /// Records the completions that an earlier process left.
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
    /// Appends an entry. When this returns, the entry survives a crash.
    ///
    /// # Errors
    /// `NotApplied` if there is no room, `Unknown` if the entry may or may not be stored.
    ///
    /// # Cancel safety
    /// If dropped, the entry may or may not be stored. Storing an entry twice does no harm.
    async fn append(&self, entry: &Spilled) -> Result<Number>;

    /// Marks an entry as done: the store gave a definite answer to its completion, or the record has expired.
    ///
    /// # Errors
    /// As [`Journal::append`]. An entry that stays is completed again after a restart, which changes nothing.
    ///
    /// # Cancel safety
    /// If dropped, the entry may or may not be marked.
    async fn done(&self, number: Number) -> Result<()>;

    /// Returns the entries that are not done, oldest first.
    ///
    /// # Errors
    /// `Damaged` if nothing in the journal can be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn replay(&self) -> Result<Vec<(Number, Spilled)>>;
}

/// Identifies an entry of a journal. Later entries have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

/// A completion that a store has not confirmed.
#[derive(Clone, Debug)]
pub struct Spilled {
    /// The record key of the call.
    pub rk: RecordKey,
    /// The completion. Before each try the gate computes its age from `ended`.
    pub complete: Complete,
    /// How long the gate retries. After that the record of the unknown outcome has expired.
    pub unknown_retention: Seconds,
    /// When the handler ended, by the wall clock.
    pub ended: Timestamp,
}
