//! When the outbox is read, and what a read brings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos;
use crate::error::Result;
use crate::outbox::{BucketCursor, Horizon, OpenRow, OpenRows};
use crate::relay::bucket::TakenRow;
use crate::relay::engine::{RelayEngine, RelayReport};

/// The pauses between reads, while rows come and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// The pause after a read that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// How often rows that were committed late are looked for, at most. A scan also takes at most a tenth of the time.
const SCAN_EVERY: Duration = Duration::from_secs(1);
const SCAN_SHARE: u32 = 10;

/// The number of rows that are read from one bucket at most, and from a scan beyond what is held.
const MAX_ROWS: usize = 1024;

/// The number of rows to set aside that are remembered at most.
const MAX_ASIDE: usize = 10_000;

/// When the next read is due, and what it is.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    is_reading: bool,
    kind: ReadKind,
    due: Duration,
    scan_due: Duration,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadKind {
    /// New rows, behind the cursors.
    #[default]
    New,
    /// Rows that were committed late, between floor and cursor.
    Late,
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
        if self.reading.is_reading || self.buckets.is_empty() {
            return None;
        }
        let new = self.has_room().then_some(self.reading.due);
        new.into_iter().chain([self.reading.scan_due]).min()
    }

    pub(super) fn start_read(&mut self, now: Duration) {
        if self.reading.is_reading || self.buckets.is_empty() {
            return;
        }
        if now >= self.reading.scan_due && !chaos::on("cursor_is_the_truth") {
            self.reading.is_reading = true;
            let outbox = Arc::clone(&self.outbox);
            self.call(async move { RelayReport::Horizon(outbox.horizon().await) });
        } else if now >= self.reading.due && self.has_room() {
            self.read(ReadKind::New);
        }
    }

    pub(super) fn take_horizon(&mut self, horizon: Result<Horizon>) {
        self.reading.is_reading = false;
        match horizon {
            Ok(horizon) => {
                self.decided.observe(horizon);
                // The relay may have begun to stop meanwhile.
                if self.stop.is_none() {
                    self.read(ReadKind::Late);
                }
            }
            Err(error) => {
                self.note_failure(error);
                self.reading.scan_due = self.runtime.boottime_now() + SCAN_EVERY;
            }
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

    fn read(&mut self, kind: ReadKind) {
        let (rows, bytes) = self.held();
        let room = self.settings.max_held.saturating_sub(rows) / self.buckets.len().max(1);
        let decided = self.decided.up_to();
        let mut asked = Vec::with_capacity(self.buckets.len());
        for (number, bucket) in &mut self.buckets {
            bucket.rows.begin_read();
            let (after, limit) = match kind {
                ReadKind::New => (bucket.rows.cursor(), room.clamp(1, MAX_ROWS)),
                // Rows that are held are open too, so a scan reads them again.
                ReadKind::Late => (bucket.floor.next(decided), bucket.rows.len() + MAX_ROWS),
            };
            asked.push(BucketCursor { bucket: *number, after, limit: u32::try_from(limit).unwrap_or(u32::MAX) });
        }
        let bytes = match kind {
            ReadKind::New => self.settings.max_held_bytes.saturating_sub(bytes),
            ReadKind::Late => self.settings.max_held_bytes,
        };
        self.reading.is_reading = true;
        self.reading.kind = kind;
        let (outbox, began) = (Arc::clone(&self.outbox), self.runtime.boottime_now());
        self.call(async move {
            let rows = outbox.read(&asked, bytes).await;
            RelayReport::Read { asked, began, rows }
        });
    }

    pub(super) fn take_read(&mut self, asked: &[BucketCursor], began: Duration, rows: Result<OpenRows>) {
        self.reading.is_reading = false;
        let now = self.runtime.boottime_now();
        if self.reading.kind == ReadKind::Late {
            self.reading.scan_due = now + SCAN_EVERY.max((now - began) * SCAN_SHARE);
        }
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                self.note_failure(error);
                self.reading.due = now + FAILURE_PAUSE;
                return;
            }
        };
        if self.rewinds.is_some_and(|seen| seen != rows.rewinds) {
            self.rewinds = Some(rows.rewinds);
            return self.rewind();
        }
        self.rewinds = Some(rows.rewinds);
        match self.reading.kind {
            ReadKind::New => self.take_new(asked, rows, now),
            ReadKind::Late => self.take_late(asked, rows),
        }
    }

    /// Rows became open again: reads everything again, and publishes nothing of what this read has shown.
    fn rewind(&mut self) {
        for bucket in self.buckets.values_mut() {
            bucket.rows.rewind();
            bucket.floor.reset();
        }
        self.reading.hurry();
    }

    fn take_new(&mut self, asked: &[BucketCursor], rows: OpenRows, now: Duration) {
        let (is_cut, mut by_bucket) = (rows.is_cut, by_bucket(rows.rows));
        let (mut found, mut has_more) = (false, is_cut);
        for ask in asked {
            let new = by_bucket.remove(&ask.bucket).unwrap_or_default();
            has_more |= new.len() >= usize::try_from(ask.limit).unwrap_or(usize::MAX);
            let Some(bucket) = self.buckets.get_mut(&ask.bucket) else { continue };
            // The cursor went back meanwhile, or the bucket is a new one: the next read begins there.
            if bucket.rows.cursor() != ask.after {
                has_more = true;
                continue;
            }
            for row in new {
                found = true;
                let id = row.id;
                if bucket.rows.take(row) == TakenRow::Parked && self.aside.len() < MAX_ASIDE {
                    self.aside.insert(id);
                }
                bucket.rows.advance_to(id);
            }
        }
        self.reading.pause = if found { BUSY_PAUSE } else { (self.reading.pause * 2).clamp(BUSY_PAUSE, IDLE_PAUSE) };
        self.reading.due = if has_more { now } else { now + self.reading.pause };
    }

    fn take_late(&mut self, asked: &[BucketCursor], rows: OpenRows) {
        let (is_cut, mut by_bucket) = (rows.is_cut, by_bucket(rows.rows));
        for ask in asked {
            let late = by_bucket.remove(&ask.bucket).unwrap_or_default();
            let Some(bucket) = self.buckets.get_mut(&ask.bucket) else { continue };
            let is_whole = !is_cut && late.len() < usize::try_from(ask.limit).unwrap_or(usize::MAX);
            let last = late.last().map_or(ask.after, |row| row.id);
            let (cursor, mut open) = (bucket.rows.cursor(), Vec::new());
            // Rows behind the cursor are left to the reads from there, which keep the order of skipped rows.
            for row in late.into_iter().filter(|row| row.id <= cursor) {
                let id = row.id;
                match bucket.rows.take(row) {
                    TakenRow::Held | TakenRow::Skipped => open.push(id),
                    TakenRow::Parked if self.aside.len() < MAX_ASIDE => {
                        self.aside.insert(id);
                    }
                    TakenRow::Parked => {}
                }
            }
            bucket.floor.take(open, (!is_whole).then_some(last), cursor);
        }
    }
}

fn by_bucket(rows: Vec<OpenRow>) -> BTreeMap<u8, Vec<OpenRow>> {
    let mut by_bucket = BTreeMap::<u8, Vec<OpenRow>>::new();
    for row in rows {
        by_bucket.entry(row.bucket).or_default().push(row);
    }
    by_bucket
}
