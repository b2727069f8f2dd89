//! Calls for one key take turns. HTTP has no order: of two requests on two connections the first one may arrive last.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{RecordKey, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::errors::unknown;

/// The turns of the keys that have calls in flight. Clones share them.
#[derive(Clone)]
pub(crate) struct Turns {
    queues: Arc<Mutex<KeyQueues>>,
    runtime: Arc<dyn Runtime>,
    /// How long a call waits for its turn. None: until the calls before it have ended.
    limit: Option<Duration>,
}

#[derive(Default)]
struct KeyQueues {
    /// The last call of each key: its number, and the end of its turn.
    last: HashMap<RecordKey, (u64, oneshot::Receiver<()>)>,
    numbers: u64,
}

impl Turns {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { queues: Arc::default(), runtime, limit: None }
    }

    /// The same turns, with tasks of this runtime. The executor of the others may be blocked, so its calls do not wait
    /// for them for longer than this.
    pub(crate) fn on(&self, runtime: Arc<dyn Runtime>, limit: Duration) -> Self {
        Self { queues: Arc::clone(&self.queues), runtime, limit: Some(limit) }
    }

    /// Makes a call after the earlier ones for this key, and after `admit`, which may refuse it. The value of `admit`
    /// is kept until the call has ended.
    ///
    /// # Cancel safety
    /// If dropped, a call that has begun goes on to its end, and later ones for the key wait for it. One that has not
    /// begun is not made.
    pub(crate) async fn run<T, P>(
        &self,
        rk: RecordKey,
        admit: impl Future<Output = Result<P>> + Send + 'static,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        P: Send + 'static,
    {
        // Before the task starts: tasks start in any order.
        let (number, before, end) = self.queue(rk);
        let (mut sender, result) = oneshot::channel();
        let turns = self.clone();
        self.runtime.spawn(Box::pin(async move {
            if let Some(before) = before {
                turns.wait(before).await;
            }
            // A call whose caller has gone before its turn is not sent.
            let admitted = match select(pin!(sender.closed()), pin!(admit)).await {
                Either::Left(_) => None,
                Either::Right((admitted, _)) => Some(admitted),
            };
            // The caller may be gone at the end.
            let _ = match admitted {
                Some(Ok(permit)) => {
                    let outcome = call.await;
                    drop(permit);
                    sender.send(outcome)
                }
                Some(Err(error)) => sender.send(Err(error)),
                None => Ok(()),
            };
            drop(end);
            turns.forget(&rk, number);
        }));
        result.await.unwrap_or_else(|_| Err(unknown("the runtime ended during a call of the store")))
    }

    /// Waits for the end of a turn. An error is the end of a call that was never made.
    async fn wait(&self, before: oneshot::Receiver<()>) {
        let _ = match self.limit {
            Some(limit) => timeout(&*self.runtime, limit, before).await,
            None => Some(before.await),
        };
    }

    /// Puts a call behind the last one for its key. Returns its number, the end of the turn before it, and that of its
    /// own, which ends when it is dropped.
    fn queue(&self, rk: RecordKey) -> (u64, Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (end, has_ended) = oneshot::channel();
        let mut queues = self.queues.lock();
        queues.numbers += 1;
        let number = queues.numbers;
        let before = queues.last.insert(rk, (number, has_ended)).map(|(_, before)| before);
        (number, before, end)
    }

    /// Removes the queue of a key if this was its last call.
    fn forget(&self, rk: &RecordKey, number: u64) {
        let mut queues = self.queues.lock();
        if queues.last.get(rk).is_some_and(|(last, _)| *last == number) {
            queues.last.remove(rk);
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("keys", &self.queues.lock().last.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use hapax_core::runtime::Tokio;
    use tokio::sync::Notify;

    use super::*;

    fn rk() -> RecordKey {
        RecordKey::from_bytes([7; 16])
    }

    /// Every call may begin.
    async fn free() -> Result<()> {
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_dropped_call_that_has_begun_ends_before_the_next_one_begins() {
        let turns = Turns::new(Arc::new(Tokio::current()));
        for _ in 0..100 {
            let (goes_on, done) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
            let (wait, log) = (Arc::clone(&goes_on), Arc::clone(&done));
            let begun = Arc::new(Notify::new());
            let first_begun = Arc::clone(&begun);
            let mut first = Box::pin(turns.run(rk(), free(), async move {
                first_begun.notify_one();
                wait.notified().await;
                log.lock().push("first");
                Ok(())
            }));
            assert!(poll!(first.as_mut()).is_pending());
            begun.notified().await;
            drop(first);
            let log = Arc::clone(&done);
            let mut second = Box::pin(turns.run(rk(), free(), async move {
                log.lock().push("second");
                Ok(())
            }));
            assert!(poll!(second.as_mut()).is_pending());
            goes_on.notify_one();
            second.await.unwrap();
            assert_eq!(*done.lock(), ["first", "second"]);
        }
        // The task forgets the key after it has told the result.
        while !turns.queues.lock().last.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_dropped_call_that_waits_is_not_made() {
        let turns = Turns::new(Arc::new(Tokio::current()));
        let goes_on = Arc::new(Notify::new());
        let wait = Arc::clone(&goes_on);
        let mut first = Box::pin(turns.run(rk(), free(), async move {
            wait.notified().await;
            Ok(())
        }));
        assert!(poll!(first.as_mut()).is_pending());
        let made = Arc::new(Mutex::new(false));
        let is_made = Arc::clone(&made);
        let mut second = Box::pin(turns.run(rk(), free(), async move {
            *is_made.lock() = true;
            Ok(())
        }));
        assert!(poll!(second.as_mut()).is_pending());
        drop(second);
        goes_on.notify_one();
        first.await.unwrap();
        turns.run(rk(), free(), async { Ok(()) }).await.unwrap();
        assert!(!*made.lock());
        let other = RecordKey::from_bytes([8; 16]);
        turns.run(other, free(), async { Ok(()) }).await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_call_that_waits_to_be_admitted_is_not_made_and_the_next_one_is() {
        let turns = Turns::new(Arc::new(Tokio::current()));
        let made = Arc::new(Mutex::new(false));
        let is_made = Arc::clone(&made);
        let mut first = Box::pin(turns.run(rk(), std::future::pending::<Result<()>>(), async move {
            *is_made.lock() = true;
            Ok(())
        }));
        assert!(poll!(first.as_mut()).is_pending());
        tokio::task::yield_now().await;
        drop(first);
        turns.run(rk(), free(), async { Ok(()) }).await.unwrap();
        assert!(!*made.lock());
        let refused = async { Err::<(), _>(unknown("it is refused")) };
        turns.run(rk(), refused, async { Ok(()) }).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_on_an_executor_of_its_own_does_not_wait_for_ever() {
        let turns = Turns::new(Arc::new(Tokio::current()));
        let mut stuck = Box::pin(turns.run(rk(), free(), std::future::pending::<Result<()>>()));
        assert!(poll!(stuck.as_mut()).is_pending());
        tokio::task::yield_now().await;
        let dedicated = turns.on(Arc::new(Tokio::current()), Duration::from_secs(15));
        dedicated.run(rk(), free(), async { Ok(()) }).await.unwrap();
    }
}
