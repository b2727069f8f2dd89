//! Relays that stop while events are in flight.

use std::time::Duration;

use hapax_core::Millis;
use hapax_core::outbox::bucket_of;
use hapax_core::relay::RelaySettings;

use super::world::RelayWorld;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn with_long_lease(settings: &mut RelaySettings) {
    settings.lease = Millis(60_000);
    settings.drain = SECOND;
}

/// The broker may take the event until the lease has ended, behind a later one of its key that another relay publishes.
#[test]
fn a_bucket_with_an_event_in_flight_at_the_end_of_the_drain_is_left_to_lapse() {
    let world = RelayWorld::new(1);
    let (hangs, other) = (1, (2..).find(|key| bucket_of(&[*key]) != bucket_of(&[1])).unwrap());
    world.log.lock().slow.insert(vec![hangs], 60 * MINUTE);
    world.emit(Some(hangs), Duration::ZERO, true);
    world.start_relay_for(Some(5 * SECOND), with_long_lease);
    world.time.run_for(7 * SECOND);
    world.log.lock().slow.clear();
    world.emit(Some(other), Duration::ZERO, true);
    world.start_relay_with(with_long_lease);
    world.time.run_for(10 * SECOND);
    let of = |key: u8| world.first_arrivals().get(&vec![key]).map_or(0, Vec::len);
    assert_eq!((of(hangs), of(other)), (0, 1), "the other buckets are given back at once");
    world.time.run_for(MINUTE);
    assert_eq!(of(hangs), 1);
}
