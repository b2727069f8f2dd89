//! Every event and metric of this crate. A message can be read alone; values are fields; a record key shows its first 8 digits.
//!
//! Metrics go through the `metrics` facade: without a recorder they cost next to nothing. A gate's own are those of the recorder that is
//! installed when it is built.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::error::{BoxError, Error};
use crate::key::RecordKey;
use crate::machine::Grant;
use crate::record::Record;

/// Names of metrics, with their labels.
///
/// ```
/// use hapax_core::telemetry::names;
///
/// // For the alert that wants a person: an answer is lost.
/// let alert = format!("increase({}[5m]) > 0", names::UNRECORDED);
/// assert_eq!(alert, "increase(hapax_unrecorded_total[5m]) > 0");
/// ```
pub mod names {
    /// Calls by how they ended: label `outcome`.
    pub const CALLS: &str = "hapax_calls_total";
    /// Copies that did not run a second time: label `layer`, here always `gate`.
    pub const CAUGHT: &str = "hapax_caught_total";
    /// Seconds until the store had decided a begin.
    pub const BEGIN_SECONDS: &str = "hapax_begin_seconds";
    /// Seconds that handlers ran.
    pub const HANDLER_SECONDS: &str = "hapax_handler_seconds";
    /// Seconds until the store had a completion.
    pub const COMPLETE_SECONDS: &str = "hapax_complete_seconds";
    /// Attempts that run now.
    pub const IN_FLIGHT: &str = "hapax_in_flight";
    /// Copies that wait for one of them.
    pub const TWINS: &str = "hapax_twins";
    /// Grants after a lapse.
    pub const TAKEOVERS: &str = "hapax_takeovers_total";
    /// Grants that were lost while their handler ran.
    pub const GRANTS_LOST: &str = "hapax_grants_lost_total";
    /// Attempts that had an effect although another one's answer stands, or may stand.
    pub const DIVERGENT: &str = "hapax_divergent_total";
    /// Records that the store had forgotten while their attempt ran, and times that a store was found to have lost its records.
    pub const AMNESIA: &str = "hapax_amnesia_total";
    /// Answers recorded although the store had forgotten their record.
    pub const RECREATED: &str = "hapax_recreated_total";
    /// Handlers that ran without a record while the store was down.
    pub const UNPROTECTED: &str = "hapax_unprotected_total";
    /// Answers in the journal that the store does not have yet.
    pub const SPILL_DEPTH: &str = "hapax_spill_depth";
    /// Answers that could be neither recorded nor kept.
    pub const UNRECORDED: &str = "hapax_unrecorded_total";
    /// Seconds that the heartbeat's last look came late.
    pub const HEARTBEAT_LATE_SECONDS: &str = "hapax_heartbeat_late_seconds";
    /// 1 while begins are refused because the store does not answer.
    pub const BREAKER_OPEN: &str = "hapax_breaker_open";
}

/// What nearly every call counts, looked up once.
pub(crate) struct Meters {
    fresh: Counter,
    begun: Histogram,
    handled: Histogram,
    completed: Histogram,
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            fresh: counter!(names::CALLS, "outcome" => FRESH),
            begun: histogram!(names::BEGIN_SECONDS),
            handled: histogram!(names::HANDLER_SECONDS),
            completed: histogram!(names::COMPLETE_SECONDS),
        }
    }

    pub(crate) fn call_ended(&self, outcome: &'static str, caught: bool) {
        match outcome {
            FRESH => self.fresh.increment(1),
            // Literals: a label that is made anew allocates.
            "replayed" => counter!(names::CALLS, "outcome" => "replayed").increment(1),
            "busy" => counter!(names::CALLS, "outcome" => "busy").increment(1),
            other => counter!(names::CALLS, "outcome" => other).increment(1),
        }
        if caught {
            counter!(names::CAUGHT, "layer" => "gate").increment(1);
        }
    }

    pub(crate) fn begun(&self, took: Duration) {
        self.begun.record(took);
    }

    pub(crate) fn handled(&self, took: Duration) {
        self.handled.record(took);
    }

    pub(crate) fn completed(&self, took: Duration) {
        self.completed.record(took);
    }
}

const FRESH: &str = "fresh";

pub(crate) fn in_flight() -> Gauge {
    gauge!(names::IN_FLIGHT)
}

pub(crate) fn follower_joined() {
    gauge!(names::TWINS).increment(1);
}

