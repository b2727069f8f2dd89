//! The order in which requests and connections start on one executor: round-robin by caller while there is more work
//! than the executor can do.
//!
//! At most eight starts happen per tick of the executor. Further ones queue, and each tick starts them round-robin by
//! caller, however many requests a caller has queued. The next tick follows once the executor has polled all other
//! ready tasks, so an executor without other work delays no request.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::future::Future;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Starts per tick: few enough that a caller waits only briefly, and enough that the ticks cost little. With 1 the
/// gateway served a fifth fewer new keys, with 4 a twentieth fewer, and with 8 as many as without a queue.
const STARTS: usize = 8;

/// The most starts per tick. If more than [`STARTS`] callers are queued, each of them starts one, up to this number.
const MAX_STARTS: usize = 64;

/// The queue of one executor.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairQueue {
    state: Arc<Mutex<QueueState>>,
    hashes: RandomState,
}

/// Identifies a caller. Connections take turns apart from requests, because the caller of their requests is not known
/// yet.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Caller<'a> {
    Connection(IpAddr),
    Address(&'a [u8]),
    Tenant(&'a [u8]),
}

/// The hash of a caller. Two callers with the same hash share their turns.
type CallerHash = u64;

#[derive(Debug, Default)]
struct QueueState {
    started_in_tick: usize,
    is_ticking: bool,
    /// The callers that have queued entries, each once, in the order of their turns.
    callers: VecDeque<CallerHash>,
    waiting: HashMap<CallerHash, VecDeque<oneshot::Sender<()>>>,
}

impl FairQueue {
    /// Queues a request or a connection of this caller. The returned future ends when it may start.
    ///
    /// # Cancel safety
    /// If the future is dropped, the place in the queue is given up.
    pub(crate) fn wait_turn(&self, caller: Caller<'_>) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state.lock();
        let queued = state.enqueue(self.hashes.hash_one(caller));
        if state.started_in_tick == STARTS && !state.is_ticking {
            tokio::spawn(self.clone().tick());
            state.is_ticking = true;
        }
        async {
            if let Some(turn) = queued {
                // The sender is dropped only together with its executor, and this future with it.
                let _ = turn.await;
            }
        }
    }

    async fn tick(self) {
        loop {
            // The executor polls all other ready tasks before it continues here.
            tokio::task::yield_now().await;
            if !self.state.lock().start_next() {
                return;
            }
        }
    }
}

impl QueueState {
    /// None if the caller may start at once.
    fn enqueue(&mut self, caller: CallerHash) -> Option<oneshot::Receiver<()>> {
        // A newcomer must not overtake callers that are queued already.
        if self.started_in_tick < STARTS && self.callers.is_empty() {
            self.started_in_tick += 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        match self.waiting.entry(caller) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(sender),
            Entry::Vacant(first) => {
                first.insert(VecDeque::from([sender]));
                self.callers.push_back(caller);
            }
        }
        Some(receiver)
    }

    /// Begins a tick and starts the next queued entries. Returns whether there were any.
    fn start_next(&mut self) -> bool {
        self.started_in_tick = 0;
        let starts = self.callers.len().clamp(STARTS, MAX_STARTS);
        while self.started_in_tick < starts {
            let Some(caller) = self.callers.pop_front() else { break };
            self.started_in_tick += usize::from(self.start_one(caller));
        }
        self.is_ticking = self.started_in_tick > 0;
        self.is_ticking
    }

    /// Starts the oldest entry of a caller that has not been dropped. Returns whether there was one.
    fn start_one(&mut self, caller: CallerHash) -> bool {
        let Some(waiting) = self.waiting.get_mut(&caller) else {
            return false;
        };
        // `send` fails if the waiting future was dropped; then the next entry of the caller gets the turn.
        let is_started = std::iter::from_fn(|| waiting.pop_front()).any(|sender| sender.send(()).is_ok());
        if waiting.is_empty() {
            self.waiting.remove(&caller);
        } else {
            self.callers.push_back(caller);
        }
        is_started
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::task::JoinSet;

    /// Queues requests of these callers in this order, and returns the order in which they start.
    async fn start_order(arrivals: &[u8]) -> Vec<u8> {
        let (queue, started) = (FairQueue::default(), Arc::new(Mutex::new(Vec::new())));
        let mut requests = JoinSet::new();
        for caller in arrivals {
            let (queue, started, caller) = (queue.clone(), Arc::clone(&started), *caller);
            requests.spawn(async move {
                queue.wait_turn(Caller::Tenant(&[caller])).await;
                started.lock().push(caller);
            });
        }
        requests.join_all().await;
        Arc::into_inner(started).unwrap().into_inner()
    }

    #[tokio::test]
    async fn requests_start_round_robin_by_caller() {
        let order = start_order(&[[1; 100].as_slice(), &[2, 3, 2]].concat()).await;
        assert_eq!(order.len(), 103, "all have started");
        assert_eq!(order[..STARTS], [1; STARTS]);
        assert_eq!(order[STARTS..STARTS + 5], [1, 2, 3, 1, 2]);
    }

    #[tokio::test]
    async fn each_of_many_callers_starts_one_per_tick() {
        let arrivals: Vec<u8> = [1; 100].into_iter().chain(1..=50).collect();
        let order = start_order(&arrivals).await;
        assert_eq!(order[STARTS..STARTS + 50], (1..=50).collect::<Vec<_>>());
    }

    /// Waits until the queue stops ticking.
    async fn settle(queue: &FairQueue) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!queue.state.lock().is_ticking, "an empty queue does not tick");
    }

    #[tokio::test]
    async fn no_request_waits_while_there_is_little_to_do() {
        let queue = FairQueue::default();
        for _ in 0..10 {
            for caller in 0..4 {
                assert!(queue.wait_turn(Caller::Tenant(&[caller])).now_or_never().is_some(), "{caller}");
            }
            settle(&queue).await;
        }
    }

    #[tokio::test]
    async fn a_dropped_request_takes_no_turn() {
        let queue = FairQueue::default();
        (0..STARTS).for_each(|_| drop(queue.wait_turn(Caller::Tenant(b"1"))));
        let dropped: Vec<_> = (0..100).map(|_| queue.wait_turn(Caller::Tenant(b"1"))).collect();
        let waiting = queue.wait_turn(Caller::Tenant(b"2"));
        drop(dropped);
        waiting.await;
        assert!(queue.state.lock().callers.is_empty() && queue.state.lock().waiting.is_empty());
    }
}
