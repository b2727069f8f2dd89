use hapax_core::EventId;
use hapax_core::outbox::{
    EventRow, EventTopic, OpenRow, OutgoingEvent, ParkedRow, ReadRequest, ReadStart, RowId, RowState, bucket_of,
};

use super::world::{ALL_BYTES, OutboxWorld, event};

/// A transaction draws a row id and is slow. The relay reads a horizon and everything that is committed. The horizon
/// must not settle before the transaction has ended, and then its row is read.
pub(super) async fn slow_tx_row_is_emitted(world: &OutboxWorld<'_>) {
    let first = publish_one(world).await;
    let slow = world.begin_slow(&event("slow", Some("a"))).await;
    let before = world.outbox.horizon().await.expect("the outbox answers");
    assert_eq!(world.topics().await, [""; 0]);
    let still = world.outbox.horizon().await.expect("the outbox answers");
    slow.commit().await.expect("the outbox answers");
    // A database may draw the id at the commit.
    let is_behind = world.read().await.rows[0].id > before.drawn;
    assert!(
        still.settled <= before.stamp || is_behind,
        "the transaction that drew {:?} had not ended: {still:?}",
        before.drawn
    );
    let after = world.outbox.horizon().await.expect("the outbox answers");
    assert!(after.drawn > first, "{after:?}");
    world.settle(after.stamp).await;
    assert_eq!(world.topics().await, ["slow"]);
}

/// Publishes a row of its own. In PostgreSQL the first use of a sequence gives the transaction its id, and later ones
/// do not.
async fn publish_one(world: &OutboxWorld<'_>) -> RowId {
    world.emit(&[event("first", None)]).await;
    let first = world.read().await.rows[0].id;
    world.publish_all().await;
    first
}

pub(super) async fn a_fast_transaction_overtakes_a_slow_one(world: &OutboxWorld<'_>) {
    let first = publish_one(world).await;
    let slow = world.begin_slow(&event("slow", Some("a"))).await;
    world.emit(&[event("fast", Some("a"))]).await;
    let horizon = world.outbox.horizon().await.expect("the outbox answers");
    assert!(horizon.drawn.0 >= first.0 + 2, "both ids are drawn: {horizon:?}");
    assert_eq!(world.topics().await, ["fast"]);
    world.publish_all().await;
    for _ in 0..200 {
        let next = world.outbox.horizon().await.expect("the outbox answers");
        assert!(next.settled <= horizon.stamp, "a row below {:?} is undecided: {next:?}", horizon.drawn);
    }
    slow.commit().await.expect("the outbox answers");
    world.settle(horizon.stamp).await;
    let rows = world.read().await.rows;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].event.topic, "slow");
    assert!(rows[0].id < horizon.drawn, "it drew its id first");
}

pub(super) async fn rows_of_a_rolled_back_transaction_are_never_read(world: &OutboxWorld<'_>) {
    let mut rolled_back = world.begin().await;
    let id = rolled_back.emit(&event("undone", None)).await.expect("the outbox answers");
    drop(rolled_back);
    world.emit(&[event("done", None)]).await;
    let horizon = world.outbox.horizon().await.expect("the outbox answers");
    world.settle(horizon.stamp).await;
    assert_eq!(world.topics().await, ["done"]);
    assert_eq!(world.state(id).await, None);
}

pub(super) async fn mark_is_conditional(world: &OutboxWorld<'_>) {
    let ids = world.emit(&[event("one", Some("a")), event("two", Some("a")), event("three", Some("b"))]).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "the sink takes no such event").await;
    let all: Vec<EventRow> = rows.iter().map(OpenRow::named).collect();
    assert_eq!(world.mark(&all).await, 2, "a row that is set aside was marked");
    assert_eq!(world.mark(&all).await, 0, "a published row was marked again");
    let unknown = [1_000_000, u128::MAX].map(|id| EventRow { id: RowId(id), event: ids[0] });
    assert_eq!(world.mark(&unknown).await, 0);
    assert_eq!(world.mark(&[]).await, 0);
    let mut states = Vec::new();
    for id in ids {
        states.push(world.state(id).await.expect("the outbox answers"));
    }
    assert_eq!(states, [RowState::Aside, RowState::Published, RowState::Published]);
    assert_eq!(world.topics().await, [""; 0]);
}

pub(super) async fn a_late_mark_leaves_a_dropped_row(world: &OutboxWorld<'_>) {
    let ids = world.emit(&[event("dropped", Some("a"))]).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "no").await;
    let dropped = world.upkeep.drop_refused(b"a", None).await.expect("the outbox answers");
    assert_eq!(dropped, Some(ids[0]));
    assert_eq!(world.mark(&[rows[0].named()]).await, 0);
    assert_eq!(world.state(ids[0]).await, Some(RowState::Dropped), "an operator reads that it was published");
}

