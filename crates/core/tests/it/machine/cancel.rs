//! The rows of `cancel`.

use super::*;

#[test]
fn x1_x2_is_a_release_under_the_token_of_the_record() {
    for seen in presences() {
        let expected = match release(&seen, &CLAIM_OF_ANN, RELEASED) {
            Decision::Change(change, Settled::Yes) => Decision::Change(change, Cancelled::Yes),
            Decision::Reply(Settled::Yes) => Decision::Reply(Cancelled::Yes),
            Decision::Reply(Settled::Lost) => Decision::Reply(Cancelled::Gone),
            Decision::Change(change, Settled::Lost) => {
                panic!("a change that is lost: {change:?}")
            }
        };
        assert_eq!(cancel(&seen, ANN, RELEASED), expected);
    }
}

#[test]
fn x1_releases_a_grant_and_an_indeterminate_record() {
    let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..FIRST_ATTEMPT }), RELEASED);
    for state in [State::Open(Phase::InProgress, FIRST_ATTEMPT), State::Open(Phase::Indeterminate, FIRST_ATTEMPT)] {
        assert_eq!(cancel(&live(state), ANN, RELEASED), Decision::Change(change.clone(), Cancelled::Yes));
    }
}

#[test]
fn x1_keeps_the_outcome_of_a_takeover_unknown() {
    let change =
        change_to(State::Open(Phase::InProgress, Holding { lease: Millis(0), ..TAKEN_OVER }), UNKNOWN_RETENTION);
    let seen = live(State::Open(Phase::InProgress, TAKEN_OVER));
    assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Change(change, Cancelled::Yes));
    let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
    assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Reply(Cancelled::Yes));
}

#[test]
fn x1_can_be_repeated() {
    assert_eq!(
        cancel(&live(State::Open(Phase::Released, FIRST_ATTEMPT)), ANN, RELEASED),
        Decision::Reply(Cancelled::Yes)
    );
}

#[test]
fn x2_x3_reports_another_owner_or_an_absent_record_as_gone() {
    for seen in presences() {
        assert_eq!(cancel(&seen, BOB, RELEASED), Decision::Reply(Cancelled::Gone));
    }
    for seen in absences() {
        assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Reply(Cancelled::Gone));
    }
}
