use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::{
    Acknowledges, Capability, Coordinates, Delivery, DeliveryId, Event, Lane, Message, Position, Room, Settlement,
};

use super::{REVOKE_WITHIN, SESSION};

pub(super) struct BrokerState {
    capability: Capability,
    partitions: Vec<StoredPartition>,
    /// The partition and the place in it of each message, in the order of publishing.
    published: Vec<(usize, usize)>,
    members: BTreeMap<u64, Member>,
    last_member: u64,
    last_number: u64,
    pub(super) failing_settlements: u32,
    pub(super) is_reversed: bool,
    /// Lanes that a member knows to be lost.
    told_lost: BTreeSet<Lane>,
    /// Settlements of such lanes.
    pub(super) stale_settlements: usize,
    pub(super) most_in_hand: usize,
}

struct StoredPartition {
    log: Vec<StoredMessage>,
    /// The reader. Unused for queues, which all members read.
    owner: Option<u64>,
    generation: u64,
    /// The next message for the reader.
    position: usize,
    committed: usize,
    /// Until when the reader may finish, if the partition is taken away.
    revoked_until: Option<Duration>,
}

struct StoredMessage {
    message: Arc<Message>,
    lot: Lot,
    deliveries: u32,
    /// When it was delivered last.
    leased_at: Duration,
}

/// What is known about a message of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lot {
    /// It may be delivered from this time on.
    FreeAt(Duration),
    /// A member has it: the number of the delivery, and until when.
    Leased(u64, Duration),
    Acknowledged,
}

struct Member {
    events: VecDeque<Event>,
    last_poll: Duration,
}

impl BrokerState {
    pub(super) fn new(partitions: u32, capability: Capability) -> Self {
        let partition = |_| StoredPartition {
            log: Vec::new(),
            owner: None,
            generation: 0,
            position: 0,
            committed: 0,
            revoked_until: None,
        };
        Self {
            capability,
            partitions: (0..partitions).map(partition).collect(),
            published: Vec::new(),
            members: BTreeMap::new(),
            last_member: 0,
            last_number: 0,
            failing_settlements: 0,
            is_reversed: false,
            told_lost: BTreeSet::new(),
            stale_settlements: 0,
            most_in_hand: 0,
        }
    }

    pub(super) fn partitions(&self) -> u32 {
        u32::try_from(self.partitions.len()).unwrap_or(u32::MAX)
    }

    fn is_queue(&self) -> bool {
        self.capability.acknowledges == Acknowledges::Each
    }

    pub(super) fn publish(&mut self, partition: u32, mut message: Message, now: Timestamp) {
        let log = &mut self.partitions[partition as usize].log;
        self.published.push((partition as usize, log.len()));
        let position = Position::Number(log.len() as u64);
        message.coordinates = Some(Coordinates { origin: "memory/topic".into(), partition, position });
        message.timestamp = Some(now);
        let lot = Lot::FreeAt(Duration::ZERO);
        log.push(StoredMessage { message: Arc::new(message), lot, deliveries: 0, leased_at: Duration::ZERO });
    }

    pub(super) fn join(&mut self, now: Duration) -> u64 {
        self.last_member += 1;
        self.members.insert(self.last_member, Member { events: VecDeque::new(), last_poll: now });
        self.balance(now);
        self.last_member
    }

    /// A member that leaves gives its partitions back at once.
    pub(super) fn leave_group(&mut self, member: u64, now: Duration) {
        self.members.remove(&member);
        for partition in &mut self.partitions {
            if partition.owner == Some(member) {
                partition.free();
            }
        }
        self.balance(now);
    }

    pub(super) fn lose(&mut self, partition: u32) {
        let lane = self.lane(partition as usize);
        let partition = &mut self.partitions[partition as usize];
        let Some(owner) = partition.owner.take() else { return };
        partition.free();
        partition.assign(owner);
        if let Some(member) = self.members.get_mut(&owner) {
            member.events.push_back(Event::Lost { lanes: vec![lane] });
        }
    }

    fn lane(&self, partition: usize) -> Lane {
        let generation = if self.is_queue() { 0 } else { self.partitions[partition].generation };
        Lane { topic: "topic".into(), partition: u32::try_from(partition).unwrap_or(u32::MAX), generation }
    }

