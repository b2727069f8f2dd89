//! The partitions of a Kafka source. The polling thread, the worker and the settlements share this state under a lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{Delivery, DeliveryId, Event, Lane, Message, Room};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// A topic and a partition.
pub(super) type Partition = (Arc<str>, i32);

/// How long a revoke waits for running work.
const GRACE: Duration = Duration::from_secs(10);

/// A partition that holds more than this is paused, until it holds half. All partitions together hold `MAX_BYTES`: each
/// has an equal share of them, and at least one message.
const MAX_MESSAGES: usize = 5_000;
const MAX_BYTES: usize = 32 << 20;
const MAX_SHARE: usize = 8 << 20;

/// The bytes of memory that the driver needs for a message, in addition to its payload, key and headers.
const OVERHEAD: usize = 512;

/// The partitions of this member.
pub(super) struct SharedLanes {
    state: Mutex<AssignedLanes>,
    /// Wakes the worker.
    changed: Notify,
    /// Wakes the callback that lets partitions go.
    left: Condvar,
    runtime: Arc<dyn Runtime>,
}

#[derive(Default)]
pub(super) struct AssignedLanes {
    pub(super) lanes: BTreeMap<Partition, AssignedLane>,
    events: VecDeque<Event>,
    failure: Option<Error>,
    leaving: Vec<oneshot::Sender<Result<()>>>,
    generation: u64,
    /// The lane that is asked first, so that all get their turn.
    turn: usize,
    pub(super) is_closed: bool,
}

pub(super) struct AssignedLane {
    pub(super) lane: Lane,
    arrived: VecDeque<Delivery>,
    bytes: usize,
    /// The offset after the last settled one, once anything is settled.
    pub(super) settled: Option<i64>,
    /// Where the partition was taken up, if the group had an offset.
    pub(super) begun: Option<i64>,
    /// The end of the partition, as the driver knows it.
    pub(super) end: Option<i64>,
    is_paused: bool,
    has_left: bool,
}

impl AssignedLane {
    fn new(lane: Lane, begun: Option<i64>) -> Self {
        let (arrived, settled, end) = (VecDeque::new(), None, None);
        Self { lane, arrived, bytes: 0, settled, begun, end, is_paused: false, has_left: false }
    }

    fn is_full(&self, share: usize) -> bool {
        self.arrived.len() >= MAX_MESSAGES || self.bytes >= share
    }

    fn is_half_empty(&self, share: usize) -> bool {
        self.arrived.len() <= MAX_MESSAGES / 2 && self.bytes <= share / 2
    }

    /// Takes the next delivery if there is room for it.
    fn take(&mut self, bytes: usize, is_first: bool) -> Option<Delivery> {
        let size = self.arrived.front()?.message.size();
        let fits = bytes > 0 && (size <= bytes || is_first);
        let taken = fits.then(|| self.arrived.pop_front()).flatten()?;
        self.bytes -= size + OVERHEAD;
        Some(taken)
    }
}

