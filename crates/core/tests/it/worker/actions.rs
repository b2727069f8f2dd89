//! What happens to a delivery after its job, row by row.

use std::time::Duration;

use hapax_core::broker::{Acknowledges, Capability, DeadReason, Verdict};
use hapax_core::worker::rules::{DeliveryAction, EndedJob, LetterRecord, RedriveAction, action, redrive, refusal};

const AFTER: Duration = Duration::from_secs(7);
const MAX_PANICS: u32 = 3;

const HOLDS: Capability = Capability {
    acknowledges: Acknowledges::Prefix,
    redelivers: false,
    delays: false,
    lease: None,
    keeps_order: false,
    delivery_limit: None,
};
const REDELIVERS: Capability = Capability { redelivers: true, delays: true, ..HOLDS };

fn ended(verdict: Verdict) -> EndedJob {
    EndedJob { verdict: Some(verdict), jobs: 2, panics: 0, has_order: false }
}

#[test]
fn a1_a_finished_job_is_acknowledged() {
    for caught in [true, false] {
        let ended = ended(Verdict::Done { caught });
        assert_eq!(action(&ended, &HOLDS, MAX_PANICS), DeliveryAction::Finish);
        assert_eq!(action(&ended, &REDELIVERS, MAX_PANICS), DeliveryAction::Finish);
    }
}

#[test]
fn a2_a_dead_letter_is_buried_with_its_reason() {
    for reason in DeadReason::ALL {
        let ended = ended(Verdict::dead(reason, 5));
        assert_eq!(action(&ended, &HOLDS, MAX_PANICS), DeliveryAction::Bury { reason, attempts: 5 });
    }
}

#[test]
fn a3_a_message_without_order_goes_back_to_a_broker_that_redelivers_later() {
    for verdict in [Verdict::Busy { after: AFTER }, Verdict::Retry { after: AFTER }] {
        assert_eq!(action(&ended(verdict.clone()), &REDELIVERS, MAX_PANICS), DeliveryAction::GiveBack(AFTER));
        let ordered = EndedJob { has_order: true, ..ended(verdict.clone()) };
        let keeps_order = Capability { keeps_order: true, ..REDELIVERS };
        assert_eq!(action(&ordered, &keeps_order, MAX_PANICS), DeliveryAction::GiveBack(AFTER));
    }
}

#[test]
fn a4_a_message_is_held_where_the_broker_cannot_wait_or_order_matters() {
    for verdict in [Verdict::Busy { after: AFTER }, Verdict::Retry { after: AFTER }] {
        let ordered = EndedJob { has_order: true, ..ended(verdict.clone()) };
        assert_eq!(action(&ordered, &REDELIVERS, MAX_PANICS), DeliveryAction::Hold(AFTER));
        let at_once = Capability { delays: false, ..REDELIVERS };
        assert_eq!(action(&ended(verdict.clone()), &at_once, MAX_PANICS), DeliveryAction::Hold(AFTER));
        assert_eq!(action(&ended(verdict), &HOLDS, MAX_PANICS), DeliveryAction::Hold(AFTER));
    }
}

#[test]
fn a5_a_pause_holds_the_message_and_stops_the_others() {
    let ended = ended(Verdict::Pause { after: AFTER });
    assert_eq!(action(&ended, &REDELIVERS, MAX_PANICS), DeliveryAction::PauseAll(AFTER));
}

#[test]
fn a6_the_jobs_of_a_batch_that_panicked_run_again_alone() {
    let ended = EndedJob { verdict: None, jobs: 2, panics: 0, has_order: true };
    assert_eq!(action(&ended, &REDELIVERS, MAX_PANICS), DeliveryAction::Alone);
}

#[test]
fn a7_a_job_that_panicked_alone_is_held_with_backoff() {
    let ended = |panics| EndedJob { verdict: None, jobs: 1, panics, has_order: false };
    let hold = |millis| DeliveryAction::Hold(Duration::from_millis(millis));
    assert_eq!(action(&ended(1), &REDELIVERS, MAX_PANICS), hold(200));
    assert_eq!(action(&ended(2), &REDELIVERS, MAX_PANICS), hold(400));
}

#[test]
fn a8_a_job_that_panicked_too_often_is_buried_as_unknown() {
    let ended = EndedJob { verdict: None, jobs: 1, panics: MAX_PANICS, has_order: false };
    let bury = DeliveryAction::Bury { reason: DeadReason::OutcomeUnknown, attempts: MAX_PANICS };
    assert_eq!(action(&ended, &REDELIVERS, MAX_PANICS), bury);
}

const RECORDS: [LetterRecord; 9] = [
    LetterRecord::Absent,
    LetterRecord::Other,
    LetterRecord::Running,
    LetterRecord::Lapsed,
    LetterRecord::Indeterminate,
    LetterRecord::Released,
    LetterRecord::Dead,
    LetterRecord::Processed,
    LetterRecord::Answered,
];

/// What happens to a letter with this reason, for each of the records.
fn redriven(reason: DeadReason, records: &[LetterRecord], repeats: bool) -> Vec<RedriveAction> {
    records.iter().map(|record| redrive(reason, *record, repeats)).collect()
}

