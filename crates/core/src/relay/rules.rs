//! When the outbox is read next.

use std::time::Duration;

use crate::outbox::RowId;
use crate::relay::buckets::OwnedBuckets;

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

/// How many times as many bytes as there is room for are read, while a read that was cut brings nothing new.
const MAX_BYTES_GROWTH: usize = 4;

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
    pub(super) at: Duration,
    pub(super) decided: RowId,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadGain {
    /// A row is held that was not.
    pub(super) has_new: bool,
    /// Another read may bring more at once.
    pub(super) has_more: bool,
    /// The next read gets further, or begins earlier.
    pub(super) goes_on: bool,
}

impl ReadBegun {
    /// How long it took, if it was slow.
    fn slow_length(&self, now: Duration) -> Duration {
        Some(now - self.at).filter(|length| *length > SLOW_READ).unwrap_or_default()
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
    pub(super) fn end_restart(&mut self, began: &ReadBegun, now: Duration, buckets: usize) {
        let turn = WHOLE_EVERY / u32::try_from(buckets.max(1)).unwrap_or(u32::MAX);
        let turn = if self.distrusted.is_some() { Duration::ZERO } else { turn };
        self.restart_due = now + turn.max(began.slow_length(now) * SLOW_READ_PAUSES).min(WHOLE_EVERY);
    }

    /// Notes that rows became open. Returns whether everything is read again now. If it was read again a moment ago, it
    /// waits, and what was read now is not used: its rows may have to wait for rows that became open before them.
    pub(super) fn may_rewind(&mut self, now: Duration) -> bool {
        if now < self.rewind_due {
            (self.not_before, self.due, self.is_whole) = (self.rewind_due, self.rewind_due, true);
            return false;
        }
        self.rewind_due = now + REWIND_EVERY;
        true
    }

    /// The bucket that the next read begins anew, if it is time: the one that was longest not read from its first row.
    pub(super) fn next_restart(&mut self, now: Duration, buckets: &mut OwnedBuckets) -> Option<u8> {
        let (number, bucket) = buckets.iter_mut().min_by_key(|(_, bucket)| bucket.restarted)?;
        self.distrusted = self.distrusted.filter(|since| bucket.restarted <= *since);
        let is_due = now >= self.restart_due && (self.distrusted.is_some() || now >= bucket.restarted + WHOLE_EVERY);
        is_due.then(|| {
            // Also if the read fails: then others have their turn.
            bucket.restarted = now;
            number
        })
    }

    /// Notes what the rows have brought. The next read begins at once if it may bring more, or after a pause.
    pub(super) fn pause(&mut self, gain: ReadGain, began: &ReadBegun, now: Duration) {
        let slow = (began.slow_length(now) * SLOW_READ_PAUSES).min(LONGEST_SLOW_PAUSE);
        self.pause = match gain.has_new || gain.goes_on {
            true => BUSY_PAUSE,
            false if self.distrusted.is_some() => DISTRUST_PAUSE,
            false => (self.pause * 2).clamp(BUSY_PAUSE, IDLE_PAUSE),
        };
        self.not_before = if gain.has_more { now } else { now + slow };
        self.due = if gain.has_more { now } else { now + self.pause.max(slow) };
    }

    /// A read that was cut, and brought nothing, is followed by one of more bytes.
    pub(super) fn grow_bytes(&mut self, is_cut: bool, gain: ReadGain) {
        self.bytes_growth = match is_cut {
            true if gain.has_new || gain.goes_on => self.bytes_growth,
            true => (self.bytes_growth * 2).min(MAX_BYTES_GROWTH),
            false => 1,
        };
    }

    /// When the next read is due, if none runs.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.is_reading).then_some(self.due)
    }

    /// Begins a read. Returns whether the horizon is read before.
    pub(super) fn begin(&mut self, now: Duration) -> bool {
        self.is_reading = true;
        let due = if self.has_undecided { self.horizon_due } else { self.horizon_due + IDLE_HORIZON };
        let is_due = self.has_failed || now >= due;
        if is_due {
            self.horizon_due = now + HORIZON_EVERY;
        }
        is_due
    }

    /// The horizon was read.
    pub(super) fn end_horizon(&mut self) {
        self.has_failed = false;
    }

    /// Whether this read begins at the first rows of all buckets.
    pub(super) fn take_whole(&mut self) -> bool {
        std::mem::take(&mut self.is_whole)
    }

    /// How many bytes are read, with room for this many.
    pub(super) fn bytes(&self, room: usize) -> usize {
        room.saturating_mul(self.bytes_growth)
    }

    /// The rows of a read are there. `has_undecided`: some of them are not decided.
    pub(super) fn end(&mut self, has_undecided: bool) {
        (self.is_reading, self.has_undecided) = (false, has_undecided);
    }

    /// A read has failed.
    pub(super) fn fail(&mut self, now: Duration) {
        (self.is_reading, self.has_failed) = (false, true);
        self.not_before = now + FAILURE_PAUSE;
        self.due = self.not_before;
    }
}
