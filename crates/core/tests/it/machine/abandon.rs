//! The rows of `abandon`.

use super::*;

#[test]
fn a1_ends_the_lease_for_good() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))] {
            let change =
                change_to(State::Open(Phase::InProgress, Holding { lease: Millis(0), ..holding }), UNKNOWN_RETENTION);
            assert_eq!(abandon(&seen, &CLAIM_OF_ANN), Decision::Change(change, Settled::Yes));
        }
    }
}

#[test]
fn a2_a3_can_be_repeated_also_after_a_hold() {
    for state in [
        State::Open(Phase::InProgress, ABANDONED),
        State::Open(Phase::Indeterminate, FIRST_ATTEMPT),
        State::Open(Phase::Indeterminate, TAKEN_OVER),
    ] {
        assert_eq!(abandon(&lapsed(state), &CLAIM_OF_ANN), Decision::Reply(Settled::Yes));
    }
}

#[test]
fn a4_replies_lost_for_a_completed_released_or_dead_record() {
    for state in [answered("it"), State::Open(Phase::Released, FIRST_ATTEMPT), State::Open(Phase::Dead, FIRST_ATTEMPT)]
    {
        assert_eq!(abandon(&live(state), &CLAIM_OF_ANN), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn a4_replies_lost_to_another_attempt() {
    for seen in presences() {
        for claim in OTHER_CLAIMS {
            assert_eq!(abandon(&seen, &claim), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn a4_replies_lost_for_an_absent_record() {
    for seen in absences() {
        assert_eq!(abandon(&seen, &CLAIM_OF_ANN), Decision::Reply(Settled::Lost));
    }
}
