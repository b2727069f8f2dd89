//! The events and metrics of the worker.

use std::time::Duration;

use metrics::{counter, gauge};

use super::{AUDIT, STUB, WITHOUT_HEADERS, names};
use crate::broker::{DeadLetter, DeadReason, DeliveryId, Lane, Verdict};
use crate::chaos::Mutant;
use crate::error::Error;

/// How an attempt ended, as the metric of attempts names it.
const ENDS: [&str; 7] = ["done", "caught", "busy", "retry", "dead", "pause", "panic"];

/// Registers the counters with zero, because an alert on an increase needs a sample before it.
pub(crate) fn worker_starts(source: &str) {
    for end in ENDS {
        counter!(names::WORKER_ATTEMPTS, "verdict" => end).increment(0);
    }
    for reason in DeadReason::ALL {
        counter!(names::WORKER_DEAD, "source" => source.to_owned(), "reason" => reason.as_str()).increment(0);
    }
    for form in [WITHOUT_HEADERS, STUB] {
        counter!(names::WORKER_DEAD_SHORTENED, "form" => form).increment(0);
    }
    gauge!(names::WORKER_PARKED, "source" => source.to_owned()).set(0);
    tracing::info!(source, "the worker starts");
}

pub(crate) fn worker_stops(source: &str, held: usize, error: Option<&Error>) {
    match error {
        None => tracing::info!(source, held, "the worker takes no more messages and finishes what runs"),
        Some(error) => tracing::error!(source, held, ?error, "the source cannot be used; the worker stops"),
    }
}

pub(crate) fn worker_ends(source: &str, unfinished: usize) {
    match unfinished {
        0 => tracing::info!(source, "the worker has ended"),
        _ => tracing::warn!(source, unfinished, "the worker has ended before all messages; they arrive again"),
    }
}

pub(crate) fn source_failed(source: &str, error: &Error) {
    tracing::warn!(source, ?error, "the source failed; the worker asks it again");
}

pub(crate) fn lanes_revoked(source: &str, lanes: &[Lane]) {
    tracing::info!(source, ?lanes, "lanes are taken away; what runs is finished first");
}

pub(crate) fn lanes_lost(source: &str, lanes: &[Lane]) {
    tracing::warn!(source, ?lanes, "lanes belong to another worker; nothing of them is acknowledged");
}

pub(crate) fn batch_panicked(source: &str, jobs: usize) {
    tracing::error!(source, jobs, "a batch panicked or gave too few verdicts; its messages run again, one by one");
}

pub(crate) fn worker_pauses(source: &str, after: Duration) {
    tracing::warn!(source, ?after, "messages cannot be processed now; the worker pauses");
}

pub(crate) fn settlement_failed(source: &str, error: &Error) {
    tracing::warn!(source, ?error, "the broker did not confirm an acknowledgement; the worker repeats it");
}

pub(crate) fn settlement_forgotten(delivery: &DeliveryId) {
    tracing::warn!(?delivery, "the broker confirms no acknowledgement; it delivers the message again");
}

pub(crate) fn extension_failed(delivery: &DeliveryId, error: Option<&Error>) {
    let error = error.map(tracing::field::debug);
    tracing::warn!(?delivery, error, "the broker did not confirm that a delivery is still being processed");
}

pub(crate) fn extended_too_long(delivery: &DeliveryId) {
    tracing::warn!(?delivery, "the broker keeps a delivery no longer, and delivers the message again");
}

pub(crate) fn redrive_lapsed(source: &str) {
    tracing::warn!(
        source,
        "a letter waited beyond its lease and does not run here; if it is still marked, it is taken again"
    );
}

pub(crate) fn redrive_failed(source: &str, error: &Error) {
    let error = tracing::field::debug(error);
    tracing::warn!(source, error, "the dead letters cannot be read; those that were marked for a redrive wait");
}

pub(crate) fn reopen_failed(source: &str, error: &Error) {
    let error = tracing::field::debug(error);
    tracing::warn!(source, error, "the record of a dead letter cannot be opened; the letter waits for its redrive");
}

pub(crate) fn redrive_needs_word(source: &str) {
    tracing::warn!(
        source,
        "the outcome of a redriven message is unknown, and it was not run again; find out, and redrive its letter with \
         --not-done or --done"
    );
}

/// `keys` is the number of ordering keys that have dead letters and messages that wait.
pub(crate) fn parked(source: &str, keys: Option<usize>) {
    if let Some(keys) = keys {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        gauge!(names::WORKER_PARKED, "source" => source.to_owned()).set(keys);
    }
}

pub(crate) fn parked_unknown(source: &str, error: &Error) {
    let error = tracing::field::debug(error);
    tracing::warn!(source, error, "the dead letters cannot be read; messages with an ordering key wait");
}

/// Reports a dead letter that is written, with the last error of its message.
pub(crate) fn buried(letter: &DeadLetter) {
    let DeadLetter { id, attempts, source, .. } = letter;
    let (source, reason) = (&**source, letter.reason.as_str());
    let operation = letter.operation.map(tracing::field::display);
    let error = letter.cause.as_ref().map(tracing::field::display);
    counter!(names::WORKER_DEAD, "source" => source.to_owned(), "reason" => reason).increment(1);
    let message = "a message became a dead letter; see `hapax dead show`";
    tracing::warn!(target: AUDIT, source, letter = %id, operation, reason, attempts, error, "{message}");
}

pub(crate) fn burial_failed(source: &str, error: &Error) {
    tracing::error!(source, ?error, "a dead letter cannot be written; its message is not acknowledged");
}

/// Counts an attempt to process a message. None if it panicked.
pub(crate) fn job_ended(verdict: Option<&Verdict>) {
    let end = match verdict {
        Some(Verdict::Done { caught: false }) => 0,
        Some(Verdict::Done { caught: true }) => 1,
        Some(Verdict::Busy { .. }) => 2,
        Some(Verdict::Retry { .. }) => 3,
        Some(Verdict::DeadLetter { .. }) => 4,
        Some(Verdict::Pause { .. }) => 5,
        None => 6,
    };
    counter!(names::WORKER_ATTEMPTS, "verdict" => ENDS[end]).increment(1);
}

pub(crate) fn worker_lag(source: &str, lag: Option<u64>) {
    let lag = if Mutant::UnknownLagIsZero.is_on() { lag.or(Some(0)) } else { lag };
    let Some(lag) = lag else { return };
    #[expect(clippy::cast_precision_loss, reason = "a broker has fewer than 2^52 messages")]
    gauge!(names::WORKER_LAG, "source" => source.to_owned()).set(lag as f64);
}

pub(crate) fn worker_load(source: &str, running: usize, oldest: Duration) {
    #[expect(clippy::cast_precision_loss, reason = "a worker holds fewer than 2^52 messages")]
    gauge!(names::WORKER_IN_FLIGHT, "source" => source.to_owned()).set(running as f64);
    gauge!(names::WORKER_OLDEST_SECONDS, "source" => source.to_owned()).set(oldest.as_secs_f64());
}

pub(crate) fn longest_running(source: &str, length: Duration) {
    gauge!(names::WORKER_RUNNING_SECONDS, "source" => source.to_owned()).set(length.as_secs_f64());
}

pub(crate) fn runs_long(source: &str, delivery: &DeliveryId, length: Duration) {
    let (topic, partition, number) = (&*delivery.lane.topic, delivery.lane.partition, delivery.number);
    tracing::warn!(
        source,
        topic,
        partition,
        number,
        running_seconds = length.as_secs(),
        "the handler of a batch has not returned; the worker waits for it, and later messages of its ordering keys \
         wait, too"
    );
}
