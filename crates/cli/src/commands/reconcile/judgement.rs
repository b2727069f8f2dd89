//! What the ledger and the processor say about a record.

use std::time::Duration;

use hapax::ledger::{CommittedRow, LedgerVerdict};
use hapax::store::{RecordStatus, Scanned};
use hapax::{Completion, RecordKey, Rule, State, StoredAnswer};

use super::discrepancy::{Discrepancy, DiscrepancyKind, DiscrepancySubject};
use super::probe::Effect;
use crate::store::checks::TRIAL_RETENTION;

/// Only the record that ties a namespace to its secret lives longer.
const LONGEST_RETENTION: Duration = Duration::from_secs(2 * 366 * 24 * 3600);

/// What the ledger says about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Fits,
    /// The outcome in the record is unknown, and the ledger has it.
    Committed(LedgerOutcome),
    OtherPayload {
        namespace: String,
    },
    Unknown,
    NoRow,
}

/// The outcome in a row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LedgerOutcome {
    pub(super) namespace: String,
    pub(super) verdict: LedgerVerdict,
}

/// Whether a gateway made the record for itself: the one that ties a namespace to its secret, or the trial record of a
/// start, which lives for a minute. Both are completed without an answer, which no response is.
pub(super) fn is_of_a_gateway(found: &Scanned) -> bool {
    let has_no_answer = matches!(&found.record.state, State::Completed(completion) if completion.answer.is_empty());
    let trial = Duration::from(TRIAL_RETENTION);
    has_no_answer && (found.life_left <= trial || found.life_left > LONGEST_RETENTION)
}

/// What the rows of its operations say about a record.
pub(super) fn judge(found: &Scanned, rows: &[&CommittedRow]) -> Judgement {
    let own = found.rk.operation();
    let recorded = found.record.fingerprint;
    // A worker fingerprints the message, not the request.
    let is_other = |row: &&&CommittedRow| {
        let is_comparable =
            row.operation == own && row.fingerprint.rule() == recorded.rule() && recorded.rule() != Rule(0);
        is_comparable && row.fingerprint != recorded
    };
    let needs_row = match found.status {
        RecordStatus::Running | RecordStatus::Released | RecordStatus::Dead => return Judgement::Fits,
        RecordStatus::Completed if is_final_refusal(&found.record.state) => return Judgement::Fits,
        RecordStatus::Completed => true,
        RecordStatus::Lapsed | RecordStatus::Indeterminate => false,
    };
    match (rows.iter().find(|row| !is_other(row)), rows.first()) {
        (Some(_), _) if needs_row => Judgement::Fits,
        (Some(row), _) => {
            Judgement::Committed(LedgerOutcome { namespace: row.namespace.clone(), verdict: row.verdict })
        }
        (None, Some(row)) => Judgement::OtherPayload { namespace: row.namespace.clone() },
        (None, None) if needs_row => Judgement::NoRow,
        (None, None) => Judgement::Unknown,
    }
}

/// Whether the recorded answer may be a response with a status that says that nothing was applied. Its stored form
/// begins with 1 and the status. It may be one if it lies in a bucket.
pub(super) fn is_final_refusal(state: &State) -> bool {
    match state {
        // Its status is not at hand, and nothing is claimed that is not known.
        State::Completed(Completion { form: StoredAnswer::Pointer, .. }) => true,
        State::Completed(Completion { form: StoredAnswer::Whole, answer, .. }) => match answer[..] {
            [1, high, low, ..] => (400..500).contains(&u16::from_be_bytes([high, low])),
            [..] => false,
        },
        State::Open(..) => false,
    }
}

fn state_of(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Lapsed => "the lease has expired without an outcome",
        RecordStatus::Indeterminate => "the outcome is held as unknown",
        RecordStatus::Completed => "the answer is recorded",
        RecordStatus::Running | RecordStatus::Released | RecordStatus::Dead => "the record is in another state",
    }
}

/// The ledger has the outcome, and the record does not.
pub(super) fn committed(found: &Scanned, outcome: &LedgerOutcome, is_repaired: bool) -> Discrepancy {
    let (state, namespace) = (state_of(found.status), &outcome.namespace);
    let (kind, message) = match outcome.verdict {
        LedgerVerdict::Applied => {
            (DiscrepancyKind::EffectCommitted, format!("{state}, and the ledger {namespace} has its effect"))
        }
        LedgerVerdict::Rejected => {
            (DiscrepancyKind::RefusalCommitted, format!("{state}, and the ledger {namespace} has refused it"))
        }
    };
    let advice = "run this command with --fix; the next retry then gets the answer of the ledger".into();
    Discrepancy { kind, subject: DiscrepancySubject::Record(found.rk), message, advice, is_repaired }
}

/// The ledger does not have the outcome. `effect` is what the processor says.
pub(super) fn undecided(found: &Scanned, judgement: &Judgement, effect: Effect) -> Discrepancy {
    let (state, rk, token) = (state_of(found.status), found.rk, found.record.token.0);
    let resolve = format!(
        "if no attempt can still apply it, `hapax keys resolve {rk} --token {token} --not-done` lets the next retry run"
    );
    let (kind, message, advice) = match (judgement, effect) {
        (Judgement::NoRow, _) => (
            DiscrepancyKind::NoLedgerRow,
            format!("{state}, and no ledger has a row for it"),
            "if the route uses the ledger, the database has lost a commit, or the answer was not the handler's: look \
             at the effect by hand; behind a worker, name its --worker-namespace; without a ledger, add --no-ledger",
        ),
        (_, Effect::Done) => (
            DiscrepancyKind::EffectWithoutRecord,
            format!("{state}, and the processor says that the effect happened"),
            "record the answer: the client must not send it under another key",
        ),
        (Judgement::OtherPayload { namespace }, _) => (
            DiscrepancyKind::PayloadDiffers,
            format!("{state}, and the ledger {namespace} has the outcome of another payload"),
            "the record was lost and its key used again for another request: look at both by hand",
        ),
        (_, Effect::NotDone) => (
            DiscrepancyKind::OutcomeUnknown,
            format!("{state}, and the processor says that it was not applied"),
            &*resolve,
        ),
        (_, Effect::Unknown) => (
            DiscrepancyKind::OutcomeUnknown,
            format!("{state}, and no ledger has a row for it"),
            "if a worker books it, name its --worker-namespace; otherwise nothing was applied if the route uses the \
             ledger; without a ledger look at the effect by hand, or name its processor with --probe",
        ),
    };
    let subject = DiscrepancySubject::Record(rk);
    Discrepancy { kind, subject, message, advice: advice.into(), is_repaired: false }
}

/// The processor does not have the effect of a completed record.
pub(super) fn record_without_effect(rk: RecordKey) -> Discrepancy {
    Discrepancy {
        kind: DiscrepancyKind::RecordWithoutEffect,
        subject: DiscrepancySubject::Record(rk),
        message: "the answer is recorded, and the processor says that the effect did not happen".into(),
        advice: "compare both by hand: the client was told that it happened".into(),
        is_repaired: false,
    }
}

pub(super) fn damaged(rk: RecordKey) -> Discrepancy {
    Discrepancy {
        kind: DiscrepancyKind::RecordDamaged,
        subject: DiscrepancySubject::Record(rk),
        message: "the record cannot be read: it was altered, or another release wrote it".into(),
        advice: "find out who writes to the store; the key stays closed until the record is restored or removed".into(),
        is_repaired: false,
    }
}
