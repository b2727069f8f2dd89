//! What known bugs of the worker do. A module of its engine.

use crate::broker::{Acknowledges, DeliveryId, Lane, Settlement};
use crate::worker::engine::Engine;

impl Engine {
    /// `offset_stored_early` and `dead_letter_acked_first`: a delivery is settled before its end.
    pub(super) fn settle_early(&mut self, id: DeliveryId, acknowledges: Acknowledges) {
        let settlement = match acknowledges {
            Acknowledges::Each => Settlement::Ack,
            Acknowledges::Prefix => Settlement::UpTo,
        };
        self.settle(id, settlement, None);
    }

    /// `settle_old_generation`: a lost lane counts as its next generation.
    pub(super) fn keep_lost_lane(&mut self, lane: &Lane) {
        let Some(state) = self.lanes.remove(lane) else { return };
        let next = Lane { generation: lane.generation + 1, ..lane.clone() };
        for number in &state.open {
            if let Some(held) = self.messages.get_mut(number) {
                held.delivery.id.lane = next.clone();
                self.room.remove(lane, 0);
                self.room.add(&next, 0);
            }
        }
        if let Some(kept) = self.lanes.delivering(&next) {
            *kept = state;
        }
    }
}
