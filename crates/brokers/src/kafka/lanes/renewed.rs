//! Partitions whose topic is gone, or was created again. They are forgotten, and taken up again once there is a topic.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::{AssignedLane, Partition, SharedLanes};
use crate::kafka::topics::{FoundTopics, differ};

/// How long a report of the driver may be about partitions as they were before they were taken up again.
const DOUBT: Duration = Duration::from_secs(10);

impl SharedLanes {
    /// Forgets the partitions of topics that are gone or have another id. They are taken up again once there is a
    /// topic. Returns the topics.
    pub(in crate::kafka) fn lose_renewed(&self, found: &FoundTopics) -> BTreeSet<Arc<str>> {
        let is_lost = |partition: &Partition, lane: &AssignedLane| match found.get(&*partition.0) {
            Some(id) => differ(lane.topic, *id),
            None => true,
        };
        let state = self.state();
        let lost = state.lanes.iter().filter(|(partition, lane)| is_lost(partition, lane));
        let lost: Vec<Partition> = lost.map(|(partition, _)| partition.clone()).collect();
        drop(state);
        self.put_off(&lost);
        lost.into_iter().map(|(topic, _)| topic).collect()
    }

    /// Forgets all partitions until they are taken up again, if some were just before: what the driver reports may be
    /// about the old topic. Returns whether it did.
    pub(in crate::kafka) fn doubt(&self) -> bool {
        let is_late = |at: Duration| self.now().saturating_sub(at) > DOUBT;
        if self.state().renewed_at.is_none_or(is_late) {
            return false;
        }
        self.put_off_all();
        true
    }

    /// Forgets all partitions until the broker tells their topics.
    pub(in crate::kafka) fn put_off_all(&self) {
        let all: Vec<Partition> = self.state().lanes.keys().cloned().collect();
        self.put_off(&all);
        self.state().is_in_doubt = true;
    }

    fn put_off(&self, partitions: &[Partition]) {
        self.lose(partitions);
        self.state().gone.extend(partitions.iter().cloned());
    }

    pub(in crate::kafka) fn has_gone(&self) -> bool {
        !self.state().gone.is_empty()
    }

    /// The partitions that are to be taken up again now: there is a topic.
    pub(in crate::kafka) fn take_gone(&self, found: &FoundTopics) -> Vec<Partition> {
        let mut state = self.state();
        let (back, gone) = mem::take(&mut state.gone).into_iter().partition(|(topic, _)| found.contains_key(&**topic));
        state.gone = gone;
        let back: BTreeSet<Partition> = back;
        // A doubt does not make the next one last longer.
        if !back.is_empty() && !mem::take(&mut state.is_in_doubt) {
            state.renewed_at = Some(self.now());
        }
        back.into_iter().collect()
    }
}
