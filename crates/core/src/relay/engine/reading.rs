//! When the outbox is read, and what a read brings.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::chaos;
use crate::error::{Error, Result};
use crate::outbox::{BucketCursor, EventRow, Horizon, OpenRow, OpenRows, RowId};
use crate::relay::bucket::{FailingRoom, TakenRow};
use crate::relay::engine::{BucketRead, OwnedBucket, RelayEngine, RelayReport};
use crate::telemetry;

/// The pauses between reads, while rows come and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause while all rows are to be read again because a call has failed.
const DISTRUST_PAUSE: Duration = Duration::from_millis(50);

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
/// replaced by a standby, may lose marks, whose rows are then open again. One bucket after the other is read from its
/// first row on: behind an old transaction that passes over everything that was published since, and for all buckets
/// at once it could take longer than a call may.
const WHOLE_EVERY: Duration = Duration::from_secs(30);

/// How often everything is read again because rows became open. An operator may open rows many times a second.
const REWIND_EVERY: Duration = Duration::from_secs(1);

/// The number of new rows that one read asks for at most, and for those of one bucket, unless it has grown. A short
/// read ends sooner: its rows are published while the next ones are read.
const MAX_READ: usize = 4096;
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
    /// When the next bucket is read from its first row on.
    restart_due: Duration,
    /// Each bucket that was not read from its first row on since then is due at once: a call has failed.
    distrusted: Option<Duration>,
    /// Whether the next read begins at the first rows of all buckets, because rows became open.
    is_whole: bool,
    /// No rewind before.
    rewind_due: Duration,
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

impl ReadBegun {
    /// How long it took, if it was slow.
    fn slow_length(&self, now: Duration) -> Duration {
        Some(now - self.at).filter(|length| *length > SLOW_READ).unwrap_or_default()
    }
}

impl OwnedBucket {
    /// How many rows behind this one are read: those that are held there, which come again, and new ones. Only a read
    /// that has grown may bring more than its share.
    fn limit(&self, after: RowId, room: usize, share: usize) -> u32 {
        let room = if self.growth > 1 { room } else { room.min(share) };
        let limit = self.rows.held_behind(after) + room.clamp(MIN_ROWS, MAX_ROWS) * self.growth;
        u32::try_from(limit).unwrap_or(u32::MAX)
    }

