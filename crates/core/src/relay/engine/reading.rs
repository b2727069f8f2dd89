//! When the outbox is read, and what a read brings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::chaos;
use crate::error::{Error, Result};
use crate::outbox::{BucketCursor, EventRow, Horizon, OpenRow, OpenRows, RowId};
use crate::relay::bucket::{FailingRoom, TakenRow};
use crate::relay::engine::{BucketRead, OwnedBucket, RelayEngine, RelayReport};
use crate::telemetry;

/// The pauses between reads, while rows come and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// The pause after a read that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// A read that takes longer is followed by a pause of this many times its length. Reads are slow while a transaction
/// stays open for long: they then pass over everything that was published since.
const SLOW_READ: Duration = Duration::from_millis(20);
const SLOW_READ_PAUSES: u32 = 9;
const LONGEST_SLOW_PAUSE: Duration = Duration::from_secs(1);

/// How often the horizon is read, at most.
const HORIZON_EVERY: Duration = Duration::from_millis(250);

/// How often it is read while all rows are decided: it also shows that the database was restored.
const IDLE_HORIZON: Duration = Duration::from_secs(10);

/// How often all open rows are read again, and not only those behind the cursors: a database that crashes, or is
/// replaced by a standby, may lose marks, whose rows are then open again.
const WHOLE_EVERY: Duration = Duration::from_secs(30);

/// The number of rows that are read from one bucket at most, beyond those that are held.
const MAX_ROWS: usize = 1024;
const MIN_ROWS: usize = 16;

/// How much a read may grow while its rows are those of keys that wait.
const MAX_GROWTH: usize = 64;
const MAX_BYTES_GROWTH: usize = 4;

/// The number of rows to set aside that are remembered at most.
const MAX_ASIDE: usize = 10_000;

/// When the next read is due.
#[derive(Debug)]
pub(super) struct ReadPlan {
    is_reading: bool,
    due: Duration,
    /// Not even in a hurry is it read before.
    not_before: Duration,
    pause: Duration,
    horizon_due: Duration,
    /// When all open rows are read again.
    whole_due: Duration,
    /// Whether the last read has shown rows that are not decided.
    has_undecided: bool,
    /// Whether a read has failed since the horizon was read: another server may answer now.
    has_failed: bool,
    /// How many times as many bytes are read as there is room for.
    bytes_growth: usize,
}

/// A read that began at this time, when all rows up to this one were decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBegun {
    at: Duration,
    decided: RowId,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, Default)]
struct ReadGain {
    /// A row is held that was not.
    has_new: bool,
    /// Another read may bring more at once.
    has_more: bool,
    /// The next read gets further, or begins earlier.
    goes_on: bool,
}

/// How a read of one bucket ended, and up to which row all were decided before it began.
#[derive(Clone, Copy, Debug)]
struct ReadEnd {
    is_full: bool,
    is_cut: bool,
    decided: RowId,
}

impl OwnedBucket {
    /// Holds rows that were read behind this one.
    ///
    /// A read that was full, and brought nothing new, has the rows of keys that wait, for instance because their first
    /// row fails. The next one is larger, so that it gets to the rows of other keys behind them: the cursor cannot pass
    /// rows that are not decided.
    fn take(
        &mut self,
        read: &BucketRead,
        rows: Vec<OpenRow>,
        end: ReadEnd,
        aside: &mut BTreeSet<EventRow>,
    ) -> ReadGain {
        let after = read.cursor.after;
        let last = rows.last().map_or(after, |row| row.id);
        let mut has_new = false;
        for row in rows {
            let named = row.named();
            match self.rows.take(row, after) {
                TakenRow::New => has_new = true,
                TakenRow::Parked if aside.len() < MAX_ASIDE => drop(aside.insert(named)),
                TakenRow::Known | TakenRow::Skipped | TakenRow::Parked => {}
            }
        }
        let ReadEnd { is_full, is_cut, decided } = end;
        let (end, decided) = match chaos::on("cursor_is_the_truth") {
            true => (Some(last), last),
            false => ((is_full || is_cut).then_some(last), decided),
        };
        // The cursor went back meanwhile: the next read begins there.
        let went_back = self.rows.cursor() < after || self.rows.restarts() != read.restarts;
        let has_moved = !went_back && self.rows.end_read(end, decided);
        let may_grow = is_full && !has_new && !has_moved && self.growth < MAX_GROWTH;
        if may_grow {
            self.growth *= 2;
        } else if has_moved {
            self.growth = 1;
        }
        ReadGain { has_new, has_more: is_full && has_new, goes_on: went_back || is_full && has_moved || may_grow }
    }
}