/// An outbox that was restored gives old ids to new rows, while a relay still holds the old ones.
pub(super) async fn rows_are_named_by_their_ids_and_events(world: &OutboxWorld<'_>) {
    world.emit(&[event("new", Some("a")), event("beside", Some("b"))]).await;
    let rows = world.read().await.rows;
    let old = EventRow { id: rows[0].id, event: EventId::from_bytes([7; 16]) };
    assert_eq!(world.mark(&[old]).await, 0, "a row was marked whose event was not published");
    let refused = ParkedRow { event: old.event, ..rows[0].refused("no") };
    assert_eq!(world.outbox.park(&[refused]).await.expect("the outbox answers"), [old]);
    assert_eq!(world.upkeep.parked(None, 10).await.expect("the outbox answers"), []);
    world.park(&rows[0], "no").await;
    assert_eq!(world.resume("a", 10).await, 1);
    world.park(&rows[1], "no").await;
    let aside = EventRow { id: rows[0].id, event: rows[1].event.id };
    world.outbox.set_aside(&[aside]).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["new"]);
}

pub(super) async fn a_parked_event_without_a_key_parks_no_other(world: &OutboxWorld<'_>) {
    world.emit(&[event("poison", None), event("beside", None), event("ordered", Some("a"))]).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "no").await;
    let read = world.read().await.rows;
    let is_parked: Vec<(&str, bool)> = read.iter().map(|row| (&*row.event.topic, row.is_parked)).collect();
    assert_eq!(is_parked, [("beside", false), ("ordered", false)]);
    world.outbox.set_aside(&rows.iter().map(OpenRow::named).collect::<Vec<_>>()).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["beside", "ordered"]);
    let counts = world.upkeep.counts(10).await.expect("the outbox answers");
    assert!(counts.oldest.is_some(), "the open rows belong to no parked key");
}

/// Another relay has published the row that this one was refused.
pub(super) async fn a_published_row_parks_no_key(world: &OutboxWorld<'_>) {
    world.emit(&[event("one", Some("a"))]).await;
    let row = world.read().await.rows.remove(0);
    world.publish_all().await;
    let gone = world.outbox.park(&[row.refused("no")]).await.expect("the outbox answers");
    assert_eq!(gone, [row.named()]);
    assert_eq!(world.upkeep.parked(None, 10).await.expect("the outbox answers"), []);
    world.emit(&[event("two", Some("a"))]).await;
    assert!(!world.read().await.rows[0].is_parked);
}

pub(super) async fn keys_are_parked_in_one_call(world: &OutboxWorld<'_>) {
    let topics = ["published", "first of b", "second of b", "one", "no key"];
    let keys = [Some("a"), Some("b"), Some("b"), Some("c"), None];
    world.emit(&std::array::from_fn::<_, 5, _>(|n| event(topics[n], keys[n]))).await;
    world.emit(&[event("beside", Some("d"))]).await;
    let rows = world.read().await.rows;
    assert_eq!(world.mark(&[rows[0].named()]).await, 1);
    let refused: Vec<ParkedRow> = rows[..5].iter().rev().map(|row| row.refused(&row.event.topic)).collect();
    assert_eq!(world.outbox.park(&refused).await.expect("the outbox answers"), [rows[0].named()]);
    assert_eq!(world.topics().await, ["beside"]);
    let parked = world.upkeep.parked(None, 10).await.expect("the outbox answers");
    let mut parked: Vec<&str> = parked.iter().map(|key| &*key.topic).collect();
    parked.sort_unstable();
    assert_eq!(parked.len(), 3, "{parked:?}");
    assert!(parked.contains(&"no key") && parked.contains(&"one"), "{parked:?}");
    assert_eq!(world.outbox.park(&[]).await.expect("the outbox answers"), []);
}

pub(super) async fn reads_begin_at_their_cursors(world: &OutboxWorld<'_>) {
    let events: Vec<_> = (0..5).map(|n| event(&format!("topic {n}"), Some("a"))).collect();
    world.emit(&events).await;
    let rows = world.read().await.rows;
    let ids: Vec<RowId> = rows.iter().map(|row| row.id).collect();
    assert!(ids.is_sorted() && ids.len() == 5, "{ids:?}");
    assert!(rows.iter().all(|row| row.bucket == bucket_of(b"a") && !row.is_parked), "{rows:?}");
    let topics: Vec<_> = rows.iter().map(|row| &*row.event.topic).collect();
    assert_eq!(topics, ["topic 0", "topic 1", "topic 2", "topic 3", "topic 4"]);
    for (from, expected) in [(ReadStart::behind(ids[1]), &ids[2..4]), (ReadStart::at(ids[1]), &ids[1..3])] {
        let read = world.read_from(from, 2, ALL_BYTES).await.rows;
        assert_eq!(read.iter().map(|row| row.id).collect::<Vec<_>>(), expected, "from {from:?}");
    }
    assert!(world.read_from(ReadStart::behind(ids[4]), 10, ALL_BYTES).await.rows.is_empty());
}

