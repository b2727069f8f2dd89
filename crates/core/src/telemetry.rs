//! Every event and metric of this crate. Each message can be read alone; values are fields; a record key is shown by
//! its first 8 digits.
//!
//! Metrics go through the `metrics` facade: without a recorder they cost next to nothing. A gate looks up its most used
//! metrics when it is built, so the recorder must be installed before that.

mod letters;
pub mod names;
#[cfg(feature = "relay")]
mod relay;
mod spans;
#[cfg(feature = "worker")]
mod worker;

use std::error::Error as StdError;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::error::{BoxError, Error};
use crate::gate::{Provenance, Reason, Refused, RunResult};
use crate::key::{OperationId, RecordKey};
use crate::ledger::{Fault, Terms};
use crate::machine::Grant;
use crate::record::Record;
pub(crate) use letters::*;
#[cfg(feature = "relay")]
pub use relay::register_relay;
#[cfg(feature = "relay")]
pub(crate) use relay::*;
pub use spans::SPANS;
pub(crate) use spans::{begin_span, complete_span, handler_span};
#[cfg(feature = "worker")]
pub(crate) use worker::*;

/// The target of the events that name one operation and may be its last trace: its effect may be lost, doubled or
/// without a record. A limit on repeated lines must not leave them out.
pub const AUDIT: &str = "hapax::audit";

/// The metrics of nearly every call, looked up once.
pub(crate) struct Meters {
    fresh: Counter,
    begun: Histogram,
    handled: Histogram,
    completed: Histogram,
}