impl SharedLanes {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), left: Condvar::new(), runtime }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AssignedLanes> {
        self.state.lock()
    }

    /// Waits for a change since the last call.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.left.notify_all();
    }

    pub(super) fn fail(&self, error: Error) {
        self.state().failure = Some(error);
        self.changed.notify_one();
    }

    /// The next event for which there is room.
    ///
    /// # Errors
    /// What the thread reported last.
    pub(super) fn next(&self, room: &Room) -> Result<Option<Event>> {
        let mut state = self.state();
        if let Some(event) = state.events.pop_front() {
            return Ok(Some(event));
        }
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        let deliveries = state.take(room);
        Ok((!deliveries.is_empty()).then_some(Event::Deliveries(deliveries)))
    }

    /// Adds partitions that the group gave to this member, each with the offset that the group had committed.
    pub(super) fn add(&self, partitions: Vec<(Partition, Option<i64>)>) {
        let mut state = self.state();
        for (partition, begun) in partitions {
            state.generation += 1;
            let lane = Lane {
                topic: Arc::clone(&partition.0),
                partition: u32::try_from(partition.1).unwrap_or_default(),
                generation: state.generation,
            };
            state.lanes.insert(partition, AssignedLane::new(lane, begun));
        }
    }

    /// Adds a message, and wakes nobody. Returns whether its partition must be paused now.
    pub(super) fn push(&self, partition: &Partition, offset: i64, message: Message) -> bool {
        let mut state = self.state();
        let share = state.share();
        let Some(lane) = state.lanes.get_mut(partition) else { return false };
        let number = u64::try_from(offset).unwrap_or_default();
        let id = DeliveryId { lane: lane.lane.clone(), number, handle: Bytes::new() };
        lane.bytes += message.size() + OVERHEAD;
        lane.arrived.push_back(Delivery { id, message: Arc::new(message), attempt: None, leased_until: None });
        let must_pause = lane.is_full(share) && !lane.is_paused;
        lane.is_paused |= must_pause;
        must_pause
    }

    /// Wakes the worker for the messages that were added.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Paused partitions that have room again.
    pub(super) fn resumable(&self) -> Vec<Partition> {
        let state = self.state();
        let share = state.share();
        let paused = state.lanes.iter().filter(|(_, lane)| lane.is_paused && lane.is_half_empty(share));
        paused.map(|(partition, _)| partition.clone()).collect()
    }

    /// Notes that the driver reads these partitions again.
    pub(super) fn resumed(&self, partitions: &[Partition]) {
        let mut state = self.state();
        for partition in partitions {
            if let Some(lane) = state.lanes.get_mut(partition) {
                lane.is_paused = false;
            }
        }
    }

    /// Forgets partitions that belong to another member already, and tells the worker.
    pub(super) fn lose(&self, partitions: &[Partition]) {
        let mut state = self.state();
        let lanes = partitions.iter().filter_map(|lost| state.lanes.remove(lost)).map(|lost| lost.lane);
        let lanes: Vec<Lane> = lanes.collect();
        if !lanes.is_empty() {
            state.events.push_back(Event::Lost { lanes });
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Forgets all partitions: the driver has ended for good.
    pub(super) fn lose_all(&self) {
        let all: Vec<Partition> = self.state().lanes.keys().cloned().collect();
        self.lose(&all);
    }

    /// Asks the worker to leave partitions, waits until it has or the grace is over, and calls `commit` with their
    /// settled offsets. After that, no settlement of them has an effect. Blocks.
    pub(super) fn let_go(&self, partitions: &[Partition], commit: impl FnOnce(Vec<(Partition, i64)>) -> Result<()>) {
        let until = self.runtime.boottime_now() + GRACE;
        let mut state = self.state();
        let lanes = state.begin_to_leave(partitions);
        if !lanes.is_empty() {
            state.events.push_back(Event::Revoking { lanes, until });
            self.changed.notify_one();
        }
        while !state.is_closed && !state.have_left(partitions) {
            let left = until.saturating_sub(self.runtime.boottime_now());
            if left.is_zero() {
                break;
            }
            self.left.wait_for(&mut state, left);
        }
        let settled = |partition: &Partition| Some((partition.clone(), state.lanes.get(partition)?.settled?));
        let settled: Vec<_> = partitions.iter().filter_map(settled).collect();
        state.lanes.retain(|partition, _| !partitions.contains(partition));
        let leaving = std::mem::take(&mut state.leaving);
        drop(state);
        let committed = if settled.is_empty() { Ok(()) } else { commit(settled) };
        for leaver in leaving {
            let told = committed.as_ref().map(|&()| ()).map_err(|error| Error::new(error.kind(), error.to_string()));
            // A failed send means that the worker does not wait.
            let _ = leaver.send(told);
        }
    }

    /// Notes that the worker has left lanes. The result comes when they are let go; None if they are gone already.
    pub(super) fn leave(&self, lanes: &[Lane]) -> Option<oneshot::Receiver<Result<()>>> {
        let mut state = self.state();
        let mut is_there = false;
        for lane in state.lanes.values_mut().filter(|state| lanes.contains(&state.lane)) {
            lane.has_left = true;
            is_there = true;
        }
        if !is_there || state.is_closed {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        state.leaving.push(sender);
        drop(state);
        self.left.notify_all();
        Some(receiver)
    }
}

impl AssignedLanes {
    /// The bytes that one partition may hold.
    fn share(&self) -> usize {
        (MAX_BYTES / self.lanes.len().max(1)).min(MAX_SHARE)
    }

    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let (mut taken, mut bytes, count) = (Vec::new(), room.bytes, self.lanes.len());
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn.checked_rem(count).unwrap_or_default();
        let order: Vec<Partition> = self.lanes.keys().cycle().skip(first).take(count).cloned().collect();
        for partition in order {
            let Some(lane) = self.lanes.get_mut(&partition) else { continue };
            if room.closed.contains(&lane.lane) {
                continue;
            }
            while taken.len() < room.messages {
                let Some(delivery) = lane.take(bytes, taken.is_empty()) else { break };
                bytes = bytes.saturating_sub(delivery.message.size());
                taken.push(delivery);
            }
        }
        taken
    }

    fn begin_to_leave(&mut self, partitions: &[Partition]) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for partition in partitions {
            if let Some(lane) = self.lanes.get_mut(partition) {
                lane.arrived.clear();
                lane.bytes = 0;
                lanes.push(lane.lane.clone());
            }
        }
        lanes
    }

    fn have_left(&self, partitions: &[Partition]) -> bool {
        partitions.iter().all(|partition| self.lanes.get(partition).is_none_or(|lane| lane.has_left))
    }
}

