//! A worker between a broker in memory and a ledger in SQLite, under virtual time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadReason, Headers, Job, Message};
use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax_core::runtime::Runtime;
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_stores::SqliteLedger;
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, Process, VirtualTime};
use rusqlite::{Connection, Transaction};
use tempfile::TempDir;

const PARTITIONS: u32 = 3;

/// A broker, a database, dead letters, and a clock.
struct Shop {
    time: VirtualTime,
    broker: MemoryBroker,
    dead: MemoryDeadLetters,
    folder: TempDir,
}

impl Shop {
    fn new() -> Self {
        let time = VirtualTime::new(3);
        let broker = MemoryBroker::prefix(time.process(), PARTITIONS);
        let shop = Self { time, broker, dead: MemoryDeadLetters::new(), folder: TempDir::new().unwrap() };
        let tables = "create table effect (key text not null); create table tried (key text not null);";
        shop.connection().execute_batch(tables).unwrap();
        shop
    }

    fn connection(&self) -> Connection {
        let mut connection = Connection::open(self.folder.path().join("shop.db")).unwrap();
        SqliteLedger::migrate(&mut connection).unwrap();
        connection
    }

    /// Tries are written to a database of their own, so that they are not rolled back.
    fn tries(&self) -> Connection {
        let tries = Connection::open(self.folder.path().join("tries.db")).unwrap();
        tries.execute_batch("create table if not exists tried (key text not null)").unwrap();
        tries
    }

    fn publish(&self, partition: u32, key: &str) {
        let headers: Headers = [("idempotency-key", key.as_bytes().to_vec())].into_iter().collect();
        let payload = Bytes::copy_from_slice(key.as_bytes());
        let ordering_key = Some(Bytes::copy_from_slice(&partition.to_be_bytes()));
        self.broker.publish(partition, Message { payload, headers, ordering_key, ..Message::default() });
    }

    fn start_worker(&self) -> Arc<Process> {
        let process = self.time.process();
        let tries = std::sync::Mutex::new(self.tries());
        let handler = move |transaction: &Transaction<'_>, jobs: &[Job], entries: &mut [Entry]| {
            entries.iter_mut().map(|entry| handle(transaction, &jobs[entry.index()], entry, &tries)).collect()
        };
        let ledger = SqliteLedger::new(Terms::new("shop").unwrap());
        let work = ledger.process::<String, _>(self.connection(), handler);
        let worker = Worker::builder(self.broker.source(), Arc::new(work), Arc::new(self.dead.clone()))
            .identity(MessageIdentity::new("shop").unwrap())
            .runtime(Arc::clone(&process) as _)
            .build()
            .unwrap();
        process.spawn(Box::pin(
            async move { assert_eq!(worker.run(std::future::pending()).await.unwrap().unfinished, 0) },
        ));
        process
    }

    fn finish(&self) {
        let is_finished = || (self.broker.unfinished() == 0).then_some(());
        assert!(self.time.run_until(Duration::from_secs(600), is_finished).is_some(), "messages are left");
    }

    fn effects(&self) -> Vec<String> {
        read(&self.connection(), "select key from effect order by key")
    }

    fn dead_letters(&self) -> Vec<(String, DeadReason, u32)> {
        let key = |payload: &Bytes| String::from_utf8(payload.to_vec()).unwrap();
        let letters = self.dead.letters();
        letters.iter().map(|letter| (key(&letter.message.payload), letter.reason, letter.attempts)).collect()
    }
}

fn read(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Writes the effect of a message. The first word of its key says what happens then.
fn handle(
    transaction: &Transaction<'_>,
    job: &Job,
    entry: &mut Entry,
    tries: &std::sync::Mutex<Connection>,
) -> Result<String, HandlerFailure<String>> {
    let key = str::from_utf8(job.key.as_bytes())?;
    tries.lock().unwrap().execute("insert into tried values (?1)", [key])?;
    transaction.execute("insert into effect values (?1)", [key])?;
    entry.emit(Event::new("sold", key.to_owned()))?;
    match key.split(' ').next() {
        Some("fails") => Err(HandlerFailure::of_any(Failure::not_applied("the test lets this message fail"))),
        Some("rejects") => Err(HandlerFailure::of_any(Failure::finally("no".into()))),
        Some("panics") => panic!("the test lets this handler panic"),
        _ => Ok(String::from("sold")),
    }
}

#[test]
fn each_message_has_its_effect_once_though_workers_crash_and_lanes_move() {
    let shop = Shop::new();
    let mut expected: Vec<String> = (0..300).map(|n| format!("order {n:03}")).collect();
    for (n, key) in (0..).zip(&expected) {
        shop.publish(n % PARTITIONS, key);
        // Copies in the same lane and in another one.
        if n % 3 == 0 {
            shop.publish(n % PARTITIONS, key);
            shop.publish((n + 1) % PARTITIONS, key);
        }
    }
    for step in 0..12 {
        let worker = shop.start_worker();
        shop.time.run_for(Duration::from_millis(step));
        if step % 3 == 0 {
            shop.broker.lose(0);
        }
        shop.time.run_for(Duration::from_millis(step));
        worker.crash();
    }
    let _last = shop.start_worker();
    shop.finish();
    expected.sort();
    assert_eq!(shop.effects(), expected);
    assert_eq!(shop.dead_letters(), []);
    assert_eq!(read(&shop.connection(), "select cast(count(*) as text) from hapax_outbox"), ["300"]);
}

#[test]
fn a_message_that_always_fails_ends_after_8_attempts_though_the_worker_restarts() {
    let shop = Shop::new();
    shop.publish(0, "fails 1");
    shop.publish(0, "order 1");
    let first = shop.start_worker();
    shop.time.run_for(Duration::from_millis(2500));
    first.crash();
    let tried = read(&shop.tries(), "select key from tried where key like 'fails%'").len();
    assert!((2..8).contains(&tried), "the crash comes in between: {tried}");
    let _second = shop.start_worker();
    shop.finish();
    assert_eq!(shop.dead_letters(), [("fails 1".to_owned(), DeadReason::AttemptsExhausted, 8)]);
    assert_eq!(shop.effects(), ["order 1"]);
    // A message that is run together with others is run once more, alone, before its failure counts.
    let tried = read(&shop.tries(), "select key from tried where key like 'fails%'").len();
    assert!(tried <= 16, "{tried}");
}

#[test]
fn a_final_answer_leaves_no_effect_and_its_copies_are_the_same_dead_letter() {
    let shop = Shop::new();
    shop.publish(0, "rejects 1");
    shop.publish(0, "order 1");
    let _worker = shop.start_worker();
    shop.finish();
    shop.publish(1, "rejects 1");
    shop.finish();
    assert_eq!(shop.dead_letters(), [("rejects 1".to_owned(), DeadReason::Rejected, 0)]);
    assert_eq!(shop.dead.writes(), 2);
    assert_eq!(shop.effects(), ["order 1"]);
}

#[test]
fn a_panic_leaves_no_effect_and_ends_as_a_dead_letter() {
    let shop = Shop::new();
    shop.publish(0, "panics 1");
    shop.publish(1, "order 1");
    shop.publish(0, "order 2");
    let _worker = shop.start_worker();
    shop.finish();
    assert_eq!(shop.dead_letters(), [("panics 1".to_owned(), DeadReason::AttemptsExhausted, 8)]);
    assert_eq!(shop.effects(), ["order 1", "order 2"]);
}
