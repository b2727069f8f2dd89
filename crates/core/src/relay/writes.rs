//! What the relay writes to the outbox: marks, parked keys, and rows of parked keys that are set aside.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::outbox::{EventRow, MarkedRows, ParkedRow};
use crate::relay::calls::RelayReport;
use crate::relay::engine::{Loan, RelayNote};
use crate::relay::publisher::SentRow;
use crate::telemetry;

/// The number of rows that are marked, or set aside, in one call.
const MAX_MARKED: usize = 2048;

/// The number of rows whose keys are parked in one call.
const MAX_PARKED: usize = 1000;

/// The number of rows to set aside that are remembered.
const MAX_SET_ASIDE: usize = 10_000;

/// The pause after a write that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// The writes that are to be made.
#[derive(Default)]
pub(super) struct Writes {
    /// The name of the sink, for the log.
    sink: Arc<str>,
    unmarked: Vec<SentRow>,
    is_marking: bool,
    /// Rows on which another transaction has a lock, and when they are marked again.
    locked: Vec<SentRow>,
    locked_due: Duration,
    refused: VecDeque<ParkedRow>,
    is_parking: bool,
    /// How many keys the next call parks. One after a failure, for which one row may be the reason.
    parks_at_once: usize,
    to_set_aside: BTreeSet<EventRow>,
    is_setting_aside: bool,
    /// No write starts before.
    due: Duration,
}

/// The result of a write.
pub(super) enum WriteReport {
    Marked(Vec<SentRow>, Result<MarkedRows>),
    Parked(Vec<ParkedRow>, Result<Vec<EventRow>>),
    SetAside(Vec<EventRow>, Result<()>),
}

impl Writes {
    pub(super) fn new(sink: Arc<str>) -> Self {
        Self { sink, parks_at_once: MAX_PARKED, ..Self::default() }
    }

    /// The number of rows whose keys are to be parked.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Marks a row that the sink has.
    pub(super) fn mark(&mut self, sent: SentRow) {
        self.unmarked.push(sent);
    }

    /// Parks the key of a row that the sink refused.
    pub(super) fn park(&mut self, row: ParkedRow) {
        self.refused.push_back(row);
    }

    /// Sets a row of a parked key aside. A later read shows it again if too many wait for that.
    pub(super) fn set_aside(&mut self, row: EventRow) {
        if self.to_set_aside.len() < MAX_SET_ASIDE {
            self.to_set_aside.insert(row);
        }
    }

    /// Forgets what was decided about rows that are read again.
    pub(super) fn rewind(&mut self) {
        self.refused.clear();
        self.to_set_aside.clear();
    }

    /// Whether nothing is to be written that a relay that stops owes. Rows of parked keys can be set aside later.
    pub(super) fn is_idle(&self) -> bool {
        self.unmarked.is_empty()
            && self.locked.is_empty()
            && self.refused.is_empty()
            && !self.is_marking
            && !self.is_parking
    }

    /// When a write may be tried again.
    pub(super) fn wake(&self) -> Option<Duration> {
        let waits = !self.unmarked.is_empty() && !self.is_marking
            || !self.refused.is_empty() && !self.is_parking
            || !self.to_set_aside.is_empty() && !self.is_setting_aside;
        let locked = (!self.locked.is_empty()).then_some(self.locked_due);
        [waits.then_some(self.due), locked].into_iter().flatten().min()
    }

    /// Starts to mark, park and set aside.
    pub(super) fn start(&mut self, now: Duration, loan: &mut Loan<'_>) {
        if now >= self.locked_due {
            self.unmarked.append(&mut self.locked);
        }
        if now < self.due {
            return;
        }
        if !self.is_marking {
            self.start_mark(loan);
        }
        if !self.is_parking && !self.refused.is_empty() {
            self.is_parking = true;
            let rows: Vec<ParkedRow> = self.refused.drain(..self.parks_at_once.min(self.refused.len())).collect();
            let (outbox, refused) = (Arc::clone(loan.calls.outbox()), rows.clone());
            let park = async move { outbox.park(&refused).await };
            loan.calls.call_database(park, |result| RelayReport::Write(WriteReport::Parked(rows, result)));
        }
        if !self.is_setting_aside && !self.to_set_aside.is_empty() {
            self.is_setting_aside = true;
            let rows: Vec<EventRow> = self.to_set_aside.iter().copied().take(MAX_MARKED).collect();
            let (outbox, aside) = (Arc::clone(loan.calls.outbox()), rows.clone());
            let set_aside = async move { outbox.set_aside(&aside).await };
            loan.calls.call_database(set_aside, |result| RelayReport::Write(WriteReport::SetAside(rows, result)));
        }
    }