impl Default for ReadPlan {
    fn default() -> Self {
        Self {
            is_reading: false,
            due: Duration::ZERO,
            not_before: Duration::ZERO,
            pause: BUSY_PAUSE,
            horizon_due: Duration::ZERO,
            whole_due: Duration::ZERO,
            has_undecided: false,
            has_failed: false,
            bytes_growth: 1,
        }
    }
}

impl ReadPlan {
    /// Reads at once, but for the pause after a slow read or a failure.
    pub(super) fn hurry(&mut self) {
        self.due = self.not_before;
        self.pause = BUSY_PAUSE;
    }

    /// A call of the database has failed: it may have crashed, so the next read shows all open rows.
    pub(super) fn distrust(&mut self) {
        self.whole_due = Duration::ZERO;
    }

    fn needs_horizon(&self, now: Duration) -> bool {
        let due = if self.has_undecided { self.horizon_due } else { self.horizon_due + IDLE_HORIZON };
        self.has_failed || now >= due
    }
}

impl RelayEngine {
    pub(super) fn reading_wake(&self) -> Option<Duration> {
        let is_waiting = !self.reading.is_reading && !self.buckets.is_empty() && self.has_room();
        is_waiting.then_some(self.reading.due)
    }

    pub(super) fn start_read(&mut self, now: Duration) {
        if self.reading.is_reading || self.buckets.is_empty() || now < self.reading.due || !self.has_room() {
            return;
        }
        self.reading.is_reading = true;
        if self.reading.needs_horizon(now) {
            self.reading.horizon_due = now + HORIZON_EVERY;
            let outbox = Arc::clone(&self.outbox);
            self.call_outbox(async move { outbox.horizon().await }, RelayReport::Horizon);
        } else {
            self.read(now);
        }
    }

    pub(super) fn take_horizon(&mut self, horizon: Result<Horizon>) {
        match horizon {
            Ok(horizon) => {
                self.reading.has_failed = false;
                if self.decided.observe(horizon) {
                    telemetry::outbox_restored();
                    self.rewind();
                }
                self.read(self.runtime.boottime_now());
            }
            Err(error) => self.fail_read(error),
        }
    }

    fn has_room(&self) -> bool {
        let (rows, bytes) = self.held();
        rows < self.settings.max_held && bytes < self.settings.max_held_bytes
    }

    /// The rows and bytes that are held. A row whose key is to be parked counts, too.
    fn held(&self) -> (usize, usize) {
        let held = self.buckets.values().map(|bucket| (bucket.rows.len(), bucket.rows.bytes()));
        let refused = (self.refused.len(), 0);
        held.fold(refused, |(rows, bytes), (more_rows, more_bytes)| (rows + more_rows, bytes + more_bytes))
    }

    /// The room of one bucket for rows that have failed: together half of the room.
    pub(super) fn failing_room(&self, until: Duration) -> FailingRoom {
        let share = 2 * self.buckets.len().max(1);
        let rows = (self.settings.max_held / share).max(MIN_ROWS / 2);
        FailingRoom { rows, bytes: self.settings.max_held_bytes / share, until }
    }