/// All but these.
fn others(records: &[LetterRecord]) -> Vec<LetterRecord> {
    RECORDS.into_iter().filter(|record| !records.contains(record)).collect()
}

#[test]
fn e1_done_waits_for_an_attempt_that_runs() {
    assert_eq!(redrive(DeadReason::Done, LetterRecord::Running, true), RedriveAction::Wait);
}

#[test]
fn e2_done_leaves_an_answer_and_another_payload() {
    let records = [LetterRecord::Other, LetterRecord::Processed, LetterRecord::Answered];
    assert_eq!(redriven(DeadReason::Done, &records, false), [RedriveAction::Remove; 3]);
}

#[test]
fn e3_done_is_recorded_and_never_runs() {
    let answered = [LetterRecord::Other, LetterRecord::Processed, LetterRecord::Answered, LetterRecord::Running];
    assert_eq!(redriven(DeadReason::Done, &others(&answered), true), [RedriveAction::Record; 5]);
}

#[test]
fn e4_a_processed_message_does_not_run_again() {
    for reason in DeadReason::ALL {
        assert_eq!(redrive(reason, LetterRecord::Processed, true), RedriveAction::Remove, "{reason:?}");
    }
}

#[test]
fn e5_a_dead_record_is_reopened() {
    for reason in DeadReason::ALL.into_iter().filter(|reason| *reason != DeadReason::Done) {
        assert_eq!(redrive(reason, LetterRecord::Dead, false), RedriveAction::Reopen, "{reason:?}");
    }
}

#[test]
fn e6_not_done_releases_an_unknown_outcome() {
    let records = [LetterRecord::Absent, LetterRecord::Lapsed, LetterRecord::Indeterminate];
    assert_eq!(redriven(DeadReason::NotDone, &records, false), [RedriveAction::Release; 3]);
}

#[test]
fn e7_not_done_is_not_about_an_attempt_that_runs() {
    assert_eq!(redrive(DeadReason::NotDone, LetterRecord::Running, true), RedriveAction::BuryAgain);
}

const LIMITED: Capability = Capability { delivery_limit: Some(20), ..HOLDS };

#[test]
fn d1_a_message_without_a_usable_key_is_buried_with_that_reason() {
    for attempt in [None, Some(1), Some(20)] {
        assert_eq!(refusal(Some(DeadReason::KeyMissing), attempt, &LIMITED), Some(DeadReason::KeyMissing));
    }
}

#[test]
fn d2_a_message_is_buried_two_deliveries_before_its_broker_drops_it() {
    for attempt in [18, 19, 20, 21] {
        assert_eq!(refusal(None, Some(attempt), &LIMITED), Some(DeadReason::DeliveriesExhausted), "{attempt}");
    }
}

#[test]
fn d3_any_other_message_runs() {
    assert_eq!(refusal(None, Some(17), &LIMITED), None);
    assert_eq!(refusal(None, None, &LIMITED), None, "the broker counts no deliveries");
    assert_eq!(refusal(None, Some(1000), &HOLDS), None, "the broker drops no message");
}

const UNKNOWN: [DeadReason; 2] = [DeadReason::OutcomeUnknown, DeadReason::RecordDamaged];

#[test]
fn e8_an_unknown_outcome_waits_for_an_attempt_that_runs() {
    for reason in UNKNOWN {
        assert_eq!(redrive(reason, LetterRecord::Running, false), RedriveAction::Wait);
    }
}

#[test]
fn e9_an_attempt_without_an_end_runs_again_under_retry() {
    for reason in UNKNOWN {
        assert_eq!(redrive(reason, LetterRecord::Lapsed, true), RedriveAction::Deliver);
    }
}

#[test]
fn e10_an_unknown_outcome_needs_a_word() {
    for reason in UNKNOWN {
        assert_eq!(redrive(reason, LetterRecord::Lapsed, false), RedriveAction::BuryAgain);
        let records = [LetterRecord::Absent, LetterRecord::Other, LetterRecord::Indeterminate];
        for repeats in [false, true] {
            assert_eq!(redriven(reason, &records, repeats), [RedriveAction::BuryAgain; 3]);
        }
    }
}

#[test]
fn e11_anything_else_is_delivered() {
    let known = [LetterRecord::Released, LetterRecord::Answered];
    for reason in UNKNOWN {
        assert_eq!(redriven(reason, &known, false), [RedriveAction::Deliver; 2]);
    }
    let harmless = others(&[LetterRecord::Processed, LetterRecord::Dead]);
    for reason in [DeadReason::AttemptsExhausted, DeadReason::Rejected, DeadReason::KeyReused, DeadReason::KeyMissing] {
        assert_eq!(redriven(reason, &harmless, false), [RedriveAction::Deliver; 7], "{reason:?}");
    }
    let words = [LetterRecord::Other, LetterRecord::Released, LetterRecord::Answered];
    assert_eq!(redriven(DeadReason::NotDone, &words, false), [RedriveAction::Deliver; 3]);
}
