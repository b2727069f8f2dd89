use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadReason, Headers, Message, Source};
use hapax_core::worker::{MessageIdentity, Worker, WorkerEnd, WorkerSettings};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::{JobScript, LedgerOfWorker, SharedLedger};
use super::setup::{SourceSetup, WorkerHost};
use crate::memory_dead_letters::MemoryDeadLetters;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A source, a ledger, dead letters, and the workers between them.
pub(super) struct SourceWorld {
    pub(super) setup: Arc<dyn SourceSetup>,
    pub(super) ledger: Arc<SharedLedger>,
    pub(super) dead: MemoryDeadLetters,
    published: Mutex<u64>,
}

/// A worker in a process of its own.
pub(super) struct RunningWorker {
    pub(super) host: Arc<dyn WorkerHost>,
    shutdown: Arc<Notify>,
    end: Arc<Mutex<Option<WorkerEnd>>>,
}

impl RunningWorker {
    pub(super) fn shut_down(&self) {
        self.shutdown.notify_one();
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
        Self { setup, ledger: Arc::default(), dead: MemoryDeadLetters::new(), published: Mutex::new(0) }
    }

    pub(super) fn script(&self, key: &str, script: JobScript) {
        self.ledger.script(key, script);
    }

    pub(super) async fn publish(&self, keys: &[&str]) {
        self.publish_messages(keys.iter().map(|key| message(key)).collect()).await;
    }

    pub(super) async fn publish_messages(&self, messages: Vec<Message>) {
        *self.published.lock() += messages.len() as u64;
        self.setup.publish(messages).await;
    }

    pub(super) async fn start_worker(&self) -> RunningWorker {
        let host = self.setup.start_process();
        let source = self.setup.connect(&*host).await;
        self.run_worker(host, source, WorkerSettings::default())
    }

    /// A worker on the dead letters that are marked for a redrive.
    pub(super) fn start_redrives(&self) -> RunningWorker {
        let source = self.dead.redrives("memory/topic/group");
        self.run_worker(self.setup.start_process(), source, WorkerSettings::default())
    }

    fn run_worker(
        &self,
        host: Arc<dyn WorkerHost>,
        source: Box<dyn Source>,
        settings: WorkerSettings,
    ) -> RunningWorker {
        let process = LedgerOfWorker { ledger: Arc::clone(&self.ledger), runtime: host.runtime() };
        let worker = Worker::builder(source, Arc::new(process), Arc::new(self.dead.clone()))
            .identity(MessageIdentity::new("group").expect("a valid namespace"))
            .settings(settings)
            .runtime(host.runtime())
            .build()
            .expect("valid settings");
        let (shutdown, end) = (Arc::new(Notify::new()), Arc::new(Mutex::new(None)));
        let (asked, slot) = (Arc::clone(&shutdown), Arc::clone(&end));
        host.runtime().spawn(Box::pin(async move {
            let result = worker.run(async move { asked.notified().await }).await;
            *slot.lock() = Some(result.expect("the source can be used"));
        }));
        RunningWorker { host, shutdown, end }
    }

    /// Waits until a condition holds. At each look, no message without an end is acknowledged.
    ///
    /// # Panics
    /// If it does not hold in time, or too much is acknowledged.
    pub(super) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let runtime = self.setup.runtime();
        let deadline = runtime.boottime_now() + LIMIT;
        loop {
            self.check_nothing_is_lost().await;
            if holds() {
                return;
            }
            assert!(runtime.boottime_now() < deadline, "not in time: {what}");
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets this much time pass. At each look, no message without an end is acknowledged.
    pub(super) async fn pass(&self, time: Duration) {
        let runtime = self.setup.runtime();
        let end = runtime.boottime_now() + time;
        while runtime.boottime_now() < end {
            self.check_nothing_is_lost().await;
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the broker has nothing left.
    pub(super) async fn until_finished(&self) {
        let runtime = self.setup.runtime();
        let deadline = runtime.boottime_now() + LIMIT;
        while self.setup.unfinished().await > 0 {
            self.check_nothing_is_lost().await;
            assert!(runtime.boottime_now() < deadline, "messages are left: {}", self.setup.unfinished().await);
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asserts that the broker keeps every message that has neither an effect nor a dead letter. Reads the broker
    /// first: an end that comes in between makes the check weaker, never wrong.
    async fn check_nothing_is_lost(&self) {
        let published = *self.published.lock();
        let unfinished = self.setup.unfinished().await;
        // Copies of one key have one effect.
        let ends = self.ledger.effects().len() + self.ledger.copies() + self.dead.writes();
        let acknowledged = published - unfinished;
        assert!(acknowledged <= ends as u64, "{acknowledged} messages are acknowledged, {ends} have an end");
    }

    /// The effects, sorted.
    pub(super) fn sorted_effects(&self) -> Vec<String> {
        let mut effects = self.ledger.effects();
        effects.sort();
        effects
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
