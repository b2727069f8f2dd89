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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

/// A completion that a store has not confirmed.
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
