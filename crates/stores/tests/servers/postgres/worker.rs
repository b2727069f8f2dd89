//! Workers between a broker in memory and a ledger on PostgreSQL.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadReason, Headers, Job, Message, Process};
use hapax_core::gate::Failure;
use hapax_core::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax_core::runtime::{Runtime, Tokio, timeout};
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_stores::{HandleJobs, HandleSqlxJobs, PostgresLedger, PostgresTransaction, SqlxLedger};
use hapax_testkit::servers::{self, PostgresSchema};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters};
use libtest_mimic::Trial;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection};

use super::ledger::ledger;
use super::{POSTGRES, schema};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("two_workers_have_the_effect_of_each_message_once", POSTGRES, || two_workers(by_driver)),
        servers::test("two_workers_on_sqlx_have_the_effect_of_each_message_once", POSTGRES, || two_workers(by_sqlx)),
    ]
}

/// Writes an effect for each message, and emits an event. The first word of its key says what happens then.
pub(super) struct Sell {
    pub(super) insert: String,
}

/// Ends the effect of a message as the first word of its key says.
fn end(entry: &mut Entry, key: &str) -> Result<(), HandlerFailure<String>> {
    match key.split(' ').next() {
        Some("rejects") => return Err(HandlerFailure::of_any(Failure::finally("no".into()))),
        Some("fails") => return Err("the test lets this message fail".into()),
        Some("panics") => panic!("the test lets this handler panic"),
        _ => {}
    }
    entry.emit(Event::new("sold", key.as_bytes().to_vec()))?;
    Ok(())
}

impl HandleJobs<String> for Sell {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        for entry in &mut *entries {
            let key = str::from_utf8(jobs[entry.index()].key.as_bytes())?;
            transaction.execute(&self.insert, &[&key]).await?;
            end(entry, key)?;
        }
        Ok(entries.iter().map(|_| String::from("sold")).collect())
    }
}

impl HandleSqlxJobs<String> for Sell {
    async fn handle(
        &self,
        transaction: &mut PgConnection,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        for entry in &mut *entries {
            let key = str::from_utf8(jobs[entry.index()].key.as_bytes())?;
            let insert = sqlx::query(AssertSqlSafe(self.insert.clone())).bind(key);
            insert.execute(&mut *transaction).await?;
            end(entry, key)?;
        }
        Ok(entries.iter().map(|_| String::from("sold")).collect())
    }
}

pub(super) fn message(key: &str) -> Message {
    let headers: Headers = [("idempotency-key", key.as_bytes().to_vec())].into_iter().collect();
    Message { payload: Bytes::copy_from_slice(key.as_bytes()), headers, ..Message::default() }
}

fn terms() -> Terms {
    Terms::new("shop").unwrap().max_attempts(2)
}

fn sell(schema: &PostgresSchema) -> Sell {
    Sell { insert: format!("insert into {}.effect values ($1)", schema.name()) }
}

fn by_driver(schema: &PostgresSchema) -> Arc<dyn Process> {
    let ledger = PostgresLedger::connect(&schema.url().parse().unwrap(), terms()).unwrap();
    Arc::new(ledger.process::<String, _>(sell(schema)))
}

fn by_sqlx(schema: &PostgresSchema) -> Arc<dyn Process> {
    let pool = PgPoolOptions::new().connect_lazy(schema.url().split_once('?').unwrap().0).unwrap();
    let ledger = SqlxLedger::new(terms()).in_schema(schema.name()).unwrap();
    Arc::new(ledger.runner(pool).process::<String, _>(sell(schema)))
}

pub(super) fn worker(process: Arc<dyn Process>, broker: &MemoryBroker, dead: &MemoryDeadLetters) -> Worker {
    Worker::builder(broker.source(), process, Arc::new(dead.clone()))
        .identity(MessageIdentity::new("shop").unwrap())
        .build()
        .unwrap()
}

async fn two_workers(process: fn(&PostgresSchema) -> Arc<dyn Process>) {
    let schema = schema().await;
    let name = schema.name();
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let table = format!("create table {name}.effect (key text not null); alter table {name}.effect owner to {name}");
    schema.admin().batch_execute(&table).await.unwrap();
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let (broker, dead) = (MemoryBroker::prefix(Arc::clone(&runtime), 4), MemoryDeadLetters::new());
    let odd = ["fails 1", "panics 1", "rejects 1"];
    let keys: Vec<String> = (0..60).map(|n| format!("order {n:02}")).collect();
    for (n, key) in (0..).zip(keys.iter().map(String::as_str).chain(odd)) {
        // The copies get to other partitions, and so to the other worker.
        broker.publish(n % 4, message(key));
        broker.publish((n + 1) % 4, message(key));
    }
    // A worker that is dropped, as in a crash, leaves its transaction open for a moment.
    let crashed = worker(process(&schema), &broker, &dead);
    assert!(timeout(&*runtime, Duration::from_millis(30), crashed.run(pending())).await.is_none());
    for _ in 0..2 {
        let worker = worker(process(&schema), &broker, &dead);
        runtime.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
    }
    let deadline = runtime.boottime_now() + Duration::from_secs(60);
    while broker.unfinished() > 0 {
        assert!(runtime.boottime_now() < deadline, "messages are left: {}", broker.unfinished());
        timeout(&*runtime, Duration::from_millis(10), pending::<()>()).await;
    }
    let sql = format!("select key from {}.effect order by key", schema.name());
    let effects: Vec<String> = schema.admin().query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(effects, keys);
    let mut letters: Vec<_> =
        dead.letters().iter().map(|letter| (letter.message.payload.clone(), letter.reason)).collect();
    letters.sort();
    let letter = |key: &'static str, reason| (Bytes::from_static(key.as_bytes()), reason);
    let expected = [
        letter("fails 1", DeadReason::AttemptsExhausted),
        letter("panics 1", DeadReason::AttemptsExhausted),
        letter("rejects 1", DeadReason::Rejected),
    ];
    assert_eq!(letters, expected);
    // An idle worker ends at once.
    let idle = worker(process(&schema), &broker, &dead);
    let end = timeout(&*runtime, Duration::from_secs(5), idle.run(ready(()))).await;
    assert_eq!(end.expect("an idle worker ends").unwrap().unfinished, 0);
}
