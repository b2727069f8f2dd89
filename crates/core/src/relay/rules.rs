//! When the outbox is read next: the rows R1 to R6 of `rules.md`.

use std::time::Duration;

use crate::outbox::RowId;
use crate::relay::buckets::OwnedBuckets;

/// The pauses between reads, while rows come and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// The pause while all rows are to be read again because a call has failed.
const RECHECK_PAUSE: Duration = Duration::from_millis(50);

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
const MAX_BYTES_FACTOR: usize = 4;

/// When the outbox is read next, and what that read is to show.
#[derive(Debug)]
pub(super) struct ReadPlan {
    is_reading: bool,
    next: NextRead,
    horizon_due: Duration,
    /// When the next bucket is read from its first row on.
    restart_due: Duration,
    /// A call failed at this time: each bucket that was not read from its first row on since then is due at once.
    rechecks_since: Option<Duration>,
    /// Whether the next read begins at the first rows of all buckets, because rows became open.
    is_whole: bool,
    /// No rewind before.
    rewind_due: Duration,
    /// Whether the last read has shown rows that are not decided.
    has_undecided: bool,
    /// Whether a read has failed since the horizon was read: another server may answer now.
    has_failed: bool,
    /// How many times as many bytes are read as there is room for.
    bytes_factor: usize,
}

/// When the next read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextRead {
    due: Duration,
    /// A note that there may be rows makes it begin now, but not before this time.
    not_before: Duration,
    /// The pause before it, which R6 doubles.
    pause: Duration,
}

/// How the last read ended.
#[derive(Clone, Copy, Debug)]
enum LastRead {
    Failed,
    /// It has shown that rows became open, and everything was read again a moment ago. It waits until this time.
    Unused(Duration),
    Used {
        gain: ReadGain,
        /// How long it took, if it was slow.
        slow: Duration,
    },
}

impl NextRead {
    /// The next read after one that ended now. `rechecks`: all rows are to be read again because a call has failed.
    fn after(self, last: LastRead, rechecks: bool, now: Duration) -> Self {
        let (gain, slow) = match last {
            LastRead::Failed => return Self { due: now + FAILURE_PAUSE, not_before: now + FAILURE_PAUSE, ..self }, // R1
            LastRead::Unused(until) => return Self { due: until, not_before: until, ..self },                      // R2
            LastRead::Used { gain, slow } => (gain, (slow * SLOW_READ_PAUSES).min(LONGEST_SLOW_PAUSE)),
        };
        let pause = match gain {
            ReadGain { has_more: true, .. } => return Self { due: now, not_before: now, pause: BUSY_PAUSE }, // R3
            ReadGain { has_new: true, .. } | ReadGain { goes_on: true, .. } => BUSY_PAUSE,                   // R4
            ReadGain { .. } if rechecks => RECHECK_PAUSE,                                                    // R5
            ReadGain { .. } => (self.pause * 2).clamp(BUSY_PAUSE, IDLE_PAUSE),                               // R6
        };
        Self { due: now + pause.max(slow), not_before: now + slow, pause }
    }
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
            next: NextRead { due: Duration::ZERO, not_before: Duration::ZERO, pause: BUSY_PAUSE },
            horizon_due: Duration::ZERO,
            restart_due: Duration::ZERO,
            rechecks_since: None,
            is_whole: false,
            rewind_due: Duration::ZERO,
            has_undecided: false,
            has_failed: false,
            bytes_factor: 1,
        }
    }
}

impl ReadPlan {
    /// Reads at once, but for the pause after a slow read or a failure.
    pub(super) fn hurry(&mut self) {
        (self.next.due, self.next.pause) = (self.next.not_before, BUSY_PAUSE);
    }

    /// A call of the database has failed: it may have crashed, so the next reads show all open rows.
    pub(super) fn recheck(&mut self, now: Duration) {
        self.rechecks_since = Some(now);
    }

    /// Notes that a read ended, or failed, which began one of these buckets anew. The next one waits for its turn, and
    /// longer if this one was slow.
    pub(super) fn end_restart(&mut self, began: &ReadBegun, now: Duration, buckets: usize) {
        let turn = WHOLE_EVERY / u32::try_from(buckets.max(1)).unwrap_or(u32::MAX);
        let turn = if self.rechecks_since.is_some() { Duration::ZERO } else { turn };
        self.restart_due = now + turn.max(began.slow_length(now) * SLOW_READ_PAUSES).min(WHOLE_EVERY);
    }

    /// Notes that rows became open. Returns whether everything is read again now. If it was read again a moment ago, it
    /// waits, and what was read now is not used: its rows may have to wait for rows that became open before them.
    pub(super) fn may_rewind(&mut self, now: Duration) -> bool {
        if now < self.rewind_due {
            self.is_whole = true;
            self.plan_next(LastRead::Unused(self.rewind_due), now);
            return false;
        }
        self.rewind_due = now + REWIND_EVERY;
        true
    }

