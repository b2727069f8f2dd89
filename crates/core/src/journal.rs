//! Journals: where a gate keeps completions that its store has not confirmed.

mod entry;
mod file;
mod memory;
mod place;

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::key::RecordKey;
use crate::machine::Complete;
use crate::record::Seconds;

pub use file::{FileJournal, FileJournalSettings, ForeignJournal};
pub use memory::MemoryJournal;
pub use place::StorePlace;

/// A durable list of completions. An entry that was appended and is not done survives a crash.
///
/// ```
/// use hapax::Journal;
/// use hapax::store::Protocol;
///
/// /// Records the completions that an earlier process left.
/// async fn adopt(journal: &dyn Journal, protocol: Protocol<'_>) -> hapax::Result<()> {
///     for (number, spilled) in journal.replay().await? {
///         protocol.complete(&spilled.rk, &spilled.complete).await?;
///         journal.done(number).await?;
///     }
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no journal",
    label = "does not implement `Journal`",
    note = "pass `hapax::journal::MemoryJournal`, a `FileJournal`, or implement `Journal`"
)]
#[async_trait]
pub trait Journal: fmt::Debug + Send + Sync + 'static {
    /// Appends an entry. When this returns, the entry survives a crash.
    ///
    /// # Errors
    /// `NotApplied` if the entry is certainly not stored: the journal is full or closed, or the write failed. `Unknown`
    /// if the entry may or may not be stored.
    ///
    /// # Cancel safety
    /// If dropped, the entry may or may not be stored. Storing an entry twice does no harm.
    async fn append(&self, entry: &Spilled) -> Result<EntryNumber>;

    /// Marks an entry as done: the store gave a definite answer to its completion, or the record has expired.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown` if the entry may not be marked. An entry that is not marked is completed again after a
    /// restart, which changes nothing.
    ///
    /// # Cancel safety
    /// If dropped, the entry may or may not be marked.
    async fn done(&self, number: EntryNumber) -> Result<()>;

    /// Returns the entries that are not done, ordered by the end of their handlers, earliest first. A damaged entry is
    /// reported and left out.
    ///
    /// # Errors
    /// `NotApplied` if the journal is closed, `Unknown` if its thread panicked.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn replay(&self) -> Result<Vec<(EntryNumber, Spilled)>>;

    /// The number of entries that are not done, without those that are being appended or marked.
    fn undone(&self) -> usize;
}

/// Identifies an entry of an open journal. An entry that is appended later has a larger number. Entries of adopted
/// files get new numbers at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNumber(pub u64);

/// A completion that a store has not confirmed.
#[derive(Clone, Debug)]
pub struct Spilled {
    /// The record key of the call.
    pub rk: RecordKey,
    /// The completion. Before each try the gate computes its age from the end of the handler.
    pub complete: Complete,
    /// How long the gate retries while the store does not answer, counted from the end of the handler: the lifetime of
    /// a record whose outcome is unknown. After this time the record has expired.
    pub unknown_retention: Seconds,
}
