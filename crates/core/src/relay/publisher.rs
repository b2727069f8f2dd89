//! From a held row to the answer of the sink.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind};
use crate::key::EventId;
use crate::ledger::rules::backoff;
use crate::outbox::{EventRow, OutgoingEvent, Published, Sink};
use crate::relay::RelaySettings;
use crate::relay::bucket::StartedRow;
use crate::relay::buckets::OwnedBuckets;
use crate::relay::calls::RelayReport;
use crate::relay::engine::{Loan, RelayNote};
use crate::runtime::Runtime;
use crate::telemetry;

/// The longest pause between two publications of one row.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause that a sink can ask for.
const LONGEST_AFTER: Duration = Duration::from_secs(3600);

/// The time between two lines of the log about publications that fail.
const FAILURES_EVERY: Duration = Duration::from_secs(10);

/// A row that was started, and the ownership of its bucket at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRow {
    pub(super) bucket: u8,
    pub(super) ownership: u64,
    pub(super) row: EventRow,
    /// Under how many republications it is published.
    pub(super) republications: u64,
    /// Whether it had failed before.
    is_retry: bool,
}

/// An event that the sink did not take now.
pub(super) struct FailedPublication {
    pub(super) sent: SentRow,
    pub(super) now: Duration,
    /// The pause that the sink asks for.
    pub(super) after: Duration,
}

/// Which failures the log has: a broker that is down fails many events a second.
#[derive(Debug, Default)]
struct FailureLog {
    due: Duration,
    /// Those that are not in the log.
    unlogged: u64,
}

impl FailureLog {
    /// Logs a failure, or counts it for the next line.
    fn note(&mut self, sink: &dyn Sink, published: &Published, now: Duration) {
        if now < self.due {
            self.unlogged += 1;
            return;
        }
        self.due = now + FAILURES_EVERY;
        telemetry::publication_failed(sink.name(), std::mem::take(&mut self.unlogged), published);
    }
}

/// Publishes the rows that the buckets hold.
pub(super) struct Publisher {
    sink: Arc<dyn Sink>,
    settings: RelaySettings,
    in_flight: usize,
    /// Those in flight that have failed before.
    retrying: usize,
    failures: FailureLog,
}

impl Publisher {
    pub(super) fn new(sink: Arc<dyn Sink>, settings: RelaySettings) -> Self {
        Self { sink, settings, in_flight: 0, retrying: 0, failures: FailureLog::default() }
    }

    /// The number of events whose publication has not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// When a row that failed may be published again, if there is room for it.
    pub(super) fn wake(&self, buckets: &OwnedBuckets) -> Option<Duration> {
        let has_room = self.in_flight < self.settings.max_in_flight && self.may_retry();
        buckets.kept().filter(|_| has_room).filter_map(|bucket| bucket.rows.next_retry()).min()
    }

    /// Publishes what may be published, one row of each bucket in turn.
    pub(super) fn start(&mut self, now: Duration, loan: &mut Loan<'_>) {
        let mut has_started = true;
        while has_started {
            has_started = false;
            for number in loan.buckets.numbers().collect::<Vec<_>>() {
                if self.in_flight >= self.settings.max_in_flight {
                    return;
                }
                has_started |= self.start_one(number, now, loan);
            }
        }
    }

    /// Whether a row may be started that has failed before. Those have half of the room, so that a sink that takes
    /// long to fail them leaves room to others.
    fn may_retry(&self) -> bool {
        self.retrying < self.settings.max_in_flight.div_ceil(2)
    }

    /// Publishes a row of this bucket. Returns false if none may be published now.
    fn start_one(&mut self, number: u8, now: Duration, loan: &mut Loan<'_>) -> bool {
        let may_retry = self.may_retry();
        let Some(bucket) = loan.buckets.kept_mut(number) else { return false };
        let Some(started) = bucket.rows.start(now, may_retry) else { return false };
        let StartedRow { id, event, damage, is_retry } = started;
        let sent = SentRow {
            bucket: number,
            ownership: bucket.ownership,
            row: EventRow { id, event: event.id },
            republications: event.republications,
            is_retry,
        };
        self.in_flight += 1;
        self.retrying += usize::from(is_retry);
        if Mutant::MarkBeforePublish.is_on() {
            loan.notes.push(RelayNote::Sent(sent));
        }
        let runtime = loan.calls.runtime();
        let (sink, wall) = (Arc::clone(&self.sink), runtime.wall_now());
        let event = if Mutant::MintedEventIds.is_on() { with_minted_id(&event, &**runtime) } else { event };
        loan.calls.start(async move {
            let published = match damage {
                Some(damage) => Published::Refused(damage),
                None => publish(&*sink, &event).await,
            };
            telemetry::published(sink.name(), sink.endpoint(&event).as_deref(), &published);
            if let (Published::Yes { .. }, Some(window)) = (&published, sink.window())
                && wall.since(event.created_at) > window
            {
                telemetry::published_beyond_window(sink.name());
            }
            RelayReport::Published(sent, published)
        });
        true
    }

    /// Takes the answer of the sink. If this relay has lost the bucket, the one that has it now finds out by itself.
    pub(super) fn take(&mut self, sent: SentRow, published: Published, loan: &mut Loan<'_>) {
        self.in_flight -= 1;
        self.retrying -= usize::from(sent.is_retry);
        let now = loan.calls.now();
        if matches!(published, Published::NotPublished { .. } | Published::Unknown(_)) {
            self.failures.note(&*self.sink, &published, now);
        }
        let room = loan.buckets.failing_room(&self.settings, now.saturating_add(LONGEST_PAUSE));
        match published {
            Published::Yes { .. } => {
                // Marked even if another relay has the bucket now: the sink has the event.
                loan.notes.push(RelayNote::Sent(sent));
                if loan.buckets.publish(&sent) {
                    loan.notes.push(RelayNote::ReadSoon);
                }
            }
            Published::NotPublished { after, .. } => loan.buckets.fail(&FailedPublication { sent, now, after }, room),
            Published::Unknown(_) => {
                loan.buckets.fail(&FailedPublication { sent, now, after: Duration::ZERO }, room);
            }
            Published::Refused(reason) => {
                let bucket = loan.buckets.same(sent.bucket, sent.ownership);
                let refused = bucket.and_then(|bucket| bucket.rows.park(sent.row.id, sent.bucket, reason));
                loan.notes.extend(refused.map(RelayNote::Refused));
            }
        }
    }
}

impl FailedPublication {
    /// When the event may be published again, after this many failures.
    pub(super) fn again_at(&self, failures: u32) -> Duration {
        let after = if Mutant::SinkPauseIgnored.is_on() { Duration::ZERO } else { self.after.min(LONGEST_AFTER) };
        self.now.saturating_add(backoff(failures).min(LONGEST_PAUSE).max(after))
    }
}

/// Publishes an event. A panic of the sink means that the outcome is unknown.
async fn publish(sink: &dyn Sink, event: &Arc<OutgoingEvent>) -> Published {
    // Unwind safe: the future with its state is dropped.
    let published = AssertUnwindSafe(async { sink.publish(event).await }).catch_unwind().await;
    published.unwrap_or_else(|_panic| Published::Unknown(Error::new(ErrorKind::Unknown, "the sink panicked")))
}

/// For a mutant: the event under an id of this publication only.
fn with_minted_id(event: &OutgoingEvent, runtime: &dyn Runtime) -> Arc<OutgoingEvent> {
    let mut bytes = [0; 16];
    runtime.fill_random(&mut bytes);
    Arc::new(OutgoingEvent { id: EventId::from_bytes(bytes), ..event.clone() })
}
