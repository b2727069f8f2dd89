//! The rows of `bury`.

use super::*;

fn buried(holding: Holding) -> Decision<Settled> {
    Decision::Change(change_to(State::Open(Phase::Dead, Holding { lifetime: DEAD, ..holding }), DEAD), Settled::Yes)
}

#[test]
fn d1_closes_its_own_grant() {
    for holding in [HELD, TAKEN_OVER, ABANDONED] {
        assert_eq!(bury(&live(State::Open(Phase::InProgress, holding)), &ANNS, DEAD), buried(holding));
        assert_eq!(bury(&lapsed(State::Open(Phase::InProgress, holding)), &ANNS, DEAD), buried(holding));
    }
}

#[test]
fn d2_closes_its_own_indeterminate_record() {
    assert_eq!(bury(&live(State::Open(Phase::Indeterminate, HELD)), &ANNS, DEAD), buried(HELD));
}

#[test]
fn d4_loses_an_indeterminate_takeover() {
    let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
    assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
}

#[test]
fn d3_can_be_repeated() {
    assert_eq!(bury(&live(State::Open(Phase::Dead, HELD)), &ANNS, DEAD), Decision::Reply(Settled::Yes));
}

#[test]
fn d4_loses_a_completed_or_released_record() {
    for seen in [live(answered("it")), live(State::Open(Phase::Released, HELD))] {
        assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn d4_loses_the_record_of_another_attempt() {
    for seen in presences() {
        for claim in NOT_ANNS {
            assert_eq!(bury(&seen, &claim, DEAD), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn d4_loses_an_absent_record() {
    for seen in absences() {
        assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
    }
}
