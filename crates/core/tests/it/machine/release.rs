//! The rows of `release`.

use super::*;

#[test]
fn l1_releases_its_own_grant_also_after_the_lease() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..FIRST_ATTEMPT }), RELEASED);
    for seen in
        [live(State::Open(Phase::InProgress, FIRST_ATTEMPT)), lapsed(State::Open(Phase::InProgress, FIRST_ATTEMPT))]
    {
        assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Change(change.clone(), Settled::Yes));
    }
}

#[test]
fn l1_releases_its_own_abandoned_grant() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..ABANDONED }), RELEASED);
    let seen = lapsed(State::Open(Phase::InProgress, ABANDONED));
    assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Change(change, Settled::Yes));
}

#[test]
fn l1_releases_its_own_indeterminate_record() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..FIRST_ATTEMPT }), RELEASED);
    let seen = live(State::Open(Phase::Indeterminate, FIRST_ATTEMPT));
    assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Change(change, Settled::Yes));
}

#[test]
fn l2_abandons_a_grant_got_by_takeover() {
    let abandoned = Holding { lease: Millis(0), ..TAKEN_OVER };
    let change = change_to(State::Open(Phase::InProgress, abandoned), UNKNOWN_RETENTION);
    let seen = live(State::Open(Phase::InProgress, TAKEN_OVER));
    assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Change(change, Settled::Yes));
    let seen = lapsed(State::Open(Phase::InProgress, abandoned));
    assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Reply(Settled::Yes));
}

#[test]
fn l3_leaves_an_indeterminate_takeover_indeterminate() {
    let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
    assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Reply(Settled::Yes));
}

#[test]
fn l4_can_be_repeated() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        let seen = live(State::Open(Phase::Released, holding));
        assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Reply(Settled::Yes));
    }
}

#[test]
fn l5_replies_lost_for_a_completed_or_dead_record() {
    for seen in [live(answered("it")), live(State::Open(Phase::Dead, FIRST_ATTEMPT))] {
        assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Reply(Settled::Lost));
    }
}

#[test]
fn l5_replies_lost_to_another_attempt() {
    for seen in presences() {
        for claim in OTHER_CLAIMS {
            assert_eq!(release(&seen, &claim, RELEASED), Decision::Reply(Settled::Lost));
        }
    }
}

#[test]
fn l5_replies_lost_for_an_absent_record() {
    for seen in absences() {
        assert_eq!(release(&seen, &CLAIM_OF_ANN, RELEASED), Decision::Reply(Settled::Lost));
    }
}
