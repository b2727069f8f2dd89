//! Refuses begins at once while the store does not answer, so that calls do not wait for it. Only begins ask the
//! breaker: completions and releases always go to the store.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::chaos::Mutant;
use crate::telemetry;

/// How many begins in a row must fail before the breaker opens.
const FAILURES: u32 = 5;

/// How often an open breaker admits one begin, to find out whether the store answers again.
const PROBE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: AtomicU32,
    /// When the next probe is due, in microseconds on the boot-time clock.
    probe_at: AtomicU64,
}

impl Breaker {
    /// Whether a begin may go to the store now.
    pub(crate) fn admits(&self, now: Duration) -> bool {
        if !self.is_open() {
            return true;
        }
        let (now, due) = (micros(now), self.probe_at.load(Ordering::Acquire));
        if now < due || Mutant::EveryBeginIsAProbe.is_on() {
            return now >= due;
        }
        // Several callers may see that a probe is due; the exchange succeeds for one of them.
        let next = now + micros(PROBE_EVERY);
        self.probe_at.compare_exchange(due, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether begins are refused at once, except for one probe a second.
    pub(crate) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Acquire) >= FAILURES
    }

    pub(crate) fn record_success(&self) {
        if self.failures.swap(0, Ordering::AcqRel) >= FAILURES {
            telemetry::breaker_closed();
        }
    }

    pub(crate) fn record_failure(&self, now: Duration) {
        // One atomic step: a success at the same time must not be overwritten by an older count.
        let add_one = |failures: u32| Some(failures.saturating_add(1));
        let before = self.failures.fetch_update(Ordering::AcqRel, Ordering::Acquire, add_one);
        if before == Ok(FAILURES - 1) {
            self.probe_at.store(micros(now + PROBE_EVERY), Ordering::Release);
            telemetry::breaker_opened();
            if !self.is_open() {
                // A success closed it at the same time, and may have reported that first.
                telemetry::breaker_closed();
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_breaker_opens_after_failures_in_a_row_and_admits_one_probe_a_second() {
        let (breaker, second) = (Breaker::default(), Duration::from_secs(1));
        for _ in 1..FAILURES {
            breaker.record_failure(Duration::ZERO);
        }
        assert!(breaker.admits(Duration::ZERO), "one failure fewer leaves it closed");
        breaker.record_success();
        for _ in 0..FAILURES {
            assert!(breaker.admits(Duration::ZERO));
            breaker.record_failure(Duration::ZERO);
        }
        assert!(breaker.is_open() && !breaker.admits(second / 2), "an open breaker refuses");
        assert!(breaker.admits(second), "the probe is due");
        assert!(!breaker.admits(second), "a second probe in the same second is refused");
        breaker.record_failure(second);
        assert!(breaker.is_open() && !breaker.admits(second * 3 / 2), "a failed probe leaves it open");
        assert!(breaker.admits(second * 2));
        breaker.record_success();
        assert!(!breaker.is_open());
        assert!(breaker.admits(second * 2) && breaker.admits(second * 2), "a closed breaker admits all");
    }

    /// Waits until the counter has this value. Spins first: threads that are woken up one after the other do not meet.
    fn meet(counter: &AtomicU32, value: u32) {
        let mut spins = 0_u32;
        while counter.load(Ordering::Acquire) < value {
            spins += 1;
            if spins.is_multiple_of(10_000) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    #[test]
    fn of_callers_at_the_same_instant_one_is_admitted_as_the_probe() {
        const ROUNDS: u32 = 10_000;
        const CALLERS: u32 = 2;
        let (breaker, arrived, admitted) = (Breaker::default(), AtomicU32::new(0), AtomicU32::new(0));
        for _ in 0..FAILURES {
            breaker.record_failure(Duration::ZERO);
        }
        let call_in_every_round = || {
            for round in 1..=ROUNDS {
                arrived.fetch_add(1, Ordering::AcqRel);
                meet(&arrived, CALLERS * round);
                let is_probe = breaker.admits(PROBE_EVERY * round);
                admitted.fetch_add(u32::from(is_probe), Ordering::AcqRel);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(call_in_every_round);
            }
        });
        assert_eq!(admitted.into_inner(), ROUNDS, "one probe in each round");
    }

    #[test]
    fn a_failure_does_not_undo_a_success_at_the_same_time() {
        const ROUNDS: u32 = 10_000;
        let (breaker, started, ended) = (Breaker::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(&started, round);
                    breaker.record_failure(Duration::ZERO);
                    ended.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                breaker.record_success();
                for _ in 1..FAILURES {
                    breaker.record_failure(Duration::ZERO);
                }
                started.store(round, Ordering::Release);
                // The other thread needs a moment, which differs from machine to machine. A step takes nanoseconds.
                for _ in 0..round % 200 {
                    std::hint::black_box(round);
                }
                breaker.record_success();
                meet(&ended, round);
                // Whichever comes first, at most one failure follows the success.
                assert!(!breaker.is_open(), "round {round}");
            }
        });
    }
}
