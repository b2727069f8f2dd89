//! The rows of `reopen`.

use super::*;

#[test]
fn o1_releases_a_dead_record_under_a_new_token() {
    let record =
        Record { token: NEXT, ..record(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..FIRST_ATTEMPT })) };
    let change = Change { record, lifetime: RELEASED };
    let seen = live(State::Open(Phase::Dead, FIRST_ATTEMPT));
    assert_eq!(reopen(&seen, TOKEN, RELEASED), Decision::Change(change, Resolved::Yes));
}

#[test]
fn o2_can_be_repeated() {
    let seen = live(State::Open(Phase::Released, FIRST_ATTEMPT));
    assert_eq!(reopen(&seen, OTHER, RELEASED), Decision::Reply(Resolved::Yes));
}

#[test]
fn o3_refuses_another_token() {
    for token in [OTHER, Token(TOKEN.0 + 1)] {
        let seen = live(State::Open(Phase::Dead, FIRST_ATTEMPT));
        assert_eq!(reopen(&seen, token, RELEASED), Decision::Reply(Resolved::Stale));
    }
    for token in [TOKEN, Token(TOKEN.0 + 1)] {
        let seen = live(State::Open(Phase::Released, FIRST_ATTEMPT));
        assert_eq!(reopen(&seen, token, RELEASED), Decision::Reply(Resolved::Stale));
    }
}

#[test]
fn o3_refuses_every_other_state() {
    let mut others = absences();
    others.extend(
        [
            State::Open(Phase::InProgress, FIRST_ATTEMPT),
            answered("it"),
            State::Open(Phase::Indeterminate, FIRST_ATTEMPT),
        ]
        .map(lapsed),
    );
    for seen in others {
        for expected in [TOKEN, OTHER] {
            assert_eq!(reopen(&seen, expected, RELEASED), Decision::Reply(Resolved::Stale));
        }
    }
}
