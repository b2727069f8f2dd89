//! The durable queue in an SQLite file, and its source.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::broker::{Delivery, Event, Message, Position, Room, Settlement, Source};
use hapax_core::runtime::{Tokio, timeout};
use hapax_stores::{SqliteQueue, SqliteSource, SqliteSourceSettings};
use hapax_testkit::ManualClock;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(30);

struct World {
    _directory: TempDir,
    path: PathBuf,
    clock: Arc<ManualClock>,
    service: Connection,
}

fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queue.db");
    // The clock begins behind the time at which the messages are put in.
    let clock = Arc::new(ManualClock::new());
    clock.forward(Duration::from_secs(3_600));
    let mut service = Connection::open(&path).unwrap();
    SqliteQueue::migrate(&mut service).unwrap();
    World { _directory: directory, path, clock, service }
}

fn payments() -> SqliteQueue {
    SqliteQueue::new("payments").unwrap()
}

fn message(payload: &str, ordering_key: Option<&str>) -> Message {
    Message {
        payload: payload.to_owned().into(),
        headers: [("Idempotency-Key", payload.to_owned())].into_iter().collect(),
        ordering_key: ordering_key.map(|key| key.to_owned().into()),
        ..Message::default()
    }
}

impl World {
    fn put(&self, payload: &str, ordering_key: Option<&str>) -> u64 {
        payments().enqueue(&self.service, &message(payload, ordering_key)).unwrap()
    }

    fn source(&self) -> SqliteSource {
        source(&self.path, &self.clock)
    }

    fn waiting(&self) -> i64 {
        self.service.query_row("select count(*) from hapax_queue", [], |row| row.get(0)).unwrap()
    }
}

fn source(path: &Path, clock: &Arc<ManualClock>) -> SqliteSource {
    let settings = SqliteSourceSettings::default().lease(LEASE);
    SqliteSource::open(path, &payments(), Arc::clone(clock) as _, settings).unwrap()
}

fn room() -> Room {
    Room { messages: 10, bytes: 1_000_000, ..Room::default() }
}

async fn next_in(source: &mut SqliteSource, room: Room) -> Vec<Delivery> {
    match timeout(&Tokio::current(), DEADLINE, source.next(room)).await.expect("a message arrives").unwrap() {
        Event::Deliveries(deliveries) => deliveries,
        other @ (Event::Revoking { .. } | Event::Lost { .. }) => panic!("expected deliveries, got {other:?}"),
    }
}

async fn next(source: &mut SqliteSource) -> Vec<Delivery> {
    next_in(source, room()).await
}

/// Whether nothing can be delivered now. Looks several times into the queue.
async fn is_idle(source: &mut SqliteSource) -> bool {
    timeout(&Tokio::current(), Duration::from_millis(50), source.next(room())).await.is_none()
}

fn payloads(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| std::str::from_utf8(&delivery.message.payload).unwrap()).collect()
}

async fn settle(source: &SqliteSource, delivery: &Delivery, settlement: Settlement) {
    let results = source.settler().settle(vec![(delivery.id.clone(), settlement)]).await;
    results.into_iter().for_each(|result| result.unwrap());
}

#[tokio::test]
async fn a_message_arrives_as_it_was_put_in_and_is_gone_once_it_is_acknowledged() {
    let world = world();
    let row = world.put("first", Some("acme"));
    let mut source = world.source();
    let deliveries = next(&mut source).await;
    let [delivery] = &deliveries[..] else { panic!("one message: {deliveries:?}") };
    let sent = message("first", Some("acme"));
    assert_eq!((&delivery.message.payload, &delivery.message.headers), (&sent.payload, &sent.headers));
    assert_eq!(delivery.message.ordering_key, sent.ordering_key);
    assert_eq!(delivery.attempt, Some(1));
    let coordinates = delivery.message.coordinates.clone().unwrap();
    assert_eq!((coordinates.position, &coordinates.origin), (Position::Number(row), source.name()));
    assert!(delivery.message.timestamp.is_some());
    assert_eq!(source.settler().lag().await.unwrap(), Some(1));
    settle(&source, delivery, Settlement::Ack).await;
    assert_eq!((world.waiting(), source.settler().lag().await.unwrap()), (0, Some(0)));
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let mut world = world();
    let transaction = world.service.transaction().unwrap();
    payments().enqueue(&transaction, &message("undone", None)).unwrap();
    transaction.rollback().unwrap();
    let mut source = world.source();
    assert!(is_idle(&mut source).await);
    let transaction = world.service.transaction().unwrap();
    payments().enqueue(&transaction, &message("done", None)).unwrap();
    assert!(is_idle(&mut source).await, "the transaction is open");
    transaction.commit().unwrap();
    assert_eq!(payloads(&next(&mut source).await), ["done"]);
}

