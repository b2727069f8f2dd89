//! Keys whose events the sink does not take for a long time.

use std::time::Duration;

use hapax_core::outbox::{EventRow, Outbox, RowState, bucket_of};

use super::world::RelayWorld;

const SECOND: Duration = Duration::from_secs(1);

/// Two keys of one bucket.
fn neighbours() -> (u8, u8) {
    let other = (2..=u8::MAX).find(|key| bucket_of(&[*key]) == bucket_of(&[1])).unwrap();
    (1, other)
}

#[test]
fn undecided_rows_of_a_failing_key_do_not_keep_their_bucket_waiting() {
    let world = RelayWorld::new(1);
    let (failing, other) = neighbours();
    world.log.lock().fails.insert(Some(vec![failing]));
    // A transaction that stays open, so that no later row is decided.
    world.emit(Some(200), Duration::from_secs(3600), true);
    for _ in 0..600 {
        world.emit(Some(failing), Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    world.emit(Some(other), Duration::ZERO, true);
    world.start_relay();
    world.time.run_for(30 * SECOND);
    assert_eq!(world.first_arrivals().get(&vec![other]).map(Vec::len), Some(1), "it waits behind another key");
}

#[test]
fn many_undecided_rows_of_a_failing_key_do_not_keep_their_bucket_waiting() {
    let world = RelayWorld::new(1);
    let (failing, other) = neighbours();
    world.log.lock().fails.insert(Some(vec![failing]));
    world.emit(Some(200), Duration::from_secs(3600), true);
    for _ in 0..6000 {
        world.emit(Some(failing), Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    world.emit(Some(other), Duration::ZERO, true);
    world.start_relay_with(|settings| settings.max_held = 16_384);
    world.time.run_for(30 * SECOND);
    assert_eq!(world.first_arrivals().get(&vec![other]).map(Vec::len), Some(1), "it waits behind another key");
}

#[test]
fn a_read_from_the_first_row_passes_a_failing_key_soon() {
    let world = RelayWorld::new(1);
    // Reads that take no time would follow each other without a pause.
    world.faults.lock().read_takes = Duration::from_millis(2);
    let (failing, other) = neighbours();
    world.log.lock().fails.insert(Some(vec![failing]));
    for _ in 0..12_000 {
        world.emit(Some(failing), Duration::ZERO, true);
    }
    world.start_relay_with(|settings| settings.max_held = 16_384);
    world.time.run_for(5 * SECOND);
    // Each bucket is read from its first row once in this time.
    for count in 1..=40 {
        world.emit(Some(other), Duration::ZERO, true);
        world.time.run_for(SECOND);
        assert_eq!(world.first_arrivals().get(&vec![other]).map(Vec::len), Some(count), "it waits behind another key");
    }
}

#[test]
fn keys_that_fail_leave_room_to_others_and_arrive_in_the_end() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    for _ in 0..1500 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(30 * SECOND);
    for key in 0..100 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(30 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 100, "events of other keys wait");
    world.log.lock().fails.clear();
    world.finish();
    world.check("all keys");
}

#[test]
fn large_rows_that_fail_leave_room_to_others() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    for _ in 0..600 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay_with(|settings| settings.max_held_bytes = 2000);
    world.time.run_for(30 * SECOND);
    for key in 0..100 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(30 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 100, "events of other keys wait");
    world.log.lock().fails.clear();
    world.finish();
    world.check("all keys");
}

#[test]
fn the_retries_of_many_rows_do_not_keep_later_rows_from_being_read() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    world.faults.lock().read_takes = Duration::from_millis(100);
    for _ in 0..16_000 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay_with(|settings| settings.max_held = 1024);
    world.time.run_for(60 * SECOND);
    for key in 0..100 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(60 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 100, "events of other keys wait");
}

/// More rows than the relay has room for, also of those that wait for their next try.
#[test]
fn rows_without_a_key_of_a_dead_topic_do_not_keep_other_rows_waiting_and_arrive_in_the_end() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    for _ in 0..6000 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay_with(|settings| settings.max_held_bytes = 1 << 20);
    world.time.run_for(10 * SECOND);
    let slowest = world.slowest_live_event(60);
    assert!(slowest <= SECOND, "an event of another topic took {slowest:?}");
    world.log.lock().fails.clear();
    world.finish();
    world.check("all keys");
}

#[test]
fn rows_without_a_key_of_a_dead_topic_that_asks_for_an_hour_do_not_keep_other_rows_waiting() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    world.log.lock().again_after = Duration::from_secs(3600);
    for _ in 0..5000 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(10 * SECOND);
    let slowest = world.slowest_live_event(100);
    assert!(slowest <= SECOND, "an event of another topic took {slowest:?}");
}

