//! How far a partition is done. Each number is the offset of a next message.

/// How far a partition was read and settled since this member took it up.
#[derive(Debug, Default)]
pub(super) struct LaneProgress {
    /// Where the partition was taken up, if the group had an offset.
    begun: Option<i64>,
    /// Behind the last message that arrived.
    arrived: Option<i64>,
    /// Where a new member may go on: behind the last settled message, and at the position of the driver while no
    /// message is open.
    done: Option<i64>,
    /// Behind all that the driver has handed over or left out: it leaves out the records that end transactions, and
    /// the messages of transactions that were aborted.
    position: Option<i64>,
    /// Whether the position belongs to this assignment. The driver forgets the one before a moment late.
    is_fresh: bool,
    /// The offset that was sent to the broker last.
    sent: Option<i64>,
    /// The first message of the partition.
    first: Option<i64>,
    /// The end of the partition.
    end: Option<i64>,
}

impl LaneProgress {
    pub(super) fn new(begun: Option<i64>) -> Self {
        Self { begun, done: begun, sent: begun, ..Self::default() }
    }

    /// Of a partition that is taken up at an offset that the group does not have.
    pub(super) fn uncommitted(begun: i64) -> Self {
        Self { done: Some(begun), ..Self::default() }
    }

    pub(super) fn arrived(&mut self, offset: i64) {
        self.arrived = Some(offset.saturating_add(1));
        self.is_fresh = true;
    }

    /// Notes that everything up to this message is settled. A lower one than before changes nothing.
    pub(super) fn settle(&mut self, offset: i64) {
        self.done = self.done.max(Some(offset.saturating_add(1)));
        self.pass();
    }

    /// Notes the position of the driver, which has none before the first record.
    pub(super) fn note_position(&mut self, position: Option<i64>) {
        self.is_fresh |= position.is_none();
        if self.is_fresh {
            self.position = position;
            self.pass();
        }
    }

    /// Passes the records that the driver has left out behind the last message.
    fn pass(&mut self) {
        if self.done >= self.arrived {
            self.done = self.done.max(self.position);
        }
    }

    /// Notes three offsets that the driver knows: the confirmed one, the first one and the end.
    pub(super) fn note_statistics(&mut self, committed: Option<i64>, first: Option<i64>, end: Option<i64>) {
        if self.sent != self.begun && committed != self.sent {
            // It was not confirmed yet, and may never be.
            self.sent = self.begun;
        }
        (self.first, self.end) = (first.or(self.first), end.or(self.end));
    }

    pub(super) fn done(&self) -> Option<i64> {
        self.done
    }

    /// The offset to commit, unless the broker has it.
    pub(super) fn unsent(&self) -> Option<i64> {
        self.done.filter(|done| self.sent != Some(*done))
    }

    pub(super) fn sent(&mut self, offset: i64) {
        self.sent = Some(offset);
    }

    /// The number of offsets that are not done. None if the end or the beginning is not known yet.
    pub(super) fn lag(&self) -> Option<u64> {
        let done = self.done.or(self.first)?;
        // The driver learns of the end later than of a message.
        u64::try_from(self.end?.saturating_sub(done).max(0)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets 10 to 12 have arrived.
    fn three_arrived() -> LaneProgress {
        let mut progress = LaneProgress::new(Some(10));
        progress.note_position(None);
        (10..13).for_each(|offset| progress.arrived(offset));
        progress
    }

    #[test]
    fn the_position_counts_only_while_no_message_is_open() {
        let mut progress = three_arrived();
        progress.note_position(Some(14));
        assert_eq!((progress.done(), progress.unsent()), (Some(10), None), "all are open");
        progress.settle(11);
        assert_eq!(progress.unsent(), Some(12), "one is open");
        progress.settle(12);
        assert_eq!(progress.unsent(), Some(14));
        progress.settle(10);
        assert_eq!(progress.unsent(), Some(14), "a lower one changes nothing");
        progress.arrived(14);
        progress.note_position(Some(15));
        assert_eq!(progress.done(), Some(14), "a new message does not lead back");
    }

    #[test]
    fn a_partition_without_messages_is_passed() {
        let mut progress = LaneProgress::new(None);
        assert_eq!((progress.done(), progress.lag()), (None, None));
        progress.note_position(None);
        progress.note_position(Some(2));
        assert_eq!(progress.unsent(), Some(2));
    }

    #[test]
    fn the_position_of_an_assignment_before_does_not_count() {
        let mut progress = LaneProgress::new(Some(10));
        progress.note_position(Some(20));
        assert_eq!(progress.done(), Some(10));
        progress.arrived(10);
        progress.note_position(Some(11));
        progress.settle(10);
        assert_eq!(progress.done(), Some(11));
    }

    #[test]
    fn what_the_broker_does_not_confirm_is_sent_again() {
        let mut progress = three_arrived();
        progress.settle(12);
        progress.sent(13);
        assert_eq!(progress.unsent(), None);
        progress.note_statistics(Some(13), Some(0), Some(13));
        assert_eq!(progress.unsent(), None);
        progress.note_statistics(Some(11), Some(0), Some(13));
        assert_eq!(progress.unsent(), Some(13));
    }

    #[test]
    fn the_lag_counts_from_the_first_offset_that_is_not_done() {
        let mut progress = three_arrived();
        assert_eq!(progress.lag(), None, "the end is not known");
        progress.note_statistics(None, Some(0), Some(14));
        assert_eq!(progress.lag(), Some(4));
        progress.note_position(Some(14));
        progress.settle(12);
        assert_eq!(progress.lag(), Some(0));
        progress.arrived(14);
        progress.settle(14);
        assert_eq!(progress.lag(), Some(0), "the end is known later than the message");
        let mut new = LaneProgress::new(None);
        new.note_statistics(None, Some(3), Some(5));
        assert_eq!(new.lag(), Some(2), "a group without an offset starts at the first message");
    }
}
