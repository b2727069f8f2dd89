//! A database that is slow, locked or restored.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::{BUCKETS, EventRow, Outbox, OutboxUpkeep, RowState};
use hapax_core::relay::bucket_records;
use hapax_core::store::{Memory, Swapped};
use hapax_core::{Inspect, Store};
use hapax_testkit::ProcessPart;

use super::world::{LEASE, RelayWorld};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_relay_goes_on_after_its_outbox_was_restored() {
    let world = RelayWorld::new(1);
    world.start_relay();
    for _ in 0..30 {
        world.emit(Some(1), Duration::ZERO, true);
        world.time.run_for(SECOND);
    }
    assert_eq!(world.log.lock().arrived.len(), 30);
    world.outbox.restore_empty();
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(30 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 31, "the cursor is behind ids that are drawn again");
}

/// Runs a task in the database's process.
fn run<T: Send + 'static>(world: &RelayWorld, task: impl Future<Output = T> + Send + 'static) -> T {
    let task = world.server.start(task);
    world.time.run_until(SECOND, || task.output()).unwrap()
}

/// How many buckets a relay holds.
async fn claimed_buckets(store: Arc<Memory>) -> usize {
    let mut claimed = 0;
    for rk in bucket_records().unwrap() {
        claimed += usize::from(store.read(&rk).await.unwrap().is_running());
    }
    claimed
}

#[test]
fn a_relay_claims_a_bucket_again_whose_claim_is_gone() {
    let world = RelayWorld::new(1);
    world.start_relay();
    world.time.run_for(10 * SECOND);
    let store = Arc::clone(&world.store);
    assert_eq!(run(&world, claimed_buckets(Arc::clone(&store))), usize::from(BUCKETS));
    let purged = Arc::clone(&store);
    run(&world, async move {
        for rk in bucket_records().unwrap() {
            let seen = purged.read(&rk).await.unwrap();
            assert_eq!(purged.purge(&rk, &seen).await.unwrap(), Swapped::Yes);
        }
    });
    world.time.run_for(2 * LEASE);
    assert_eq!(run(&world, claimed_buckets(store)), usize::from(BUCKETS), "another relay would find them free");
}

#[test]
fn a_row_whose_mark_the_database_lost_is_published_and_marked_again() {
    let world = RelayWorld::new(1);
    world.faults.lock().loses_marks = true;
    world.start_relay();
    world.emit(Some(1), Duration::ZERO, true);
    // By now the relay reads only behind the row.
    world.time.run_for(5 * SECOND);
    let id = world.committed.lock()[&vec![1]][0];
    assert_eq!(world.state(id), Some(RowState::Open));
    world.faults.lock().loses_marks = false;
    world.time.run_for(40 * SECOND);
    assert_eq!(world.state(id), Some(RowState::Published));
    world.check("lost marks");
}

#[test]
fn a_call_that_never_ends_stops_the_relay_for_a_minute_at_most() {
    let world = RelayWorld::new(1);
    for kind in ["read", "horizon", "mark", "park", "set_aside"] {
        world.faults.lock().hanging.insert(kind);
    }
    world.emit(Some(1), Duration::ZERO, true);
    world.emit(Some(2), Duration::ZERO, true);
    world.emit(Some(2), Duration::ZERO, true);
    world.time.run_for(Duration::from_millis(1));
    let ids = world.committed.lock()[&vec![2]].clone();
    world.log.lock().refuses.insert(ids[0]);
    world.start_relay();
    world.time.run_for(400 * SECOND);
    assert!(world.faults.lock().hanging.is_empty(), "every kind of call was made: {:?}", world.faults.lock().hanging);
    assert_eq!(world.state(world.committed.lock()[&vec![1]][0]), Some(RowState::Published));
    for id in ids {
        assert_eq!(world.state(id), Some(RowState::Aside));
    }
}

#[test]
fn a_locked_row_keeps_no_other_row_from_its_mark_and_is_published_once() {
    let world = RelayWorld::new(1);
    for key in 0..10 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    let locked = world.committed.lock()[&vec![3]][0];
    world.faults.lock().locked.insert(locked);
    world.start_relay();
    world.time.run_for(20 * SECOND);
    for (key, ids) in world.committed.lock().clone() {
        let expected = if key == [3] { RowState::Open } else { RowState::Published };
        assert_eq!(world.state(ids[0]), Some(expected), "key {key:?}");
    }
    world.faults.lock().locked.clear();
    world.finish();
    assert_eq!(world.log.lock().arrived.len(), 10, "no event was published again");
}

#[test]
fn reads_that_are_slow_leave_most_of_the_time_to_others() {
    let world = RelayWorld::new(1);
    world.faults.lock().read_takes = Duration::from_millis(50);
    world.start_relay();
    world.time.run_for(5 * SECOND);
    world.faults.lock().reads = 0;
    for number in 0..1000 {
        world.emit(Some(u8::try_from(number % 50).unwrap()), Duration::ZERO, true);
        world.time.run_for(Duration::from_millis(10));
    }
    let reads = world.faults.lock().reads;
    assert!((10..40).contains(&reads), "{reads} reads in ten seconds");
}

