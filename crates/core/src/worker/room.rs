use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::broker::{Lane, Room};

/// How many messages one call of `Source::next` may return at most.
const MOST_AT_ONCE: usize = 512;

/// What a message takes beside its payload, headers and ordering key: measured with 100,000 messages that are nearly
/// empty, about 1,100 bytes each, for the message, its entries in the maps of the worker, and the allocator. If it were
/// not counted, a backlog of small messages would take many times the room.
const OVERHEAD: usize = 1024;

/// The messages and bytes that a worker holds, and how much more it takes.
#[derive(Debug)]
pub(super) struct HeldRoom {
    max_messages: usize,
    max_bytes: usize,
    bytes: usize,
    lanes: BTreeMap<Lane, usize>,
    full: Arc<BTreeSet<Lane>>,
}

impl HeldRoom {
    /// At most `max_messages` of each lane, and about `max_bytes` of all: a single message may go beyond.
    pub(super) fn new(max_messages: usize, max_bytes: usize) -> Self {
        let (lanes, full) = (BTreeMap::new(), Arc::default());
        Self { max_messages: max_messages.max(1), max_bytes: max_bytes.max(1), bytes: 0, lanes, full }
    }

    pub(super) fn add(&mut self, lane: &Lane, bytes: usize) {
        self.bytes += bytes + OVERHEAD;
        let held = match self.lanes.get_mut(lane) {
            Some(held) => held,
            None => self.lanes.entry(lane.clone()).or_default(),
        };
        *held += 1;
        let is_full = *held + self.at_once() > self.max_messages;
        self.set_full(lane, is_full);
    }

    pub(super) fn remove(&mut self, lane: &Lane, bytes: usize) {
        self.bytes -= bytes + OVERHEAD;
        let Some(held) = self.lanes.get_mut(lane) else { return };
        *held -= 1;
        let left = *held;
        if left == 0 {
            self.lanes.remove(lane);
        }
        let is_full = left > 0 && left + self.at_once() > self.max_messages;
        self.set_full(lane, is_full);
    }

    /// The room for the next call.
    pub(super) fn room(&self) -> Room {
        let bytes = self.max_bytes.saturating_sub(self.bytes);
        // A source counts only what is in a message. At most half of the room is for the rest.
        let messages = self.at_once().min((bytes / 2).div_ceil(OVERHEAD));
        let bytes = bytes.saturating_sub(messages * OVERHEAD).max(messages.min(1));
        Room { messages, bytes, closed: Arc::clone(&self.full) }
    }

    /// A lane is closed while a call could return more than fits.
    fn at_once(&self) -> usize {
        MOST_AT_ONCE.min(self.max_messages.div_ceil(2))
    }

    fn set_full(&mut self, lane: &Lane, is_full: bool) {
        if self.full.contains(lane) == is_full {
            return;
        }
        let full = Arc::make_mut(&mut self.full);
        if is_full {
            full.insert(lane.clone());
        } else {
            full.remove(lane);
        }
    }
}
