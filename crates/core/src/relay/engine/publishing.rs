//! From a held row to its mark.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::key::EventId;
use crate::ledger::rules::backoff;
use crate::outbox::{EventRow, MarkedRows, OutgoingEvent, ParkedRow, Published, Sink};
use crate::relay::bucket::StartedRow;
use crate::relay::engine::{RelayEngine, RelayReport, SentRow};
use crate::runtime::Runtime;
use crate::telemetry;

/// The longest pause between two publications of one row.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause that a sink can ask for.
const LONGEST_AFTER: Duration = Duration::from_secs(3600);

/// The time between two lines of the log about publications that fail.
const FAILURES_EVERY: Duration = Duration::from_secs(10);

/// The number of rows that are marked, or set aside, in one call.
const MAX_MARKED: usize = 2048;

/// The pause after a mark that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// Which failures the log has: a broker that is down fails many events a second.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    due: Duration,
    /// Those that are not in the log.
    untold: u64,
}

impl FailureLog {
    /// Logs a failure, or counts it for the next line.
    fn note(&mut self, sink: &dyn Sink, published: &Published, now: Duration) {
        if now < self.due {
            self.untold += 1;
            return;
        }
        self.due = now + FAILURES_EVERY;
        telemetry::publication_failed(sink.name(), std::mem::take(&mut self.untold), published);
    }
}

impl RelayEngine {
    /// Publishes what may be published, one row of each bucket in turn.
    pub(super) fn start_publications(&mut self, now: Duration) {
        if self.stop.is_some() {
            return;
        }
        let mut has_started = true;
        while has_started {
            has_started = false;
            for number in self.buckets.keys().copied().collect::<Vec<_>>() {
                if self.in_flight >= self.settings.max_in_flight {
                    return;
                }
                has_started |= self.start_publication(number, now);
            }
        }
    }

    /// Whether a row may be started that has failed before. Those have half of the places, so that a sink that takes
    /// long to fail them leaves places to others.
    pub(super) fn may_retry(&self) -> bool {
        self.retrying < self.settings.max_in_flight.div_ceil(2)
    }