#[tokio::test]
async fn a_message_of_a_dead_worker_arrives_again_after_its_lease_and_the_late_worker_settles_nothing() {
    let world = world();
    world.put("first", None);
    let (mut dead, mut other) = (world.source(), world.source());
    let lost = next(&mut dead).await;
    assert!(is_idle(&mut other).await);
    world.clock.forward(LEASE - Duration::from_secs(1));
    assert!(is_idle(&mut other).await, "the lease has not ended");
    world.clock.forward(Duration::from_secs(2));
    let again = next(&mut other).await;
    assert_eq!((payloads(&again), again[0].attempt), (vec!["first"], Some(2)));
    for late in [Settlement::Ack, Settlement::Retry(Duration::ZERO), Settlement::Extend(LEASE * 100)] {
        settle(&dead, &lost[0], late).await;
        assert_eq!(world.waiting(), 1, "{late:?} of an old lease");
        assert!(is_idle(&mut dead).await, "{late:?} of an old lease");
    }
    world.clock.forward(LEASE + Duration::from_secs(1));
    assert_eq!(next(&mut dead).await[0].attempt, Some(3), "the new lease was not extended");
}

#[tokio::test]
async fn a_leased_delayed_or_failing_message_holds_up_its_own_key_only() {
    let world = world();
    for (payload, key) in [("a1", Some("a")), ("a2", Some("a")), ("b1", Some("b")), ("none", None), ("a3", Some("a"))] {
        world.put(payload, key);
    }
    let mut source = world.source();
    let first = next(&mut source).await;
    assert_eq!(payloads(&first), ["a1", "b1", "none"], "one message of each key, and those without a key");
    assert!(is_idle(&mut source).await, "a1 is leased");
    settle(&source, &first[0], Settlement::Retry(Duration::from_secs(60))).await;
    settle(&source, &first[1], Settlement::Ack).await;
    settle(&source, &first[2], Settlement::Ack).await;
    world.put("b2", Some("b"));
    assert_eq!(payloads(&next(&mut source).await), ["b2"], "a2 does not overtake a1");
    world.clock.forward(Duration::from_secs(61));
    let mut expected = vec!["a1", "a2", "a3"];
    while !expected.is_empty() {
        let delivered = next(&mut source).await;
        let keyed: Vec<_> = delivered.iter().filter(|delivery| delivery.message.payload.starts_with(b"a")).collect();
        for delivery in keyed {
            assert_eq!(delivery.message.payload, expected.remove(0));
            settle(&source, delivery, Settlement::Ack).await;
        }
    }
}

#[tokio::test]
async fn a_message_whose_predecessor_was_deleted_by_hand_is_delivered() {
    let world = world();
    let first = world.put("a1", Some("a"));
    world.put("a2", Some("a"));
    world.service.execute("delete from hapax_queue where id = ?1", [first.cast_signed()]).unwrap();
    assert_eq!(payloads(&next(&mut world.source()).await), ["a2"]);
}

#[tokio::test]
async fn a_delayed_message_arrives_after_its_delay_and_later_ones_of_its_key_wait_for_it() {
    let world = world();
    let delay = Duration::from_secs(2 * 3_600);
    payments().enqueue_after(&world.service, &message("later", Some("a")), delay).unwrap();
    world.put("behind", Some("a"));
    let mut source = world.source();
    assert!(is_idle(&mut source).await);
    world.clock.forward(Duration::from_secs(3_600 + 60));
    let delivered = next(&mut source).await;
    assert_eq!(payloads(&delivered), ["later"]);
    settle(&source, &delivered[0], Settlement::Ack).await;
    assert_eq!(payloads(&next(&mut source).await), ["behind"]);
}

#[tokio::test]
async fn an_extended_lease_outlives_the_first_one() {
    let world = world();
    world.put("slow", None);
    let (mut slow, mut other) = (world.source(), world.source());
    let delivered = next(&mut slow).await;
    for _ in 0..3 {
        world.clock.forward(LEASE - Duration::from_secs(1));
        settle(&slow, &delivered[0], Settlement::Extend(LEASE)).await;
    }
    assert!(is_idle(&mut other).await);
    settle(&slow, &delivered[0], Settlement::Ack).await;
    assert_eq!(world.waiting(), 0);
}

#[tokio::test]
async fn a_source_returns_no_more_than_there_is_room_for() {
    let world = world();
    for n in 0..5 {
        world.put(&format!("{n}{}", "x".repeat(100)), None);
    }
    let mut source = world.source();
    let one = next_in(&mut source, Room { messages: 1, ..room() }).await;
    let small = next_in(&mut source, Room { bytes: 1, ..room() }).await;
    let two = next_in(&mut source, Room { bytes: 600, ..room() }).await;
    assert_eq!([one.len(), small.len(), two.len()], [1, 1, 2]);
    let closed = Arc::new([one[0].id.lane.clone()].into());
    for room in [Room { messages: 0, ..room() }, Room { bytes: 0, ..room() }, Room { closed, ..room() }] {
        let waiting = timeout(&Tokio::current(), Duration::from_millis(50), source.next(room)).await;
        assert!(waiting.is_none(), "{waiting:?}");
    }
    assert_eq!(next(&mut source).await.len(), 1);
}

