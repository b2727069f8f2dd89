use std::collections::BTreeSet;

use crate::chaos::Mutant;

/// How far the messages of one lane are finished without a gap.
///
/// Messages end in any order, but a broker that acknowledges a prefix forgets everything below the
/// acknowledged position. The watermark therefore stays below the first message that has no end.
///
/// Messages are delivered with growing numbers. Numbers may be missing: a broker that compacts its log never delivers
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    open: BTreeSet<u64>,
    highest: Option<u64>,
    settled: Option<u64>,
}

impl Watermark {
    /// A lane in which nothing was delivered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a message that was delivered.
    pub fn deliver(&mut self, number: u64) {
        self.open.insert(number);
        self.highest = self.highest.max(Some(number));
    }

    /// Notes that a message has come to its end.
    pub fn finish(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// The number up to which every message has come to its end. None while that is true of no message. It may lie
    /// between two messages, directly below one that is open.
    pub fn position(&self) -> Option<u64> {
        if Mutant::CommitBeyondWatermark.is_on() {
            return self.highest;
        }
        match self.open.first() {
            Some(open) => open.checked_sub(1),
            None => self.highest,
        }
    }

    /// The position, if it has grown since the last call: it is to be settled now.
    pub fn take_growth(&mut self) -> Option<u64> {
        // Numbers begin anywhere: nothing below the first one that was delivered is to be settled.
        let position = self.position().filter(|position| Some(*position) > self.settled)?;
        self.settled = Some(position);
        Some(position)
    }

    /// The number of messages without an end.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}
