//! The rows of `renew`.

use super::*;

#[test]
fn r2_rearms_its_own_grant_also_after_the_lease() {
    for holding in [HELD, TAKEN_OVER] {
        for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))] {
            let change = change_to(State::Open(Phase::InProgress, holding), UNKNOWN);
            assert_eq!(renew(&seen, &ANNS), Decision::Change(change, Renewed::Yes));
        }
    }
}

#[test]
fn r3_loses_an_abandoned_grant() {
    assert_eq!(renew(&lapsed(State::Open(Phase::InProgress, ABANDONED)), &ANNS), Decision::Reply(Renewed::Lost));
}

#[test]
fn r3_loses_a_record_in_another_state() {
    for seen in presences().iter().filter(|seen| !is_in_phase(seen, Phase::InProgress)) {
        assert_eq!(renew(seen, &ANNS), Decision::Reply(Renewed::Lost));
    }
}

#[test]
fn r3_loses_the_grant_of_another_attempt() {
    for seen in presences() {
        for claim in NOT_ANNS {
            assert_eq!(renew(&seen, &claim), Decision::Reply(Renewed::Lost));
        }
    }
}

#[test]
fn r1_reports_an_absent_record_as_gone() {
    for seen in absences() {
        assert_eq!(renew(&seen, &ANNS), Decision::Reply(Renewed::Gone));
    }
}
