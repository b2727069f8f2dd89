//! The rows of `ledger/rows.md`.

use std::time::Duration;

use hapax_core::ledger::rules::{
    ClaimRuling, Counted, Ended, Ending, Next, Uncounted, claim, counted, next, read, uncounted,
};
use hapax_core::ledger::{FaultKind, FoundRow, Tried};

use super::*;

const FAULTS: [FaultKind; 7] = [
    FaultKind::Conflict,
    FaultKind::RowExists,
    FaultKind::Unavailable,
    FaultKind::TooLarge,
    FaultKind::Failed,
    FaultKind::Unusable,
    FaultKind::CommitUnknown,
];

fn all_found() -> [Option<FoundRow>; 6] {
    [
        Some(FoundRow::Row(row("first", Some(5)))),
        Some(FoundRow::ClaimedHere),
        Some(FoundRow::Damaged),
        Some(FoundRow::Dead),
        Some(FoundRow::Nothing),
        None,
    ]
}

fn replay(answer: &'static str, is_own: bool) -> ClaimRuling {
    ClaimRuling::Replay { verdict: LedgerVerdict::Applied, answer: Bytes::from_static(answer.as_bytes()), is_own }
}

fn not_inserted(call: &Call, found: FoundRow, own: &[u64]) -> ClaimRuling {
    claim(call, Tried::NotInserted, Some(&found), own)
}

#[test]
fn k1_a_locked_operation_without_a_row_is_busy() {
    let is_row = |found: &Option<FoundRow>| matches!(found, Some(FoundRow::Row(_) | FoundRow::Damaged));
    for found in all_found().into_iter().filter(|found| !is_row(found)) {
        assert_eq!(claim(&call(1), Tried::Locked, found.as_ref(), &[5]), ClaimRuling::Busy);
    }
    let found = FoundRow::Row(row("first", Some(5)));
    assert_eq!(claim(&call(1), Tried::Locked, Some(&found), &[]), replay("first", false));
    assert_eq!(claim(&call(1), Tried::LockedUnread, None, &[]), ClaimRuling::Busy);
}

#[test]
fn f1_what_has_a_row_is_decided_before_its_claim_as_after_it() {
    for found in [FoundRow::Row(row("first", Some(5))), FoundRow::Damaged] {
        for call in [call(1), Call::new(operation(1)).fingerprint(OTHER_PAYLOAD)] {
            for own in [&[][..], &[5]] {
                let after = not_inserted(&call, found.clone(), own);
                assert_eq!(read(&call, &found, own), Some(after));
            }
        }
    }
}

#[test]
fn f2_what_has_no_row_has_to_be_claimed() {
    for found in [FoundRow::Nothing, FoundRow::ClaimedHere, FoundRow::Dead] {
        assert_eq!(read(&call(1), &found, &[5]), None, "{found:?}");
    }
}

#[test]
fn k2_an_inserted_operation_is_fresh() {
    for found in all_found() {
        assert_eq!(claim(&call(1), Tried::Inserted, found.as_ref(), &[]), ClaimRuling::Fresh);
    }
}

#[test]
fn k3_a_row_of_an_earlier_try_is_replayed_as_our_own() {
    let found = || FoundRow::Row(row("first", Some(5)));
    assert_eq!(not_inserted(&call(1), found(), &[4, 5]), replay("first", true));
    let other = Call::new(operation(1)).fingerprint(OTHER_PAYLOAD);
    assert_eq!(not_inserted(&other, found(), &[5]), replay("first", true));
}

#[test]
fn k4_a_row_with_an_accepted_fingerprint_is_replayed() {
    let older = Call::new(operation(1)).fingerprint(OTHER_PAYLOAD).or_older(PAYLOAD);
    for call in [call(1), older] {
        assert_eq!(not_inserted(&call, FoundRow::Row(row("first", Some(5))), &[4]), replay("first", false));
        assert_eq!(not_inserted(&call, FoundRow::Row(row("first", None)), &[]), replay("first", false));
    }
}

#[test]
fn k4_the_verdict_is_replayed_too() {
    let rejected = FoundRow::Row(Row { verdict: LedgerVerdict::Rejected, ..row("no", None) });
    let expected =
        ClaimRuling::Replay { verdict: LedgerVerdict::Rejected, answer: Bytes::from_static(b"no"), is_own: false };
    assert_eq!(not_inserted(&call(1), rejected, &[]), expected);
}

#[test]
fn k4_rule_0_is_not_compared_on_either_side() {
    let uncompared = FoundRow::Row(Row { fingerprint: Fingerprint::NONE, ..row("first", None) });
    assert_eq!(not_inserted(&call(1), uncompared, &[]), replay("first", false));
    assert_eq!(not_inserted(&Call::new(operation(1)), FoundRow::Row(row("first", None)), &[]), replay("first", false));
}

