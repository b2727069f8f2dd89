//! Counts for metrics, and the removal of old published rows.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::outbox::{OutboxCounts, OutboxUpkeep};
use crate::relay::buckets::OwnedBuckets;
use crate::relay::calls::RelayReport;
use crate::relay::engine::{Loan, RelayNote};
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

/// Counts and sweeps, if the relay has the rights for it.
pub(super) struct Upkeep {
    upkeep: Option<Arc<dyn OutboxUpkeep>>,
    retention: Option<Duration>,
    /// When the count that runs began.
    count_began: Option<Duration>,
    count_due: Duration,
    /// When the sweep that runs began.
    sweep_began: Option<Duration>,
    sweep_due: Duration,
    /// How long the sweeps of this walk took.
    walked: Duration,
}

/// The result of a call of the upkeep.
pub(super) enum UpkeepReport {
    Counted(Result<OutboxCounts>),
    Swept(Result<usize>),
}

impl Upkeep {
    pub(super) fn new(upkeep: Option<Arc<dyn OutboxUpkeep>>, retention: Option<Duration>) -> Self {
        let (count_due, sweep_due, walked) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { upkeep, retention, count_began: None, count_due, sweep_began: None, sweep_due, walked }
    }

    pub(super) fn wake(&self, buckets: &OwnedBuckets) -> Option<Duration> {
        self.upkeep.as_ref()?;
        let count = self.count_began.is_none().then_some(self.count_due);
        let sweeps = self.retention.is_some() && buckets.has(SWEEPER);
        let sweep = (self.sweep_began.is_none() && sweeps).then_some(self.sweep_due);
        [count, sweep].into_iter().flatten().min()
    }

    pub(super) fn start(&mut self, now: Duration, loan: &mut Loan<'_>) {
        let Some(upkeep) = self.upkeep.clone() else { return };
        if self.count_began.is_none() && now >= self.count_due {
            self.count_began = Some(now);
            let upkeep = Arc::clone(&upkeep);
            let count = async move { upkeep.counts(MAX_COUNTED).await };
            loan.calls.call_database(count, |counts| RelayReport::Upkeep(UpkeepReport::Counted(counts)));
        }
        if let Some(retention) = self.retention
            && self.sweep_began.is_none()
            && loan.buckets.has(SWEEPER)
            && now >= self.sweep_due
        {
            self.sweep_began = Some(now);
            let sweep = async move { upkeep.sweep(retention, SWEEP_CHUNK).await };
            loan.calls.call_database(sweep, |swept| RelayReport::Upkeep(UpkeepReport::Swept(swept)));
        }
    }

    pub(super) fn take(&mut self, report: UpkeepReport, loan: &mut Loan<'_>) {
        let now = loan.calls.now();
        let failure = match report {
            UpkeepReport::Counted(counts) => self.take_counts(counts, now),
            UpkeepReport::Swept(swept) => self.take_swept(swept, now),
        };
        loan.notes.extend(failure.err().map(RelayNote::DatabaseFailed));
    }

    fn take_counts(&mut self, counts: Result<OutboxCounts>, now: Duration) -> Result<()> {
        let took = now - self.count_began.take().unwrap_or(now);
        self.count_due = now + COUNT_EVERY.max(took * PAUSES);
        counts.map(|counts| telemetry::outbox_counts(&counts))
    }

    fn take_swept(&mut self, swept: Result<usize>, now: Duration) -> Result<()> {
        self.walked += now - self.sweep_began.take().unwrap_or(now);
        if let Ok(1..) = swept {
            self.sweep_due = now + SWEEP_PAUSE;
            return Ok(());
        }
        // The end of the table, or an error.
        self.sweep_due = now + SWEEP_EVERY.max(std::mem::take(&mut self.walked) * PAUSES);
        swept.map(drop)
    }
}
