//! The partitions of a Kafka source. The polling thread, the worker and the settlements share this state under a lock.

mod renewed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{Delivery, DeliveryId, Event, Lane, Message, Room};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use super::note::OffsetNote;
use super::progress::LaneProgress;

/// A topic and a partition.
pub(super) type Partition = (Arc<str>, i32);

/// A partition that is taken up.
pub(super) struct TakenUp {
    pub(super) partition: Partition,
    /// None if the broker tells no ids of topics.
    pub(super) note: Option<OffsetNote>,
    pub(super) progress: LaneProgress,
}

/// An offset for the broker, which belongs to one topic of that name.
pub(super) struct DoneOffset {
    pub(super) partition: Partition,
    pub(super) note: Option<OffsetNote>,
    pub(super) offset: i64,
}

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
    /// Wakes the callback that takes partitions up or lets them go.
    left: Condvar,
    runtime: Arc<dyn Runtime>,
}

#[derive(Default)]
pub(super) struct AssignedLanes {
    pub(super) lanes: BTreeMap<Partition, AssignedLane>,
    /// When the topics of all lanes were confirmed last.
    confirmed_at: Duration,
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
    /// The metadata of each commit. None if the broker tells no ids of topics.
    note: Option<OffsetNote>,
    arrived: VecDeque<Delivery>,
    bytes: usize,
    pub(super) progress: LaneProgress,
    is_paused: bool,
    has_left: bool,
    /// When the lane was taken up, or a message arrived last.
    arrived_at: Duration,
    /// Whether the messages that wait here may belong to a topic that was created again under the same name.
    is_doubtful: bool,
}

impl AssignedLane {
    fn new(taken: TakenUp, lane: Lane, now: Duration) -> Self {
        Self {
            lane,
            note: taken.note,
            arrived: VecDeque::new(),
            bytes: 0,
            progress: taken.progress,
            is_paused: false,
            has_left: false,
            arrived_at: now,
            is_doubtful: false,
        }
    }

    fn is_full(&self, share: usize) -> bool {
        self.arrived.len() >= MAX_MESSAGES || self.bytes >= share
    }

    fn is_half_empty(&self, share: usize) -> bool {
        self.arrived.len() <= MAX_MESSAGES / 2 && self.bytes <= share / 2
    }

    fn offset(&self, partition: &Partition, offset: i64) -> DoneOffset {
        DoneOffset { partition: partition.clone(), note: self.note, offset }
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
        let mut state = self.state();
        // An error that ends the worker is not hidden by the next report of the driver.
        if state.failure.as_ref().is_none_or(|failure| failure.kind() != ErrorKind::Unusable) {
            state.failure = Some(error);
        }
        drop(state);
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

    /// Adds partitions that the group gave to this member. Their topics were just looked up.
    pub(super) fn add(&self, taken: Vec<TakenUp>) {
        let now = self.now();
        let mut state = self.state();
        for taken in taken {
            let partition = taken.partition.clone();
            state.generation += 1;
            let lane = Lane {
                topic: Arc::clone(&partition.0),
                partition: u32::try_from(partition.1).unwrap_or_default(),
                generation: state.generation,
            };
            state.lanes.insert(partition, AssignedLane::new(taken, lane, now));
        }
    }

    /// Adds a message, and wakes nobody. Returns whether its partition must be paused now.
    pub(super) fn push(&self, partition: &Partition, offset: i64, message: Message) -> bool {
        let now = self.now();
        let mut state = self.state();
        let (share, confirmed_at) = (state.share(), state.confirmed_at);
        let Some(lane) = state.lanes.get_mut(partition) else { return false };
        lane.is_doubtful |= now.saturating_sub(lane.arrived_at.max(confirmed_at)) > renewed::AT_ONCE;
        lane.arrived_at = now;
        let number = u64::try_from(offset).unwrap_or_default();
        let id = DeliveryId { lane: lane.lane.clone(), number, handle: Bytes::new() };
        lane.progress.arrived(offset);
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

    /// The offsets to commit, without those that the broker has.
    pub(super) fn unsent(&self) -> Vec<DoneOffset> {
        let state = self.state();
        let unsent =
            |(partition, lane): (&Partition, &AssignedLane)| Some(lane.offset(partition, lane.progress.unsent()?));
        state.lanes.iter().filter_map(unsent).collect()
    }

    /// Notes the offsets that were sent to the broker.
    pub(super) fn sent(&self, offsets: &[DoneOffset]) {
        let mut state = self.state();
        for DoneOffset { partition, offset, .. } in offsets {
            if let Some(lane) = state.lanes.get_mut(partition) {
                lane.progress.sent(*offset);
            }
        }
    }

    /// Waits, unless the source is closed. Returns whether it is still open.
    pub(super) fn rest(&self, length: Duration) -> bool {
        let mut state = self.state();
        if !state.is_closed {
            self.left.wait_for(&mut state, length);
        }
        !state.is_closed
    }

    pub(super) fn now(&self) -> Duration {
        self.runtime.boottime_now()
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

    /// Forgets all partitions: the driver has ended.
    pub(super) fn lose_all(&self) {
        let all: Vec<Partition> = self.state().lanes.keys().cloned().collect();
        self.lose(&all);
    }

    /// Asks the worker to leave partitions, waits until it has or the grace is over, and calls `commit` with what is
    /// done. After that, no settlement of them has an effect. Blocks.
    pub(super) fn let_go(&self, partitions: &[Partition], commit: impl FnOnce(Vec<DoneOffset>) -> Result<()>) {
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
        let done = partitions.iter().filter_map(|partition| {
            let lane = state.lanes.get(partition)?;
            Some(lane.offset(partition, lane.progress.done()?))
        });
        let done: Vec<DoneOffset> = done.collect();
        state.lanes.retain(|partition, _| !partitions.contains(partition));
        let leaving = std::mem::take(&mut state.leaving);
        drop(state);
        let committed = if done.is_empty() { Ok(()) } else { commit(done) };
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

    /// The number of offsets that are not done. None while that of a partition is not known.
    pub(super) fn lag(&self) -> Option<u64> {
        self.lanes.values().map(|lane| lane.progress.lag()).sum()
    }

    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let (mut taken, mut bytes, count) = (Vec::new(), room.bytes, self.lanes.len());
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn.checked_rem(count).unwrap_or_default();
        let order: Vec<Partition> = self.lanes.keys().cycle().skip(first).take(count).cloned().collect();
        for partition in order {
            let Some(lane) = self.lanes.get_mut(&partition) else { continue };
            if lane.is_doubtful || room.closed.contains(&lane.lane) {
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
