//! One task that decides everything, and the calls to database and sink that it waits for all at once.

mod buckets;
mod publishing;
mod reading;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::outbox::{
    BucketCursor, EventRow, Horizon, MarkedRows, OpenRows, Outbox, OutboxCounts, OutboxUpkeep, ParkedRow, Published,
    Rewinds, Sink,
};
use crate::relay::bucket::BucketRows;
use crate::relay::claims::{BucketClaims, ClaimsSeen, HeldClaim};
use crate::relay::decided::DecidedRows;
use crate::relay::{RelayEnd, RelayParts, RelaySettings};
use crate::runtime::{BoxFuture, Runtime, timeout};
use crate::telemetry;
use publishing::FailureLog;
use reading::{ReadBegun, ReadPlan};
use upkeep::UpkeepPlan;

/// How long a store may take to confirm that a claim is given back, when the relay stops.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// So many results are taken at once at most: others wait for what they start.
const MAX_RESULTS: usize = 256;

/// How long one call to the outbox may take.
const CALL_WITHIN: Duration = Duration::from_secs(60);

/// The state of a relay.
pub(super) struct RelayEngine {
    outbox: Arc<dyn Outbox>,
    upkeep: Option<Arc<dyn OutboxUpkeep>>,
    sink: Arc<dyn Sink>,
    settings: RelaySettings,
    runtime: Arc<dyn Runtime>,
    calls: FuturesUnordered<BoxFuture<'static, RelayReport>>,

    claims: Arc<BucketClaims>,
    place: Option<HeldClaim>,
    buckets: BTreeMap<u8, OwnedBucket>,
    /// The number of buckets that this relay ever had.
    ownerships: u64,
    is_looking: bool,
    look_due: Duration,

    reading: ReadPlan,
    decided: DecidedRows,
    /// The rewinds that the last read saw.
    rewinds: Option<Rewinds>,

    in_flight: usize,
    /// Those in flight that have failed before.
    retrying: usize,
    failures: FailureLog,
    unmarked: Vec<SentRow>,
    /// Rows on which another transaction has a lock, and when they are marked again.
    locked: Vec<SentRow>,
    locked_due: Duration,
    is_marking: bool,
    refused: VecDeque<ParkedRow>,
    is_parking: bool,
    aside: BTreeSet<EventRow>,
    is_setting_aside: bool,
    /// No mark, park or setting aside starts before.
    writes_due: Duration,

    upkeep_plan: UpkeepPlan,

    /// Set once the relay stops.
    stop: Option<StoppingRelay>,
}

/// A bucket that this relay has.
struct OwnedBucket {
    /// Distinguishes this bucket from the same one at another time.
    ownership: u64,
    claim: HeldClaim,
    rows: BucketRows,
    /// When it was last read from its first row on.
    restarted: Duration,
    /// Nothing new of it is published: it is given back as soon as what was started is marked.
    is_leaving: bool,
    /// How many times as many rows are read as there is room for; see [`take`](Self::take).
    growth: usize,
}

/// The part of a read that is for one bucket.
#[derive(Clone, Copy, Debug)]
struct BucketRead {
    ownership: u64,
    /// How often reading had begun anew.
    restarts: u64,
    cursor: BucketCursor,
    /// Whether it is read from its first row on although the cursor is behind that.
    is_restart: bool,
}

/// A row that was started, and the ownership of its bucket at that time.
#[derive(Clone, Copy, Debug)]
struct SentRow {
    bucket: u8,
    ownership: u64,
    row: EventRow,
    /// Under how many republications it is published.
    republications: u64,
    /// Whether it had failed before.
    is_retry: bool,
}

/// A relay that stops.
struct StoppingRelay {
    deadline: Duration,
    /// Why, if it was not asked to.
    error: Option<Error>,
}

