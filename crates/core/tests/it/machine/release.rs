//! The rows of `release`.

use super::*;

#[test]
fn l1_releases_its_own_grant_also_after_the_lease() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD }), RELEASED);
    for seen in [live(State::Open(Phase::InProgress, HELD)), lapsed(State::Open(Phase::InProgress, HELD))] {
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change.clone(), Settled::Yes));
    }
}

#[test]
fn l1_releases_its_own_abandoned_grant() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..ABANDONED }), RELEASED);
    let seen = lapsed(State::Open(Phase::InProgress, ABANDONED));
    assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
}

#[test]
fn l1_releases_its_own_indeterminate_record() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD }), RELEASED);
    let seen = live(State::Open(Phase::Indeterminate, HELD));
    assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
}

#[test]
fn l2_abandons_a_grant_got_by_takeover() {
    let abandoned = Holding { lease: Millis(0), ..TAKEN_OVER };
    let change = change_to(State::Open(Phase::InProgress, abandoned), UNKNOWN);
    let seen = live(State::Open(Phase::InProgress, TAKEN_OVER));
    assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
    let seen = lapsed(State::Open(Phase::InProgress, abandoned));
    assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
}

#[test]
fn l3_leaves_an_indeterminate_takeover_indeterminate() {
    let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
    assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
}

#[test]
fn l4_can_be_repeated() {
    for holding in [HELD, TAKEN_OVER] {
        let seen = live(State::Open(Phase::Released, holding));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
    }
}

#[test]
fn l5_loses_a_completed_or_dead_record() {
    for seen in [live(answered("it")), live(State::Open(Phase::Dead, HELD))] {
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn l5_loses_the_record_of_another_attempt() {
    for seen in presences() {
        for claim in NOT_ANNS {
            assert_eq!(release(&seen, &claim, RELEASED), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn l5_loses_an_absent_record() {
    for seen in absences() {
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Lost));
    }
}
