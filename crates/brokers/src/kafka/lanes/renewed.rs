//! Partitions whose topic is gone, or was created again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{AssignedLane, Partition, SharedLanes};
use crate::kafka::topics::{FoundTopics, differ};

/// A topic is not deleted, created again, found by the driver and read within so short a time. The driver goes on with
/// the new topic at the position of the old one, so a message that comes after a longer time waits until the topic is
/// confirmed.
pub(super) const AT_ONCE: Duration = Duration::from_millis(100);

impl SharedLanes {
    /// Forgets the partitions of topics that are gone or have another id, and hands out what has arrived in the others.
    /// Returns the topics of the former. They were found after `asked_at`.
    pub(in crate::kafka) fn confirm(&self, found: &FoundTopics, asked_at: Duration) -> BTreeSet<Arc<str>> {
        let is_lost = |partition: &Partition, lane: &AssignedLane| match found.get(&*partition.0) {
            Some(id) => differ(lane.note.map(|note| note.topic), *id),
            None => true,
        };
        let mut state = self.state();
        let lost = state.lanes.iter().filter(|(partition, lane)| is_lost(partition, lane));
        let lost: Vec<Partition> = lost.map(|(partition, _)| partition.clone()).collect();
        state.confirmed_at = asked_at;
        for (partition, lane) in &mut state.lanes {
            lane.is_doubtful &= lost.contains(partition);
        }
        drop(state);
        self.lose(&lost);
        lost.into_iter().map(|(topic, _)| topic).collect()
    }

    /// Whether messages wait until their topics are confirmed.
    pub(in crate::kafka) fn is_doubtful(&self) -> bool {
        self.state().lanes.values().any(|lane| lane.is_doubtful)
    }
}
