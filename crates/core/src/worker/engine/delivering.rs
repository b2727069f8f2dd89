//! Messages that arrive, and lanes that are taken away.

use std::time::Duration;

use crate::broker::{Acknowledges, Delivery, Lane};
use crate::chaos::Mutant;
use crate::telemetry;
use crate::worker::engine::{Engine, HeldMessage, acknowledges, is_letter, order_key};
use crate::worker::lanes::Revocation;

/// How long before the end of a revocation the worker leaves, whatever still runs: the source has to commit.
const LEAVE_BEFORE: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn take_deliveries(&mut self, deliveries: Vec<Delivery>) {
        let now = self.runtime.boottime_now();
        for delivery in deliveries {
            self.take_delivery(delivery, now);
        }
    }

    fn take_delivery(&mut self, delivery: Delivery, now: Duration) {
        // A delivery that is dropped arrives again.
        if self.stop.is_some() {
            return;
        }
        let (lane, acknowledges) = (&delivery.id.lane, acknowledges(&self.capability, &delivery));
        let Some(state) = self.lanes.delivering(lane) else { return };
        self.last_number += 1;
        let number = self.last_number;
        state.open.insert(number);
        if acknowledges == Acknowledges::Prefix {
            state.watermark.deliver(delivery.id.number);
        }
        self.room.add(lane, delivery.message.size());
        if Mutant::OffsetStoredEarly.is_on() {
            self.settle_early(delivery.id.clone(), acknowledges);
        }
        let lease = self.extensions.hold(&delivery);
        let identified = self.identity.identify(&delivery.message);
        self.forget_replaced(&delivery, &identified);
        self.order.push(number, order_key(&delivery));
        self.close_key(&delivery);
        let held = HeldMessage { delivery, identified, arrived: now, running_since: None, panics: 0, lease };
        self.messages.insert(number, held);
    }

    /// Lets the messages of this one's key wait for a search for dead letters. A redriven letter waits for nothing.
    pub(super) fn close_key(&mut self, delivery: &Delivery) {
        let Some(parking) = self.parking.as_mut().filter(|_| !is_letter(delivery)) else { return };
        if let Some(key) = order_key(delivery) {
            self.order.close(&key);
            parking.close(key);
        }
    }

    /// Takes a message out of everything but its lane's watermark. It is not settled.
    pub(super) fn forget(&mut self, number: u64) -> Option<HeldMessage> {
        let held = self.messages.remove(&number)?;
        let lane = &held.delivery.id.lane;
        self.room.remove(lane, held.delivery.message.size());
        if let Some(state) = self.lanes.get_mut(lane) {
            state.open.remove(&number);
        }
        self.order.remove(number);
        self.burials.forget(number);
        if let (Some(parking), Some(key)) = (&mut self.parking, order_key(&held.delivery))
            && !self.order.has(&key)
        {
            parking.forget(&key);
            self.order.open(&key);
        }
        Some(held)
    }

    /// Starts nothing more of these lanes. What runs may end until shortly before `until`.
    pub(super) fn revoke(&mut self, lanes: &[Lane], until: Duration) {
        telemetry::lanes_revoked(&self.name, lanes);
        for lane in lanes {
            // A lane without a message is left, too.
            self.lanes.delivering(lane);
            let Some(state) = self.lanes.get_mut(lane) else { continue };
            let until = until.saturating_sub(LEAVE_BEFORE);
            state.revoked = Some(Revocation { until, is_leaving: false });
            let open: Vec<u64> = state.open.iter().copied().collect();
            for number in open {
                let is_idle = self.messages.get(&number).is_some_and(|held| !held.is_running());
                if is_idle && !self.burials.has(number) {
                    drop(self.forget(number));
                }
            }
        }
    }

    /// Forgets lanes that belong to another worker. Nothing of them is settled.
    pub(super) fn lose(&mut self, lanes: &[Lane]) {
        telemetry::lanes_lost(&self.name, lanes);
        if Mutant::CommitOnLoss.is_on() {
            return;
        }
        for lane in lanes {
            if Mutant::SettleOldGeneration.is_on() {
                self.keep_lost_lane(lane);
            } else {
                self.drop_lane(lane);
            }
        }
    }

    pub(super) fn drop_lane(&mut self, lane: &Lane) {
        let Some(state) = self.lanes.remove(lane) else { return };
        for number in state.open {
            drop(self.forget(number));
        }
        self.settling.forget(lane);
    }

    /// The revoked lanes that can be left: everything that ran is settled, or the time is up.
    pub(super) fn lanes_to_leave(&mut self, now: Duration) -> Vec<Lane> {
        let can_leave = |lane: &Lane, is_idle: bool, revoked: Revocation| {
            !revoked.is_leaving && (revoked.until <= now || (is_idle && !self.settling.has(lane)))
        };
        let leaving =
            self.lanes.revoked().filter(|(lane, state, revoked)| can_leave(lane, state.open.is_empty(), *revoked));
        let leaving: Vec<Lane> = leaving.map(|(lane, _, _)| lane.clone()).collect();
        for lane in &leaving {
            if let Some(revoked) = self.lanes.get_mut(lane).and_then(|state| state.revoked.as_mut()) {
                revoked.is_leaving = true;
            }
        }
        leaving
    }
}