impl Meters {
    pub(crate) fn new() -> Self {
        register_gate();
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
            // Literals for the frequent outcomes: a label that is not a literal allocates.
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

/// The outcomes of calls that returned an answer. [`Reason::ALL`] has the others.
const ANSWERED: [&str; 3] = [FRESH, "replayed", "canonical"];

/// Registers the counters of a gate with 0, because an alert on an increase needs a sample before it. A gate does so
/// when it is built. A process whose checks count before that calls it earlier.
pub fn register_gate() {
    for outcome in ANSWERED.into_iter().chain(Reason::ALL.map(Reason::as_str)) {
        counter!(names::CALLS, "outcome" => outcome).increment(0);
    }
    counter!(names::CAUGHT, "layer" => "gate").increment(0);
    let counters = [names::TAKEOVERS, names::GRANTS_LOST, names::DIVERGENT, names::AMNESIA, names::RECREATED];
    for name in counters.into_iter().chain([names::UNPROTECTED, names::UNRECORDED, names::DAMAGED]) {
        counter!(name).increment(0);
    }
}

pub(crate) fn in_flight() -> Gauge {
    gauge!(names::IN_FLIGHT)
}

pub(crate) fn follower_joined() {
    gauge!(names::FOLLOWERS).increment(1);
}

pub(crate) fn follower_left() {
    gauge!(names::FOLLOWERS).decrement(1);
}

pub(crate) fn attempt_begins(grant: &Grant) {
    let Grant { rk, token, attempt, .. } = grant;
    // The operation is computed only if the line is logged.
    tracing::debug!(?rk, operation = %rk.operation(), token = token.0, attempt, "an attempt begins");
}

pub(crate) fn taken_over(grant: &Grant) {
    let (rk, operation) = (grant.rk, grant.rk.operation());
    counter!(names::TAKEOVERS).increment(1);
    let attempt = grant.attempt;
    tracing::warn!(?rk, %operation, attempt, "the lease of an earlier attempt expired; the handler runs again");
}

pub(crate) fn grant_lost(grant: &Grant) {
    let (rk, operation) = (grant.rk, grant.rk.operation());
    counter!(names::GRANTS_LOST).increment(1);
    let token = grant.token.0;
    tracing::warn!(?rk, %operation, token, "the grant was lost while its handler ran; the handler is cancelled");
}

pub(crate) fn ran_too_long(grant: &Grant) {
    let (rk, operation) = (grant.rk, grant.rk.operation());
    tracing::warn!(?rk, %operation, "the handler exceeded max_execution; its lease is no longer renewed");
}

pub(crate) fn renewal_failed(grant: &Grant, error: Option<&Error>) {
    let (rk, operation) = (grant.rk, grant.rk.operation());
    let error = error.map(tracing::field::debug);
    tracing::warn!(?rk, %operation, error, "the store did not confirm the renewal of a lease");
}

pub(crate) fn forgotten(grant: &Grant) {
    let (rk, operation) = (grant.rk, grant.rk.operation());
    counter!(names::AMNESIA).increment(1);
    tracing::error!(target: AUDIT, ?rk, %operation, "the store lost the record of a running attempt");
}

/// Reports that a store has lost all records or some of them. For stores that can detect it.
pub fn store_forgot() {
    counter!(names::AMNESIA).increment(1);
    tracing::error!("the store lost records; their operations may run again, unless a ledger catches them");
}

pub(crate) fn heartbeat_late(late: Duration) {
    gauge!(names::HEARTBEAT_LATE_SECONDS).set(late.as_secs_f64());
}

pub(crate) fn divergent(rk: RecordKey, token: u64, other: &Record) {
    let operation = rk.operation();
    counter!(names::DIVERGENT).increment(1);
    let other = other.token.0;
    let message = "an attempt had an effect, but the record belongs to another attempt";
    tracing::error!(target: AUDIT, ?rk, %operation, token, other, "{message}");
}

pub(crate) fn recreated(rk: RecordKey) {
    let operation = rk.operation();
    counter!(names::RECREATED).increment(1);
    tracing::error!(target: AUDIT, ?rk, %operation, "the store had lost a record; the completion recreated it");
}

pub(crate) fn completion_retried(rk: RecordKey, error: &Error) {
    let operation = rk.operation();
    tracing::warn!(?rk, %operation, ?error, "the store did not confirm a completion; retrying");
}

pub(crate) fn spilled(rk: RecordKey, cause: &Error) {
    let operation = rk.operation();
    let message = "the store did not confirm an answer; the journal keeps it and the gate retries";
    tracing::error!(?rk, %operation, ?cause, "{message}");
}

pub(crate) fn unrecorded(rk: RecordKey, cause: &Error, journal: &Error) {
    let operation = rk.operation();
    counter!(names::UNRECORDED).increment(1);
    let message = "an answer is lost: neither the store nor the journal took it";
    tracing::error!(target: AUDIT, ?rk, %operation, ?cause, ?journal, "{message}");
}

pub(crate) fn spill_depth(depth: usize) {
    // Exact up to 2^52 entries.
    #[expect(clippy::cast_precision_loss, reason = "a journal holds fewer than 2^52 entries")]
    gauge!(names::SPILL_DEPTH).set(depth as f64);
}

pub(crate) fn journal_foreign(answers: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a journal holds fewer than 2^52 entries")]
    gauge!(names::JOURNAL_FOREIGN).set(answers as f64);
}

pub(crate) fn spill_oldest(age: Duration) {
    gauge!(names::SPILL_OLDEST_SECONDS).set(age.as_secs_f64());
}

pub(crate) fn damaged() {
    counter!(names::DAMAGED).increment(1);
}

pub(crate) fn drained(rk: RecordKey) {
    let operation = rk.operation();
    tracing::info!(?rk, %operation, "the store has recorded an answer from the journal");
}

pub(crate) fn spilled_answer_discarded(rk: RecordKey, why: &str) {
    let operation = rk.operation();
    tracing::error!(target: AUDIT, ?rk, %operation, why, "an answer from the journal is discarded");
}

pub(crate) fn journal_trouble(error: &Error) {
    tracing::error!(?error, "the journal of unrecorded answers failed; check its directory and disk");
}

pub(crate) fn not_given_back(rk: RecordKey, error: &Error) {
    let operation = rk.operation();
    tracing::error!(
        ?rk,
        %operation,
        ?error,
        "the store did not confirm a release, abandonment or cancellation; the lease will expire"
    );
}

pub(crate) fn unprotected(rk: RecordKey, error: &Error) {
    let operation = rk.operation();
    counter!(names::UNPROTECTED).increment(1);
    tracing::error!(target: AUDIT, ?rk, %operation, ?error, "the store is down; a handler runs without a record");
}

pub(crate) fn ledger_caught<A>(result: &Result<RunResult<A>, Refused<A>>) {
    let is_caught = match result {
        Ok(result) => result.provenance == Provenance::Replayed,
        Err(refused) => refused.reason.is_caught(),
    };
    if is_caught {
        ledger_caught_copy();
    }
}

/// A copy that a claim in a transaction of the caller's own has caught.
pub(crate) fn ledger_caught_copy() {
    counter!(names::CAUGHT, "layer" => "ledger").increment(1);
}

/// Reports a ledger that a process opens, with the time for which its rows are kept. For adapters.
pub fn ledger_opened(terms: &Terms) {
    let (namespace, retention) = (terms.namespace(), terms.kept_for());
    // An alert on an increase needs the 0 before it.
    counter!(names::CAUGHT, "layer" => "ledger").increment(0);
    counter!(names::UNFINISHED).increment(0);
    tracing::info!(%namespace, %retention, "a ledger is open; a copy that comes after the retention runs again");
}

/// Reports a sweep of a ledger. For adapters.
pub fn ledger_swept(terms: &Terms, removed: u64) {
    let namespace = terms.namespace();
    tracing::debug!(%namespace, removed, "a sweep has removed the rows of a ledger that are past its retention");
}

/// Reports a sweep of a ledger that failed. For adapters.
pub fn ledger_sweep_failed(terms: &Terms, error: &Error) {
    let namespace = terms.namespace();
    tracing::warn!(%namespace, %error, "cannot remove old rows of a ledger; the next sweep tries again");
}

/// Notes the size of the tables that have the open claims of ledgers. For adapters.
pub fn ledger_claims_size(bytes: u64) {
    #[expect(clippy::cast_precision_loss, reason = "a size is shown rounded")]
    gauge!(names::LEDGER_CLAIMS_BYTES).set(bytes as f64);
}

/// Reports that a server has lost a prepared statement of a ledger, which sends its statements unnamed from now on. For
/// adapters.
pub fn ledger_statement_lost(error: &(dyn StdError + 'static)) {
    let error = tracing::field::display(error);
    tracing::warn!(error, "a prepared statement of the ledger is lost; its statements are sent unnamed from now on");
}

/// Reports that a ledger, or what its handler uses, is missing in the database. Every call fails until it is there.
pub(crate) fn tables_unusable(error: &(dyn StdError + 'static)) {
    let error = tracing::field::display(error);
    tracing::error!(error, "a table, a column or a right is missing; nothing is applied until it is there");
}

pub(crate) fn attempt_not_counted(operation: OperationId, fault: &Fault) {
    let Fault { kind, source } = fault;
    tracing::error!(%operation, %kind, error = %source, "a failed attempt was not counted; the operation runs again");
}

pub(crate) fn entry_dropped(operation: OperationId) {
    counter!(names::UNFINISHED).increment(1);
    tracing::error!(%operation, "a claimed entry was dropped without `finish`; its transaction cannot commit");
}

pub(crate) fn probe_failed(rk: RecordKey, error: Option<BoxError>) {
    let operation = rk.operation();
    tracing::warn!(
        ?rk,
        %operation,
        error = error.as_ref().map(tracing::field::display),
        "a probe failed or timed out; the outcome stays unknown"
    );
}

pub(crate) fn breaker_opened() {
    gauge!(names::BREAKER_OPEN).set(1.0);
    tracing::error!("the store does not answer; begins are refused at once, except for one a second");
}

pub(crate) fn breaker_closed() {
    gauge!(names::BREAKER_OPEN).set(0.0);
    tracing::info!("the store answers again");
}
