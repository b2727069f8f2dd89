use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::key::{EventId, OperationId};
use crate::ledger::{Call, Event, Finished, LedgerVerdict, OutboxRow};
use crate::telemetry;

/// A new operation that this transaction has claimed. Write its effect in the same transaction.
///
/// A transaction with an entry that is not finished cannot commit.
#[derive(Debug)]
#[must_use = "a transaction with an entry that is not finished cannot commit"]
pub struct Entry {
    namespace: Arc<str>,
    call: Call,
    index: usize,
    events: Vec<OutboxRow>,
    /// Whether the caller has to finish the entry. A runner finishes the entries of its handler itself.
    is_owed: bool,
}

impl Entry {
    /// The entry of the `index`-th call of a batch. The runner finishes it.
    pub(super) fn new(namespace: Arc<str>, call: Call, index: usize) -> Self {
        Self { namespace, call, index, events: Vec::new(), is_owed: false }
    }

    /// The same entry, for a caller that has to finish it.
    pub(super) fn owed(mut self) -> Self {
        self.is_owed = true;
        self
    }

    /// The id of the operation: use it as the transaction id of the effect.
    pub fn operation(&self) -> OperationId {
        self.call.operation()
    }

    /// The index of the call in the batch that was given to the runner. 0 for a single call.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The namespace of the ledger.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Adds an event. It is written when the entry is finished, and published after the commit. Returns its id. Every
    /// attempt that emits its events in the same order gets the same ids.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was added.
    pub fn emit(&mut self, event: Event) -> Result<EventId> {
        self.push(event, false)
    }

    /// As [`emit`](Self::emit), and the events of a key that are emitted so are published in the order in which their
    /// transactions commit. As the entry is finished, it waits for the other transactions that have done so for the
    /// same key, and later ones wait until this one ends. In SQLite, where one transaction writes at a time, it is the
    /// same as `emit`.
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and `Invalid` if the event has no ordering key.
    pub fn emit_ordered(&mut self, event: Event) -> Result<EventId> {
        self.push(event, true)
    }

    fn push(&mut self, event: Event, is_in_commit_order: bool) -> Result<EventId> {
        let number = u32::try_from(self.events.len());
        let number = number.map_err(|_| Error::new(ErrorKind::Invalid, "an operation emits fewer than 2^32 events"))?;
        let row = event.into_row(&self.namespace, self.operation(), number)?;
        if is_in_commit_order && row.ordering_key.is_none() {
            let message = "an event without an ordering key has no order; give it a key, or call `emit`";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let id = row.id;
        self.events.push(OutboxRow { is_in_commit_order, ..row });
        Ok(id)
    }

    /// Gives the entry up because the operation is refused: it leaves no row, and a copy of the call is claimed anew.
    /// Unlike an entry that is dropped, it is neither logged nor counted. Roll the transaction back then, since it
    /// cannot commit.
    ///
    /// Call it in a transaction of your own. A runner gives entries up itself if its handler fails.
    pub fn abandon(mut self) {
        self.settle();
    }

    /// Removes the events, because nothing of the operation is to be kept.
    pub(super) fn take_events(&mut self) -> Vec<OutboxRow> {
        std::mem::take(&mut self.events)
    }

    /// The row of the entry.
    pub(super) fn finished(&self, verdict: LedgerVerdict, answer: Bytes) -> Finished {
        let (operation, fingerprint) = (self.call.operation(), self.call.newest_fingerprint());
        Finished { operation, fingerprint, verdict, answer }
    }

    /// Ends the duty to finish the entry.
    pub(super) fn settle(&mut self) {
        self.is_owed = false;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.is_owed {
            telemetry::entry_dropped(self.operation());
        }
    }
}