#[test]
fn the_pause_after_a_very_slow_read_is_short() {
    let world = RelayWorld::new(1);
    world.faults.lock().read_takes = 10 * SECOND;
    world.start_relay();
    world.time.run_for(120 * SECOND);
    let reads = world.faults.lock().reads;
    assert!(reads >= 10, "{reads} reads in two minutes");
}

#[test]
fn a_sweep_that_takes_long_is_followed_by_a_long_pause() {
    let world = RelayWorld::new(1);
    world.faults.lock().sweep_takes = 30 * SECOND;
    world.start_relay();
    world.time.run_for(900 * SECOND);
    let sweeps = world.faults.lock().sweeps;
    assert!((2..=4).contains(&sweeps), "{sweeps} sweeps in 15 minutes");
}

#[test]
fn a_read_that_began_before_a_bucket_was_lost_is_not_used_when_it_is_back() {
    let world = RelayWorld::new(1);
    let relay = world.start_relay();
    world.time.run_for(5 * SECOND);
    world.faults.lock().read_takes = 12 * SECOND;
    world.emit(Some(1), Duration::ZERO, true);
    let reads = world.faults.lock().reads;
    let begun = world.time.run_until(5 * SECOND, || (world.faults.lock().reads > reads).then_some(()));
    assert!(begun.is_some(), "a read begins");
    // The heartbeat stops, the buckets lapse, and another relay publishes the event.
    relay.pause(ProcessPart::Threads);
    world.time.run_for(LEASE + SECOND);
    let id = world.committed.lock()[&vec![1]][0];
    let (outbox, row) = (world.outbox.clone(), EventRow { id: world.row(id), event: id });
    world.server.start(async move { outbox.mark(&[row], 0).await.unwrap() });
    relay.resume(ProcessPart::Threads);
    world.time.run_for(30 * SECOND);
    assert_eq!(world.log.lock().arrived, [], "an event was published that is published already");
}

#[test]
fn a_key_that_is_being_resumed_is_not_read_all_the_time() {
    let world = RelayWorld::new(1);
    // A transaction that stays open, so that the rows are read again.
    world.emit(Some(200), 3600 * SECOND, true);
    for _ in 0..6 {
        world.emit(Some(1), Duration::ZERO, true);
        world.time.run_for(Duration::from_millis(1));
    }
    let first = world.committed.lock()[&vec![1]][0];
    world.log.lock().refuses.insert(first);
    world.start_relay();
    world.time.run_for(10 * SECOND);
    let outbox = world.outbox.clone();
    world.server.start(async move { outbox.resume(&[1], 3).await.unwrap() });
    world.time.run_for(5 * SECOND);
    world.faults.lock().reads = 0;
    world.time.run_for(10 * SECOND);
    let reads = world.faults.lock().reads;
    assert!(reads <= 60, "{reads} reads in ten seconds");
}

/// A world in which a read of all buckets from their first rows takes 64 s, which is longer than a call may.
fn world_behind_an_old_transaction() -> RelayWorld {
    let world = RelayWorld::new(1);
    world.start_relay();
    for number in 0..6400_u32 {
        world.emit(Some(u8::try_from(number % 250).unwrap()), Duration::ZERO, true);
    }
    world.time.run_for(60 * SECOND);
    world.finish();
    world.faults.lock().read_takes_an_id = Duration::from_millis(10);
    world
}

#[test]
fn reading_all_rows_again_delays_new_ones_little_although_it_is_slow() {
    let world = world_behind_an_old_transaction();
    let slowest = world.slowest_live_event(120);
    assert!(slowest < 3 * SECOND, "a live event took {slowest:?}");
}

#[test]
fn a_read_that_timed_out_is_not_followed_by_a_slower_one() {
    let world = world_behind_an_old_transaction();
    world.faults.lock().hanging.insert("read");
    world.time.run_for(65 * SECOND);
    assert!(world.faults.lock().hanging.is_empty(), "a read began");
    let slowest = world.slowest_live_event(60);
    assert!(slowest < 3 * SECOND, "a live event took {slowest:?}");
}

#[test]
fn all_buckets_are_read_again_soon_after_a_call_failed() {
    let world = RelayWorld::new(1);
    world.faults.lock().loses_marks = true;
    world.start_relay();
    for key in 0..100 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(5 * SECOND);
    world.faults.lock().loses_marks = false;
    world.faults.lock().hanging.insert("horizon");
    let hangs = world.time.run_until(15 * SECOND, || world.faults.lock().hanging.is_empty().then_some(()));
    assert!(hangs.is_some(), "a horizon was asked for");
    // A call ends after a minute.
    world.time.run_for(66 * SECOND);
    let open = world.committed.lock().values().filter(|ids| world.state(ids[0]) == Some(RowState::Open)).count();
    assert_eq!(open, 0, "rows whose marks were lost are not published again");
}

#[test]
fn a_relay_waits_for_a_database_that_a_restore_removes_for_a_moment() {
    let world = RelayWorld::new(1);
    world.start_relay();
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(5 * SECOND);
    world.faults.lock().is_gone = true;
    world.time.run_for(30 * SECOND);
    world.faults.lock().is_gone = false;
    world.emit(Some(1), Duration::ZERO, true);
    world.finish();
}