#[test]
fn rows_that_wait_for_an_hour_do_not_delay_the_retry_of_others() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    world.log.lock().again_after = Duration::from_secs(3600);
    for _ in 0..1500 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(30 * SECOND);
    world.log.lock().again_after = Duration::ZERO;
    world.log.lock().fails.insert(Some(vec![1]));
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(SECOND);
    world.log.lock().fails.remove(&Some(vec![1]));
    world.time.run_for(30 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 1, "an event that failed once waits for others");
}

#[test]
fn rows_of_a_key_that_fails_arrive_in_order_in_the_end() {
    let world = RelayWorld::new(1);
    for key in 0..100 {
        world.log.lock().fails.insert(Some(vec![key]));
    }
    for number in 0..3000_u32 {
        world.emit(Some(u8::try_from(number % 100).unwrap()), Duration::ZERO, true);
        if number % 100 == 99 {
            world.time.run_for(Duration::from_millis(1));
        }
    }
    world.start_relay();
    world.time.run_for(20 * SECOND);
    assert_eq!(world.log.lock().arrived, []);
    world.log.lock().fails.clear();
    world.finish();
    world.check("all keys");
}

#[test]
fn publications_that_take_long_to_fail_leave_places_to_others() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(None);
    world.log.lock().failing_takes = 5 * SECOND;
    for _ in 0..200 {
        world.emit(None, Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(40 * SECOND);
    for key in 0..30 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.time.run_for(3 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 30, "events of other keys wait for a place");
}

#[test]
fn a_sink_that_asks_for_an_endless_pause_stops_no_other_key() {
    let world = RelayWorld::new(1);
    world.log.lock().fails.insert(Some(vec![1]));
    world.log.lock().again_after = Duration::MAX;
    world.emit(Some(1), Duration::ZERO, true);
    world.start_relay();
    world.time.run_for(10 * SECOND);
    world.emit(Some(2), Duration::ZERO, true);
    world.time.run_for(10 * SECOND);
    assert_eq!(world.log.lock().arrived.len(), 1);
    world.time.run_for(Duration::from_secs(3500));
    assert_eq!(world.log.lock().not_taken, 1);
    world.time.run_for(Duration::from_secs(120));
    assert_eq!(world.log.lock().not_taken, 2, "an hour is the longest pause");
}

/// A short pause, and one after which the row is not held meanwhile.
#[test]
fn the_pause_that_a_sink_asks_for_is_kept() {
    for pause in [4 * SECOND, 40 * SECOND] {
        let world = RelayWorld::new(1);
        world.log.lock().fails.insert(Some(vec![1]));
        world.log.lock().again_after = pause;
        world.emit(Some(1), Duration::ZERO, true);
        world.start_relay();
        world.time.run_for(2 * SECOND);
        for tries in 1..5 {
            assert_eq!(world.log.lock().not_taken, tries, "tries after a pause of {pause:?} each");
            world.time.run_for(pause + SECOND / 4);
        }
        // A sink that asks for none is tried more often, and later and later.
        world.log.lock().again_after = Duration::ZERO;
        world.time.run_for(pause);
        let tries = world.log.lock().not_taken;
        world.time.run_for(60 * SECOND);
        let more = world.log.lock().not_taken - tries;
        assert!((11..16).contains(&more), "{more} tries in a minute");
    }
}

/// A bucket that is to go to another relay waits for a slow event, and has one that failed.
#[test]
fn a_bucket_that_is_given_back_costs_nothing_while_it_waits() {
    let world = RelayWorld::new(1);
    let (failing, slow) = neighbours();
    world.log.lock().fails.insert(Some(vec![failing]));
    world.log.lock().slow.insert(vec![slow], 600 * SECOND);
    world.emit(Some(failing), Duration::ZERO, true);
    world.emit(Some(slow), Duration::ZERO, true);
    let first = world.start_relay();
    world.time.run_for(10 * SECOND);
    world.start_relay();
    world.time.run_for(60 * SECOND);
    world.faults.lock().waits = 0;
    world.time.run_for(10 * SECOND);
    let waits = world.faults.lock().waits;
    assert!(waits < 1000, "two relays woke up {waits} times in ten seconds");
    drop(first);
}

/// The database has not parked the key because another relay has published the row.
#[test]
fn a_key_whose_refused_row_was_published_goes_on() {
    let world = RelayWorld::new(1);
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(Duration::from_millis(1));
    let id = world.committed.lock()[&vec![1]][0];
    world.log.lock().refuses.insert(id);
    world.faults.lock().hanging.insert("park");
    world.start_relay();
    world.time.run_for(10 * SECOND);
    let (outbox, row) = (world.outbox.clone(), EventRow { id: world.row(id), event: id });
    world.server.start(async move { outbox.mark(&[row], 0).await.unwrap() });
    world.emit(Some(1), Duration::ZERO, true);
    world.time.run_for(90 * SECOND);
    let next = world.committed.lock()[&vec![1]][1];
    assert_eq!(world.state(next), Some(RowState::Published));
}
