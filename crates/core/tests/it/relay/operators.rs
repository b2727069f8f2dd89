//! Operators that open rows many times a second while a relay publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::{Outbox, OutboxUpkeep, ParkedRow, RowId, bucket_of};
use hapax_core::runtime::Runtime;
use hapax_core::{EventId, Timestamp};

use super::world::{LIVE, RelayWorld, pause};

const SECOND: Duration = Duration::from_secs(1);

/// Publishes everything again that was published before this time: two rows every 20 ms.
fn republish_in_many_calls(world: &RelayWorld, until: Timestamp) {
    let (outbox, runtime) = (world.outbox.clone(), Arc::clone(&world.server));
    let published = Timestamp(0)..until;
    world.server.start(async move {
        outbox.begin_republication().await.unwrap();
        let mut last = RowId(0);
        while let Some(step) = outbox.republish(&published, last, 2).await.unwrap() {
            last = step.last;
            pause(&runtime, Duration::from_millis(20)).await;
        }
    });
}

/// How often each event arrived.
fn copies(world: &RelayWorld) -> BTreeMap<EventId, usize> {
    let mut copies = BTreeMap::new();
    for id in &world.log.lock().arrived {
        *copies.entry(*id).or_default() += 1;
    }
    copies
}

#[test]
fn a_republication_of_many_calls_sends_few_copies_and_delays_live_events_little() {
    let world = RelayWorld::new(1);
    for number in 0..2000_u32 {
        world.emit(Some(u8::try_from(number % 200).unwrap()), Duration::ZERO, true);
    }
    world.start_relay();
    world.finish();
    for key in 0..200 {
        world.log.lock().slow.insert(vec![key], Duration::from_millis(200));
    }
    republish_in_many_calls(&world, world.server.wall_now());
    // The republication goes on meanwhile.
    let slowest = world.slowest_live_event(20);
    assert!(slowest < 3 * SECOND, "a live event took {slowest:?}");
    world.time.run_for(10 * SECOND);
    world.finish();
    let most = copies(&world).into_values().max();
    assert_eq!(most, Some(2), "an event was published more than once, and once again");
    let again = copies(&world).into_values().filter(|copies| *copies == 2).count();
    assert_eq!(again, 2000, "an event was not published again");
}

#[test]
fn events_that_are_published_again_arrive_behind_newer_ones() {
    let world = RelayWorld::new(1);
    world.start_relay();
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(10 * SECOND);
    let until = world.server.wall_now();
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(10 * SECOND);
    republish_in_many_calls(&world, until);
    world.time.run_for(10 * SECOND);
    let ids = world.committed.lock()[&vec![1]].clone();
    assert_eq!(world.log.lock().arrived, [ids[0], ids[1], ids[0]]);
}

/// Also events that are in flight when the republication begins, and whose mark comes later.
#[test]
fn a_broker_that_remembers_what_it_has_lost_gets_it_again() {
    let world = RelayWorld::new(1);
    world.log.lock().remembered = Some(BTreeSet::new());
    world.start_relay();
    for number in 0..100_u8 {
        if number == 60 {
            world.log.lock().arrived.clear();
            republish_in_many_calls(&world, Timestamp(u64::MAX));
        }
        world.emit(Some(number % 20), Duration::ZERO, true);
        world.time.run_for(Duration::from_millis(10));
    }
    world.time.run_for(10 * SECOND);
    world.finish();
    let arrived: BTreeSet<EventId> = world.log.lock().arrived.iter().copied().collect();
    assert_eq!(arrived.len(), 100, "the broker did not take events that it had lost");
}

#[test]
fn a_long_republication_of_one_key_leaves_its_bucket_to_others() {
    let world = RelayWorld::new(1);
    let neighbour = (0..LIVE).find(|key| bucket_of(&[*key]) == bucket_of(&[LIVE])).unwrap();
    for _ in 0..1500 {
        world.emit(Some(neighbour), Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(120 * SECOND);
    world.finish();
    world.log.lock().slow.insert(vec![neighbour], SECOND);
    republish_in_many_calls(&world, world.server.wall_now());
    let slowest = world.slowest_live_event(14);
    assert!(slowest < 9 * SECOND, "a live event took {slowest:?}");
}

#[test]
fn rows_that_become_open_all_the_time_do_not_stop_a_relay() {
    let world = RelayWorld::new(1);
    // Events without a key, each of which is parked.
    for _ in 0..2000 {
        world.emit(None, Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    let keys: Vec<Vec<u8>> = world.committed.lock().keys().cloned().collect();
    let parked = keys.iter().map(|key| {
        let event = EventId::from_bytes(key[..].try_into().unwrap());
        let (bucket, key) = (bucket_of(key), key.clone().into());
        ParkedRow { id: world.row(event), event, bucket, key, reason: "too large".to_owned() }
    });
    let (outbox, runtime, parked) = (world.outbox.clone(), Arc::clone(&world.server), parked.collect::<Vec<_>>());
    world.server.start(async move {
        assert_eq!(outbox.park(&parked).await.unwrap(), []);
        for key in keys {
            while let Some(1..) = outbox.resume(&key, 10).await.unwrap() {}
            pause(&runtime, Duration::from_millis(10)).await;
        }
    });
    world.time.run_for(Duration::from_millis(1));
    world.start_relay();
    let slowest = world.slowest_live_event(20);
    assert!(slowest < 3 * SECOND, "a live event took {slowest:?}");
    world.finish();
    world.check("rewinds");
    assert_eq!(world.log.lock().arrived.len(), 2020, "an event was published again");
}
