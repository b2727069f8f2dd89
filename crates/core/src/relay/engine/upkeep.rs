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

/// A count, and a walk of sweeps through the table, is followed by a pause of at least this many times its length.
const PAUSES: u32 = 9;

/// The relay that has this bucket sweeps.
const SWEEPER: u8 = 0;

/// When the next count and the next sweep are due.
#[derive(Debug, Default)]
pub(super) struct UpkeepPlan {
    is_counting: bool,
    /// When the count that runs began.
    count_began: Duration,
    count_due: Duration,
    is_sweeping: bool,
    /// When the sweep that runs began.
    sweep_began: Duration,
    sweep_due: Duration,
    /// How long the sweeps of this walk took.
    walked: Duration,
}

impl RelayEngine {
    pub(super) fn upkeep_wake(&self) -> Option<Duration> {
        self.upkeep.as_ref()?;
        let plan = &self.upkeep_plan;
        let count = (!plan.is_counting).then_some(plan.count_due);
        let sweep = (!plan.is_sweeping && self.sweeps()).then_some(plan.sweep_due);
        [count, sweep].into_iter().flatten().min()
    }

    pub(super) fn start_upkeep(&mut self, now: Duration) {
        let Some(upkeep) = self.upkeep.clone() else { return };
        if !self.upkeep_plan.is_counting && now >= self.upkeep_plan.count_due {
            (self.upkeep_plan.is_counting, self.upkeep_plan.count_began) = (true, now);
            let upkeep = Arc::clone(&upkeep);
            self.call_outbox(async move { upkeep.counts(MAX_COUNTED).await }, RelayReport::Counted);
        }
        if let Some(retention) = self.settings.retention
            && !self.upkeep_plan.is_sweeping
            && self.sweeps()
            && now >= self.upkeep_plan.sweep_due
        {
            (self.upkeep_plan.is_sweeping, self.upkeep_plan.sweep_began) = (true, now);
            self.call_outbox(async move { upkeep.sweep(retention, SWEEP_CHUNK).await }, RelayReport::Swept);
        }
    }

    fn sweeps(&self) -> bool {
        self.settings.retention.is_some() && self.buckets.contains_key(&SWEEPER)
    }

    pub(super) fn take_counts(&mut self, counts: Result<OutboxCounts>) {
        let now = self.runtime.boottime_now();
        let plan = &mut self.upkeep_plan;
        plan.is_counting = false;
        plan.count_due = now + COUNT_EVERY.max((now - plan.count_began) * PAUSES);
        match counts {
            Ok(counts) => telemetry::outbox_counts(&counts),
            Err(error) => self.note_failure(error),
        }
    }

    pub(super) fn take_swept(&mut self, swept: Result<usize>) {
        let now = self.runtime.boottime_now();
        let plan = &mut self.upkeep_plan;
        plan.is_sweeping = false;
        plan.walked += now - plan.sweep_began;
        if let Ok(1..) = swept {
            plan.sweep_due = now + SWEEP_PAUSE;
            return;
        }
        // The end of the table, or an error.
        plan.sweep_due = now + SWEEP_EVERY.max(std::mem::take(&mut plan.walked) * PAUSES);
        if let Err(error) = swept {
            self.note_failure(error);
        }
    }
}
