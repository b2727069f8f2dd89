//! The deliveries that have arrived and are not settled. Without I/O; the caller gives the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{Delivery, Message, Position};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// How long a delivery is remembered whose lease has ended: a handler that still runs settles it at its end.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The turn of a request about a delivery. Of two requests at once, the service may apply the first one last.
pub(crate) type DeliveryTurn = OwnedMutexGuard<()>;

/// The deliveries, by their number.
#[derive(Default)]
pub(crate) struct OpenDeliveries {
    by_number: BTreeMap<u64, OpenDelivery>,
    /// When deliveries are forgotten next that nobody settles.
    sweep_at: Duration,
}

#[derive(Clone)]
pub(crate) struct OpenDelivery {
    pub(crate) received: Duration,
    pub(crate) until: Duration,
    /// Whether the service has refused to extend its lease. It is acknowledged all the same: the message is done.
    pub(crate) has_left: bool,
    group: Option<Bytes>,
    message: Option<Bytes>,
    /// Whether the end of its lease was told.
    is_told: bool,
    /// Held while a request about it is on its way.
    pub(crate) turns: Arc<Mutex<()>>,
}

/// A delivery of a message group whose lease has ended.
pub(crate) struct EndedDelivery {
    pub(crate) group: Bytes,
    /// The id of the message, if it has one.
    pub(crate) message: Option<Bytes>,
}

/// The id of a message, which its copies share.
pub(crate) fn id_of(message: &Message) -> Option<Bytes> {
    match &message.coordinates.as_ref()?.position {
        Position::Id(id) => Some(id.clone()),
        Position::Number(_) => None,
    }
}

impl OpenDeliveries {
    /// Notes a delivery that was received at this time.
    pub(crate) fn add(&mut self, delivery: &Delivery, received: Duration) {
        self.sweep(received);
        let until = delivery.leased_until.unwrap_or(received);
        let group = delivery.message.ordering_key.clone();
        let (message, turns) = (id_of(&delivery.message), Arc::default());
        let open = OpenDelivery { received, until, has_left: false, group, message, is_told: false, turns };
        self.by_number.insert(delivery.id.number, open);
    }

    pub(crate) fn get(&self, number: u64) -> Option<&OpenDelivery> {
        self.by_number.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut OpenDelivery> {
        self.by_number.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// The message groups of deliveries whose lease has ended, each delivery once: it arrives again, behind those of
    /// its group that have arrived by now.
    pub(crate) fn take_ended_groups(&mut self, now: Duration) -> BTreeSet<Bytes> {
        self.take_ended(now).into_iter().map(|ended| ended.group).collect()
    }

    /// The deliveries of message groups whose lease has ended, each once.
    pub(crate) fn take_ended(&mut self, now: Duration) -> Vec<EndedDelivery> {
        let ended = self.by_number.values_mut().filter(|open| open.until <= now && !open.is_told);
        ended
            .filter_map(|open| {
                open.is_told = true;
                Some(EndedDelivery { group: open.group.clone()?, message: open.message.clone() })
            })
            .collect()
    }

    /// Notes that the service has refused to extend the lease of a delivery.
    pub(crate) fn leave(&mut self, number: u64, now: Duration) {
        if let Some(open) = self.by_number.get_mut(&number) {
            open.has_left = true;
            open.until = open.until.min(now);
        }
    }

    /// Forgets deliveries that nobody has settled long after their lease. The worker does not tell which ones it
    /// forgets.
    fn sweep(&mut self, now: Duration) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + REMEMBERED / 60;
        self.by_number.retain(|_, open| open.until + REMEMBERED > now);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hapax_core::broker::{DeliveryId, Lane, Message};

    use super::*;

    pub(crate) fn lane() -> Lane {
        Lane { topic: "q".into(), partition: 0, generation: 0 }
    }

    /// A delivery whose lease ends then.
    pub(crate) fn delivery(number: u64, until: Duration) -> Delivery {
        let id = DeliveryId { lane: lane(), number, handle: Bytes::from(format!("handle {number}")) };
        Delivery { id, message: Arc::new(Message::default()), attempt: None, leased_until: Some(until) }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_end_of_a_lease_is_told_once_to_the_group() {
        let mut open = OpenDeliveries::default();
        for (number, group, until) in [(1, Some("a"), 1), (2, Some("a"), 3), (3, None, 1), (4, Some("b"), 3)] {
            let mut delivery = delivery(number, until * MINUTE);
            let message = Message { ordering_key: group.map(Bytes::from), ..Message::default() };
            delivery.message = Arc::new(message);
            open.add(&delivery, Duration::ZERO);
        }
        assert!(open.take_ended_groups(Duration::ZERO).is_empty());
        assert_eq!(open.take_ended_groups(MINUTE), BTreeSet::from([Bytes::from("a")]));
        assert!(open.take_ended_groups(2 * MINUTE).is_empty(), "the first one of the group is told");
        assert_eq!(open.take_ended_groups(3 * MINUTE).len(), 2);
    }

    #[test]
    fn a_delivery_that_nobody_settles_is_forgotten_an_hour_after_its_lease() {
        let mut open = OpenDeliveries::default();
        open.add(&delivery(1, MINUTE), Duration::ZERO);
        open.add(&delivery(2, 60 * MINUTE), Duration::ZERO);
        open.add(&delivery(3, 61 * MINUTE), 60 * MINUTE);
        assert!(open.get(1).is_some(), "a handler may still run");
        open.add(&delivery(4, 63 * MINUTE), 62 * MINUTE);
        assert!(open.get(1).is_none() && open.get(2).is_some() && open.by_number.len() == 3);
    }
}
