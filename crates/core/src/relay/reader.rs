//! When the outbox is read, and what a read brings.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::chaos::Mutant;
use crate::error::{Error, Result};
use crate::outbox::{BucketCursor, EventRow, Horizon, OpenRow, OpenRows, ReadRequest, ReadStart, Rewinds, RowId};
use crate::relay::RelaySettings;
use crate::relay::bucket::TakenRow;
use crate::relay::buckets::{OwnedBucket, OwnedBuckets};
use crate::relay::calls::RelayReport;
use crate::relay::decided::DecidedRows;
use crate::relay::engine::{Loan, RelayNote};
use crate::relay::rules::{ReadBegun, ReadGain, ReadPlan};
use crate::telemetry;

/// The number of new rows that one read asks for at most, and for those of one bucket, unless its limit is widened. A
/// short read ends sooner: its rows are published while the next ones are read.
const MAX_READ: usize = 4096;
const MAX_ROWS: usize = 1024;
const MIN_ROWS: usize = 16;

/// How many times as many rows are read at most, while they are those of keys that wait.
const MAX_FACTOR: usize = 64;

/// Reads open rows into the buckets.
pub(super) struct OutboxReader {
    settings: RelaySettings,
    plan: ReadPlan,
    decided: DecidedRows,
    /// The rewinds that the last read saw.
    rewinds: Option<Rewinds>,
}

/// The result of a call of the reader.
pub(super) enum ReadReport {
    Horizon(Result<Horizon>),
    Rows { asked: Vec<BucketRead>, began: ReadBegun, rows: Result<OpenRows> },
}

impl ReadReport {
    pub(super) fn is_ok(&self) -> bool {
        match self {
            Self::Horizon(horizon) => horizon.is_ok(),
            Self::Rows { rows, .. } => rows.is_ok(),
        }
    }
}

/// The part of a read that is for one bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketRead {
    ownership: u64,
    /// How often reading had begun anew.
    restarts: u64,
    cursor: BucketCursor,
    /// Whether it is read from its first row on although the cursor is behind that.
    is_restart: bool,
}

/// How a read of one bucket ended, and up to which row all were decided before it began.
#[derive(Clone, Copy, Debug)]
struct ReadEnd {
    is_full: bool,
    is_cut: bool,
    decided: RowId,
}

impl OwnedBucket {
    /// How many rows are read from there on: those that are held, which come again, and new ones. Only a
    /// widened read may bring more than its share.
    fn limit(&self, start: ReadStart, room: usize, share: usize) -> u32 {
        let room = if self.limit_factor > 1 { room } else { room.min(share) };
        let limit = self.rows.held_from(start) + room.clamp(MIN_ROWS, MAX_ROWS) * self.limit_factor;
        u32::try_from(limit).unwrap_or(u32::MAX)
    }

    /// Holds rows that were read.
    ///
    /// A read that was full, and brought nothing new, has the rows of keys that wait, for instance because their first
    /// row fails. The next one is larger, so that it gets to the rows of other keys behind them: the cursor cannot pass
    /// rows that are not decided. So it is with many rows of few keys, while the cursor goes back after each read.
    fn take(&mut self, read: &BucketRead, rows: Vec<OpenRow>, end: ReadEnd, parked: &mut Vec<EventRow>) -> ReadGain {
        let start = read.cursor.from;
        let is_restart = read.is_restart && self.rows.restarts() == read.restarts;
        if is_restart {
            self.rows.restart();
        }
        let restarts = read.restarts + u64::from(is_restart);
        let last = rows.last().map(|row| row.id);
        let has_few_keys = end.is_full && has_few_keys(&rows);
        let mut has_new = false;
        for row in rows {
            let named = row.named();
            match self.rows.take(row, start) {
                TakenRow::New => has_new = true,
                TakenRow::Parked => parked.push(named),
                TakenRow::Known | TakenRow::Skipped => {}
            }
        }
        let ReadEnd { is_full, is_cut, decided } = end;
        let (end, decided) = match Mutant::CursorIsTheTruth.is_on() {
            true => (None, last.unwrap_or(start.row)),
            false => ((is_full || is_cut).then_some(last.map_or(start, ReadStart::behind)), decided),
        };
        // The cursor went back meanwhile: the next read begins there.
        let went_back = self.rows.cursor() < start || self.rows.restarts() != restarts;
        let has_moved = !went_back && self.rows.end_read(end, decided);
        let brings_little = if went_back { has_few_keys } else { !has_new };
        let is_widened = is_full && brings_little && self.limit_factor < MAX_FACTOR;
        if is_widened {
            self.limit_factor *= 2;
        } else if has_moved && !has_few_keys {
            self.limit_factor = 1;
        }
        ReadGain { has_new, has_more: is_full && has_new, goes_on: went_back || is_full && has_moved || is_widened }
    }
}

