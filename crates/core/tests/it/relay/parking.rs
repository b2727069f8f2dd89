//! Events that the sink never takes.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::{OutboxUpkeep, RowId, RowState};
use hapax_core::runtime::Runtime;
use hapax_core::{EventId, Timestamp};

use super::world::RelayWorld;

/// A world in which the third event of key 1 is refused.
fn world_with_poison() -> (RelayWorld, Vec<EventId>) {
    let world = RelayWorld::new(1);
    for _ in 0..6 {
        world.emit(Some(1), Duration::ZERO, true);
        world.emit(Some(2), Duration::ZERO, true);
        world.time.run_for(Duration::from_millis(1));
    }
    let ids = world.committed.lock()[&vec![1]].clone();
    world.log.lock().refuses.insert(ids[2]);
    world.start_relay();
    (world, ids)
}

#[test]
fn a_refused_event_parks_its_key_and_no_other() {
    let (world, ids) = world_with_poison();
    world.time.run_for(Duration::from_secs(10));
    // An event of the key that comes later waits too.
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(Duration::from_secs(10));
    let arrivals = world.first_arrivals();
    assert_eq!(arrivals[&vec![1]], ids[..2]);
    assert_eq!(arrivals[&vec![2]].len(), 6);
    for id in &world.committed.lock()[&vec![1]][2..] {
        assert_eq!(world.state(*id), Some(RowState::Aside));
    }
}

/// A world that refuses this many events without a key.
fn world_that_refuses(events: usize) -> (RelayWorld, Vec<EventId>) {
    let world = RelayWorld::new(1);
    for _ in 0..events {
        world.emit(None, Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    let ids: Vec<EventId> = world.committed.lock().values().flatten().copied().collect();
    world.log.lock().refuses.extend(&ids);
    world.faults.lock().park_takes = Duration::from_millis(50);
    (world, ids)
}

fn set_aside(world: &RelayWorld, ids: &[EventId]) -> usize {
    ids.iter().filter(|id| world.state(**id) == Some(RowState::Aside)).count()
}

#[test]
fn many_refused_events_are_parked_in_few_calls() {
    let (world, ids) = world_that_refuses(2000);
    world.start_relay();
    world.time.run_for(Duration::from_secs(10));
    assert_eq!(set_aside(&world, &ids), 2000);
}

#[test]
fn a_locked_row_keeps_no_other_key_from_being_parked() {
    let (world, ids) = world_that_refuses(200);
    world.faults.lock().locked.insert(ids[77]);
    world.start_relay();
    world.time.run_for(Duration::from_secs(60));
    assert_eq!(set_aside(&world, &ids), 199);
    world.faults.lock().locked.clear();
    world.time.run_for(Duration::from_secs(10));
    assert_eq!(set_aside(&world, &ids), 200);
}

#[test]
fn a_resumed_key_goes_on_in_its_order() {
    let (world, ids) = world_with_poison();
    world.time.run_for(Duration::from_secs(10));
    world.log.lock().refuses.clear();
    let (outbox, server) = (world.outbox.clone(), Arc::clone(&world.server));
    let resumed = server.start(async move { while let Some(1..) = outbox.resume(&[1], 2).await.unwrap() {} });
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(Duration::from_secs(10));
    assert!(resumed.output().is_some());
    world.finish();
    world.check("after a resumption");
    assert_eq!(world.first_arrivals()[&vec![1]][..6], ids[..]);
}

#[test]
fn a_dropped_event_is_never_published_and_the_rest_of_its_key_is() {
    let (world, ids) = world_with_poison();
    world.time.run_for(Duration::from_secs(10));
    let outbox = world.outbox.clone();
    let dropped = world.server.start(async move {
        let is_dropped = outbox.drop_refused(&[1], None).await.unwrap().is_some();
        while let Some(1..) = outbox.resume(&[1], 100).await.unwrap() {}
        is_dropped
    });
    world.time.run_for(Duration::from_secs(10));
    assert_eq!(dropped.output(), Some(true));
    let arrived = &world.first_arrivals()[&vec![1]];
    assert_eq!(arrived[..2], ids[..2]);
    assert_eq!(arrived[2..], ids[3..]);
}

#[test]
fn republished_events_arrive_again_under_their_ids() {
    let world = RelayWorld::new(1);
    let begun = world.server.wall_now();
    world.start_relay();
    for _ in 0..10 {
        world.emit(Some(1), Duration::ZERO, true);
    }
    world.finish();
    // The broker lost its tail.
    world.log.lock().arrived.truncate(4);
    let outbox = world.outbox.clone();
    world.server.start(async move {
        outbox.begin_republication().await.unwrap();
        let (published, mut after) = (begun..Timestamp(u64::MAX), RowId(0));
        while let Some(step) = outbox.republish(&published, after, 3).await.unwrap() {
            after = step.last;
        }
    });
    world.time.run_for(Duration::from_secs(10));
    world.check("after a republication");
    assert_eq!(world.log.lock().arrived.len(), 14);
}

/// The relay does not know whether its mark was written, and repeats it. Meanwhile the broker has lost the event.
#[test]
fn a_mark_that_ends_after_a_republication_is_not_the_last_word() {
    let world = RelayWorld::new(1);
    let begun = world.server.wall_now();
    world.emit(Some(1), Duration::ZERO, true);
    world.faults.lock().hanging.insert("mark");
    world.start_relay();
    let arrived = world.time.run_until(Duration::from_secs(10), || (world.log.lock().arrived.len() == 1).then_some(()));
    assert!(arrived.is_some());
    let outbox = world.outbox.clone();
    world.server.start(async move {
        let published = begun..Timestamp(u64::MAX);
        outbox.begin_republication().await.unwrap();
        outbox.republish(&published, RowId(0), 3).await.unwrap();
    });
    world.time.run_for(Duration::from_secs(120));
    assert_eq!(world.log.lock().arrived.len(), 2, "the event was marked and not published again");
    world.check("after the mark");
}
