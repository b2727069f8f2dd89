//! What starts next on a core. A caller that sends more than the core can serve waits behind its own requests, and others do not.
//!
//! A core starts a few requests or connections. Further ones wait until it has looked at what else has come; then callers take turns,
//! however many each of them has waiting. A core that has nothing else to do looks at once: nobody waits for long unless there is more
//! to do than can be done.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::future::Future;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// What starts between two looks: so few that none waits long for those before it, and so many that looks cost little. With one, the
/// gateway served a fifth less of new keys, with four a twentieth; with eight, as many as without turns.
const STARTS: usize = 8;

/// Where more callers wait, each of them starts one, up to so many.
const MOST_STARTS: usize = 64;

/// Who is about to start on one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairQueue {
    line: Arc<Mutex<QueueState>>,
    hashes: RandomState,
}

/// Whose turn it is. Connections have turns apart from requests: of their requests nothing is known yet.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Caller<'a> {
    Connection(IpAddr),
    Address(&'a [u8]),
    Tenant(&'a [u8]),
}

/// Of a caller. Two with the same one share their turns.
type CallerHash = u64;

#[derive(Debug, Default)]
struct QueueState {
    /// Since the last look.
    started: usize,
    is_looking: bool,
    /// Everyone with something that waits, once.
    callers: VecDeque<CallerHash>,
    waiting: HashMap<CallerHash, VecDeque<oneshot::Sender<()>>>,
}

impl FairQueue {
    /// Gives a request or a connection of this caller its place; it may start when what is returned ends.
    ///
    /// # Cancel safety
    /// If that is dropped, the place is given up.
    pub(crate) fn take(&self, caller: Caller<'_>) -> impl Future<Output = ()> + Send + use<> {
        let mut line = self.line();
        let waiting = line.take(self.hashes.hash_one(caller));
        if line.started == STARTS && !line.is_looking {
            tokio::spawn(self.clone().look());
            line.is_looking = true;
        }
        async {
            if let Some(turn) = waiting {
                // It is always told: what is not started is dropped with its core.
                let _ = turn.await;
            }
        }
    }

    async fn look(self) {
        loop {
            // The executor goes on with this once it has looked at what has come.
            tokio::task::yield_now().await;
            if !self.line().start() {
                return;
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, QueueState> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Nothing for what may start at once.
    fn take(&mut self, caller: CallerHash) -> Option<oneshot::Receiver<()>> {
        if self.started < STARTS && self.callers.is_empty() {
            self.started += 1;
            return None;
        }
        let (tell, told) = oneshot::channel();
        match self.waiting.entry(caller) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(tell),
            Entry::Vacant(first) => {
                first.insert(VecDeque::from([tell]));
                self.callers.push_back(caller);
            }
        }
        Some(told)
    }

    /// Starts the next ones; whether there was any.
    fn start(&mut self) -> bool {
        self.started = 0;
        let starts = self.callers.len().clamp(STARTS, MOST_STARTS);
        while self.started < starts {
            let Some(caller) = self.callers.pop_front() else { break };
            self.started += usize::from(self.start_one(caller));
        }
        self.is_looking = self.started > 0;
        self.is_looking
    }

    /// Starts the first of a caller that is not gone; whether there was one.
    fn start_one(&mut self, caller: CallerHash) -> bool {
        let Some(waiting) = self.waiting.get_mut(&caller) else {
            return false;
        };
        let is_started = std::iter::from_fn(|| waiting.pop_front()).any(|tell| tell.send(()).is_ok());
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

    /// Lets these callers come in this order, and tells in which order their requests start.
    async fn started(coming: &[u8]) -> Vec<u8> {
        let (turns, started) = (FairQueue::default(), Arc::new(Mutex::new(Vec::new())));
        let mut requests = JoinSet::new();
        for caller in coming {
            let (turns, started, caller) = (turns.clone(), Arc::clone(&started), *caller);
            requests.spawn(async move {
                turns.take(Caller::Tenant(&[caller])).await;
                started.lock().unwrap().push(caller);
            });
        }
        requests.join_all().await;
        Arc::into_inner(started).unwrap().into_inner().unwrap()
    }

    #[tokio::test]
    async fn callers_take_turns_however_many_requests_each_has() {
        let order = started(&[[1; 100].as_slice(), &[2, 3, 2]].concat()).await;
        assert_eq!(order.len(), 103, "all have started");
        assert_eq!(order[..STARTS], [1; STARTS]);
        assert_eq!(order[STARTS..STARTS + 5], [1, 2, 3, 1, 2]);
    }

    #[tokio::test]
    async fn each_of_many_callers_starts_one_at_a_look() {
        let coming: Vec<u8> = [1; 100].into_iter().chain(1..=50).collect();
        let order = started(&coming).await;
        assert_eq!(order[STARTS..STARTS + 50], (1..=50).collect::<Vec<_>>());
    }

    /// Until there is nothing to look for.
    async fn looked(turns: &FairQueue) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!turns.line().is_looking, "it does not look for ever");
    }

    #[tokio::test]
    async fn none_waits_while_there_is_little_to_do() {
        let turns = FairQueue::default();
        for _ in 0..10 {
            for caller in 0..4 {
                assert!(turns.take(Caller::Tenant(&[caller])).now_or_never().is_some(), "{caller}");
            }
            looked(&turns).await;
        }
    }

    #[tokio::test]
    async fn one_that_is_gone_takes_no_turn() {
        let turns = FairQueue::default();
        (0..STARTS).for_each(|_| drop(turns.take(Caller::Tenant(b"1"))));
        let gone: Vec<_> = (0..100).map(|_| turns.take(Caller::Tenant(b"1"))).collect();
        let waits = turns.take(Caller::Tenant(b"2"));
        drop(gone);
        waits.await;
        assert!(turns.line().callers.is_empty() && turns.line().waiting.is_empty());
    }
}
