use std::ops::Range;
use std::time::Duration;

use hapax_core::outbox::{EventRow, MarkedRows, OpenRow, ParkedKey, RowId, RowState};
use hapax_core::{EventId, Timestamp};

use super::world::{OutboxWorld, event};

const DAY: Duration = Duration::from_hours(24);

const ALWAYS: Range<Timestamp> = Timestamp(0)..Timestamp(u64::MAX);

/// Emits these events of the key `a`, parks the key because of the first, and sets all of them aside.
async fn park_key(world: &OutboxWorld<'_>, topics: &[&str]) {
    let events: Vec<_> = topics.iter().map(|topic| event(topic, Some("a"))).collect();
    world.emit(&events).await;
    let rows = world.read().await.rows;
    world.park(&rows[0], "too large").await;
    world.outbox.set_aside(&rows.iter().map(OpenRow::named).collect::<Vec<_>>()).await.expect("the outbox answers");
    assert_eq!(world.topics().await, [""; 0]);
}

pub(super) async fn a_resumed_key_comes_back_in_order(world: &OutboxWorld<'_>) {
    park_key(world, &["one", "two", "three", "four", "five"]).await;
    let before = world.read().await.rewinds;
    let mut opened = Vec::new();
    loop {
        let step = world.upkeep.resume(b"a", 2).await.expect("the outbox answers").expect("the key is parked");
        let read = world.read().await;
        if step == 0 {
            assert!(read.rows.iter().all(|row| !row.is_parked), "{read:?}");
            assert_ne!(read.rewinds, before, "a relay whose cursor is behind the rows does not look again");
            break;
        }
        opened.push(step);
        // The key stays parked until its last row is open: a relay publishes none of them.
        assert!(read.rows.iter().all(|row| row.is_parked), "{read:?}");
        assert_eq!(read.rewinds, before, "the rows were announced before they can be published");
        assert_eq!(read.rows.len(), opened.iter().sum::<usize>());
    }
    assert_eq!(opened, [2, 2, 1]);
    assert_eq!(world.topics().await, ["one", "two", "three", "four", "five"]);
    assert_eq!(world.upkeep.resume(b"a", 2).await.expect("the outbox answers"), None, "the key is not parked any more");
}

pub(super) async fn set_aside_leaves_rows_of_a_key_that_is_resumed(world: &OutboxWorld<'_>) {
    park_key(world, &["one", "two"]).await;
    assert_eq!(world.upkeep.resume(b"a", 10).await.expect("the outbox answers"), Some(2));
    let rows: Vec<_> = world.read().await.rows.iter().map(OpenRow::named).collect();
    // A relay has not seen yet that the key is being resumed, or that it was.
    world.outbox.set_aside(&rows).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["one", "two"]);
    assert_eq!(world.resume("a", 10).await, 0);
    world.outbox.set_aside(&rows).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["one", "two"]);
}

pub(super) async fn a_dropped_row_is_never_read(world: &OutboxWorld<'_>) {
    park_key(world, &["poison", "behind"]).await;
    let refused = world.upkeep.parked(None, 1).await.expect("the outbox answers").remove(0);
    let drop = async |key: &[u8], expected| world.upkeep.drop_refused(key, expected).await.expect("the outbox answers");
    assert_eq!(drop(b"a", Some(EventId::from_bytes([7; 16]))).await, None, "the key is parked for another event");
    assert_eq!(world.state(refused.event).await, Some(RowState::Aside));
    assert_eq!(drop(b"a", Some(refused.event)).await, Some(refused.event));
    assert_eq!(world.state(refused.event).await, Some(RowState::Dropped));
    assert_eq!(drop(b"a", None).await, None, "it is dropped already");
    assert_eq!(drop(b"b", None).await, None, "the key is not parked");
    assert_eq!(world.upkeep.parked(None, 10).await.expect("the outbox answers").len(), 1, "the key stays parked");
    assert_eq!(world.resume("a", 10).await, 1);
    assert_eq!(world.topics().await, ["behind"]);
    world.upkeep.republish(&ALWAYS, RowId(0), 100).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["behind"], "a dropped row was never published");
}