    /// The bucket that the next read begins anew, if it is time: the one that was longest not read from its first row.
    pub(super) fn next_restart(&mut self, now: Duration, buckets: &mut OwnedBuckets) -> Option<u8> {
        let (number, bucket) = buckets.iter_mut().min_by_key(|(_, bucket)| bucket.restarted)?;
        self.rechecks_since = self.rechecks_since.filter(|since| bucket.restarted <= *since);
        let is_due =
            now >= self.restart_due && (self.rechecks_since.is_some() || now >= bucket.restarted + WHOLE_EVERY);
        is_due.then(|| {
            // Also if the read fails: then others have their turn.
            bucket.restarted = now;
            number
        })
    }

    /// Notes what the rows have brought.
    pub(super) fn gain(&mut self, gain: ReadGain, began: &ReadBegun, now: Duration) {
        self.plan_next(LastRead::Used { gain, slow: began.slow_length(now) }, now);
    }

    fn plan_next(&mut self, last: LastRead, now: Duration) {
        self.next = self.next.after(last, self.rechecks_since.is_some(), now);
    }

    /// A read that was cut, and brought nothing, is followed by one of more bytes.
    pub(super) fn widen(&mut self, is_cut: bool, gain: ReadGain) {
        self.bytes_factor = match is_cut {
            true if gain.has_new || gain.goes_on => self.bytes_factor,
            true => (self.bytes_factor * 2).min(MAX_BYTES_FACTOR),
            false => 1,
        };
    }

    /// When the next read is due, if none runs.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.is_reading).then_some(self.next.due)
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
        room.saturating_mul(self.bytes_factor)
    }

    /// The rows of a read are there. `has_undecided`: some of them are not decided.
    pub(super) fn end(&mut self, has_undecided: bool) {
        (self.is_reading, self.has_undecided) = (false, has_undecided);
    }

    /// A read has failed.
    pub(super) fn fail(&mut self, now: Duration) {
        (self.is_reading, self.has_failed) = (false, true);
        self.plan_next(LastRead::Failed, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const MS: Duration = Duration::from_millis(1);
    const FULL: ReadGain = ReadGain { has_new: true, has_more: true, goes_on: false };
    const NONE: ReadGain = ReadGain { has_new: false, has_more: false, goes_on: false };

    /// When the next read is due after one that took this long.
    fn due(plan: &mut ReadPlan, took: Duration, gain: ReadGain) -> Duration {
        plan.begin(NOW);
        plan.end(false);
        plan.gain(gain, &ReadBegun { at: NOW - took, decided: RowId(0) }, NOW);
        plan.due().expect("no read runs") - NOW
    }

    #[test]
    fn reads_go_on_while_they_bring_rows_and_pause_more_and_more_while_they_bring_none() {
        let mut plan = ReadPlan::default();
        assert_eq!(due(&mut plan, MS, FULL), Duration::ZERO, "R3");
        assert_eq!(due(&mut plan, MS, ReadGain { has_more: false, ..FULL }), 10 * MS, "R4");
        assert_eq!(due(&mut plan, MS, ReadGain { goes_on: true, ..NONE }), 10 * MS, "R4");
        let pauses: Vec<Duration> = (0..6).map(|_| due(&mut plan, MS, NONE)).collect();
        assert_eq!(pauses, [20 * MS, 40 * MS, 80 * MS, 160 * MS, 250 * MS, 250 * MS], "R6");
        plan.recheck(NOW);
        assert_eq!(due(&mut plan, MS, NONE), 50 * MS, "R5");
        plan.hurry();
        assert_eq!(plan.due(), Some(NOW), "a note makes it due");
    }

    #[test]
    fn a_slow_read_is_followed_by_a_pause_that_no_note_ends() {
        let mut plan = ReadPlan::default();
        assert_eq!(due(&mut plan, 30 * MS, NONE), 270 * MS);
        plan.hurry();
        assert_eq!(plan.due(), Some(NOW + 270 * MS));
        assert_eq!(due(&mut plan, 30_000 * MS, NONE), 1000 * MS, "a second is the longest");
        assert_eq!(due(&mut plan, 30 * MS, FULL), Duration::ZERO, "R3");
    }

    #[test]
    fn a_read_that_failed_and_rows_that_became_open_again_delay_the_next_one() {
        let mut plan = ReadPlan::default();
        plan.fail(NOW);
        plan.hurry();
        assert_eq!(plan.due(), Some(NOW + 500 * MS), "R1");
        assert!(plan.may_rewind(NOW) && !plan.may_rewind(NOW + 999 * MS));
        plan.hurry();
        assert_eq!(plan.due(), Some(NOW + 1000 * MS), "R2");
        assert!(plan.take_whole() && !plan.take_whole());
    }
}