    fn read(&mut self, now: Duration) {
        let (rows, _) = self.held();
        let room = self.settings.max_held.saturating_sub(rows) / self.buckets.len().max(1);
        let most_failing = self.failing_room(now).rows;
        let is_whole = now >= self.reading.whole_due;
        if is_whole {
            self.reading.whole_due = now + WHOLE_EVERY;
        }
        let mut asked = Vec::with_capacity(self.buckets.len());
        for (number, bucket) in &mut self.buckets {
            if is_whole {
                bucket.rows.restart();
            }
            bucket.rows.begin_read(now, most_failing);
            // Rows that are held and not decided are read again.
            let limit = bucket.rows.len().saturating_add(room.clamp(MIN_ROWS, MAX_ROWS) * bucket.growth);
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            let cursor = BucketCursor { bucket: *number, after: bucket.rows.cursor(), limit };
            asked.push(BucketRead { ownership: bucket.ownership, restarts: bucket.rows.restarts(), cursor });
        }
        let bytes = self.settings.max_held_bytes.saturating_mul(self.reading.bytes_growth);
        let began = ReadBegun { at: now, decided: self.decided.up_to() };
        let (outbox, cursors) = (Arc::clone(&self.outbox), asked.iter().map(|read| read.cursor).collect::<Vec<_>>());
        let read = async move { outbox.read(&cursors, bytes).await };
        self.call_outbox(read, move |rows| RelayReport::Read { asked, began, rows });
    }

    pub(super) fn take_read(&mut self, asked: &[BucketRead], began: &ReadBegun, rows: Result<OpenRows>) {
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.fail_read(error),
        };
        self.reading.is_reading = false;
        let has_rewound = self.rewinds.is_some_and(|seen| seen != rows.rewinds);
        self.rewinds = Some(rows.rewinds);
        if has_rewound {
            self.rewind();
        }
        self.reading.has_undecided = rows.rows.iter().any(|row| row.id > began.decided);
        // Where rows before the cursor became open again, those behind it may have to wait for them.
        let is_whole = |read: &BucketRead| !has_rewound || read.cursor.after == RowId(0);
        let usable: Vec<BucketRead> = asked.iter().copied().filter(is_whole).collect();
        let mut gain = self.take_rows(&usable, began.decided, rows);
        gain.goes_on |= usable.len() < asked.len();
        let now = self.runtime.boottime_now();
        let length = Some(now - began.at).filter(|length| *length > SLOW_READ).unwrap_or_default();
        let slow = (length * SLOW_READ_PAUSES).min(LONGEST_SLOW_PAUSE);
        let plan = &mut self.reading;
        plan.pause = match gain.has_new || gain.goes_on {
            true => BUSY_PAUSE,
            false => (plan.pause * 2).clamp(BUSY_PAUSE, IDLE_PAUSE),
        };
        plan.not_before = if gain.has_more { now } else { now + slow };
        plan.due = if gain.has_more { now } else { now + plan.pause.max(slow) };
    }

    /// Holds the rows.
    fn take_rows(&mut self, asked: &[BucketRead], decided: RowId, rows: OpenRows) -> ReadGain {
        let (is_cut, mut by_bucket) = (rows.is_cut, by_bucket(rows.rows));
        let mut gain = ReadGain::default();
        for read in asked {
            let rows = by_bucket.remove(&read.cursor.bucket).unwrap_or_default();
            let bucket = self.buckets.get_mut(&read.cursor.bucket);
            let Some(bucket) = bucket.filter(|bucket| bucket.ownership == read.ownership) else { continue };
            let limit = usize::try_from(read.cursor.limit).unwrap_or(usize::MAX);
            let end = ReadEnd { is_full: rows.len() >= limit, is_cut, decided };
            let of_bucket = bucket.take(read, rows, end, &mut self.aside);
            gain.has_new |= of_bucket.has_new;
            gain.has_more |= of_bucket.has_more;
            gain.goes_on |= of_bucket.goes_on;
        }
        self.reading.bytes_growth = match is_cut {
            true if gain.has_new || gain.goes_on => self.reading.bytes_growth,
            true => (self.reading.bytes_growth * 2).min(MAX_BYTES_GROWTH),
            false => 1,
        };
        gain.has_more |= is_cut && gain.has_new;
        gain
    }

    fn fail_read(&mut self, error: Error) {
        self.reading.is_reading = false;
        self.reading.has_failed = true;
        self.note_failure(error);
        self.reading.not_before = self.runtime.boottime_now() + FAILURE_PAUSE;
        self.reading.due = self.reading.not_before;
    }
}

fn by_bucket(rows: Vec<OpenRow>) -> BTreeMap<u8, Vec<OpenRow>> {
    let mut by_bucket = BTreeMap::<u8, Vec<OpenRow>>::new();
    for row in rows {
        by_bucket.entry(row.bucket).or_default().push(row);
    }
    by_bucket
}
