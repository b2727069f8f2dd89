use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::{DeliveryId, Lane, Settlement};
use crate::chaos::Mutant;
use crate::error::Result;
use crate::lease::Heartbeat;
use crate::ledger::rules::backoff;

/// A settlement that the broker has not confirmed.
pub(super) struct PendingSettlement {
    pub(super) id: DeliveryId,
    pub(super) settlement: Settlement,
    /// Kept until the broker confirms: a lease that runs out makes it deliver the message again.
    _lease: Option<Heartbeat>,
    tries: u32,
    due: Duration,
}

impl PendingSettlement {
    pub(super) fn new(id: DeliveryId, settlement: Settlement, lease: Option<Heartbeat>) -> Self {
        Self { id, settlement, _lease: lease, tries: 0, due: Duration::ZERO }
    }
}

/// The settlements that wait for the broker. One call is in flight at a time; the next one takes all that came
/// meanwhile.
#[derive(Default)]
pub(super) struct SettleQueue {
    waiting: Vec<PendingSettlement>,
    /// How many settlements of each lane.
    in_flight: Option<BTreeMap<Lane, usize>>,
}

/// After this many tries the settlement of a delivery is forgotten. The broker delivers the message again, and the copy
/// is caught.
const MOST_TRIES: u32 = 10;

/// The longest pause before a settlement is sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl SettleQueue {
    pub(super) fn push(&mut self, settlement: PendingSettlement) {
        if settlement.settlement == Settlement::UpTo {
            // The new position covers those before it.
            self.waiting.retain(|other| other.settlement != Settlement::UpTo || other.id.lane != settlement.id.lane);
        }
        self.waiting.push(settlement);
    }

    /// The settlements to send now. The caller sends them in one call, and reports its results.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<PendingSettlement> {
        if self.in_flight.is_some() {
            return Vec::new();
        }
        let (due, later) = std::mem::take(&mut self.waiting).into_iter().partition(|pending| pending.due <= now);
        self.waiting = later;
        let due: Vec<PendingSettlement> = due;
        if !due.is_empty() {
            let in_flight = self.in_flight.insert(BTreeMap::new());
            for pending in &due {
                *in_flight.entry(pending.id.lane.clone()).or_default() += 1;
            }
        }
        due
    }

    /// Notes the results of a call. Returns the settlements that are forgotten.
    pub(super) fn settled(
        &mut self,
        sent: Vec<PendingSettlement>,
        results: Vec<Result<()>>,
        now: Duration,
    ) -> Vec<PendingSettlement> {
        // A lane that was lost during the call is not in the set any more.
        let lanes = self.in_flight.take().unwrap_or_default();
        let mut results = results.into_iter();
        let mut forgotten = Vec::new();
        for mut pending in sent {
            if results.next().is_some_and(|result| result.is_ok()) || !lanes.contains_key(&pending.id.lane) {
                continue;
            }
            pending.tries += 1;
            pending.due = now + backoff(pending.tries).min(LONGEST_PAUSE);
            let covers = |other: &PendingSettlement| {
                other.settlement == Settlement::UpTo
                    && (other.id.lane == pending.id.lane || Mutant::PositionDropped.is_on())
            };
            let is_covered = pending.settlement == Settlement::UpTo && self.waiting.iter().any(covers);
            match pending.settlement {
                Settlement::UpTo if is_covered => {}
                // One position for each lane: it is repeated as long as the worker has the lane.
                Settlement::UpTo => self.waiting.push(pending),
                Settlement::Ack | Settlement::Retry(_) | Settlement::Extend(_) => match pending.tries >= MOST_TRIES {
                    true => forgotten.push(pending),
                    false => self.waiting.push(pending),
                },
            }
        }
        forgotten
    }

    /// Forgets the settlements of a lane that belongs to another worker now.
    pub(super) fn forget(&mut self, lane: &Lane) {
        self.waiting.retain(|pending| pending.id.lane != *lane);
        if let Some(lanes) = &mut self.in_flight {
            lanes.remove(lane);
        }
    }

    /// Whether a settlement of the lane has no result.
    pub(super) fn has(&self, lane: &Lane) -> bool {
        let is_in_flight = self.in_flight.as_ref().is_some_and(|lanes| lanes.contains_key(lane));
        is_in_flight || self.waiting.iter().any(|pending| pending.id.lane == *lane)
    }

    /// The number of settlements without a result.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.in_flight.as_ref().map_or(0, |lanes| lanes.values().sum())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_none()
    }

    /// When the next settlement is to be sent.
    pub(super) fn next_due(&self) -> Option<Duration> {
        match self.in_flight {
            Some(_) => None,
            None => self.waiting.iter().map(|pending| pending.due).min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn settlements_in_flight_count_one_by_one() {
        let lane = |partition| Lane { topic: "orders".into(), partition, generation: 1 };
        let (mut queue, now) = (SettleQueue::default(), Duration::ZERO);
        for (number, partition) in [(1, 0), (2, 0), (3, 1)] {
            let id = DeliveryId { lane: lane(partition), number, handle: Bytes::new() };
            queue.push(PendingSettlement::new(id, Settlement::Ack, None));
        }
        let sent = queue.take_due(now);
        assert_eq!((sent.len(), queue.len()), (3, 3));
        queue.forget(&lane(0));
        assert_eq!(queue.len(), 1);
        queue.settled(sent, vec![Ok(()), Ok(()), Ok(())], now);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_failed_position_is_sent_again_unless_its_own_lane_has_a_newer_one() {
        let up_to = |partition, number| {
            let lane = Lane { topic: "orders".into(), partition, generation: 1 };
            let id = DeliveryId { lane, number, handle: Bytes::new() };
            PendingSettlement::new(id, Settlement::UpTo, None)
        };
        let failed = || Err(crate::Error::new(crate::ErrorKind::NotApplied, "the broker is away"));
        let (mut queue, now) = (SettleQueue::default(), Duration::ZERO);
        (0..2).for_each(|partition| queue.push(up_to(partition, 1)));
        let sent = queue.take_due(now);
        // Meanwhile the second lane goes on.
        queue.push(up_to(1, 2));
        assert!(queue.settled(sent, vec![failed(), failed()], now).is_empty());
        let again = queue.take_due(now + LONGEST_PAUSE);
        let mut again: Vec<_> = again.iter().map(|sent| (sent.id.lane.partition, sent.id.number)).collect();
        again.sort_unstable();
        assert_eq!(again, [(0, 1), (1, 2)]);
    }
}
