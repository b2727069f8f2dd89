use hapax_core::gate::Answer;
use hapax_core::ledger::{self, Entry, Event};
use hapax_core::{EventId, OperationId, Result};

use super::statements::SpannerStatements;
use super::transaction::SpannerTransaction;

/// An entry of a [`SpannerLedger`](crate::SpannerLedger), claimed in a transaction of the caller's own.
#[derive(Debug)]
#[must_use = "a transaction with an entry that is not finished cannot commit"]
pub struct SpannerEntry(Entry);

impl SpannerEntry {
    pub(super) fn new(entry: Entry) -> Self {
        Self(entry)
    }

    /// The id of the operation: use it as the transaction id of the effect.
    pub fn operation(&self) -> OperationId {
        self.0.operation()
    }

    /// Adds an event, which leaves after the commit. Returns its id.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was added.
    pub fn emit(&mut self, event: Event) -> Result<EventId> {
        self.0.emit(event)
    }

    /// As [`emit`](Self::emit): rows of Spanner are published in the order of their commits anyway.
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and `Invalid` if the event has no ordering key.
    pub fn emit_ordered(&mut self, event: Event) -> Result<EventId> {
        self.0.emit_ordered(event)
    }

    /// Finishes the entry with this answer, and adds its events to the changes of the transaction. Do it last, then
    /// commit.
    ///
    /// # Errors
    /// `NotApplied` if the transaction must be rolled back.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn finish<A: Answer>(self, transaction: &SpannerTransaction, answer: &A) -> Result<()> {
        ledger::finish_one(&mut SpannerStatements(transaction), self.0, answer).await
    }
}