pub(super) async fn republish_opens_what_was_published_since(world: &OutboxWorld<'_>) {
    world.emit(&[event("old", Some("a"))]).await;
    world.publish_all().await;
    world.age(DAY).await;
    world.emit(&[event("one", Some("a")), event("two", Some("b")), event("three", None)]).await;
    world.publish_all().await;
    world.emit(&[event("open", Some("a"))]).await;
    let (_, _, newest) = world
        .upkeep
        .find(world.read().await.rows[0].event.id)
        .await
        .expect("the outbox answers")
        .expect("the outbox answers");
    let since = Timestamp(newest.created_at.0 - Timestamp(0).plus(Duration::from_hours(1)).0);
    world.begin_republication().await;
    let before = world.read().await.rewinds;
    let (mut last, mut opened) = (RowId(0), Vec::new());
    while let Some(step) = world.republish(since..ALWAYS.end, last).await {
        assert!(step.last > last, "{step:?} comes after {last:?}");
        last = step.last;
        opened.push(step.rows);
    }
    assert_eq!(opened, [1, 2, 0], "of five rows, two a call");
    let read = world.read().await;
    let topics: Vec<_> = read.rows.iter().map(|row| &*row.event.topic).collect();
    assert_eq!(topics, ["one", "two", "three", "open"]);
    assert!(read.rewinds.openings > before.openings, "a relay whose cursor is behind the rows does not look again");
    assert_eq!(read.rewinds.republications, before.republications, "its marks would not count");
    world.publish_all().await;
    for never in [Timestamp(since.0 * 2)..ALWAYS.end, ALWAYS.start..Timestamp(since.0 / 2)] {
        assert_eq!(world.republish(never, RowId(0)).await.expect("there are rows").rows, 0);
    }
    let after = world.read().await;
    assert!(after.rows.is_empty(), "{after:?}");
    assert_eq!(world.republish(ALWAYS.start..since, RowId(0)).await.expect("there are rows").rows, 1);
    assert_eq!(world.topics().await, ["old"], "the end of the time is not in it");
}

pub(super) async fn marks_count_during_a_republication_and_after_a_resumption(world: &OutboxWorld<'_>) {
    world.emit(&[event("one", Some("a")), event("two", Some("b")), event("three", Some("c"))]).await;
    world.publish_all().await;
    let before = world.read().await.rewinds;
    world.begin_republication().await;
    let first = world.republish(ALWAYS, RowId(0)).await.expect("there are rows");
    // A relay publishes what the first call has opened. Its marks come after the second call.
    let read = world.read().await;
    let rows: Vec<EventRow> = read.rows.iter().map(OpenRow::named).collect();
    assert_eq!((first.rows, rows.len()), (2, 2), "two a call");
    let second = world.republish(ALWAYS, first.last).await.expect("there are rows");
    assert_eq!(second.rows, 1);
    assert_ne!(world.read().await.rewinds, read.rewinds, "a relay whose cursor is behind the row does not look again");
    let late = world.outbox.mark(&rows, before.republications).await.expect("the outbox answers");
    assert!(late.is_rewound, "the rows were published before the republication: {late:?}");
    let marked = world.outbox.mark(&rows, read.rewinds.republications).await.expect("the outbox answers");
    assert_eq!(marked, MarkedRows { marked: 2, ..MarkedRows::default() });

    let read = world.read().await;
    world.park(&read.rows[0], "too large").await;
    world.resume("c", 10).await;
    let resumed = world.read().await;
    assert_ne!(resumed.rewinds, read.rewinds, "a relay whose cursor is behind the row does not look again");
    let (row, republications) = (resumed.rows[0].named(), read.rewinds.republications);
    let marked = world.outbox.mark(&[row], republications).await.expect("the outbox answers");
    assert_eq!(marked, MarkedRows { marked: 1, ..MarkedRows::default() });
}

pub(super) async fn a_republication_until_now_has_all_that_was_published(world: &OutboxWorld<'_>) {
    world.emit(&[event("one", Some("a")), event("two", Some("b"))]).await;
    world.publish_all().await;
    world.age(Duration::from_secs(1)).await;
    world.begin_republication().await;
    let now = world.upkeep.now().await.expect("the outbox answers");
    assert_eq!(world.republish(ALWAYS.start..now, RowId(0)).await.expect("there are rows").rows, 2);
}

pub(super) async fn a_mark_from_before_a_republication_changes_nothing(world: &OutboxWorld<'_>) {
    world.emit(&[event("marked", Some("a")), event("published", Some("b"))]).await;
    let read = world.read().await;
    let rows: Vec<EventRow> = read.rows.iter().map(OpenRow::named).collect();
    world.mark(&rows[..1]).await;
    // The broker has lost both. The mark of the second one, or its repetition, comes late: before any row is looked at.
    world.begin_republication().await;
    let marked = world.outbox.mark(&rows, read.rewinds.republications).await.expect("the outbox answers");
    assert_eq!(marked, MarkedRows { is_rewound: true, ..MarkedRows::default() });
    world.upkeep.republish(&ALWAYS, RowId(0), 100).await.expect("the outbox answers");
    assert_eq!(world.topics().await, ["marked", "published"]);

    // So it is where no row is published as far as the outbox knows.
    let read = world.read().await;
    world.begin_republication().await;
    let marked = world.outbox.mark(&rows, read.rewinds.republications).await.expect("the outbox answers");
    assert!(marked.is_rewound, "{marked:?}");
    assert_eq!(world.mark(&rows).await, 2);
}

