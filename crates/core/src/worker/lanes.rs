use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::broker::Lane;
use crate::worker::Watermark;

/// The messages of one lane.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// Delivered and without an end, by the order of their arrival.
    pub(super) open: BTreeSet<u64>,
    pub(super) watermark: Watermark,
    /// Set while the broker takes the lane away.
    pub(super) revoked: Option<Revocation>,
}

/// A lane that the broker takes away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revocation {
    /// When the worker leaves the lane in any case, on the boot-time clock.
    pub(super) until: Duration,
    /// Whether the worker is leaving it.
    pub(super) is_leaving: bool,
}

/// The lanes of this worker.
#[derive(Debug, Default)]
pub(super) struct Lanes(BTreeMap<Lane, LaneState>);

impl Lanes {
    /// The state of a lane that delivers, which may be new. None if the lane is being taken away.
    pub(super) fn delivering(&mut self, lane: &Lane) -> Option<&mut LaneState> {
        if !self.0.contains_key(lane) {
            self.0.insert(lane.clone(), LaneState::default());
        }
        self.0.get_mut(lane).filter(|state| state.revoked.is_none())
    }

    pub(super) fn get_mut(&mut self, lane: &Lane) -> Option<&mut LaneState> {
        self.0.get_mut(lane)
    }

    pub(super) fn remove(&mut self, lane: &Lane) -> Option<LaneState> {
        self.0.remove(lane)
    }

    /// The lanes that are being taken away.
    pub(super) fn revoked(&self) -> impl Iterator<Item = (&Lane, &LaneState, Revocation)> {
        self.0.iter().filter_map(|(lane, state)| Some((lane, state, state.revoked?)))
    }
}