    /// Gives free partitions away, and takes partitions from members that have too many.
    fn balance(&mut self, now: Duration) {
        if self.is_queue() || self.members.is_empty() {
            return;
        }
        // A silent member gets nothing before it polls again, unless all are silent.
        let live = self.members.iter().filter(|(_, member)| !member.is_silent(now)).map(|(number, _)| *number);
        let live: Vec<u64> = live.collect();
        let members = if live.is_empty() { self.members.keys().copied().collect() } else { live };
        for partition in 0..self.partitions.len() {
            let target = members[partition % members.len()];
            let lane = self.lane(partition);
            let state = &mut self.partitions[partition];
            match state.owner {
                None => state.assign(target),
                Some(owner) if owner == target || state.revoked_until.is_some() => {}
                Some(owner) => {
                    let until = now + REVOKE_WITHIN;
                    state.revoked_until = Some(until);
                    if let Some(member) = self.members.get_mut(&owner) {
                        member.events.push_back(Event::Revoking { lanes: vec![lane], until });
                    }
                }
            }
        }
    }

    /// Lets time take effect: silent members, revocations that are over, leases that have run out.
    fn tick(&mut self, now: Duration) {
        let silent: Vec<u64> =
            self.members.iter().filter(|(_, member)| member.is_silent(now)).map(|(number, _)| *number).collect();
        let is_left = self.members.len() > silent.len();
        for partition in 0..self.partitions.len() {
            let lane = self.lane(partition);
            let state = &mut self.partitions[partition];
            let Some(owner) = state.owner else { continue };
            let is_over = state.revoked_until.is_some_and(|until| until <= now);
            if is_over || (silent.contains(&owner) && is_left) {
                state.free();
                if let Some(member) = self.members.get_mut(&owner)
                    && !is_over
                {
                    member.events.push_back(Event::Lost { lanes: vec![lane] });
                }
            }
        }
        for partition in &mut self.partitions {
            for message in &mut partition.log {
                if let Lot::Leased(_, until) = message.lot
                    && until <= now
                {
                    message.lot = Lot::FreeAt(now);
                }
            }
        }
        self.balance(now);
    }

    /// The next event for a member.
    pub(super) fn poll(&mut self, member: u64, room: &Room, now: Duration) -> Option<Event> {
        if let Some(member) = self.members.get_mut(&member) {
            member.last_poll = member.last_poll.max(now);
        }
        self.tick(now);
        if let Some(event) = self.members.get_mut(&member).and_then(|member| member.events.pop_front()) {
            if let Event::Lost { lanes } = &event {
                self.told_lost.extend(lanes.iter().cloned());
            }
            return Some(event);
        }
        let deliveries = if self.is_queue() { self.lease(room, now) } else { self.read(member, room) };
        (!deliveries.is_empty()).then_some(Event::Deliveries(deliveries))
    }

    /// When something changes by itself.
    pub(super) fn next_change(&self, now: Duration) -> Duration {
        let lots =
            self.partitions.iter().flat_map(|partition| &partition.log).filter_map(|message| match message.lot {
                Lot::FreeAt(at) | Lot::Leased(_, at) => Some(at),
                Lot::Acknowledged => None,
            });
        let revoked = self.partitions.iter().filter_map(|partition| partition.revoked_until);
        // A member polls each second at least, as its heartbeat.
        lots.chain(revoked).filter(|at| *at > now).min().unwrap_or(Duration::MAX).min(now + Duration::from_secs(1))
    }

    fn read(&mut self, member: u64, room: &Room) -> Vec<Delivery> {
        let (mut deliveries, mut bytes) = (Vec::new(), room.bytes);
        for partition in 0..self.partitions.len() {
            let lane = self.lane(partition);
            let state = &mut self.partitions[partition];
            if state.owner != Some(member) || state.revoked_until.is_some() || room.closed.contains(&lane) {
                continue;
            }
            while deliveries.len() < room.messages && bytes > 0 && state.position < state.log.len() {
                let number = state.position as u64;
                let message = &mut state.log[state.position];
                bytes = bytes.saturating_sub(message.message.payload.len());
                message.deliveries += 1;
                state.position += 1;
                self.most_in_hand = self.most_in_hand.max(state.position - state.committed);
                let id = DeliveryId { lane: lane.clone(), number, handle: Bytes::new() };
                deliveries.push(Delivery {
                    id,
                    message: Arc::clone(&message.message),
                    attempt: None,
                    leased_until: None,
                });
            }
        }
        deliveries
    }

    /// The places of the messages of a queue that may be delivered now.
    fn free(&self, now: Duration) -> Vec<usize> {
        let (mut free, mut open) = (Vec::new(), BTreeSet::new());
        for (place, stored) in self.partitions[0].log.iter().enumerate() {
            let key = stored.message.ordering_key.as_ref().filter(|_| self.capability.keeps_order);
            let is_first = key.is_none_or(|key| !open.contains(key));
            if stored.lot != Lot::Acknowledged {
                open.extend(key);
            }
            if is_first && matches!(stored.lot, Lot::FreeAt(at) if at <= now) {
                free.push(place);
            }
        }
        free
    }