#[tokio::test]
async fn a_dropped_call_loses_no_message() {
    let world = world();
    for n in 0..50 {
        world.put(&n.to_string(), None);
    }
    let mut source = world.source();
    let (begun, mut arrived) = (Instant::now(), Vec::new());
    while arrived.len() < 50 {
        assert!(begun.elapsed() < DEADLINE, "only {} messages arrived", arrived.len());
        // Polled once or twice, and dropped.
        let mut call = Box::pin(source.next(Room { messages: 3, ..room() }));
        for _ in 0..2 {
            if let std::task::Poll::Ready(event) = futures_util::poll!(&mut call) {
                let Event::Deliveries(deliveries) = event.unwrap() else { panic!("only deliveries") };
                arrived.extend(deliveries.into_iter().map(|delivery| delivery.attempt));
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(arrived, vec![Some(1); 50], "each message arrived once");
}

#[tokio::test]
async fn two_workers_share_a_queue_without_a_message_in_both() {
    let world = world();
    for n in 0..200 {
        world.put(&n.to_string(), Some(&(n % 7).to_string()));
    }
    let work = |mut source: SqliteSource| async move {
        let mut seen = Vec::new();
        while let Some(event) = timeout(&Tokio::current(), Duration::from_millis(500), source.next(room())).await {
            let Event::Deliveries(deliveries) = event.unwrap() else { panic!("only deliveries") };
            for delivery in &deliveries {
                assert_eq!(delivery.attempt, Some(1));
                seen.push(payloads(std::slice::from_ref(delivery))[0].parse::<u32>().unwrap());
                settle(&source, delivery, Settlement::Ack).await;
            }
        }
        seen
    };
    let (first, second) = futures_util::join!(work(world.source()), work(world.source()));
    let mut all: Vec<u32> = first.iter().chain(&second).copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    for seen in [first, second] {
        for key in 0..7 {
            assert!(seen.iter().filter(|n| **n % 7 == key).is_sorted(), "key {key} is out of order: {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_closed_source_gives_back_what_was_not_delivered_and_settles_nothing_more() {
    let world = world();
    for n in 0..3 {
        world.put(&n.to_string(), None);
    }
    let mut source = world.source();
    let settler = source.settler();
    // All three are leased, but there is room for one. The lock keeps the reply away until the call is dropped.
    world.service.execute_batch("begin immediate").unwrap();
    let call = source.next(room());
    assert!(timeout(&Tokio::current(), Duration::ZERO, call).await.is_none());
    world.service.execute_batch("commit").unwrap();
    let delivered = next_in(&mut source, Room { messages: 1, ..room() }).await;
    source.close().await.unwrap();
    let late = settler.settle(vec![(delivered[0].id.clone(), Settlement::Ack)]).await;
    assert_eq!(late[0].as_ref().unwrap_err().kind(), ErrorKind::NotApplied);
    let again = next(&mut world.source()).await;
    assert_eq!(payloads(&again), ["1", "2"], "the first one is still leased");
}

#[tokio::test]
async fn a_source_of_a_prefix_and_a_foreign_lane_settle_nothing() {
    let world = world();
    world.put("first", None);
    let mut source = world.source();
    let delivered = next(&mut source).await;
    let mut foreign = delivered[0].id.clone();
    foreign.lane.generation = 7;
    let settlements = vec![(foreign, Settlement::Ack), (delivered[0].id.clone(), Settlement::UpTo)];
    let results = source.settler().settle(settlements).await;
    assert!(results[0].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(world.waiting(), 1);
}

#[tokio::test]
async fn a_message_with_damaged_headers_does_not_hold_up_others() {
    let world = world();
    let damaged = world.put("damaged", None);
    world.service.execute("update hapax_queue set headers = '{}' where id = ?1", [damaged.cast_signed()]).unwrap();
    world.put("sound", None);
    assert_eq!(payloads(&next(&mut world.source()).await), ["sound"]);
    assert_eq!(world.waiting(), 2, "the damaged one stays");
}

#[tokio::test]
async fn the_next_messages_are_found_by_an_index_whatever_waits_behind_them() {
    let world = world();
    let statement = include_str!("../../src/sqlite/queue/ready.sql");
    let plan = format!("explain query plan {statement}");
    let steps: Vec<String> = world
        .service
        .prepare(&plan)
        .unwrap()
        .query_map(("payments", 0, 10), |row| row.get(3))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(steps.len(), 1, "no sort: {steps:?}");
    assert!(steps[0].contains("USING INDEX hapax_queue_ready"), "{steps:?}");
}

#[test]
fn a_name_without_letters_is_no_queue() {
    for name in ["", &"x".repeat(256)] {
        assert_eq!(SqliteQueue::new(name).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
