use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadReason, Headers, Message, Source};
use hapax_core::worker::{MessageIdentity, Worker, WorkerEnd, WorkerSettings};
use hapax_core::{Error, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::history::{MessageHistory, NUMBER, NotedLetters};
use super::ledger::{JobScript, LedgerOfWorker, SharedLedger};
use super::setup::{SourceSetup, SourceTimes, WorkerHost};
use crate::memory_dead_letters::MemoryDeadLetters;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// How often a handler may panic alone.
pub(super) const MAX_PANICS: u32 = 5;

/// A source, a ledger, dead letters, and the workers between them.
pub(super) struct SourceWorld {
    pub(super) setup: Arc<dyn SourceSetup>,
    pub(super) ledger: Arc<SharedLedger>,
    pub(super) dead: MemoryDeadLetters,
    /// The ordering keys of the published messages.
    published: Mutex<Vec<Option<Bytes>>>,
    failures: Arc<Mutex<Vec<Error>>>,
}

/// A worker in a process of its own.
pub(super) struct RunningWorker {
    pub(super) host: Arc<dyn WorkerHost>,
    shutdown: Arc<Notify>,
    is_stopping: Arc<AtomicBool>,
    end: Arc<Mutex<Option<WorkerEnd>>>,
}

impl RunningWorker {
    pub(super) fn shut_down(&self) {
        self.shutdown.notify_one();
    }

    /// Whether the worker has learned that it is to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) -> Option<WorkerEnd> {
        *self.end.lock()
    }
}

/// A message with this key. Its ordering key is what is before the first `.` of the key.
pub(super) fn message(key: &str) -> Message {
    let headers: Headers = [("Idempotency-Key", key.as_bytes().to_vec())].into_iter().collect();
    let ordering_key = key.split_once('.').map(|(order, _)| Bytes::copy_from_slice(order.as_bytes()));
    Message { payload: Bytes::copy_from_slice(key.as_bytes()), headers, ordering_key, ..Message::default() }
}

impl SourceWorld {
    pub(super) fn new(setup: Arc<dyn SourceSetup>) -> Self {
        let ledger = Arc::new(SharedLedger::new(setup.times().backoff, Arc::default()));
        let (dead, failures) = (MemoryDeadLetters::new(), Arc::default());
        Self { setup, ledger, dead, published: Mutex::default(), failures }
    }

    pub(super) fn times(&self) -> SourceTimes {
        self.setup.times()
    }

    pub(super) fn script(&self, key: &str, script: JobScript) {
        self.ledger.script(key, script);
    }

    pub(super) async fn publish(&self, keys: &[impl AsRef<str>]) {
        self.publish_messages(keys.iter().map(|key| message(key.as_ref())).collect()).await;
    }

    pub(super) async fn publish_messages(&self, mut messages: Vec<Message>) {
        {
            let mut published = self.published.lock();
            for message in &mut messages {
                message.headers.push(NUMBER, published.len().to_string());
                published.push(message.ordering_key.clone());
            }
        }
        self.setup.publish(messages).await;
    }

    pub(super) async fn start_worker(&self) -> RunningWorker {
        let host = self.setup.start_process();
        let source = host.connect().await;
        self.run_worker(host, source)
    }

    /// A worker on the dead letters that are marked for a redrive.
    pub(super) fn start_redrives(&self) -> RunningWorker {
        let source = self.dead.redrives("memory/topic/group");
        self.run_worker(self.setup.start_process(), source)
    }

    fn run_worker(&self, host: Arc<dyn WorkerHost>, source: Box<dyn Source>) -> RunningWorker {
        let process = LedgerOfWorker { ledger: Arc::clone(&self.ledger), runtime: host.runtime() };
        let letters = NotedLetters { letters: self.dead.clone(), history: Arc::clone(self.history()) };
        let mut settings = WorkerSettings::default();
        // The pauses between panics are those of production.
        settings.max_panics = MAX_PANICS;
        let worker = Worker::builder(source, Arc::new(process), Arc::new(letters))
            .identity(MessageIdentity::new("group").expect("a valid namespace"))
            .settings(settings)
            .runtime(host.runtime())
            .build()
            .expect("valid settings");
        let (shutdown, is_stopping) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let end = Arc::new(Mutex::new(None));
        let (asked, noted, slot) = (Arc::clone(&shutdown), Arc::clone(&is_stopping), Arc::clone(&end));
        let failures = Arc::clone(&self.failures);
        host.runtime().spawn(Box::pin(async move {
            let shutdown = async move {
                asked.notified().await;
                noted.store(true, Ordering::Release);
            };
            match worker.run(shutdown).await {
                Ok(end) => *slot.lock() = Some(end),
                Err(error) => failures.lock().push(error),
            }
        }));
        RunningWorker { host, shutdown, is_stopping, end }
    }

