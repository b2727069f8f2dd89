//! What the result of a call means for its message, row by row.

use std::time::Duration;

use hapax_core::broker::{DeadReason, Verdict};
use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::LedgerVerdict;
use hapax_core::ledger::verdicts::{CallEnd, verdict};
use hapax_core::{ErrorKind, Timestamp};

fn applied(provenance: Provenance) -> CallEnd {
    CallEnd::Answered(provenance, LedgerVerdict::Applied)
}

fn refused(reason: Reason) -> Verdict {
    verdict(CallEnd::Refused(reason), None)
}

fn dead(reason: DeadReason, attempts: u32) -> Verdict {
    Verdict::dead(reason, attempts)
}

#[test]
fn v1_an_effect_of_this_run_is_done() {
    assert_eq!(verdict(applied(Provenance::Fresh), None), Verdict::Done { caught: false });
    assert_eq!(verdict(applied(Provenance::Canonical), None), Verdict::Done { caught: false });
}

#[test]
fn v2_an_effect_of_an_earlier_run_is_caught() {
    assert_eq!(verdict(applied(Provenance::Replayed), None), Verdict::Done { caught: true });
}

#[test]
fn v3_a_final_answer_is_a_dead_letter_when_it_is_given_and_when_it_is_replayed() {
    for provenance in [Provenance::Fresh, Provenance::Replayed] {
        let end = CallEnd::Answered(provenance, LedgerVerdict::Rejected);
        assert_eq!(verdict(end, None), dead(DeadReason::Rejected, 0));
    }
}

#[test]
fn v4_a_busy_operation_is_tried_later() {
    let after = Duration::from_secs(3);
    assert_eq!(refused(Reason::Busy { retry_after: after }), Verdict::Busy { after });
}

#[test]
fn v5_another_payload_is_a_dead_letter() {
    assert_eq!(refused(Reason::Mismatch), dead(DeadReason::KeyReused, 0));
}

#[test]
fn v6_a_closed_operation_is_a_dead_letter() {
    assert_eq!(refused(Reason::Dead), dead(DeadReason::AttemptsExhausted, 0));
    assert_eq!(verdict(CallEnd::Refused(Reason::Dead), Some(8)), dead(DeadReason::AttemptsExhausted, 8));
}

#[test]
fn v7_a_counted_failure_is_tried_again_after_its_backoff() {
    let failed = CallEnd::Refused(Reason::NotApplied { unrecorded: false });
    assert_eq!(verdict(failed, Some(1)), Verdict::Retry { after: Duration::from_millis(200) });
    assert_eq!(verdict(failed, Some(3)), Verdict::Retry { after: Duration::from_millis(800) });
    assert_eq!(verdict(failed, Some(30)), Verdict::Retry { after: Duration::from_mins(1) });
}

#[test]
fn v8_a_failure_that_is_not_counted_is_tried_again_soon() {
    let soon = Verdict::Retry { after: Duration::from_millis(200) };
    assert_eq!(refused(Reason::NotApplied { unrecorded: false }), soon);
    assert_eq!(refused(Reason::Unknown { unrecorded: false }), soon);
    assert_eq!(refused(Reason::Overloaded), soon);
}

#[test]
fn v9_a_row_that_cannot_be_read_is_a_dead_letter() {
    assert_eq!(refused(Reason::Store(ErrorKind::Damaged)), dead(DeadReason::RecordDamaged, 0));
}

#[test]
fn v10_a_database_that_cannot_be_used_pauses() {
    for kind in [ErrorKind::NotApplied, ErrorKind::Unknown, ErrorKind::Unusable, ErrorKind::Full] {
        assert!(matches!(refused(Reason::Store(kind)), Verdict::Pause { .. }), "{kind:?}");
    }
}

#[test]
fn v11_an_unknown_outcome_of_an_earlier_attempt_is_a_dead_letter() {
    assert_eq!(refused(Reason::Indeterminate { since: Timestamp(1) }), dead(DeadReason::OutcomeUnknown, 0));
    assert_eq!(refused(Reason::Unrecorded), dead(DeadReason::OutcomeUnknown, 0));
}