#[test]
fn k5_a_row_with_another_fingerprint_is_a_mismatch() {
    let other_rule = Fingerprint::from_parts(Rule(3), *PAYLOAD.as_bytes());
    for fingerprint in [OTHER_PAYLOAD, other_rule] {
        let call = Call::new(operation(1)).fingerprint(fingerprint);
        assert_eq!(not_inserted(&call, FoundRow::Row(row("first", Some(5))), &[4]), ClaimRuling::Mismatch);
    }
}

#[test]
fn k6_a_row_of_this_transaction_was_claimed_by_it() {
    assert_eq!(not_inserted(&call(1), FoundRow::ClaimedHere, &[5]), ClaimRuling::ClaimedTwice);
    for found in all_found() {
        assert_eq!(claim(&call(1), Tried::ClaimedHere, found.as_ref(), &[5]), ClaimRuling::ClaimedTwice);
    }
}

#[test]
fn k9_a_row_without_its_end_is_damaged() {
    for tried in [Tried::NotInserted, Tried::Locked] {
        assert_eq!(claim(&call(1), tried, Some(&FoundRow::Damaged), &[5]), ClaimRuling::Damaged);
    }
}

#[test]
fn k7_a_dead_operation_without_a_row_is_dead() {
    assert_eq!(not_inserted(&call(1), FoundRow::Dead, &[5]), ClaimRuling::Dead);
}

#[test]
fn k8_an_operation_whose_row_is_gone_is_busy() {
    assert_eq!(not_inserted(&call(1), FoundRow::Nothing, &[5]), ClaimRuling::Busy);
    assert_eq!(claim(&call(1), Tried::NotInserted, None, &[5]), ClaimRuling::Busy);
}

fn ended(ending: Ending) -> Ended {
    Ended { ending, operations: 1, tries_left: 7, is_commit_open: false, had_row: false, is_counting: false }
}

/// What follows, for every number of operations that makes no difference here, counting or not.
fn nexts(ending: Ending, operations: &[usize], tries_left: &[u32]) -> Vec<Next> {
    let mut nexts = Vec::new();
    for &operations in operations {
        for &tries_left in tries_left {
            for is_counting in [false, true] {
                nexts.push(next(&Ended { operations, tries_left, is_counting, ..ended(ending) }));
            }
        }
    }
    nexts.dedup();
    nexts
}

const ANY: &[usize] = &[1, 2, 256];
const SEVERAL: &[usize] = &[2, 3, 256];
const TRIES: &[u32] = &[1, 7];
const ANY_TRIES: &[u32] = &[0, 1, 7];

#[test]
fn t1_a_commit_is_answered() {
    assert_eq!(nexts(Ending::Committed, ANY, ANY_TRIES), [Next::Answer]);
}

#[test]
fn t2_a_lost_reply_to_commit_is_run_again() {
    assert_eq!(nexts(Ending::Fault(FaultKind::CommitUnknown), ANY, TRIES), [Next::Again]);
}

#[test]
fn t3_a_lost_reply_without_a_try_left_is_unknown() {
    assert_eq!(nexts(Ending::Fault(FaultKind::CommitUnknown), ANY, &[0]), [Next::Unknown]);
}

#[test]
fn t4_a_conflict_or_an_absent_database_is_run_again() {
    for kind in [FaultKind::Conflict, FaultKind::Unavailable] {
        assert_eq!(nexts(Ending::Fault(kind), ANY, TRIES), [Next::Again]);
    }
}

#[test]
fn t16_a_row_that_was_not_there_is_run_again_once_and_then_fails() {
    let exists = ended(Ending::Fault(FaultKind::RowExists));
    assert_eq!(next(&exists), Next::Again);
    let twice = Ended { had_row: true, ..exists };
    assert_eq!(next(&Ended { is_counting: true, ..twice }), Next::Count);
    assert_eq!(next(&twice), Next::NotApplied);
    assert_eq!(next(&Ended { operations: 2, ..twice }), Next::Halves);
    assert_eq!(next(&Ended { tries_left: 0, is_counting: true, ..exists }), Next::NotApplied);
}

#[test]
fn t5_a_conflict_without_a_try_left_is_not_applied() {
    assert_eq!(nexts(Ending::Fault(FaultKind::Conflict), ANY, &[0]), [Next::NotApplied]);
}

#[test]
fn t6_a_database_that_does_not_come_back_is_unavailable() {
    assert_eq!(nexts(Ending::Fault(FaultKind::Unavailable), ANY, &[0]), [Next::Unavailable]);
}

#[test]
fn t15_a_failure_before_the_handler_is_no_fault_of_an_operation() {
    assert_eq!(nexts(Ending::ClaimFailed, ANY, &[1, 7]), [Next::Again]);
    assert_eq!(nexts(Ending::ClaimFailed, ANY, &[0]), [Next::Unavailable]);
}

