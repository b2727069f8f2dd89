//! A worker between a queue, a ledger and dead letters in SQLite, and the redrive of a message that was dead.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::broker::{DeadLetterId, DeadLetterStore, DeadReason, Job, LetterChange, Message, Source};
use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, HandlerFailure, Terms};
use hapax_core::runtime::Tokio;
use hapax_core::worker::{MessageIdentity, RedriveSource, Worker, WorkerEnd};
use hapax_stores::{SqliteDeadLetters, SqliteLedger, SqliteQueue};
use rusqlite::{Connection, Transaction};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(60);

struct Shop {
    _directory: TempDir,
    path: PathBuf,
    letters: Arc<SqliteDeadLetters>,
    is_broken: Arc<AtomicBool>,
}

impl Shop {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let mut service = Connection::open(&path).unwrap();
        SqliteQueue::migrate(&mut service).unwrap();
        service.execute_batch("create table effect (key text not null)").unwrap();
        let letters = Arc::new(SqliteDeadLetters::open(&path).unwrap());
        Self { _directory: directory, path, letters, is_broken: Arc::new(AtomicBool::new(true)) }
    }

    fn connection(&self) -> Connection {
        let mut connection = Connection::open(&self.path).unwrap();
        SqliteLedger::migrate(&mut connection).unwrap();
        connection
    }

    fn put(&self, key: &str) {
        let headers = [("Idempotency-Key", key.to_owned())].into_iter().collect();
        let message = Message { payload: key.to_owned().into(), headers, ..Message::default() };
        SqliteQueue::new("orders").unwrap().enqueue(&self.connection(), &message).unwrap();
    }

    fn start_worker(&self) -> RunningWorker {
        let is_broken = Arc::clone(&self.is_broken);
        let handler = move |transaction: &Transaction<'_>, jobs: &[Job], entries: &mut [Entry]| {
            let handle = |entry: &Entry| handle(transaction, &jobs[entry.index()], is_broken.load(Ordering::SeqCst));
            entries.iter().map(handle).collect()
        };
        let ledger = SqliteLedger::new(Terms::new("shop").unwrap().max_attempts(2));
        let process = ledger.process::<String, _>(self.connection(), handler);
        let queue: Box<dyn Source> = Box::new(SqliteQueue::new("orders").unwrap().source(&self.path).unwrap());
        let source = RedriveSource::new(queue, Arc::clone(&self.letters) as _, Arc::new(Tokio::current()));
        let worker = Worker::builder(Box::new(source), Arc::new(process), Arc::clone(&self.letters) as _)
            .identity(MessageIdentity::new("shop").unwrap())
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        #[expect(clippy::disallowed_methods, reason = "a test has no runtime of its own")]
        let running = tokio::spawn(async { worker.run(async { drop(stopped.await) }).await.unwrap() });
        RunningWorker { stop, running }
    }

    fn effects(&self) -> i64 {
        self.connection().query_row("select count(*) from effect", [], |row| row.get(0)).unwrap()
    }

    /// Marks a letter, as an operator does who has just seen it.
    async fn mark(&self, id: DeadLetterId) {
        let seen = self.letters.find(id).await.unwrap().unwrap().seen;
        assert_eq!(self.letters.mark(id, &seen, None).await.unwrap(), LetterChange::Yes);
    }

    /// The only dead letter, once it is there and not marked.
    async fn dead(&self) -> DeadLetterId {
        let begun = Instant::now();
        loop {
            let listed = self.letters.list(None, 10).await.unwrap();
            if let [letter] = &listed[..]
                && letter.marked_at.is_none()
            {
                assert!(letter.reason == DeadReason::AttemptsExhausted && letter.attempts == 2, "{letter:?}");
                return letter.id;
            }
            assert!(begun.elapsed() < DEADLINE, "no dead letter: {listed:?}");
            hapax_testkit::pause().await;
        }
    }
}

fn handle(transaction: &Transaction<'_>, job: &Job, is_broken: bool) -> Result<String, HandlerFailure<String>> {
    let key = str::from_utf8(job.key.as_bytes())?;
    transaction.execute("insert into effect values (?1)", [key])?;
    if is_broken {
        return Err(HandlerFailure::of_any(Failure::not_applied("the test lets this message fail")));
    }
    Ok(String::from("sold"))
}

struct RunningWorker {
    stop: oneshot::Sender<()>,
    running: JoinHandle<WorkerEnd>,
}

impl RunningWorker {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        assert_eq!(self.running.await.unwrap().unfinished, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redriven_message_has_its_effect_once_and_its_letter_is_gone() {
    let shop = Shop::new();
    shop.put("order-1");
    let worker = shop.start_worker();
    let id = shop.dead().await;
    shop.is_broken.store(false, Ordering::SeqCst);
    shop.mark(id).await;
    let begun = Instant::now();
    while !shop.letters.list(None, 10).await.unwrap().is_empty() {
        assert!(begun.elapsed() < DEADLINE, "the message was not redriven");
        hapax_testkit::pause().await;
    }
    worker.stop().await;
    assert_eq!(shop.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redriven_message_that_is_dead_again_keeps_its_letter() {
    let shop = Shop::new();
    shop.put("order-1");
    let worker = shop.start_worker();
    let id = shop.dead().await;
    shop.mark(id).await;
    assert_eq!(shop.dead().await, id, "its second letter replaces the first");
    // What the worker knows is settled.
    worker.stop().await;
    assert_eq!(shop.dead().await, id);
    assert_eq!(shop.effects(), 0);

    shop.is_broken.store(false, Ordering::SeqCst);
    shop.mark(id).await;
    let worker = shop.start_worker();
    let begun = Instant::now();
    while shop.letters.find(id).await.unwrap().is_some() {
        assert!(begun.elapsed() < DEADLINE, "the message was not redriven");
        hapax_testkit::pause().await;
    }
    worker.stop().await;
    assert_eq!(shop.effects(), 1);
}
