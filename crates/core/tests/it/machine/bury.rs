//! The rows of `bury`.

use super::*;

fn buried(holding: Holding) -> Decision<Settled> {
    Decision::Change(change_to(State::Open(Phase::Dead, Holding { lifetime: DEAD, ..holding }), DEAD), Settled::Yes)
}

#[test]
fn d1_makes_the_own_record_dead() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        assert_eq!(bury(&live(State::Open(Phase::InProgress, holding)), &CLAIM_OF_ANN, DEAD), buried(holding));
        assert_eq!(bury(&lapsed(State::Open(Phase::InProgress, holding)), &CLAIM_OF_ANN, DEAD), buried(holding));
    }
}

#[test]
fn d2_makes_the_own_indeterminate_record_dead() {
    assert_eq!(
        bury(&live(State::Open(Phase::Indeterminate, FIRST_ATTEMPT)), &CLAIM_OF_ANN, DEAD),
        buried(FIRST_ATTEMPT)
    );
}

#[test]
fn d4_replies_lost_for_an_indeterminate_takeover() {
    let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
    assert_eq!(bury(&seen, &CLAIM_OF_ANN, DEAD), Decision::Reply(Settled::Lost));
}

#[test]
fn d3_can_be_repeated() {
    assert_eq!(
        bury(&live(State::Open(Phase::Dead, FIRST_ATTEMPT)), &CLAIM_OF_ANN, DEAD),
        Decision::Reply(Settled::Yes)
    );
}

#[test]
fn d4_replies_lost_for_a_completed_or_released_record() {
    for seen in [live(answered("it")), live(State::Open(Phase::Released, FIRST_ATTEMPT))] {
        assert_eq!(bury(&seen, &CLAIM_OF_ANN, DEAD), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn d4_replies_lost_to_another_attempt() {
    for seen in presences() {
        for claim in OTHER_CLAIMS {
            assert_eq!(bury(&seen, &claim, DEAD), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn d4_replies_lost_for_an_absent_record() {
    for seen in absences() {
        assert_eq!(bury(&seen, &CLAIM_OF_ANN, DEAD), Decision::Reply(Settled::Lost));
    }
}