#[test]
fn t14_tables_that_cannot_be_used_are_not_tried_again() {
    assert_eq!(nexts(Ending::Fault(FaultKind::Unusable), ANY, ANY_TRIES), [Next::Unusable]);
}

#[test]
fn t13_a_lost_commit_stays_unknown_until_a_claim_tells() {
    for kind in FAULTS.into_iter().filter(|kind| *kind != FaultKind::CommitUnknown) {
        let ended =
            |tries_left| Ended { tries_left, is_commit_open: true, is_counting: true, ..ended(Ending::Fault(kind)) };
        assert_eq!(next(&ended(0)), Next::Unknown, "{kind:?}");
        let is_tried_again = matches!(kind, FaultKind::Conflict | FaultKind::RowExists | FaultKind::Unavailable);
        assert_eq!(next(&ended(1)), if is_tried_again { Next::Again } else { Next::Unknown }, "{kind:?}");
    }
}

#[test]
fn t7_one_operation_that_is_too_large_is_not_counted() {
    assert_eq!(nexts(Ending::Fault(FaultKind::TooLarge), &[1], ANY_TRIES), [Next::NotApplied]);
}

#[test]
fn t8_several_operations_that_are_too_large_are_split() {
    assert_eq!(nexts(Ending::Fault(FaultKind::TooLarge), SEVERAL, ANY_TRIES), [Next::Halves]);
}

#[test]
fn t9_t10_the_failure_of_one_operation_is_counted_or_reported() {
    let failures = [Ending::HandlerFailed(None), Ending::HandlerFailed(Some(0)), Ending::Fault(FaultKind::Failed)];
    for ending in failures {
        let ended = |is_counting| Ended { is_counting, ..ended(ending) };
        assert_eq!(next(&ended(true)), Next::Count);
        assert_eq!(next(&ended(false)), Next::NotApplied);
    }
}

#[test]
fn t11_a_named_failure_is_run_alone() {
    for place in 0..3 {
        assert_eq!(nexts(Ending::HandlerFailed(Some(place)), &[3, 256], ANY_TRIES), [Next::Around(place)]);
    }
}

#[test]
fn t12_a_failure_of_several_splits_them() {
    for ending in [Ending::HandlerFailed(None), Ending::HandlerFailed(Some(256)), Ending::Fault(FaultKind::Failed)] {
        assert_eq!(nexts(ending, SEVERAL, ANY_TRIES), [Next::Halves]);
    }
}

#[test]
fn t3_t4_t6_t8_no_fault_of_the_database_is_counted_but_a_failed_statement() {
    for kind in FAULTS.into_iter().filter(|kind| *kind != FaultKind::Failed) {
        assert!(!nexts(Ending::Fault(kind), ANY, ANY_TRIES).contains(&Next::Count), "{kind:?}");
    }
}

#[test]
fn n1_the_last_attempt_closes_the_operation() {
    for (attempts, max) in [(8, 8), (9, 8), (1, 1), (u32::MAX, 8)] {
        assert_eq!(counted(attempts, max), Counted::Dead);
        assert!(terms().max_attempts(max).is_last_attempt(attempts));
    }
}

#[test]
fn n2_the_pause_doubles_to_a_minute() {
    let millis = |attempts| match counted(attempts, u32::MAX) {
        Counted::Retry(pause) => pause.as_millis(),
        Counted::Dead => panic!("an attempt is left"),
    };
    assert_eq!([1, 2, 3, 8, 9, 10, 1000].map(millis), [200, 400, 800, 25_600, 51_200, 60_000, 60_000]);
    assert!(!terms().max_attempts(8).is_last_attempt(7));
    assert!(!terms().is_last_attempt(u32::MAX));
}

#[test]
fn n3_a_failure_that_a_busy_or_absent_database_did_not_count_is_run_again() {
    for kind in [FaultKind::Conflict, FaultKind::Unavailable, FaultKind::CommitUnknown] {
        assert_eq!(uncounted(kind), Uncounted::NotApplied);
    }
}

#[test]
fn n4_a_failure_that_cannot_be_counted_stops_the_worker() {
    for kind in [FaultKind::TooLarge, FaultKind::Failed, FaultKind::Unusable] {
        assert_eq!(uncounted(kind), Uncounted::Unusable);
    }
}

#[test]
fn t4_the_pause_before_another_try_is_random_between_a_half_and_the_whole() {
    let pause = hapax_core::ledger::rules::pause;
    assert_eq!((pause(0, 0), pause(0, u32::MAX)), (Duration::from_micros(2_500), Duration::from_millis(5)));
    assert_eq!(pause(3, u32::MAX), Duration::from_millis(40));
    assert_eq!((pause(100, 0), pause(100, u32::MAX)), (Duration::from_millis(500), Duration::from_secs(1)));
}
