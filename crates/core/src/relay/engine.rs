//! One task that decides everything. It owns the buckets and the calls that it waits for, and lends both to its parts.
//!
//! An *input* wakes the task. The *report* of a call goes to the part that made the call. A *note* is what a part tells
//! the others.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::error::{Error, ErrorKind, Result};
use crate::outbox::{EventRow, ParkedRow, Sink};
use crate::relay::buckets::OwnedBuckets;
use crate::relay::calls::{RelayCalls, RelayReport};
use crate::relay::claims::RelayClaims;
use crate::relay::publisher::{Publisher, SentRow};
use crate::relay::reader::OutboxReader;
use crate::relay::upkeep::Upkeep;
use crate::relay::writes::Writes;
use crate::relay::{RelayEnd, RelayParts, RelaySettings};
use crate::runtime::timeout;
use crate::telemetry;

/// How long a sink may take to close its connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How many reports are taken at once: others wait for what they start.
const MAX_REPORTS: usize = 256;

/// The state of a relay.
pub(super) struct RelayEngine {
    sink: Arc<dyn Sink>,
    settings: RelaySettings,
    calls: RelayCalls,
    buckets: OwnedBuckets,
    claims: RelayClaims,
    reader: OutboxReader,
    publisher: Publisher,
    writes: Writes,
    upkeep: Upkeep,
    /// Whether the outbox was read once.
    has_read: bool,
    /// Set once the relay stops.
    stop: Option<StoppingRelay>,
}

/// What the engine lends to one of its parts.
pub(super) struct Loan<'a> {
    pub(super) buckets: &'a mut OwnedBuckets,
    pub(super) calls: &'a mut RelayCalls,
    /// What the part tells the others.
    pub(super) notes: Vec<RelayNote>,
    /// The number of rows whose keys are to be parked.
    pub(super) refused: usize,
}

/// What a part of the engine tells the others.
pub(super) enum RelayNote {
    /// There may be rows to read.
    ReadSoon,
    /// Everything is read again: what was decided about rows that are not published does not count.
    Rewound,
    /// The sink has the row.
    Sent(SentRow),
    /// The sink never takes the row.
    Refused(ParkedRow),
    /// The key of the row is parked.
    OfParkedKey(EventRow),
    /// A call of the database has failed.
    DatabaseFailed(Error),
}

/// A relay that stops.
struct StoppingRelay {
    deadline: Duration,
    /// Why, if it was not asked to.
    error: Option<Error>,
}

/// What the engine waits for.
enum RelayInput {
    Report(RelayReport),
    /// Somebody says that rows were committed.
    Rows,
    Shutdown,
    TimeIsUp,
}

/// Lets a part work on what the engine lends to it, and takes its notes.
macro_rules! lend {
    ($engine:ident, |$loan:ident| $work:expr) => {{
        let refused = $engine.writes.refused();
        let mut loan = Loan { buckets: &mut $engine.buckets, calls: &mut $engine.calls, notes: Vec::new(), refused };
        let $loan = &mut loan;
        $work;
        let notes = loan.notes;
        notes.into_iter().for_each(|note| $engine.note(note));
    }};
}

impl RelayEngine {
    pub(super) fn start(parts: RelayParts) -> Result<Self> {
        let RelayParts { outbox, upkeep, store, sink, settings, runtime } = parts;
        Ok(Self {
            claims: RelayClaims::start_engine(store, Arc::clone(&runtime), settings.lease)?,
            calls: RelayCalls::new(outbox, runtime),
            buckets: OwnedBuckets::default(),
            reader: OutboxReader::new(settings),
            publisher: Publisher::new(Arc::clone(&sink), settings),
            writes: Writes::new(Arc::clone(sink.name())),
            upkeep: Upkeep::new(upkeep, settings.retention),
            has_read: false,
            stop: None,
            sink,
            settings,
        })
    }

    /// Works until the shutdown, then until everything that was started is marked.
    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> Result<RelayEnd> {
        let mut shutdown = pin!(shutdown);
        telemetry::relay_starts(self.sink.name(), &self.settings);
        loop {
            self.advance();
            if self.has_ended() {
                break;
            }
            match self.wait(shutdown.as_mut()).await {
                RelayInput::Report(report) => {
                    self.take(report);
                    self.take_ended_calls();
                }
                RelayInput::Rows => self.reader.hurry(),
                RelayInput::Shutdown => self.stop(None),
                RelayInput::TimeIsUp => {}
            }
        }
        self.close().await
    }

    /// Starts everything that can start now.
    fn advance(&mut self) {
        let now = self.calls.now();
        self.claims.drop_lost(now, &mut self.buckets);
        if self.stop.is_none() {
            lend!(self, |loan| self.publisher.start(now, loan));
        }
        lend!(self, |loan| self.writes.start(now, loan));
        self.buckets.give_back_left();
        if self.stop.is_none() {
            lend!(self, |loan| self.claims.start(now, loan));
            lend!(self, |loan| self.reader.start(now, loan));
            lend!(self, |loan| self.upkeep.start(now, loan));
        }
    }