    fn lease(&mut self, room: &Room, now: Duration) -> Vec<Delivery> {
        let lane = self.lane(0);
        let length = self.capability.lease.map_or(Duration::MAX, |lease| lease.length);
        if room.closed.contains(&lane) {
            return Vec::new();
        }
        let mut free = self.free(now);
        let log = &mut self.partitions[0].log;
        if self.is_reversed {
            free.sort_by_key(|at| {
                (log[*at].deliveries == 0, if log[*at].deliveries == 0 { *at } else { usize::MAX - *at })
            });
        }
        let mut deliveries = Vec::new();
        for at in free.into_iter().take(if room.bytes == 0 { 0 } else { room.messages }) {
            self.last_number += 1;
            let message = &mut log[at];
            message.deliveries += 1;
            message.leased_at = now;
            message.lot = Lot::Leased(self.last_number, now + length);
            let handle = Bytes::copy_from_slice(&(at as u64).to_be_bytes());
            deliveries.push(Delivery {
                id: DeliveryId { lane: lane.clone(), number: self.last_number, handle },
                message: Arc::clone(&message.message),
                attempt: Some(message.deliveries),
                leased_until: Some(now + length),
            });
        }
        deliveries
    }

    /// Settles a delivery. Does nothing for an old generation, or a delivery that another one has replaced.
    pub(super) fn settle(&mut self, member: u64, id: &DeliveryId, settlement: Settlement, now: Duration) {
        let partition = id.lane.partition as usize;
        if id.lane != self.lane(partition) {
            self.stale_settlements += usize::from(self.told_lost.contains(&id.lane));
            return;
        }
        let (is_queue, capability) = (self.is_queue(), self.capability);
        let state = &mut self.partitions[partition];
        if !is_queue {
            if state.owner == Some(member) && settlement == Settlement::UpTo {
                let position = usize::try_from(id.number + 1).unwrap_or(usize::MAX);
                state.committed = state.committed.max(position);
            }
            return;
        }
        let at = id
            .handle
            .first_chunk()
            .map_or(usize::MAX, |at| usize::try_from(u64::from_be_bytes(*at)).unwrap_or(usize::MAX));
        let Some(message) = state.log.get_mut(at) else { return };
        let is_current = matches!(message.lot, Lot::Leased(number, _) if number == id.number);
        match settlement {
            // The message is finished, whichever delivery of it says so.
            Settlement::Ack => message.lot = Lot::Acknowledged,
            Settlement::Retry(after) if is_current && capability.delays => message.lot = Lot::FreeAt(now + after),
            Settlement::Retry(_) if is_current => message.lot = Lot::FreeAt(now),
            Settlement::Extend(by) if is_current => {
                let longest = capability.lease.and_then(|lease| lease.longest);
                let last = longest.map_or(Duration::MAX, |longest| message.leased_at + longest);
                message.lot = Lot::Leased(id.number, last.min(now + by));
            }
            Settlement::Retry(_) | Settlement::Extend(_) | Settlement::UpTo => {}
        }
    }

    /// A member has finished with lanes that are taken away.
    pub(super) fn leave_lanes(&mut self, member: u64, lanes: &[Lane], now: Duration) {
        for lane in lanes {
            let partition = lane.partition as usize;
            if *lane == self.lane(partition) && self.partitions[partition].owner == Some(member) {
                self.partitions[partition].free();
            }
        }
        self.balance(now);
    }

    /// The places, in the order of publishing, of the messages that are not acknowledged.
    pub(super) fn unfinished(&self) -> BTreeSet<usize> {
        let is_open = |(partition, at): &(usize, usize)| match self.is_queue() {
            true => self.partitions[*partition].log[*at].lot != Lot::Acknowledged,
            false => *at >= self.partitions[*partition].committed,
        };
        let open = self.published.iter().enumerate().filter(|(_, message)| is_open(message));
        open.map(|(place, _)| place).collect()
    }
}

impl Member {
    fn is_silent(&self, now: Duration) -> bool {
        self.last_poll + SESSION <= now
    }
}

impl StoredPartition {
    fn free(&mut self) {
        self.owner = None;
        self.revoked_until = None;
    }

    fn assign(&mut self, member: u64) {
        self.owner = Some(member);
        self.generation += 1;
        self.position = self.committed;
    }
}
