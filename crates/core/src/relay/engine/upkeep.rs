//! Counts for metrics, and the removal of old published rows.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::outbox::OutboxCounts;
use crate::relay::engine::{RelayEngine, RelayReport};
use crate::telemetry;

const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Counting reads every open row up to this number.
const MAX_COUNTED: u64 = 100_000;

const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The number of rows that one call removes, and the pause between two calls: other transactions must not notice.
const SWEEP_CHUNK: usize = 1000;
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// The relay that has this bucket sweeps.
const SWEEPER: u8 = 0;

impl RelayEngine {
    pub(super) fn upkeep_wake(&self) -> Option<Duration> {
        self.upkeep.as_ref()?;
        let count = (!self.is_counting).then_some(self.count_due);
        let sweep = (!self.is_sweeping && self.sweeps()).then_some(self.sweep_due);
        [count, sweep].into_iter().flatten().min()
    }

    pub(super) fn start_upkeep(&mut self, now: Duration) {
        let Some(upkeep) = &self.upkeep else { return };
        let upkeep = (Arc::clone(upkeep), Arc::clone(upkeep));
        if !self.is_counting && now >= self.count_due {
            (self.is_counting, self.count_due) = (true, now + COUNT_EVERY);
            self.call(async move { RelayReport::Counted(upkeep.0.counts(MAX_COUNTED).await) });
        }
        if let Some(retention) = self.settings.retention
            && !self.is_sweeping
            && self.sweeps()
            && now >= self.sweep_due
        {
            self.is_sweeping = true;
            self.call(async move { RelayReport::Swept(upkeep.1.sweep(retention, SWEEP_CHUNK).await) });
        }
    }

    fn sweeps(&self) -> bool {
        self.settings.retention.is_some() && self.buckets.contains_key(&SWEEPER)
    }

    pub(super) fn take_counts(&mut self, counts: Result<OutboxCounts>) {
        self.is_counting = false;
        match counts {
            Ok(counts) => telemetry::outbox_counts(&counts),
            Err(error) => self.note_failure(error),
        }
    }

    pub(super) fn take_swept(&mut self, swept: Result<usize>) {
        self.is_sweeping = false;
        let now = self.runtime.boottime_now();
        self.sweep_due = match swept {
            Ok(0) => now + SWEEP_EVERY,
            Ok(_) => now + SWEEP_PAUSE,
            Err(error) => {
                self.note_failure(error);
                now + SWEEP_EVERY
            }
        };
    }
}
