//! The deliveries of a source that wait for room in the worker. Their leases run meanwhile.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use hapax_core::broker::{Delivery, DeliveryId, Room};

/// Deliveries that have arrived and found no room yet, in the order of their arrival.
#[derive(Default)]
pub(crate) struct WaitingDeliveries(VecDeque<Delivery>);

/// Deliveries that wait no longer, because leases have ended.
pub(crate) struct RemovedDeliveries {
    /// Their leases have ended, and the service delivers them again.
    pub(crate) ended: Vec<Delivery>,
    /// Each was behind one of the same group whose lease has ended, and has to be given back before that comes again.
    pub(crate) behind: Vec<Delivery>,
}

impl WaitingDeliveries {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.0.iter()
    }

    pub(crate) fn ids(&self) -> Vec<DeliveryId> {
        self.iter().map(|waiting| waiting.id.clone()).collect()
    }

    pub(crate) fn push(&mut self, delivery: Delivery) {
        self.0.push_back(delivery);
    }

    pub(crate) fn take_all(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.0).into()
    }

    /// Takes the first ones, as far as there is room. One that is larger than the whole room is taken alone.
    pub(crate) fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let (mut taken, mut bytes): (Vec<Delivery>, usize) = (Vec::new(), room.bytes);
        while let Some(next) = self.0.front() {
            let size = next.message.size();
            let fits = size <= bytes || (taken.is_empty() && bytes > 0);
            if taken.len() >= room.messages || !fits {
                break;
            }
            bytes = bytes.saturating_sub(size);
            taken.extend(self.0.pop_front());
        }
        taken
    }

    /// Removes those whose leases have ended, and the later ones of their groups. An earlier one of each of `groups`
    /// has ended as well: it is with the worker.
    pub(crate) fn remove_ended(
        &mut self,
        mut groups: BTreeSet<Bytes>,
        is_ended: impl Fn(&Delivery) -> bool,
    ) -> RemovedDeliveries {
        let mut removed = RemovedDeliveries { ended: Vec::new(), behind: Vec::new() };
        if groups.is_empty() && !self.iter().any(&is_ended) {
            return removed;
        }
        for waiting in std::mem::take(&mut self.0) {
            let group = waiting.message.ordering_key.clone();
            if is_ended(&waiting) {
                groups.extend(group);
                removed.ended.push(waiting);
            } else if group.is_some_and(|group| groups.contains(&group)) {
                removed.behind.push(waiting);
            } else {
                self.0.push_back(waiting);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hapax_core::broker::{Lane, Message};

    use super::*;

    /// A delivery of so many bytes, in a group unless its name is empty.
    fn delivery(number: u64, group: &'static str, bytes: usize) -> Delivery {
        let ordering_key = Some(Bytes::from(group)).filter(|group| !group.is_empty());
        let payload = Bytes::from(vec![0; bytes - group.len()]);
        let lane = Lane { topic: "queue".into(), partition: 0, generation: 0 };
        Delivery {
            id: DeliveryId { lane, number, handle: Bytes::new() },
            message: Arc::new(Message { ordering_key, payload, ..Message::default() }),
            attempt: None,
            leased_until: None,
        }
    }

    fn waiting(deliveries: impl IntoIterator<Item = Delivery>) -> WaitingDeliveries {
        WaitingDeliveries(deliveries.into_iter().collect())
    }

    fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
        deliveries.iter().map(|delivery| delivery.id.number).collect()
    }

    #[test]
    fn as_many_are_taken_as_there_is_room_for_and_a_large_one_alone() {
        let mut waiting =
            waiting([(1, 10), (2, 10), (3, 50), (4, 10)].map(|(number, size)| delivery(number, "", size)));
        let mut take = |messages, bytes| numbers(&waiting.take(&Room { messages, bytes, closed: Arc::default() }));
        assert!(take(0, 100).is_empty() && take(5, 0).is_empty());
        assert_eq!(take(1, 100), [1]);
        assert_eq!(take(5, 30), [2], "the next one is too large");
        assert_eq!(take(5, 30), [3], "it is larger than the room, and the first");
        assert_eq!(take(5, 30), [4]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn those_behind_an_ended_one_of_their_group_go_with_it() {
        let groups = [(1, "a"), (2, "b"), (3, "a"), (4, ""), (5, "c"), (6, "b")];
        let all = || waiting(groups.map(|(number, group)| delivery(number, group, 10)));
        let mut kept = all();
        let removed = kept.remove_ended(BTreeSet::new(), |_| false);
        assert!(removed.ended.is_empty() && removed.behind.is_empty());
        let removed = kept.remove_ended(BTreeSet::from([Bytes::from("c")]), |waiting| waiting.id.number == 3);
        assert_eq!((numbers(&removed.ended), numbers(&removed.behind)), (vec![3], vec![5]));
        assert_eq!(numbers(&kept.take_all()), [1, 2, 4, 6]);
        let removed = all().remove_ended(BTreeSet::new(), |waiting| waiting.id.number == 2);
        assert_eq!((numbers(&removed.ended), numbers(&removed.behind)), (vec![2], vec![6]));
    }
}