impl OutboxReader {
    pub(super) fn new(settings: RelaySettings) -> Self {
        Self { settings, plan: ReadPlan::default(), decided: DecidedRows::default(), rewinds: None }
    }

    /// Reads at once, because there may be rows.
    pub(super) fn hurry(&mut self) {
        self.plan.hurry();
    }

    /// Reads all rows again soon: a call has failed, so the database may have crashed and lost marks.
    pub(super) fn recheck(&mut self, now: Duration) {
        self.plan.recheck(now);
    }

    /// When the next read is due. `refused`: the number of rows whose keys are to be parked.
    pub(super) fn wake(&self, buckets: &OwnedBuckets, refused: usize) -> Option<Duration> {
        self.plan.due().filter(|_| !buckets.is_empty() && self.has_room(buckets, refused))
    }

    pub(super) fn start(&mut self, now: Duration, loan: &mut Loan<'_>) {
        if self.wake(loan.buckets, loan.refused).is_none_or(|due| now < due) {
            return;
        }
        if self.plan.begin(now) {
            let outbox = Arc::clone(loan.calls.outbox());
            let report = |horizon| RelayReport::Read(ReadReport::Horizon(horizon));
            loan.calls.call_database(async move { outbox.horizon().await }, report);
        } else {
            self.read(now, loan);
        }
    }

    pub(super) fn take(&mut self, report: ReadReport, loan: &mut Loan<'_>) {
        match report {
            ReadReport::Horizon(horizon) => self.take_horizon(horizon, loan),
            ReadReport::Rows { asked, began, rows } => self.take_read(&asked, &began, rows, loan),
        }
    }

    fn take_horizon(&mut self, horizon: Result<Horizon>, loan: &mut Loan<'_>) {
        match horizon {
            Ok(horizon) => {
                self.plan.end_horizon();
                if self.decided.observe(horizon) {
                    telemetry::outbox_restored();
                    self.rewind(loan);
                }
                self.read(loan.calls.now(), loan);
            }
            Err(error) => self.fail(error, loan),
        }
    }

    /// Reads everything again, because rows behind the cursors may be open.
    fn rewind(&mut self, loan: &mut Loan<'_>) {
        loan.buckets.rewind();
        loan.notes.push(RelayNote::Rewound);
        self.plan.hurry();
    }

    /// Whether there is room for more rows. While many rows wait to be published, a read is worth its cost only if it
    /// brings many more. Rows that have failed do not count there: they may stay for long. A row whose key is to be
    /// parked counts, too.
    fn has_room(&self, buckets: &OwnedBuckets, refused: usize) -> bool {
        let (rows, bytes) = buckets.held();
        let rows = rows + refused;
        let most = self.settings.max_held - MAX_READ.min(self.settings.max_held / 4);
        let is_worth_it = rows - buckets.failing() < most;
        rows < self.settings.max_held && is_worth_it && bytes < self.settings.max_held_bytes
    }