    /// Marks the rows that were published under the same number of republications as the first one.
    fn start_mark(&mut self, loan: &mut Loan<'_>) {
        let Some(SentRow { republications, .. }) = self.unmarked.first().copied() else { return };
        self.is_marking = true;
        let is_alike = |row: &mut SentRow| row.republications == republications;
        let sent: Vec<SentRow> = self.unmarked.extract_if(.., is_alike).take(MAX_MARKED).collect();
        let rows: Vec<EventRow> = sent.iter().map(|sent| sent.row).collect();
        let outbox = Arc::clone(loan.calls.outbox());
        let mark = async move { outbox.mark(&rows, republications).await };
        loan.calls.call_database(mark, |result| RelayReport::Write(WriteReport::Marked(sent, result)));
    }

    pub(super) fn take(&mut self, report: WriteReport, loan: &mut Loan<'_>) {
        match report {
            WriteReport::Marked(sent, result) => self.take_marked(sent, result, loan),
            WriteReport::Parked(rows, result) => self.take_parked(rows, result, loan),
            WriteReport::SetAside(rows, result) => self.take_set_aside(&rows, result, loan),
        }
    }

    fn take_marked(&mut self, sent: Vec<SentRow>, result: Result<MarkedRows>, loan: &mut Loan<'_>) {
        self.is_marking = false;
        let MarkedRows { locked, is_rewound, .. } = match result {
            Ok(marked) => marked,
            Err(error) => {
                self.unmarked.extend(sent);
                return self.postpone(error, loan);
            }
        };
        if !locked.is_empty() {
            self.locked_due = loan.calls.now() + FAILURE_PAUSE;
        }
        for row in sent {
            if locked.contains(&row.row) {
                self.locked.push(row);
            } else if let Some(bucket) = loan.buckets.same(row.bucket, row.ownership) {
                bucket.rows.mark(row.row.id);
                if is_rewound {
                    // The row is open, and published once more.
                    bucket.rows.restart();
                }
            }
        }
        if is_rewound {
            loan.notes.push(RelayNote::ReadSoon);
        }
    }

    fn take_parked(&mut self, rows: Vec<ParkedRow>, result: Result<Vec<EventRow>>, loan: &mut Loan<'_>) {
        self.is_parking = false;
        let gone = match result {
            Ok(gone) => gone,
            Err(error) => {
                self.parks_at_once = 1;
                self.refused.extend(rows);
                return self.postpone(error, loan);
            }
        };
        self.parks_at_once = (self.parks_at_once * 4).min(MAX_PARKED);
        if !gone.is_empty() {
            loan.notes.push(RelayNote::ReadSoon);
        }
        for row in rows {
            // Another relay has published it, or an operator dropped it.
            let is_gone = gone.contains(&row.named());
            if let Some(bucket) = loan.buckets.current(row.bucket) {
                bucket.rows.confirm_parked(&row.key);
                if is_gone {
                    // Reads passed the other rows of the key meanwhile.
                    bucket.rows.restart();
                }
            }
            if !is_gone {
                telemetry::key_parked(&self.sink, &row);
            }
        }
    }

    fn take_set_aside(&mut self, rows: &[EventRow], result: Result<()>, loan: &mut Loan<'_>) {
        self.is_setting_aside = false;
        match result {
            Ok(()) => {
                for row in rows {
                    self.to_set_aside.remove(row);
                }
            }
            Err(error) => self.postpone(error, loan),
        }
    }

    fn postpone(&mut self, error: Error, loan: &mut Loan<'_>) {
        self.due = loan.calls.now() + FAILURE_PAUSE;
        loan.notes.push(RelayNote::DatabaseFailed(error));
    }
}
