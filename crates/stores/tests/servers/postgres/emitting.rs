//! Events that a ledger on PostgreSQL emits: what wakes relays, and the order of commits.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::ledger::{Claimed, Event};
use hapax_core::outbox::{Outbox, ReadRequest, ReadStart};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_stores::{PostgresEntry, PostgresLedger, PostgresOutbox};
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer};
use libtest_mimic::Trial;
use tokio_postgres::{AsyncMessage, NoTls, Transaction};

use super::ledger::{call, ledger, terms};
use super::outbox::connect;
use super::{POSTGRES, schema, start};
use crate::support::{until, with_timeout};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("an_event_of_a_runner_wakes_a_relay", POSTGRES, wake_up),
        servers::test("a_runner_notifies_every_20_ms_at_most", POSTGRES, few_notifications),
        servers::test("an_ordered_event_waits_for_the_transaction_that_emitted_before", POSTGRES, commit_order),
    ]
}

async fn run(ledger: &PostgresLedger, key: &str, event: Option<Event>) {
    let ran = ledger.run(call(key), async |_, entry| {
        if let Some(event) = &event {
            entry.emit(event.clone())?;
        }
        Ok(String::from("done"))
    });
    ran.await.expect("the call runs");
}

/// An outbox that listens.
async fn listening(schema: &PostgresSchema) -> PostgresOutbox {
    let outbox = PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap();
    outbox.horizon().await.expect("the tables are created");
    // The first wait ends when the connection listens.
    with_timeout(PATIENCE, outbox.wait_for_rows()).await.expect("it listens");
    outbox
}

/// A server of its own: all schemas of a server share the channel, and other tests notify, too.
async fn own_schema() -> (PostgresServer, PostgresSchema) {
    let server = start().await;
    let schema = server.schema().await.unwrap();
    (server, schema)
}

async fn wake_up() {
    let (_server, schema) = own_schema().await;
    let outbox = listening(&schema).await;
    let runner = ledger(&schema.url(), terms());
    run(&runner.clone().without_notifications(), "quiet", Some(Event::new("topic", "1"))).await;
    run(&runner, "no event", None).await;
    let woken = with_timeout(Duration::from_millis(300), outbox.wait_for_rows()).await;
    assert!(woken.is_none(), "there is nothing to tell, or nobody may tell it");
    run(&runner, "loud", Some(Event::new("topic", "2"))).await;
    with_timeout(PATIENCE, outbox.wait_for_rows()).await.expect("the commit wakes the relay");
    assert_eq!(outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 10, 1_000)).await.unwrap().rows.len(), 2);
}

async fn few_notifications() {
    let (server, schema) = own_schema().await;
    let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    let counted = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&counted);
    Tokio::current().spawn(Box::pin(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            counting.fetch_add(u32::from(matches!(message, AsyncMessage::Notification(_))), Ordering::SeqCst);
        }
    }));
    client.batch_execute("listen hapax_outbox").await.unwrap();
    let runner = ledger(&schema.url(), terms());
    runner.create_tables().await.unwrap();
    let begun = Tokio::current().boottime_now();
    for number in 0..200 {
        run(&runner, &format!("key {number}"), Some(Event::new("topic", "1"))).await;
    }
    until("a notification arrives", async || counted.load(Ordering::SeqCst) > 0).await;
    let most = (Tokio::current().boottime_now() - begun).as_millis() / 20 + 2;
    let count = counted.load(Ordering::SeqCst);
    assert!(u128::from(count) <= most, "{count} notifications, and {most} are allowed");
    drop(client);
}

async fn claim(ledger: &PostgresLedger, transaction: &Transaction<'_>, key: &str) -> PostgresEntry {
    let claimed = ledger.claim::<String>(transaction, &call(key)).await.unwrap();
    let Claimed::Fresh(entry) = claimed else { panic!("{key}: {claimed:?}") };
    entry
}

async fn commit_order() {
    let schema = schema().await;
    let outbox = PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap();
    let ledger = Arc::new(ledger(&schema.url(), terms()));
    ledger.create_tables().await.unwrap();
    let (mut one, mut two) = (connect(&schema, schema.name()).await, connect(&schema, schema.name()).await);
    let path = format!("set search_path to {}", schema.name());
    one.batch_execute(&path).await.unwrap();
    two.batch_execute(&path).await.unwrap();
    let (first, second) = (one.transaction().await.unwrap(), two.transaction().await.unwrap());
    // The second one has its id first, as a transaction that began earlier.
    let mut later = claim(&ledger, &second, "two").await;
    let mut sooner = claim(&ledger, &first, "one").await;
    let error = sooner.emit_ordered(Event::new("one", "1")).expect_err("it has no key");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    sooner.emit_ordered(Event::new("one", "1").ordered_by("a")).unwrap();
    later.emit_ordered(Event::new("other", "1").ordered_by("b")).unwrap();
    later.emit_ordered(Event::new("two", "1").ordered_by("a")).unwrap();
    let answer = String::from("done");
    sooner.finish(&first, &answer).await.unwrap();
    let mut waiting = Box::pin(later.finish(&second, &answer));
    let waits = "select exists (select from pg_locks l join pg_stat_activity a using (pid)
                  where l.locktype = 'advisory' and not l.granted and a.usename = $1)";
    loop {
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the second event does not wait");
        if schema.admin().query_one(waits, &[&schema.name()]).await.unwrap().get(0) {
            break;
        }
    }
    first.commit().await.unwrap();
    with_timeout(PATIENCE, waiting).await.expect("the key is free").unwrap();
    second.commit().await.unwrap();
    let rows = outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 10, 1_000)).await.unwrap().rows;
    let id = |topic: &str| rows.iter().find(|row| row.event.topic == topic).expect("the row is open").id;
    assert!(id("one") < id("two"), "the order of the commits");
}
