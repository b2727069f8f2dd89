//! The rows of `renew`.

use super::*;

#[test]
fn r2_rearms_its_own_grant_also_after_the_lease() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))] {
            let change = change_to(State::Open(Phase::InProgress, holding), UNKNOWN_RETENTION);
            assert_eq!(renew(&seen, &CLAIM_OF_ANN), Decision::Change(change, Renewed::Yes));
        }
    }
}

#[test]
fn r3_replies_lost_for_an_abandoned_grant() {
    assert_eq!(
        renew(&lapsed(State::Open(Phase::InProgress, ABANDONED)), &CLAIM_OF_ANN),
        Decision::Reply(Renewed::Lost)
    );
}

#[test]
fn r3_replies_lost_unless_the_record_is_in_progress() {
    for seen in presences().iter().filter(|seen| !is_in_phase(seen, Phase::InProgress)) {
        assert_eq!(renew(seen, &CLAIM_OF_ANN), Decision::Reply(Renewed::Lost));
    }
}

#[test]
fn r3_replies_lost_to_another_attempt() {
    for seen in presences() {
        for claim in OTHER_CLAIMS {
            assert_eq!(renew(&seen, &claim), Decision::Reply(Renewed::Lost));
        }
    }
}

#[test]
fn r1_reports_an_absent_record_as_gone() {
    for seen in absences() {
        assert_eq!(renew(&seen, &CLAIM_OF_ANN), Decision::Reply(Renewed::Gone));
    }
}
