//! The rows of `resolve`.

use super::*;

fn done(answer: &'static str) -> Verdict {
    Verdict::Done { answer: Bytes::from_static(answer.as_bytes()), retention: RETENTION }
}

const NOT_DONE: Verdict = Verdict::NotDone { lifetime: RELEASED };

#[test]
fn v1_completes_under_a_new_token_when_done() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        let change = completed_under(NEXT, "the answer");
        let seen = live(State::Open(Phase::Indeterminate, holding));
        assert_eq!(resolve(&seen, TOKEN, &done("the answer")), Decision::Change(change, Resolved::Yes));
    }
}

#[test]
fn v2_releases_and_keeps_token_and_owner_when_not_done() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        let change = change_to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..holding }), RELEASED);
        let seen = live(State::Open(Phase::Indeterminate, holding));
        assert_eq!(resolve(&seen, TOKEN, &NOT_DONE), Decision::Change(change, Resolved::Yes));
    }
}

#[test]
fn v5_refuses_another_token() {
    for token in [OTHER, Token(TOKEN.0 + 1)] {
        for verdict in [done("the answer"), NOT_DONE] {
            let seen = live(State::Open(Phase::Indeterminate, FIRST_ATTEMPT));
            assert_eq!(resolve(&seen, token, &verdict), Decision::Reply(Resolved::Stale));
        }
    }
}

#[test]
fn v3_v4_can_be_repeated() {
    assert_eq!(resolve(&live(answered("it")), OTHER, &done("it")), Decision::Reply(Resolved::Yes));
    assert_eq!(
        resolve(&live(State::Open(Phase::Released, FIRST_ATTEMPT)), TOKEN, &NOT_DONE),
        Decision::Reply(Resolved::Yes)
    );
}

#[test]
fn v5_refuses_an_answer_other_than_the_recorded_one() {
    assert_eq!(resolve(&live(answered("it")), OTHER, &done("that")), Decision::Reply(Resolved::Stale));
    assert_eq!(resolve(&live(answered("it")), OTHER, &NOT_DONE), Decision::Reply(Resolved::Stale));
}

#[test]
fn v5_refuses_an_answer_recorded_before_the_expected_token() {
    for expected in [TOKEN, Token(TOKEN.0 + 1)] {
        assert_eq!(resolve(&live(answered("it")), expected, &done("it")), Decision::Reply(Resolved::Stale));
    }
}

#[test]
fn v5_refuses_a_record_that_is_not_indeterminate() {
    let mut others = absences();
    others.extend(
        [
            State::Open(Phase::InProgress, FIRST_ATTEMPT),
            State::Open(Phase::InProgress, ABANDONED),
            State::Open(Phase::Dead, FIRST_ATTEMPT),
        ]
        .map(lapsed),
    );
    for seen in others {
        for verdict in [done("the answer"), NOT_DONE] {
            assert_eq!(resolve(&seen, TOKEN, &verdict), Decision::Reply(Resolved::Stale));
        }
    }
    let released = live(State::Open(Phase::Released, FIRST_ATTEMPT));
    assert_eq!(resolve(&released, TOKEN, &done("the answer")), Decision::Reply(Resolved::Stale));
    assert_eq!(resolve(&released, OTHER, &NOT_DONE), Decision::Reply(Resolved::Stale));
}
