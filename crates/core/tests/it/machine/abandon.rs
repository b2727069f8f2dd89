//! The rows of `abandon`.

use super::*;

#[test]
fn a1_ends_the_lease_for_good() {
    for holding in [HELD, TAKEN_OVER] {
        for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))] {
            let change = change_to(State::Open(Phase::InProgress, Holding { lease: Millis(0), ..holding }), UNKNOWN);
            assert_eq!(abandon(&seen, &ANNS), Decision::Change(change, Settled::Yes));
        }
    }
}

#[test]
fn a2_a3_can_be_repeated_also_after_a_hold() {
    for state in [
        State::Open(Phase::InProgress, ABANDONED),
        State::Open(Phase::Indeterminate, HELD),
        State::Open(Phase::Indeterminate, TAKEN_OVER),
    ] {
        assert_eq!(abandon(&lapsed(state), &ANNS), Decision::Reply(Settled::Yes));
    }
}

#[test]
fn a4_loses_a_completed_released_or_dead_record() {
    for state in [answered("it"), State::Open(Phase::Released, HELD), State::Open(Phase::Dead, HELD)] {
        assert_eq!(abandon(&live(state), &ANNS), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn a4_loses_the_record_of_another_attempt() {
    for seen in presences() {
        for claim in NOT_ANNS {
            assert_eq!(abandon(&seen, &claim), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn a4_loses_an_absent_record() {
    for seen in absences() {
        assert_eq!(abandon(&seen, &ANNS), Decision::Reply(Settled::Lost));
    }
}
