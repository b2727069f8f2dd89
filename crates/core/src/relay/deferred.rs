use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeBounds;
use std::time::Duration;

use crate::outbox::{OutgoingEvent, ReadStart, RowId};

/// First rows of keys that have failed and are not held, so that they leave the room to rows of other keys. Each is
/// read again when it may be published again. Pure.
#[derive(Debug, Default)]
pub(super) struct DeferredRows {
    rows: HashMap<RowId, DeferredRow>,
    waiting: BTreeSet<(Duration, RowId)>,
}

/// About how many bytes a deferred row takes, with its entry among the keys that wait.
const BYTES_OF_ROW: usize = 256;

/// What is left of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredRow {
    pub(super) failures: u32,
    /// When it may be published again.
    pub(super) due: Duration,
    /// The topic of an event without a key.
    pub(super) topic: Option<u64>,
}

/// A number for the topic of an event, so that a deferred row needs no text. That two topics have one number is
/// unlikely: then a row of the other topic may wait until all rows are read again.
pub(super) fn topic_number(event: &OutgoingEvent) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&event.namespace, &event.topic).hash(&mut hasher);
    hasher.finish()
}

impl DeferredRows {
    /// The number of rows that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> usize {
        self.rows.len() * BYTES_OF_ROW
    }

    /// Forgets the rows of this topic, and returns them.
    pub(super) fn forget(&mut self, topic: u64) -> HashSet<RowId> {
        let of_topic = self.rows.extract_if(|_, row| row.topic == Some(topic));
        let forgotten: HashSet<RowId> = of_topic.map(|(id, _)| id).collect();
        self.waiting.retain(|(_, id)| !forgotten.contains(id));
        forgotten
    }

    /// When the first of them may be published again.
    pub(super) fn first_due(&self) -> Option<Duration> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Whether this row waits.
    pub(super) fn is_waiting(&self, id: RowId) -> bool {
        self.rows.get(&id).is_some_and(|row| self.waiting.contains(&(row.due, id)))
    }

    /// Adds a row that is not held any more.
    pub(super) fn add(&mut self, id: RowId, row: DeferredRow) {
        self.take(id);
        self.rows.insert(id, row);
        self.waiting.insert((row.due, id));
    }

    /// Ends the wait of up to `most` rows that are due, and returns the smallest of them. Rows before the cursor whose
    /// wait ended before were read since then, or are not open any more.
    pub(super) fn wake(&mut self, now: Duration, most: usize, cursor: ReadStart) -> Option<RowId> {
        let waiting = &self.waiting;
        self.rows.retain(|id, row| cursor.contains(id) || waiting.contains(&(row.due, *id)));
        let woken = self.rows.len() - self.waiting.len();
        let mut first = None;
        for _ in woken..most {
            let Some((due, id)) = self.waiting.first().copied().filter(|(due, _)| *due <= now) else { break };
            self.waiting.remove(&(due, id));
            first = Some(first.map_or(id, |first: RowId| first.min(id)));
        }
        first
    }

    /// Forgets a row, which is held again.
    pub(super) fn take(&mut self, id: RowId) -> Option<DeferredRow> {
        let row = self.rows.remove(&id)?;
        self.waiting.remove(&(row.due, id));
        Some(row)
    }
}
