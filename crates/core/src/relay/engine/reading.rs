//! When the outbox is read, and what a read brings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos;
use crate::error::{Error, Result};
use crate::outbox::{BucketCursor, Horizon, OpenRow, OpenRows, RowId};
use crate::relay::bucket::TakenRow;
use crate::relay::engine::{RelayEngine, RelayReport};

/// The pauses between reads, while rows come and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// The pause after a read that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// A read that takes longer is followed by a pause of this many times its length. Reads are slow while a transaction
/// stays open for long: they then pass over everything that was published since.
const SLOW_READ: Duration = Duration::from_millis(20);
const SLOW_READ_PAUSES: u32 = 9;

/// How often the horizon is read, at most.
const HORIZON_EVERY: Duration = Duration::from_millis(250);

/// The number of rows that are read from one bucket at most, beyond those that are held.
const MAX_ROWS: usize = 1024;
const MIN_ROWS: usize = 16;

/// The number of rows to set aside that are remembered at most.
const MAX_ASIDE: usize = 10_000;

/// When the next read is due.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    is_reading: bool,
    due: Duration,
    pause: Duration,
    horizon_due: Duration,
    /// Whether the last read has shown rows that are not decided.
    has_undecided: bool,
}

/// A read that began at this time, when all rows up to this one were decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBegun {
    at: Duration,
    decided: RowId,
}

impl ReadPlan {
    /// Reads at once.
    pub(super) fn hurry(&mut self) {
        self.due = Duration::ZERO;
        self.pause = BUSY_PAUSE;
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
        if self.reading.has_undecided && now >= self.reading.horizon_due {
            self.reading.horizon_due = now + HORIZON_EVERY;
            let outbox = Arc::clone(&self.outbox);
            self.call(async move { RelayReport::Horizon(outbox.horizon().await) });
        } else {
            self.read(now);
        }
    }

    pub(super) fn take_horizon(&mut self, horizon: Result<Horizon>) {
        match horizon {
            Ok(horizon) => {
                self.decided.observe(horizon);
                self.read(self.runtime.boottime_now());
            }
            Err(error) => self.fail_read(error),
        }
    }

    fn has_room(&self) -> bool {
        let (rows, bytes) = self.held();
        rows < self.settings.max_held && bytes < self.settings.max_held_bytes
    }

    /// The rows and bytes that are held.
    fn held(&self) -> (usize, usize) {
        let held = self.buckets.values().map(|bucket| (bucket.rows.len(), bucket.rows.bytes()));
        held.fold((0, 0), |(rows, bytes), (more_rows, more_bytes)| (rows + more_rows, bytes + more_bytes))
    }

    fn read(&mut self, now: Duration) {
        let (rows, _) = self.held();
        let room = self.settings.max_held.saturating_sub(rows) / self.buckets.len().max(1);
        let mut asked = Vec::with_capacity(self.buckets.len());
        for (number, bucket) in &mut self.buckets {
            bucket.rows.begin_read();
            // Rows that are held and not decided are read again.
            let limit = bucket.rows.len() + room.clamp(MIN_ROWS, MAX_ROWS);
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            asked.push(BucketCursor { bucket: *number, after: bucket.rows.cursor(), limit });
        }
        let (outbox, bytes) = (Arc::clone(&self.outbox), self.settings.max_held_bytes);
        let began = ReadBegun { at: now, decided: self.decided.up_to() };
        self.call(async move {
            let rows = outbox.read(&asked, bytes).await;
            RelayReport::Read { asked, began, rows }
        });
    }

    pub(super) fn take_read(&mut self, asked: &[BucketCursor], began: &ReadBegun, rows: Result<OpenRows>) {
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.fail_read(error),
        };
        self.reading.is_reading = false;
        let has_rewound = self.rewinds.is_some_and(|seen| seen != rows.rewinds);
        self.rewinds = Some(rows.rewinds);
        if has_rewound {
            // Rows became open again: everything is read again, and nothing of this read is published.
            self.buckets.values_mut().for_each(|bucket| bucket.rows.rewind());
            return self.reading.hurry();
        }
        self.reading.has_undecided = rows.rows.iter().any(|row| row.id > began.decided);
        let (found, has_more) = self.take_rows(asked, began.decided, rows);
        let now = self.runtime.boottime_now();
        let slow = Some(now - began.at).filter(|length| *length > SLOW_READ).unwrap_or_default() * SLOW_READ_PAUSES;
        self.reading.pause = if found { BUSY_PAUSE } else { (self.reading.pause * 2).clamp(BUSY_PAUSE, IDLE_PAUSE) };
        self.reading.due = if has_more { now } else { now + self.reading.pause.max(slow) };
    }

    /// Holds the rows. Returns whether one of them is new, and whether another read may find more at once.
    fn take_rows(&mut self, asked: &[BucketCursor], decided: RowId, rows: OpenRows) -> (bool, bool) {
        let (is_cut, mut by_bucket) = (rows.is_cut, by_bucket(rows.rows));
        let (mut found, mut has_more) = (false, false);
        for ask in asked {
            let rows = by_bucket.remove(&ask.bucket).unwrap_or_default();
            let Some(bucket) = self.buckets.get_mut(&ask.bucket) else { continue };
            // The cursor went back meanwhile, or the bucket is a new one: the next read begins there.
            if bucket.rows.cursor() != ask.after {
                has_more = true;
                continue;
            }
            let is_full = rows.len() >= usize::try_from(ask.limit).unwrap_or(usize::MAX);
            let last = rows.last().map_or(ask.after, |row| row.id);
            for row in rows {
                let id = row.id;
                match bucket.rows.take(row) {
                    TakenRow::New => found = true,
                    TakenRow::Parked if self.aside.len() < MAX_ASIDE => found |= self.aside.insert(id),
                    TakenRow::Known | TakenRow::Skipped | TakenRow::Parked => {}
                }
            }
            let (end, decided) = match chaos::on("cursor_is_the_truth") {
                true => (Some(last), last),
                false => ((is_full || is_cut).then_some(last), decided),
            };
            let has_moved = bucket.rows.end_read(end, decided);
            has_more |= is_full && has_moved;
        }
        (found, has_more || is_cut && found)
    }

    fn fail_read(&mut self, error: Error) {
        self.reading.is_reading = false;
        self.note_failure(error);
        self.reading.due = self.runtime.boottime_now() + FAILURE_PAUSE;
    }
}

fn by_bucket(rows: Vec<OpenRow>) -> BTreeMap<u8, Vec<OpenRow>> {
    let mut by_bucket = BTreeMap::<u8, Vec<OpenRow>>::new();
    for row in rows {
        by_bucket.entry(row.bucket).or_default().push(row);
    }
    by_bucket
}