/// The result of a call.
enum RelayReport {
    Looked(Result<ClaimsSeen>),
    Horizon(Result<Horizon>),
    Read { asked: Vec<BucketRead>, began: ReadBegun, rows: Result<OpenRows> },
    Published(SentRow, Published),
    Marked(Vec<SentRow>, Result<MarkedRows>),
    Parked(ParkedRow, Result<bool>),
    SetAside(Vec<EventRow>, Result<()>),
    Counted(Result<OutboxCounts>),
    Swept(Result<usize>),
}

/// What the engine waits for.
enum RelayInput {
    Call(RelayReport),
    /// Somebody says that rows were committed.
    Rows,
    Shutdown,
    TimeIsUp,
}

impl RelayEngine {
    pub(super) fn start(parts: RelayParts) -> Result<Self> {
        let RelayParts { outbox, upkeep, store, sink, settings, runtime } = parts;
        let claims = BucketClaims::start(store, Arc::clone(&runtime), settings.lease)?;
        Ok(Self {
            outbox,
            upkeep,
            sink,
            settings,
            runtime,
            calls: FuturesUnordered::new(),
            claims: Arc::new(claims),
            place: None,
            buckets: BTreeMap::new(),
            ownerships: 0,
            is_looking: false,
            look_due: Duration::ZERO,
            reading: ReadPlan::default(),
            decided: DecidedRows::default(),
            rewinds: None,
            in_flight: 0,
            retrying: 0,
            failures: FailureLog::default(),
            unmarked: Vec::new(),
            locked: Vec::new(),
            locked_due: Duration::ZERO,
            is_marking: false,
            refused: VecDeque::new(),
            is_parking: false,
            aside: BTreeSet::new(),
            is_setting_aside: false,
            writes_due: Duration::ZERO,
            upkeep_plan: UpkeepPlan::default(),
            stop: None,
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
                RelayInput::Call(result) => {
                    self.take_result(result);
                    self.take_ended_calls();
                }
                RelayInput::Rows => self.reading.hurry(),
                RelayInput::Shutdown => self.stop(None),
                RelayInput::TimeIsUp => {}
            }
        }
        self.close().await
    }

    /// Starts everything that can start now.
    fn advance(&mut self) {
        let now = self.runtime.boottime_now();
        self.drop_lost_buckets(now);
        self.start_publications(now);
        self.start_writes(now);
        self.give_back_left_buckets();
        if self.stop.is_none() {
            self.start_look(now);
            self.start_read(now);
            self.start_upkeep(now);
        }
    }

    /// Takes the results of other calls that have ended by now. What follows looks at every bucket, so it costs less
    /// for many results than for each of them.
    fn take_ended_calls(&mut self) {
        for _ in 0..MAX_RESULTS {
            let Some(Some(result)) = self.calls.next().now_or_never() else { return };
            self.take_result(result);
        }
    }

    fn take_result(&mut self, result: RelayReport) {
        match result {
            RelayReport::Looked(seen) => self.take_claims(seen),
            RelayReport::Horizon(horizon) => self.take_horizon(horizon),
            RelayReport::Read { asked, began, rows } => self.take_read(&asked, &began, rows),
            RelayReport::Published(sent, published) => self.take_published(sent, published),
            RelayReport::Marked(sent, result) => self.take_marked(sent, result),
            RelayReport::Parked(row, result) => self.take_parked(row, result),
            RelayReport::SetAside(rows, result) => self.take_set_aside(rows, result),
            RelayReport::Counted(counts) => self.take_counts(counts),
            RelayReport::Swept(swept) => self.take_swept(swept),
        }
    }

    async fn wait(&mut self, shutdown: Pin<&mut (impl Future<Output = ()> + Send)>) -> RelayInput {
        let wake = self.next_wake();
        let is_stopping = self.stop.is_some();
        let (runtime, outbox) = (Arc::clone(&self.runtime), Arc::clone(&self.outbox));
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
        let calls = &mut self.calls;
        let call = async {
            match calls.next().await {
                Some(result) => RelayInput::Call(result),
                None => std::future::pending().await,
            }
        };
        match select(pin!(call), select(pin!(rest), pin!(time))).await {
            Either::Left((input, _)) => input,
            Either::Right((Either::Left((input, _)) | Either::Right((input, _)), _)) => input,
        }
    }

