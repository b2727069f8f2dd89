use std::sync::Arc;

use crate::outbox::{OutgoingEvent, ReadStart, RowId};
use crate::relay::bucket::held::RowPhase;
use crate::relay::bucket::{BucketRows, FailingRoom};

/// How much is held.
impl BucketRows {
    /// The number of rows that are held.
    pub(in crate::relay) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The event of a row that is held.
    pub(in crate::relay) fn event(&self, id: RowId) -> Option<Arc<OutgoingEvent>> {
        self.rows.get(&id).map(|row| Arc::clone(&row.event))
    }

    /// The number of held rows that a read shows which begins there.
    pub(in crate::relay) fn held_from(&self, start: ReadStart) -> usize {
        self.rows.range(start).count()
    }

    /// The bytes of the events that are held.
    pub(in crate::relay) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of held rows that have failed.
    pub(in crate::relay) fn failing(&self) -> usize {
        self.failing
    }

    /// Whether as many rows have failed, and are held or deferred, as are held at most.
    pub(in crate::relay) fn is_full_of_failing(&self, room: FailingRoom) -> bool {
        self.failing + self.deferred.len() >= room.rows || self.failing_bytes > room.bytes
    }

    /// The number of rows in flight.
    pub(in crate::relay) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The number of rows that were started and are not marked.
    pub(in crate::relay) fn unconfirmed(&self) -> usize {
        self.rows.values().filter(|row| row.phase != RowPhase::Waiting).count()
    }

    /// Whether every row that was started has been marked.
    pub(in crate::relay) fn is_settled(&self) -> bool {
        self.rows.values().all(|row| row.phase == RowPhase::Waiting)
    }
}