pub(super) async fn buckets_share_the_bytes_of_a_read(world: &OutboxWorld<'_>) {
    let large = |topic: &str, key: &str| {
        let plain = event(topic, Some(key));
        OutgoingEvent { payload: vec![7; 10_000].into(), ..plain }
    };
    assert_ne!(bucket_of(b"a"), bucket_of(b"b"));
    world.emit(&[large("a1", "a"), large("a2", "a"), large("a3", "a"), large("b1", "b"), large("b2", "b")]).await;
    let read = async |bytes| {
        let read = world.read_from(ReadStart::FIRST, 10, bytes).await;
        assert_eq!(read.is_cut, read.rows.len() < 5, "{read:?}");
        read.rows.iter().map(|row| row.event.topic.clone()).collect::<Vec<_>>()
    };
    assert_eq!(read(1).await, ["a1"], "at least one row");
    assert_eq!(read(25_000).await, ["a1", "b1"], "the first row of each bucket");
    assert_eq!(read(35_000).await, ["a1", "a2", "b1"]);
    assert_eq!(read(ALL_BYTES).await, ["a1", "a2", "a3", "b1", "b2"]);
}

/// Rows that are left out count towards no limit.
pub(super) async fn rows_of_topics_without_a_key_can_be_left_out(world: &OutboxWorld<'_>) {
    let neighbour = event("with a key", Some("a"));
    let bucket = bucket_of(b"a");
    // Rows without a key are in the bucket of their ids.
    let mut written = 0;
    while written < 3 {
        let ids = world.emit(&vec![event("dead", None); 64]).await;
        written += ids.iter().filter(|id| bucket_of(id.as_bytes()) == bucket).count();
    }
    world.emit(&[OutgoingEvent { topic: "dead".into(), ..neighbour.clone() }, neighbour]).await;
    let mut request = ReadRequest::all_buckets(ReadStart::FIRST, 2, ALL_BYTES);
    request.cursors.retain(|cursor| cursor.bucket == bucket);
    let read = async |request: &ReadRequest| {
        let rows = world.outbox.read(request).await.expect("the outbox can be read").rows;
        rows.into_iter().map(|row| (row.event.topic.clone(), row.event.ordering_key.is_some())).collect::<Vec<_>>()
    };
    let dead = || ("dead".to_owned(), false);
    assert_eq!(read(&request).await, [dead(), dead()]);
    let dead_topic = |namespace: &str| EventTopic { namespace: namespace.into(), topic: "dead".into() };
    request.left_out = vec![dead_topic("another")];
    assert_eq!(read(&request).await, [dead(), dead()]);
    request.left_out.push(dead_topic("suite"));
    assert_eq!(read(&request).await, [("dead".to_owned(), true), ("with a key".to_owned(), true)]);
}

pub(super) async fn poison_parks_key_not_neighbours(world: &OutboxWorld<'_>) {
    // Another key of the same bucket, and a row without a key.
    let neighbour = (0..).map(|n| format!("neighbour {n}")).find(|key| bucket_of(key.as_bytes()) == bucket_of(b"a"));
    let neighbour = neighbour.expect("some key is in the bucket");
    let (first, second) = (event("poison", Some("a")), event("behind", Some("a")));
    world.emit(&[first, second, event("beside", Some(&neighbour)), event("alone", None)]).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "too large").await;
    let read = world.read().await;
    let is_parked: Vec<(&str, bool)> = read.rows.iter().map(|row| (&*row.event.topic, row.is_parked)).collect();
    assert_eq!(is_parked, [("behind", true), ("beside", false), ("alone", false)]);
    world
        .outbox
        .set_aside(&read.rows.iter().map(OpenRow::named).collect::<Vec<_>>())
        .await
        .expect("the outbox answers");
    assert_eq!(world.topics().await, ["beside", "alone"]);
    // A later row of the key is set aside, too.
    world.emit(&[event("later", Some("a"))]).await;
    let later = world.read().await.rows.pop().expect("the outbox answers");
    assert!(later.is_parked && later.event.topic == "later", "{later:?}");
    world.outbox.set_aside(&[later.named()]).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["beside", "alone"]);
}

pub(super) async fn a_parked_key_keeps_its_first_reason(world: &OutboxWorld<'_>) {
    world.emit(&[event("one", Some("a")), event("two", Some("a"))]).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "the first reason").await;
    world.park(&rows[1], "another reason").await;
    world.park(&rows[0], "another reason").await;
    let parked = world.upkeep.parked(None, 10).await.expect("the outbox answers");
    assert_eq!(parked.len(), 1);
    let found = (&*parked[0].reason, parked[0].row, &*parked[0].topic, parked[0].event, &parked[0].key[..]);
    assert_eq!(found, ("the first reason", rows[0].id, "one", rows[0].event.id, &b"a"[..]));
    assert_eq!(world.topics().await, [""; 0], "both rows are set aside");
}

pub(super) async fn set_aside_leaves_rows_of_keys_that_are_not_parked(world: &OutboxWorld<'_>) {
    world.emit(&[event("one", Some("a")), event("two", None)]).await;
    let rows: Vec<EventRow> = world.read().await.rows.iter().map(OpenRow::named).collect();
    world.outbox.set_aside(&rows).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["one", "two"]);
}