impl fmt::Debug for SharedLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_list().entries(state.lanes.values().map(|state| &state.lane)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: i32) -> (SharedLanes, Vec<Partition>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let lanes = SharedLanes::new(Arc::new(hapax_core::runtime::Tokio::current()));
        let partitions: Vec<Partition> = (0..count).map(|partition| ("orders".into(), partition)).collect();
        lanes.add(partitions.iter().map(|partition| (partition.clone(), None)).collect());
        (lanes, partitions)
    }

    fn push_until_paused(lanes: &SharedLanes, partition: &Partition, payload: usize) -> usize {
        let message = || Message { payload: vec![0; payload].into(), ..Message::default() };
        1 + (0..).take_while(|offset| !lanes.push(partition, *offset, message())).count()
    }

    fn take_all(lanes: &SharedLanes) {
        let room = Room { messages: usize::MAX, bytes: usize::MAX, closed: Arc::default() };
        lanes.next(&room).unwrap();
    }

    #[test]
    fn a_partition_stays_marked_as_paused_until_the_driver_has_resumed_it() {
        let (lanes, partitions) = lanes(1);
        push_until_paused(&lanes, &partitions[0], 10);
        assert!(lanes.resumable().is_empty(), "it is full");
        take_all(&lanes);
        // The driver fails the first time.
        assert_eq!(lanes.resumable(), partitions);
        assert_eq!(lanes.resumable(), partitions, "it is tried again");
        lanes.resumed(&partitions);
        assert!(lanes.resumable().is_empty());
    }

    #[test]
    fn many_partitions_hold_together_no_more_than_a_few() {
        let (lanes, partitions) = lanes(1000);
        let held: usize = partitions.iter().map(|partition| push_until_paused(&lanes, partition, 8 << 10)).sum();
        assert!(held * (8 << 10) <= MAX_BYTES + 1000 * (8 << 10), "{held} messages");
    }

    #[test]
    fn a_small_message_takes_more_than_its_bytes() {
        let (lanes, partitions) = lanes(100);
        assert!(push_until_paused(&lanes, &partitions[0], 0) <= MAX_BYTES / 100 / OVERHEAD + 1);
    }
}
