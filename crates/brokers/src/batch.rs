//! Gathers entries that arrive at about the same time into one request.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::{BoxFuture, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, oneshot};

/// How long an entry waits for others.
const GATHER: Duration = Duration::from_millis(5);

/// The requests that run at once. More entries wait, and fill the batches behind.
const MAX_REQUESTS: usize = 32;

/// The largest batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub(crate) entries: usize,
    /// An entry that is larger is alone.
    pub(crate) bytes: usize,
}

/// Sends a batch. Returns one result an entry, in their order.
pub(crate) type SendBatch<E, R> = Box<dyn Fn(Vec<E>) -> BoxFuture<'static, Vec<R>> + Send + Sync>;

type WaitingEntry<E, R> = (E, oneshot::Sender<R>);

/// Sends entries in batches.
pub(crate) struct Batcher<E, R> {
    entries: UnboundedSender<WaitingEntry<E, R>>,
}

impl<E: Send + 'static, R: Send + 'static> Batcher<E, R> {
    /// Starts the task, which ends with the batcher, after the entries that it has. An entry whose caller has gone is
    /// not sent any more: while the service does not answer, its callers come again and again.
    pub(crate) fn start(
        runtime: &Arc<dyn Runtime>,
        limits: BatchLimits,
        size: fn(&E) -> usize,
        send: SendBatch<E, R>,
    ) -> Self {
        let (entries, waiting) = unbounded_channel();
        let gathering = Gathering { waiting, next: None, limits, size, runtime: Arc::clone(runtime) };
        runtime.spawn(Box::pin(gathering.run(send)));
        Self { entries }
    }

    /// Sends an entry. None if its request ended without a result.
    ///
    /// # Cancel safety
    /// If dropped, the entry may be sent all the same.
    pub(crate) async fn send(&self, entry: E) -> Option<R> {
        let (reply, result) = oneshot::channel();
        self.entries.send((entry, reply)).ok()?;
        result.await.ok()
    }
}

/// The task of a batcher.
struct Gathering<E, R> {
    waiting: UnboundedReceiver<WaitingEntry<E, R>>,
    /// The entry that did not fit into the last batch.
    next: Option<WaitingEntry<E, R>>,
    limits: BatchLimits,
    size: fn(&E) -> usize,
    runtime: Arc<dyn Runtime>,
}

impl<E: Send + 'static, R: Send + 'static> Gathering<E, R> {
    async fn run(mut self, send: SendBatch<E, R>) {
        let (send, running) = (Arc::new(send), Arc::new(Semaphore::new(MAX_REQUESTS)));
        loop {
            let first = match self.next.take() {
                Some(first) => Some(first),
                None => self.waiting.recv().await,
            };
            let Some(first) = first else { return };
            let Ok(permit) = Arc::clone(&running).acquire_owned().await else { return };
            let mut batch = self.gather(first).await;
            batch.retain(|(_, reply)| !reply.is_closed());
            if batch.is_empty() {
                continue;
            }
            let send = Arc::clone(&send);
            self.runtime.spawn(Box::pin(async move {
                let (entries, replies): (Vec<E>, Vec<oneshot::Sender<R>>) = batch.into_iter().unzip();
                let results = send(entries).await;
                drop(permit);
                for (reply, result) in replies.into_iter().zip(results) {
                    // Its caller may be gone.
                    let _ = reply.send(result);
                }
            }));
        }
    }

    /// The entries of a batch.
    async fn gather(&mut self, first: WaitingEntry<E, R>) -> Vec<WaitingEntry<E, R>> {
        let mut bytes = (self.size)(&first.0);
        let mut batch = vec![first];
        let mut time_is_up = self.runtime.sleep(GATHER);
        while batch.len() < self.limits.entries {
            let entry = match select(pin!(self.waiting.recv()), &mut time_is_up).await {
                Either::Left((Some(entry), _)) => entry,
                Either::Left((None, _)) | Either::Right(((), _)) => break,
            };
            bytes += (self.size)(&entry.0);
            if bytes > self.limits.bytes {
                self.next = Some(entry);
                break;
            }
            batch.push(entry);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{join_all, poll_immediate};
    use hapax_core::runtime::Tokio;
    use parking_lot::Mutex;

    use super::*;

    const MAX_ENTRIES: usize = 10;
    const MAX_BYTES: usize = 1 << 20;
    const LIMITS: BatchLimits = BatchLimits { entries: MAX_ENTRIES, bytes: MAX_BYTES };

    #[tokio::test]
    async fn entries_are_gathered_up_to_ten_and_up_to_a_mebibyte() {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let sent: Arc<Mutex<Vec<Vec<usize>>>> = Arc::default();
        let kept = Arc::clone(&sent);
        let send: SendBatch<usize, usize> = Box::new(move |entries: Vec<usize>| {
            kept.lock().push(entries.clone());
            Box::pin(async move { entries.into_iter().map(|entry| entry + 1).collect() })
        });
        let batcher = Batcher::start(&runtime, LIMITS, |entry| *entry, send);
        let results = join_all((0..25).map(|entry| batcher.send(entry))).await;
        assert_eq!(results, (1..26).map(Some).collect::<Vec<_>>());
        assert!(sent.lock().iter().all(|batch| batch.len() <= MAX_ENTRIES), "{sent:?}");
        sent.lock().clear();
        join_all([MAX_BYTES, 1, MAX_BYTES - 1, 1].map(|entry| batcher.send(entry))).await;
        let fits = |batch: &Vec<usize>| batch.iter().sum::<usize>() <= MAX_BYTES;
        assert!(sent.lock().len() >= 3 && sent.lock().iter().all(fits), "{sent:?}");
    }

    #[tokio::test]
    async fn an_entry_whose_caller_has_gone_before_its_request_is_not_sent() {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let (told, mut sent) = unbounded_channel();
        // Every request takes until the end of the test.
        let open = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&open);
        let send: SendBatch<usize, ()> = Box::new(move |entries| {
            let _ = told.send(entries.clone());
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                let _ = gate.acquire().await;
                vec![(); entries.len()]
            })
        });
        // Each entry is a request of its own.
        let batcher = Batcher::start(&runtime, LIMITS, |_| MAX_BYTES, send);
        let mut waiting: Vec<_> = (0..MAX_REQUESTS + 20).map(|entry| Box::pin(batcher.send(entry))).collect();
        for entry in &mut waiting {
            assert!(poll_immediate(entry).await.is_none());
        }
        for entry in 0..MAX_REQUESTS {
            assert_eq!(sent.recv().await, Some(vec![entry]));
        }
        // The first one of those that are not sent yet, and all but the last one.
        drop(waiting.drain(MAX_REQUESTS..MAX_REQUESTS + 19));
        open.close();
        assert_eq!(sent.recv().await, Some(vec![MAX_REQUESTS + 19]));
        assert_eq!(join_all(waiting).await.len(), MAX_REQUESTS + 1);
        drop(batcher);
        assert_eq!(sent.recv().await, None);
    }
}