    /// Takes the reports of other calls that have ended by now. The next step goes through every bucket, so it
    /// costs less for many reports than for each of them.
    fn take_ended_calls(&mut self) {
        for _ in 0..MAX_REPORTS {
            let Some(report) = self.calls.next_ended() else { return };
            self.take(report);
        }
    }

    fn take(&mut self, report: RelayReport) {
        match report {
            RelayReport::Claims(seen) => lend!(self, |loan| self.claims.take(seen, loan)),
            RelayReport::Read(report) => {
                self.has_read |= report.is_ok();
                lend!(self, |loan| self.reader.take(report, loan));
            }
            RelayReport::Published(sent, end) => lend!(self, |loan| self.publisher.take(sent, end, loan)),
            RelayReport::Write(report) => lend!(self, |loan| self.writes.take(report, loan)),
            RelayReport::Upkeep(report) => lend!(self, |loan| self.upkeep.take(report, loan)),
        }
    }

    fn note(&mut self, note: RelayNote) {
        match note {
            RelayNote::ReadSoon => self.reader.hurry(),
            RelayNote::Rewound => self.writes.rewind(),
            RelayNote::Sent(sent) => self.writes.mark(sent),
            RelayNote::Refused(row) => self.writes.park(row),
            RelayNote::OfParkedKey(row) => self.writes.set_aside(row),
            RelayNote::DatabaseFailed(error) => self.note_failure(error),
        }
    }

    async fn wait(&mut self, shutdown: Pin<&mut (impl Future<Output = ()> + Send)>) -> RelayInput {
        let wake = self.next_wake();
        let is_stopping = self.stop.is_some();
        let (runtime, outbox) = (Arc::clone(self.calls.runtime()), Arc::clone(self.calls.outbox()));
        let time = async {
            match wake {
                Some(at) => runtime.sleep(at.saturating_sub(runtime.boottime_now())).await,
                None => std::future::pending().await,
            }
            RelayInput::TimeIsUp
        };
        let rest = async {
            if is_stopping {
                return std::future::pending().await;
            }
            match select(shutdown, pin!(outbox.wait_for_rows())).await {
                Either::Left(_) => RelayInput::Shutdown,
                Either::Right(_) => RelayInput::Rows,
            }
        };
        let call = async { RelayInput::Report(self.calls.next().await) };
        match select(pin!(call), select(pin!(rest), pin!(time))).await {
            Either::Left((input, _)) => input,
            Either::Right((Either::Left((input, _)) | Either::Right((input, _)), _)) => input,
        }
    }

    /// When something may have to be done although no call has ended.
    fn next_wake(&self) -> Option<Duration> {
        let writes = self.writes.wake();
        if let Some(stop) = &self.stop {
            return Some(stop.deadline.min(writes.unwrap_or(stop.deadline)));
        }
        let reader = self.reader.wake(&self.buckets, self.writes.refused());
        let publisher = self.publisher.wake(&self.buckets);
        let upkeep = self.upkeep.wake(&self.buckets);
        [self.claims.wake(), reader, writes, upkeep, publisher].into_iter().flatten().min()
    }

    /// Starts nothing new. What is in flight goes on.
    fn stop(&mut self, error: Option<Error>) {
        if self.stop.is_none() {
            telemetry::relay_stops(self.sink.name(), self.publisher.in_flight(), error.as_ref());
            let deadline = self.calls.now().saturating_add(self.settings.drain);
            self.stop = Some(StoppingRelay { deadline, error });
        }
    }

    /// Notes that the database refused a call. Stops if calling it again does not help. A database that was read before
    /// may be in the middle of a restore, or an operator changes it: then the relay goes on asking.
    fn note_failure(&mut self, error: Error) {
        telemetry::outbox_failed(&error);
        self.reader.recheck(self.calls.now());
        match error.kind() {
            ErrorKind::Unusable if self.has_read => {}
            ErrorKind::Invalid | ErrorKind::Unusable => self.stop(Some(error)),
            ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Full | ErrorKind::Damaged => {}
        }
    }

    /// Whether a relay that stops has nothing left to do, or no time. Reads and upkeep do not delay it.
    fn has_ended(&self) -> bool {
        let Some(stop) = &self.stop else { return false };
        let is_idle = self.claims.is_idle() && self.publisher.is_idle() && self.writes.is_idle();
        is_idle || self.calls.now() >= stop.deadline
    }

    /// Gives the claims back, and closes the sink. A bucket with events in flight is left to lapse instead.
    async fn close(mut self) -> Result<RelayEnd> {
        let unconfirmed = self.buckets.give_back_all();
        self.calls.abandon();
        let runtime = Arc::clone(self.calls.runtime());
        self.claims.close(&*runtime).await;
        timeout(&*runtime, CLOSE_WITHIN, self.sink.close()).await;
        telemetry::relay_ends(self.sink.name(), unconfirmed);
        match self.stop.and_then(|stop| stop.error) {
            Some(error) => Err(error),
            None => Ok(RelayEnd { unconfirmed }),
        }
    }
}