    /// Holds rows that were read behind this one.
    ///
    /// A read that was full, and brought nothing new, has the rows of keys that wait, for instance because their first
    /// row fails. The next one is larger, so that it gets to the rows of other keys behind them: the cursor cannot pass
    /// rows that are not decided. So it is with many rows of few keys, while the cursor goes back after each read.
    fn take(
        &mut self,
        read: &BucketRead,
        rows: Vec<OpenRow>,
        end: ReadEnd,
        aside: &mut BTreeSet<EventRow>,
    ) -> ReadGain {
        let after = read.cursor.after;
        let is_restart = read.is_restart && self.rows.restarts() == read.restarts;
        if is_restart {
            self.rows.restart();
        }
        let restarts = read.restarts + u64::from(is_restart);
        let last = rows.last().map_or(after, |row| row.id);
        let has_few_keys = end.is_full && has_few_keys(&rows);
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
        let went_back = self.rows.cursor() < after || self.rows.restarts() != restarts;
        let has_moved = !went_back && self.rows.end_read(end, decided);
        let brings_little = if went_back { has_few_keys } else { !has_new };
        let may_grow = is_full && brings_little && self.growth < MAX_GROWTH;
        if may_grow {
            self.growth *= 2;
        } else if has_moved && !has_few_keys {
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
            restart_due: Duration::ZERO,
            distrusted: None,
            is_whole: false,
            rewind_due: Duration::ZERO,
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

    /// A call of the database has failed: it may have crashed, so the next reads show all open rows.
    pub(super) fn distrust(&mut self, now: Duration) {
        self.distrusted = Some(now);
    }

    /// Notes that a read ended, or failed, which began one of these buckets anew. The next one waits for its turn, and
    /// longer if this one was slow.
    fn end_restart(&mut self, began: &ReadBegun, now: Duration, buckets: usize) {
        let turn = WHOLE_EVERY / u32::try_from(buckets.max(1)).unwrap_or(u32::MAX);
        let turn = if self.distrusted.is_some() { Duration::ZERO } else { turn };
        self.restart_due = now + turn.max(began.slow_length(now) * SLOW_READ_PAUSES).min(WHOLE_EVERY);
    }

    /// Rows became open, and everything was read again a moment ago. What was read now is not used: its rows may have
    /// to wait for rows that became open before them.
    fn wait_for_rewind(&mut self) {
        self.not_before = self.rewind_due;
        self.due = self.rewind_due;
        self.is_whole = true;
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

    /// Whether there is room for more rows. While many rows wait to be published, a read is worth its cost only if it
    /// brings many more. Rows that have failed do not count there: they may stay for long.
    fn has_room(&self) -> bool {
        let (rows, bytes) = self.held();
        let failing: usize = self.buckets.values().map(|bucket| bucket.rows.failing()).sum();
        let most = self.settings.max_held - MAX_READ.min(self.settings.max_held / 4);
        rows < self.settings.max_held && rows - failing < most && bytes < self.settings.max_held_bytes
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
        let buckets = self.buckets.len().max(1);
        let room = self.settings.max_held.saturating_sub(rows) / buckets;
        let most_failing = self.failing_room(now).rows;
        let is_whole = std::mem::take(&mut self.reading.is_whole);
        let restarted = self.next_restart(now);
        let mut asked = Vec::with_capacity(self.buckets.len());
        for (number, bucket) in &mut self.buckets {
            if is_whole {
                bucket.rows.restart();
            }
            bucket.rows.begin_read(now, most_failing);
            // The cursor stays where it is until the rows are there: a read that fails costs nothing.
            let is_restart = restarted == Some(*number);
            let after = if is_restart { RowId(0) } else { bucket.rows.cursor() };
            let cursor = BucketCursor { bucket: *number, after, limit: bucket.limit(after, room, MAX_READ / buckets) };
            asked.push(BucketRead {
                ownership: bucket.ownership,
                restarts: bucket.rows.restarts(),
                cursor,
                is_restart,
            });
        }
        let bytes = self.settings.max_held_bytes.saturating_mul(self.reading.bytes_growth);
        let began = ReadBegun { at: now, decided: self.decided.up_to() };
        let (outbox, cursors) = (Arc::clone(&self.outbox), asked.iter().map(|read| read.cursor).collect::<Vec<_>>());
        let read = async move { outbox.read(&cursors, bytes).await };
        self.call_outbox(read, move |rows| RelayReport::Read { asked, began, rows });
    }

    /// The bucket that the next read begins anew, if it is time: the one that was longest not read from its first row.
    fn next_restart(&mut self, now: Duration) -> Option<u8> {
        let (number, bucket) = self.buckets.iter_mut().min_by_key(|(_, bucket)| bucket.restarted)?;
        let plan = &mut self.reading;
        plan.distrusted = plan.distrusted.filter(|since| bucket.restarted <= *since);
        let is_due = now >= plan.restart_due && (plan.distrusted.is_some() || now >= bucket.restarted + WHOLE_EVERY);
        is_due.then(|| {
            // Also if the read fails: then others have their turn.
            bucket.restarted = now;
            *number
        })
    }

    pub(super) fn take_read(&mut self, asked: &[BucketRead], began: &ReadBegun, rows: Result<OpenRows>) {
        let now = self.runtime.boottime_now();
        if asked.iter().any(|read| read.is_restart) {
            self.reading.end_restart(began, now, self.buckets.len());
        }
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.fail_read(error),
        };
        self.reading.is_reading = false;
        let has_rewound = self.rewinds.is_some_and(|seen| seen != rows.rewinds);
        if has_rewound && now < self.reading.rewind_due {
            return self.reading.wait_for_rewind();
        }
        self.rewinds = Some(rows.rewinds);
        if has_rewound {
            self.reading.rewind_due = now + REWIND_EVERY;
            self.rewind();
        }
        self.reading.has_undecided = rows.rows.iter().any(|row| row.id > began.decided);
        // Where rows before the cursor became open again, those behind it may have to wait for them.
        let is_whole = |read: &BucketRead| !has_rewound || read.cursor.after == RowId(0);
        let usable: Vec<BucketRead> = asked.iter().copied().filter(is_whole).collect();
        let mut gain = self.take_rows(&usable, began.decided, rows);
        gain.goes_on |= usable.len() < asked.len();
        let slow = (began.slow_length(now) * SLOW_READ_PAUSES).min(LONGEST_SLOW_PAUSE);
        let plan = &mut self.reading;
        plan.pause = match gain.has_new || gain.goes_on {
            true => BUSY_PAUSE,
            false if plan.distrusted.is_some() => DISTRUST_PAUSE,
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

/// Whether most of these rows wait for another one of their key.
fn has_few_keys(rows: &[OpenRow]) -> bool {
    let keys: HashSet<Bytes> = rows.iter().map(|row| row.event.order()).collect();
    2 * keys.len() <= rows.len()
}

fn by_bucket(rows: Vec<OpenRow>) -> BTreeMap<u8, Vec<OpenRow>> {
    let mut by_bucket = BTreeMap::<u8, Vec<OpenRow>>::new();
    for row in rows {
        by_bucket.entry(row.bucket).or_default().push(row);
    }
    by_bucket
}
