//! What holds in every world: each committed event arrives, none that was rolled back, and the first arrivals of a key
//! are in its order.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::relay::RelaySettings;
use hapax_testkit::{Process, ProcessPart};

use super::world::{LEASE, RelayWorld};

const KEYS: u64 = 12;
const EVENTS: usize = 150;

/// One relay or several, with faults in their processes.
struct RandomRun {
    world: RelayWorld,
    relays: Vec<Arc<Process>>,
    paused: Vec<(Arc<Process>, Duration)>,
    /// Until when each key is locked by a transaction.
    locked: [Duration; 12],
}

impl RandomRun {
    fn run(seed: u64, relays: usize, has_faults: bool) {
        let world = RelayWorld::new(seed);
        world.log.lock().failures = if has_faults { 4 } else { 0 };
        let relays = (0..relays).map(|_| world.start_relay()).collect();
        let mut run = Self { world, relays, paused: Vec::new(), locked: [Duration::ZERO; 12] };
        for _ in 0..EVENTS {
            run.emit();
            if has_faults && run.world.random(10) == 0 {
                run.break_something();
            }
            run.world.time.run_for(Duration::from_millis(run.world.random(120)));
            run.resume(false);
        }
        run.resume(true);
        run.world.finish();
        run.world.check(&format!("seed {seed}"));
    }

    fn emit(&mut self) {
        let now = self.world.time.now();
        // One transaction of twenty stays open for a long time.
        let longest = if self.world.random(20) == 0 { 5000 } else { 30 };
        let open_for = Duration::from_millis(self.world.random(longest));
        let commits = self.world.random(10) > 0;
        let key = usize::try_from(self.world.random(KEYS + 1)).unwrap();
        let Some(locked) = self.locked.get_mut(key) else { return self.world.emit(None, open_for, commits) };
        if *locked <= now {
            *locked = now + open_for + Duration::from_millis(1);
            self.world.emit(Some(u8::try_from(key).unwrap()), open_for, commits);
        }
    }

    fn break_something(&mut self) {
        let number = usize::try_from(self.world.random(self.relays.len() as u64)).unwrap();
        match self.world.random(3) {
            0 => {
                self.relays[number].crash();
                self.relays[number] = self.world.start_relay();
            }
            1 => {
                let relay = Arc::clone(&self.relays[number]);
                relay.pause(ProcessPart::Tasks);
                // In half of the cases the heartbeat goes on, as when only the executor is blocked.
                if self.world.random(2) == 0 {
                    relay.pause(ProcessPart::Threads);
                }
                let until = self.world.time.now() + LEASE.mul_f64(0.2 * self.world.random(20) as f64);
                self.paused.push((relay, until));
            }
            _ if self.relays.len() < 4 => self.relays.push(self.world.start_relay()),
            _ => {}
        }
    }

    fn resume(&mut self, all: bool) {
        let now = self.world.time.now();
        self.paused.retain(|(relay, until)| {
            if all || *until <= now {
                relay.resume(ProcessPart::Tasks);
                relay.resume(ProcessPart::Threads);
            }
            !all && *until > now
        });
    }
}

#[test]
fn a_relay_alone_publishes_every_committed_event_in_order() {
    for seed in 0..20 {
        RandomRun::run(seed, 1, false);
    }
}

#[test]
fn relays_share_the_buckets_and_keep_the_order_of_each_key() {
    for seed in 0..20 {
        RandomRun::run(seed, 3, false);
    }
}

#[test]
fn relays_that_crash_and_stall_lose_nothing_and_keep_the_order_of_first_arrivals() {
    for seed in 0..60 {
        RandomRun::run(seed, 2, true);
    }
}

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