pub(crate) fn follower_left() {
    gauge!(names::TWINS).decrement(1);
}

pub(crate) fn taken_over(grant: &Grant) {
    counter!(names::TAKEOVERS).increment(1);
    tracing::warn!(rk = ?grant.rk, attempt = grant.attempt, "an earlier attempt lapsed; the handler runs again");
}

pub(crate) fn grant_lost(grant: &Grant) {
    counter!(names::GRANTS_LOST).increment(1);
    tracing::warn!(rk = ?grant.rk, token = grant.token.0, "a grant was lost while its handler ran");
}

pub(crate) fn ran_too_long(grant: &Grant) {
    tracing::warn!(rk = ?grant.rk, "a handler ran for longer than max_execution; its lease is no longer renewed");
}

pub(crate) fn renewal_failed(grant: &Grant, error: Option<&Error>) {
    tracing::warn!(rk = ?grant.rk, error = error.map(tracing::field::debug), "a renewal was not confirmed");
}

pub(crate) fn forgotten(grant: &Grant) {
    counter!(names::AMNESIA).increment(1);
    tracing::error!(rk = ?grant.rk, "the store has forgotten a record that is in progress");
}

/// For stores: the whole store is not the one that was known; what it held is gone, or part of it.
///
/// ```
/// # let (known, found) = (7, 7);
/// if known != found {
///     hapax_core::telemetry::store_forgot();
/// }
/// ```
pub fn store_forgot() {
    counter!(names::AMNESIA).increment(1);
    tracing::error!("the store has lost records; what was done under them may be done again unless a ledger knows it");
}

pub(crate) fn heartbeat_late(late: Duration) {
    gauge!(names::HEARTBEAT_LATE_SECONDS).set(late.as_secs_f64());
}

pub(crate) fn divergent(rk: RecordKey, token: u64, other: &Record) {
    counter!(names::DIVERGENT).increment(1);
    tracing::error!(
        ?rk,
        token,
        other = other.token.0,
        "an attempt had an effect although another one's outcome stands"
    );
}

pub(crate) fn recreated(rk: RecordKey) {
    counter!(names::RECREATED).increment(1);
    tracing::error!(?rk, "the store had forgotten a record; its answer is recorded anew");
}

pub(crate) fn completion_retried(rk: RecordKey, error: &Error) {
    tracing::warn!(?rk, ?error, "an answer is not recorded yet; trying again");
}

pub(crate) fn spilled(rk: RecordKey, cause: &Error) {
    tracing::error!(?rk, ?cause, "an answer could not be recorded; it is kept in the journal");
}

pub(crate) fn unrecorded(rk: RecordKey, cause: &Error, journal: &Error) {
    counter!(names::UNRECORDED).increment(1);
    tracing::error!(?rk, ?cause, ?journal, "an answer could be neither recorded nor kept");
}

pub(crate) fn spill_depth(depth: usize) {
    // Exact up to 2^52 entries.
    #[expect(clippy::cast_precision_loss, reason = "a journal holds fewer than 2^52 entries")]
    gauge!(names::SPILL_DEPTH).set(depth as f64);
}

pub(crate) fn drained(rk: RecordKey) {
    tracing::info!(?rk, "an answer from the journal is recorded");
}

pub(crate) fn drained_in_vain(rk: RecordKey, why: &str) {
    tracing::error!(?rk, why, "an answer from the journal is not recorded");
}

pub(crate) fn journal_trouble(error: &Error) {
    tracing::error!(?error, "the journal of unrecorded answers cannot be used");
}

pub(crate) fn not_given_back(rk: RecordKey, error: &Error) {
    tracing::error!(?rk, ?error, "a grant could not be given back");
}

pub(crate) fn unprotected(rk: RecordKey, error: &Error) {
    counter!(names::UNPROTECTED).increment(1);
    tracing::error!(?rk, ?error, "the store is down; a handler runs without a record");
}

pub(crate) fn probe_failed(rk: RecordKey, error: Option<BoxError>) {
    tracing::warn!(?rk, error = error.as_ref().map(tracing::field::display), "a probe did not find out");
}

pub(crate) fn breaker_opened() {
    gauge!(names::BREAKER_OPEN).set(1.0);
    tracing::error!("the store does not answer; begins are refused at once, but for one a second");
}

pub(crate) fn breaker_closed() {
    gauge!(names::BREAKER_OPEN).set(0.0);
    tracing::info!("the store answers again");
}