pub(super) async fn a_row_is_published_again_under_another_id_for_the_broker(world: &OutboxWorld<'_>) {
    let published = world.emit(&[event("published", Some("a"))]).await;
    world.publish_all().await;
    let open = world.emit(&[event("open", Some("b"))]).await;
    let ids = async || -> Vec<(EventId, String)> {
        let rows = world.read().await.rows;
        rows.iter().map(|row| (row.event.id, row.event.deduplication_id())).collect()
    };
    assert_eq!(ids().await, [(open[0], open[0].to_string())]);
    for number in 1..=2 {
        world.begin_republication().await;
        world.upkeep.republish(&ALWAYS, RowId(0), 100).await.expect("the outbox answers");
        // Also the open one: it may be published, and lost by the broker, without a mark.
        let expected = [published[0], open[0]].map(|id| (id, format!("{id}/{number}")));
        assert_eq!(ids().await, expected);
    }
}

pub(super) async fn sweep_spares_open_aside_and_young_rows(world: &OutboxWorld<'_>) {
    let old = world.emit(&[event("published", None), event("dropped", Some("d")), event("aside", Some("a"))]).await;
    let rows = world.read().await.rows;
    world.mark(&[rows[0].named()]).await;
    world.park(&rows[1], "no").await;
    world.upkeep.drop_refused(b"d", None).await.expect("the outbox answers");
    world.park(&rows[2], "no").await;
    let open = world.emit(&[event("open", None)]).await;
    world.age(2 * DAY).await;
    let young = world.emit(&[event("young", None)]).await;
    let rows = world.read().await.rows;
    world.mark(&[rows[1].named()]).await;

    assert_eq!(world.upkeep.sweep(3 * DAY, 100).await.expect("the outbox answers"), 0, "nothing is that old");
    let mut swept = 0;
    loop {
        match world.upkeep.sweep(DAY, 1).await.expect("the outbox answers") {
            0 => break,
            step => swept += step,
        }
    }
    assert_eq!(swept, 2);
    let mut states = Vec::new();
    for id in old.into_iter().chain(open).chain(young) {
        states.push(world.state(id).await);
    }
    assert_eq!(states, [None, None, Some(RowState::Aside), Some(RowState::Open), Some(RowState::Published)]);
    let again = world.upkeep.republish(&ALWAYS, RowId(0), 100).await.expect("the outbox answers");
    assert_eq!(again.map(|again| again.rows), Some(1), "only the young row is still there");
}

pub(super) async fn parked_keys_are_listed_from_the_oldest(world: &OutboxWorld<'_>) {
    let keys = ["c", "a", "d", "b"];
    for key in keys {
        world.emit(&[event(key, Some(key))]).await;
        let row = world.read().await.rows.pop().expect("the row is open");
        world.park(&row, &format!("no {key}")).await;
        world.age(Duration::from_secs(1)).await;
    }
    let (mut listed, mut last): (Vec<ParkedKey>, Option<ParkedKey>) = (Vec::new(), None);
    loop {
        let page = world.upkeep.parked(last.as_ref(), 3).await.expect("the outbox answers");
        assert!(page.len() <= 3);
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        listed.extend(page);
    }
    let topics: Vec<&str> = listed.iter().map(|key| &*key.topic).collect();
    assert_eq!(topics, keys);
    assert!(listed.iter().all(|key| key.reason == format!("no {}", key.topic)), "{listed:?}");
}

pub(super) async fn counts_are_those_of_the_open_rows(world: &OutboxWorld<'_>) {
    let none = world.upkeep.counts(10).await.expect("the outbox answers");
    assert_eq!((none.open, none.oldest, none.parked_keys), (0, None, 0));
    world.emit(&[event("poison", Some("a")), event("behind", Some("a"))]).await;
    world.age(DAY).await;
    let events: Vec<_> = (0..4).map(|n| event(&format!("topic {n}"), None)).collect();
    world.emit(&events).await;
    let both = world.upkeep.counts(10).await.expect("the outbox answers");
    assert_eq!((both.open, both.parked_keys), (6, 0));
    assert!(both.oldest.is_some_and(|age| age >= DAY), "{both:?}");
    assert_eq!(world.upkeep.counts(3).await.expect("the outbox answers").open, 3, "counting ends at the limit");
    let rows = world.read().await.rows;
    world.park(&rows[0], "no").await;
    let parked = world.upkeep.counts(10).await.expect("the outbox answers");
    assert_eq!((parked.open, parked.parked_keys), (5, 1));
    assert!(parked.oldest.is_some_and(|age| age < DAY), "the oldest row belongs to a parked key: {parked:?}");
}
