//! What starts next on a core. A caller that sends more than the core can serve waits behind its own requests, and others do not.
//!
//! Between two looks at what has come, a core starts a few requests or connections at once. Further ones wait, and at each look callers
//! take turns, however many each of them has waiting. A core that has nothing else to do looks again at once: nobody waits for long
//! unless there is more to do than can be done.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// What starts between two looks: so few that none waits long for those before it, and so many that looks cost little. With
/// one, the gateway served a fifth less of new keys; with four, as many as without turns.
const STARTS: usize = 4;

/// Who is about to start on one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    line: Arc<Mutex<Line>>,
    hashes: RandomState,
}

/// Callers as they are told apart. Two that look the same share their turns.
type Caller = u64;

#[derive(Debug, Default)]
struct Line {
    /// Since the last look.
    started: usize,
    is_looked_after: bool,
    /// Everyone with something that waits, once.
    callers: VecDeque<Caller>,
    waiting: HashMap<Caller, VecDeque<oneshot::Sender<()>>>,
}

impl Turns {
    /// Gives a request or a connection of this caller its place; it may start when what is returned ends.
    ///
    /// # Cancel safety
    /// If that is dropped, the place is given up.
    pub(crate) fn take(&self, caller: &[u8]) -> impl Future<Output = ()> + Send + use<> {
        let mut line = self.line();
        let waiting = line.take(self.hashes.hash_one(caller));
        if line.started == STARTS && !line.is_looked_after {
            line.is_looked_after = true;
            tokio::spawn(self.clone().look());
        }
        async {
            if let Some(turn) = waiting {
                // Without an answer the core has ended, and the caller's task with it.
                let _ = turn.await;
            }
        }
    }

    async fn look(self) {
        loop {
            // Goes on once the executor has looked at what has come.
            tokio::task::yield_now().await;
            if !self.line().start() {
                return;
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Nothing for what may start at once.
    fn take(&mut self, caller: Caller) -> Option<oneshot::Receiver<()>> {
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
        while self.started < STARTS {
            let Some(tell) = self.next() else { break };
            // One that is gone takes no turn.
            self.started += usize::from(tell.send(()).is_ok());
        }
        self.is_looked_after = self.started > 0;
        self.is_looked_after
    }

    /// The first of the caller whose turn it is.
    fn next(&mut self) -> Option<oneshot::Sender<()>> {
        let caller = self.callers.pop_front()?;
        let waiting = self.waiting.get_mut(&caller)?;
        let tell = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&caller);
        } else {
            self.callers.push_back(caller);
        }
        tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;
    use tokio::task::JoinSet;

    /// Lets these callers come in this order, and tells in which order their requests start.
    async fn started(coming: &[u8]) -> Vec<u8> {
        let (turns, started) = (Turns::default(), Arc::new(Mutex::new(Vec::new())));
        let mut requests = JoinSet::new();
        for caller in coming {
            let (turns, started, caller) = (turns.clone(), Arc::clone(&started), *caller);
            requests.spawn(async move {
                turns.take(&[caller]).await;
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
        assert_eq!(order[..STARTS + 4], [1, 1, 1, 1, 1, 2, 3, 1]);
        assert_eq!(order[STARTS + 4], 2, "its second request has waited for the next round");
    }

    #[tokio::test]
    async fn none_waits_while_there_is_little_to_do() {
        let turns = Turns::default();
        for caller in 0..40 {
            if usize::from(caller) % STARTS == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(turns.take(&[caller]).now_or_never().is_some(), "{caller}");
        }
    }

    #[tokio::test]
    async fn one_that_is_gone_takes_no_turn() {
        let turns = Turns::default();
        (0..STARTS).for_each(|_| drop(turns.take(b"1")));
        let gone: Vec<_> = (0..100).map(|_| turns.take(b"1")).collect();
        let waits = turns.take(b"2");
        drop(gone);
        waits.await;
        assert!(turns.line().callers.is_empty() && turns.line().waiting.is_empty());
    }
}
