//! Refuses begins at once while the store does not answer, so that calls do not wait for it. Only begins ask the
//! breaker: completions and releases always go to the store.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

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
        // Several callers may see that a probe is due; the exchange succeeds for one of them.
        now >= due
            && self
                .probe_at
                .compare_exchange(due, now + micros(PROBE_EVERY), Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
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

    #[test]
    fn a_failure_does_not_undo_a_success_at_the_same_time() {
        const ROUNDS: u32 = 20_000;
        let (breaker, started, ended) = (Breaker::default(), AtomicU32::new(0), AtomicU32::new(0));
        let wait_for = |counter: &AtomicU32, round| {
            while counter.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_for(&started, round);
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
                // The other thread needs a moment, which differs from machine to machine.
                for _ in 0..round % 200 {
                    std::hint::spin_loop();
                }
                breaker.record_success();
                wait_for(&ended, round);
                // Whichever comes first, at most one failure follows the success.
                assert!(!breaker.is_open(), "round {round}");
            }
        });
    }
}