    fn start_publication(&mut self, number: u8, now: Duration) -> bool {
        let may_retry = self.may_retry();
        let Some(bucket) = self.buckets.get_mut(&number).filter(|bucket| !bucket.is_leaving) else { return false };
        let Some(started) = bucket.rows.start(now, may_retry) else { return false };
        let StartedRow { id, event, damage, is_retry } = started;
        let row = EventRow { id, event: event.id };
        let sent = SentRow {
            bucket: number,
            ownership: bucket.ownership,
            row,
            republications: event.republications,
            is_retry,
        };
        self.in_flight += 1;
        self.retrying += usize::from(is_retry);
        if chaos::on("mark_before_publish") {
            self.unmarked.push(sent);
        }
        let (sink, wall) = (Arc::clone(&self.sink), self.runtime.wall_now());
        let event = if chaos::on("minted_event_ids") { with_minted_id(&event, &*self.runtime) } else { event };
        self.call(async move {
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

    pub(super) fn take_published(&mut self, sent: SentRow, published: Published) {
        self.in_flight -= 1;
        self.retrying -= usize::from(sent.is_retry);
        let now = self.runtime.boottime_now();
        if matches!(published, Published::NotPublished { .. } | Published::Unknown(_)) {
            self.failures.note(&*self.sink, &published, now);
        }
        let room = self.failing_room(now.saturating_add(LONGEST_PAUSE));
        let again_at = |after: Duration| {
            let after = if chaos::on("sink_pause_ignored") { Duration::ZERO } else { after };
            move |failures| now.saturating_add(backoff(failures).min(LONGEST_PAUSE).max(after.min(LONGEST_AFTER)))
        };
        let bucket = self.buckets.get_mut(&sent.bucket).filter(|bucket| bucket.ownership == sent.ownership);
        match (published, bucket) {
            // Marked even if another relay has the bucket now: the sink has the event.
            (Published::Yes { .. }, bucket) => {
                self.unmarked.push(sent);
                if bucket.is_some_and(|bucket| bucket.rows.publish(sent.row.id)) {
                    self.reading.hurry();
                }
            }
            (Published::NotPublished { after, .. }, Some(bucket)) => {
                bucket.rows.fail(sent.row.id, room, again_at(after));
            }
            (Published::Unknown(_), Some(bucket)) => bucket.rows.fail(sent.row.id, room, again_at(Duration::ZERO)),
            (Published::Refused(reason), Some(bucket)) => {
                let refused = bucket.rows.park(sent.row.id, sent.bucket, reason);
                self.refused.extend(refused);
            }
            // The relay that has the bucket now finds out by itself.
            (Published::NotPublished { .. } | Published::Unknown(_) | Published::Refused(_), None) => {}
        }
    }

    /// When a write to the outbox may be tried again.
    pub(super) fn writes_wake(&self) -> Option<Duration> {
        let waits = !self.unmarked.is_empty() && !self.is_marking
            || !self.refused.is_empty() && !self.is_parking
            || !self.aside.is_empty() && !self.is_setting_aside;
        let locked = (!self.locked.is_empty()).then_some(self.locked_due);
        [waits.then_some(self.writes_due), locked].into_iter().flatten().min()
    }

    /// Starts to mark, park and set aside.
    pub(super) fn start_writes(&mut self, now: Duration) {
        if now >= self.locked_due {
            self.unmarked.append(&mut self.locked);
        }
        if now < self.writes_due {
            return;
        }
        if !self.is_marking
            && let Some(SentRow { republications, .. }) = self.unmarked.first().copied()
        {
            self.is_marking = true;
            let is_alike = |row: &mut SentRow| row.republications == republications;
            let sent: Vec<SentRow> = self.unmarked.extract_if(.., is_alike).take(MAX_MARKED).collect();
            let outbox = Arc::clone(&self.outbox);
            let rows: Vec<EventRow> = sent.iter().map(|sent| sent.row).collect();
            let mark = async move { outbox.mark(&rows, republications).await };
            self.call_outbox(mark, |result| RelayReport::Marked(sent, result));
        }
        if !self.is_parking
            && let Some(row) = self.refused.pop_front()
        {
            self.is_parking = true;
            let (outbox, refused) = (Arc::clone(&self.outbox), row.clone());
            self.call_outbox(async move { outbox.park(&refused).await }, |result| RelayReport::Parked(row, result));
        }
        if !self.is_setting_aside && !self.aside.is_empty() {
            self.is_setting_aside = true;
            let rows: Vec<EventRow> = self.aside.iter().copied().take(MAX_MARKED).collect();
            let (outbox, aside) = (Arc::clone(&self.outbox), rows.clone());
            let set_aside = async move { outbox.set_aside(&aside).await };
            self.call_outbox(set_aside, |result| RelayReport::SetAside(rows, result));
        }
    }

    pub(super) fn take_marked(&mut self, sent: Vec<SentRow>, result: Result<MarkedRows>) {
        self.is_marking = false;
        let MarkedRows { locked, is_rewound, .. } = match result {
            Ok(marked) => marked,
            Err(error) => {
                self.unmarked.extend(sent);
                return self.postpone_writes(error);
            }
        };
        if !locked.is_empty() {
            self.locked_due = self.runtime.boottime_now() + FAILURE_PAUSE;
        }
        for row in sent {
            let bucket = self.buckets.get_mut(&row.bucket).filter(|bucket| bucket.ownership == row.ownership);
            if locked.contains(&row.row) {
                self.locked.push(row);
            } else if let Some(bucket) = bucket {
                bucket.rows.mark(row.row.id);
                if is_rewound {
                    // The row is open, and published once more.
                    bucket.rows.restart();
                }
            }
        }
        if is_rewound {
            self.reading.hurry();
        }
    }

    pub(super) fn take_parked(&mut self, row: ParkedRow, result: Result<bool>) {
        self.is_parking = false;
        if let Some(bucket) = self.buckets.get_mut(&row.bucket)
            && let Ok(is_parked) = &result
        {
            bucket.rows.confirm_parked(&row.key);
            if !is_parked {
                // Its other rows were passed meanwhile.
                bucket.rows.restart();
            }
        }
        match result {
            // Another relay has published the row, or an operator dropped it.
            Ok(false) => self.reading.hurry(),
            Ok(true) => telemetry::key_parked(self.sink.name(), &row),
            Err(error) => {
                self.refused.push_back(row);
                self.postpone_writes(error);
            }
        }
    }

    pub(super) fn take_set_aside(&mut self, rows: Vec<EventRow>, result: Result<()>) {
        self.is_setting_aside = false;
        match result {
            Ok(()) => {
                for row in &rows {
                    self.aside.remove(row);
                }
            }
            Err(error) => self.postpone_writes(error),
        }
    }

    fn postpone_writes(&mut self, error: Error) {
        self.note_failure(error);
        self.writes_due = self.runtime.boottime_now() + FAILURE_PAUSE;
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