    fn read(&mut self, now: Duration, loan: &mut Loan<'_>) {
        let left_out = loan.buckets.topics_left_out(now);
        let (rows, _) = loan.buckets.held();
        let buckets = loan.buckets.len().max(1);
        let room = self.settings.max_held.saturating_sub(rows + loan.refused) / buckets;
        let most_failing = loan.buckets.failing_room(&self.settings, now).rows;
        let is_whole = self.plan.take_whole();
        let restarted = self.plan.next_restart(now, loan.buckets);
        let mut asked = Vec::with_capacity(loan.buckets.len());
        for (number, bucket) in loan.buckets.iter_mut() {
            if is_whole {
                bucket.rows.restart();
            }
            bucket.rows.begin_read(now, most_failing);
            // The cursor stays where it is until the rows are there: a read that fails costs nothing.
            let is_restart = restarted == Some(number);
            let from = if is_restart { ReadStart::FIRST } else { bucket.rows.cursor() };
            let cursor = BucketCursor { bucket: number, from, limit: bucket.limit(from, room, MAX_READ / buckets) };
            let (ownership, restarts) = (bucket.ownership, bucket.rows.restarts());
            asked.push(BucketRead { ownership, restarts, cursor, is_restart });
        }
        let bytes = self.plan.bytes(self.settings.max_held_bytes);
        let began = ReadBegun { at: now, decided: self.decided.up_to() };
        let (outbox, cursors) =
            (Arc::clone(loan.calls.outbox()), asked.iter().map(|read| read.cursor).collect::<Vec<_>>());
        let request = ReadRequest { cursors, bytes, left_out };
        let read = async move { outbox.read(&request).await };
        loan.calls.call_database(read, move |rows| RelayReport::Read(ReadReport::Rows { asked, began, rows }));
    }

    fn take_read(&mut self, asked: &[BucketRead], began: &ReadBegun, rows: Result<OpenRows>, loan: &mut Loan<'_>) {
        let now = loan.calls.now();
        if asked.iter().any(|read| read.is_restart) {
            self.plan.end_restart(began, now, loan.buckets.len());
        }
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => return self.fail(error, loan),
        };
        self.plan.end(rows.rows.iter().any(|row| row.id > began.decided));
        let has_rewound = self.rewinds.is_some_and(|seen| seen != rows.rewinds);
        if has_rewound && !self.plan.may_rewind(now) {
            return;
        }
        self.rewinds = Some(rows.rewinds);
        if has_rewound {
            self.rewind(loan);
        }
        // Where rows before the cursor became open again, those behind it may have to wait for them.
        let is_whole = |read: &BucketRead| !has_rewound || read.cursor.from == ReadStart::FIRST;
        let usable: Vec<BucketRead> = asked.iter().copied().filter(is_whole).collect();
        let mut gain = self.take_rows(&usable, began.decided, rows, loan);
        gain.goes_on |= usable.len() < asked.len();
        self.plan.gain(gain, began, now);
    }

    /// Holds the rows.
    fn take_rows(&mut self, asked: &[BucketRead], decided: RowId, rows: OpenRows, loan: &mut Loan<'_>) -> ReadGain {
        let (is_cut, mut by_bucket) = (rows.is_cut, by_bucket(rows.rows));
        let (mut gain, mut parked) = (ReadGain::default(), Vec::new());
        for read in asked {
            let rows = by_bucket.remove(&read.cursor.bucket).unwrap_or_default();
            let Some(bucket) = loan.buckets.same(read.cursor.bucket, read.ownership) else { continue };
            let limit = usize::try_from(read.cursor.limit).unwrap_or(usize::MAX);
            let end = ReadEnd { is_full: rows.len() >= limit, is_cut, decided };
            let of_bucket = bucket.take(read, rows, end, &mut parked);
            gain.has_new |= of_bucket.has_new;
            gain.has_more |= of_bucket.has_more;
            gain.goes_on |= of_bucket.goes_on;
        }
        loan.notes.extend(parked.into_iter().map(RelayNote::OfParkedKey));
        self.plan.widen(is_cut, gain);
        gain.has_more |= is_cut && gain.has_new;
        gain
    }

    fn fail(&mut self, error: Error, loan: &mut Loan<'_>) {
        self.plan.fail(loan.calls.now());
        loan.notes.push(RelayNote::DatabaseFailed(error));
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
