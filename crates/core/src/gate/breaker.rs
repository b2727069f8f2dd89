//! Keeps calls from waiting for a store that does not answer. Only a begin asks it: completions and releases always go through.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::telemetry;

/// How many begins in a row must fail before further ones are refused at once.
const FAILURES: u32 = 5;

/// How often one begin is let through while it is open.
const PROBE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    /// When the next probe may go, in microseconds on the boot clock.
    probe_at: AtomicU64,
}

impl Breaker {
    /// Whether a begin may go to the store now.
    pub(super) fn admits(&self, now: Duration) -> bool {
        if !self.is_open() {
            return true;
        }
        let (now, due) = (micros(now), self.probe_at.load(Ordering::Acquire));
        // One of those who come when a probe is due takes it.
        now >= due
            && self
                .probe_at
                .compare_exchange(due, now + micros(PROBE_EVERY), Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// Whether begins are refused at once, but for one a second.
    pub(super) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Acquire) >= FAILURES
    }

    pub(super) fn succeeded(&self) {
        if self.failures.swap(0, Ordering::AcqRel) >= FAILURES {
            telemetry::breaker_closed();
        }
    }

    pub(super) fn failed(&self, now: Duration) {
        let failures = self.failures.load(Ordering::Acquire).saturating_add(1);
        self.failures.store(failures, Ordering::Release);
        if failures == FAILURES {
            self.probe_at.store(micros(now + PROBE_EVERY), Ordering::Release);
            telemetry::breaker_opened();
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
    fn it_opens_after_failures_in_a_row_and_lets_one_probe_a_second_through() {
        let (breaker, second) = (Breaker::default(), Duration::from_secs(1));
        for _ in 1..FAILURES {
            breaker.failed(Duration::ZERO);
        }
        assert!(breaker.admits(Duration::ZERO), "not yet");
        breaker.succeeded();
        for _ in 0..FAILURES {
            assert!(breaker.admits(Duration::ZERO));
            breaker.failed(Duration::ZERO);
        }
        assert!(breaker.is_open() && !breaker.admits(second / 2), "open");
        assert!(breaker.admits(second), "the probe");
        assert!(!breaker.admits(second), "only one");
        breaker.failed(second);
        assert!(breaker.admits(second * 2));
        breaker.succeeded();
        assert!(!breaker.is_open());
        assert!(breaker.admits(second * 2) && breaker.admits(second * 2), "closed");
    }
}