    /// Tells a worker to stop, and waits until it knows it.
    pub(super) async fn begin_to_stop(&self, worker: &RunningWorker) {
        worker.shut_down();
        self.until("the worker stops", || worker.is_stopping()).await;
    }

    fn history(&self) -> &Arc<MessageHistory> {
        &self.ledger.history
    }

    /// Waits until a condition holds. At each look, no message without an end is acknowledged.
    ///
    /// # Panics
    /// If it does not hold in time, too much is acknowledged, or a worker fails.
    pub(super) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let runtime = self.setup.runtime();
        let deadline = runtime.boottime_now() + LIMIT;
        loop {
            self.check_nothing_is_lost().await;
            if holds() {
                return;
            }
            self.check_workers();
            assert!(runtime.boottime_now() < deadline, "not in time: {what}");
            runtime.sleep(self.times().look).await;
        }
    }

    /// Waits until a worker has failed. Returns why.
    pub(super) async fn until_refused(&self) -> Error {
        let runtime = self.setup.runtime();
        let deadline = runtime.boottime_now() + LIMIT;
        loop {
            if let Some(error) = self.failures.lock().pop() {
                return error;
            }
            assert!(runtime.boottime_now() < deadline, "the worker does not fail");
            runtime.sleep(self.times().look).await;
        }
    }

    /// Lets this much time pass. At each look, no message without an end is acknowledged.
    pub(super) async fn pass(&self, time: Duration) {
        let runtime = self.setup.runtime();
        let end = runtime.boottime_now() + time;
        while runtime.boottime_now() < end {
            self.check_nothing_is_lost().await;
            runtime.sleep(self.times().look).await;
        }
    }

    /// Waits until the broker has nothing left, and checks the order of each ordering key.
    pub(super) async fn until_finished(&self) {
        let runtime = self.setup.runtime();
        let deadline = runtime.boottime_now() + LIMIT;
        loop {
            let left = self.check_nothing_is_lost().await;
            if left.is_empty() {
                break;
            }
            self.check_workers();
            assert!(runtime.boottime_now() < deadline, "messages are left: {left:?}");
            runtime.sleep(self.times().look).await;
        }
        self.check_order();
    }

    /// Asserts that the broker keeps every message that has neither an effect nor a dead letter. Reads the broker
    /// first: an end that comes in between makes the check weaker, never wrong. Returns what the broker keeps.
    async fn check_nothing_is_lost(&self) -> BTreeSet<usize> {
        let published = self.published.lock().len();
        let unfinished = self.setup.unfinished().await;
        let ended = self.history().all_ended();
        let is_lost = |number: &usize| !unfinished.contains(number) && !ended.contains(number);
        let lost: Vec<usize> = (0..published).filter(is_lost).collect();
        assert!(lost.is_empty(), "messages are acknowledged and have no end: {lost:?}");
        unfinished
    }

    /// Asserts that no message of an ordering key has started before the end of the one before it.
    pub(super) fn check_order(&self) {
        if !self.setup.is_ordered() {
            return;
        }
        let (mut last, mut precedes) = (BTreeMap::new(), BTreeMap::new());
        for (number, key) in self.published.lock().iter().enumerate() {
            let Some(key) = key else { continue };
            if let Some(earlier) = last.insert(key.clone(), number) {
                precedes.insert(number, earlier);
            }
        }
        self.history().check_order(&precedes);
    }

    fn check_workers(&self) {
        let failures = self.failures.lock();
        assert!(failures.is_empty(), "a worker has failed: {failures:?}");
    }

    /// Asserts that exactly these keys have an effect, each one once.
    pub(super) fn assert_effects(&self, keys: &[impl AsRef<str>]) {
        let mut expected: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        expected.sort_unstable();
        let mut effects = self.ledger.effects();
        effects.sort();
        assert_eq!(effects, expected);
    }

    /// The keys and reasons of the dead letters.
    pub(super) fn dead_letters(&self) -> Vec<(String, DeadReason)> {
        let text = |payload: &Bytes| String::from_utf8_lossy(payload).into_owned();
        let letters = self.dead.letters();
        let mut letters: Vec<_> = letters.iter().map(|letter| (text(&letter.message.payload), letter.reason)).collect();
        letters.sort();
        letters
    }
}

/// Asserts that a worker failed because it cannot go on.
pub(super) fn assert_unusable(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unusable, "{error}");
}