    /// When something may have to be done although no call has ended.
    fn next_wake(&self) -> Option<Duration> {
        if let Some(stop) = &self.stop {
            return Some(stop.deadline.min(self.writes_wake().unwrap_or(stop.deadline)));
        }
        let kept = self.buckets.values().filter(|bucket| !bucket.is_leaving);
        let retry = kept.filter_map(|bucket| bucket.rows.next_retry()).min();
        let retry = retry.filter(|_| self.in_flight < self.settings.max_in_flight && self.may_retry());
        let look = (!self.is_looking).then_some(self.look_due);
        let wakes = [look, self.reading_wake(), self.writes_wake(), self.upkeep_wake(), retry];
        wakes.into_iter().flatten().min()
    }

    /// Starts nothing new. What is in flight goes on.
    fn stop(&mut self, error: Option<Error>) {
        if self.stop.is_none() {
            telemetry::relay_stops(self.sink.name(), self.in_flight, error.as_ref());
            let deadline = self.runtime.boottime_now().saturating_add(self.settings.drain);
            self.stop = Some(StoppingRelay { deadline, error });
        }
    }

    /// Notes that the database refused a call. Stops if calling it again does not help.
    fn note_failure(&mut self, error: Error) {
        telemetry::outbox_failed(&error);
        self.reading.distrust(self.runtime.boottime_now());
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::Unusable => self.stop(Some(error)),
            ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Full | ErrorKind::Damaged => {}
        }
    }

    /// Whether a relay that stops has nothing left to do, or no time.
    fn has_ended(&self) -> bool {
        let Some(stop) = &self.stop else { return false };
        let is_idle = self.in_flight == 0
            && self.unmarked.is_empty()
            && self.locked.is_empty()
            && self.refused.is_empty()
            && !self.is_marking
            && !self.is_parking
            && !self.is_looking;
        is_idle || self.runtime.boottime_now() >= stop.deadline
    }

    /// Gives the claims back, and closes the sink. A bucket with events in flight is left to lapse instead.
    async fn close(mut self) -> Result<RelayEnd> {
        let unconfirmed = self.buckets.values().map(|bucket| bucket.rows.unconfirmed()).sum();
        for (_, bucket) in std::mem::take(&mut self.buckets) {
            if bucket.rows.in_flight() == 0 || chaos::on("bucket_left_early") {
                bucket.claim.give_back();
            }
        }
        if let Some(place) = self.place.take() {
            place.give_back();
        }
        self.calls.clear();
        timeout(&*self.runtime, GIVE_BACK_WITHIN, self.claims.wait_until_idle()).await;
        timeout(&*self.runtime, GIVE_BACK_WITHIN, self.sink.close()).await;
        telemetry::relay_ends(self.sink.name(), unconfirmed);
        match self.stop.and_then(|stop| stop.error) {
            Some(error) => Err(error),
            None => Ok(RelayEnd { unconfirmed }),
        }
    }

    fn call(&mut self, call: impl Future<Output = RelayReport> + Send + 'static) {
        self.calls.push(Box::pin(call));
    }

    /// Calls the outbox, and waits for at most the time that one call has.
    fn call_outbox<T: Send + 'static>(
        &mut self,
        call: impl Future<Output = Result<T>> + Send + 'static,
        report: impl FnOnce(Result<T>) -> RelayReport + Send + 'static,
    ) {
        let runtime = Arc::clone(&self.runtime);
        self.call(async move {
            let late = || Err(Error::new(ErrorKind::Unknown, "the outbox did not answer within a minute"));
            report(timeout(&*runtime, CALL_WITHIN, call).await.unwrap_or_else(late))
        });
    }
}
