//! What holds without a fault: how soon events arrive, and which settings are refused. The simulation has random
//! worlds.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::relay::RelaySettings;

use super::world::{LEASE, RelayWorld};

#[test]
fn an_event_of_a_slow_transaction_is_published_although_later_ones_were() {
    let world = RelayWorld::new(1);
    world.start_relay();
    world.emit(Some(0), Duration::from_secs(30), true);
    for _ in 0..20 {
        world.emit(None, Duration::ZERO, true);
        world.time.run_for(Duration::from_secs(1));
    }
    assert_eq!(world.log.lock().arrived.len(), 20, "all but the slow one");
    world.time.run_for(Duration::from_secs(10) + Duration::from_millis(1500));
    assert_eq!(world.log.lock().arrived.len(), 21);
}

#[test]
fn the_buckets_of_a_dead_relay_flow_again_within_its_lease_and_a_second() {
    let world = RelayWorld::new(1);
    let dead = world.start_relay();
    world.time.run_for(Duration::from_secs(5));
    world.start_relay();
    world.time.run_for(Duration::from_secs(60));
    dead.crash();
    for key in 0..40 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    let limit = LEASE + Duration::from_secs(1);
    let all = world.time.run_until(limit, || (world.log.lock().arrived.len() == 40).then_some(()));
    assert!(all.is_some(), "{} of 40", world.log.lock().arrived.len());
}

#[test]
fn a_backlog_of_one_key_does_not_keep_other_keys_waiting() {
    let world = RelayWorld::new(1);
    for _ in 0..700 {
        world.emit(Some(1), Duration::ZERO, true);
    }
    world.time.run_for(Duration::from_millis(1));
    for key in 2..100 {
        world.emit(Some(key), Duration::ZERO, true);
    }
    world.start_relay();
    world.time.run_for(Duration::from_secs(3));
    let arrivals = world.first_arrivals();
    assert_eq!(arrivals.len(), 99, "every key has an event");
    world.finish();
    world.check("a backlog");
}

#[test]
fn a_relay_that_keeps_rows_for_less_than_its_broker_recognizes_them_is_refused() {
    let world = RelayWorld::new(1);
    let mut settings = RelaySettings::default();
    settings.retention = Some(Duration::from_secs(60));
    let build = |window| world.build_relay(&world.server, settings, Some(Duration::from_secs(window)));
    assert_eq!(build(61).unwrap_err().kind(), ErrorKind::Invalid);
    build(60).unwrap();
}
