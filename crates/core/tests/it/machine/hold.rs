//! The rows of `hold`.

use super::*;

#[test]
fn h1_makes_a_record_with_an_expired_lease_indeterminate() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        let change =
            change_to(State::Open(Phase::Indeterminate, Holding { lifetime: Seconds(77), ..holding }), Seconds(77));
        let seen = lapsed(State::Open(Phase::InProgress, holding));
        assert_eq!(hold(&seen, TOKEN, Seconds(77)), Decision::Change(change, Resolved::Yes));
    }
}

#[test]
fn h1_makes_an_abandoned_record_indeterminate_after_the_clock_stepped_back() {
    let lease_left = Duration::from_secs(60);
    let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, ABANDONED)) };
    let change = change_to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN_RETENTION);
    assert_eq!(hold(&seen, TOKEN, UNKNOWN_RETENTION), Decision::Change(change, Resolved::Yes));
}

#[test]
fn h3_refuses_a_live_lease() {
    let seen = live(State::Open(Phase::InProgress, FIRST_ATTEMPT));
    assert_eq!(hold(&seen, TOKEN, UNKNOWN_RETENTION), Decision::Reply(Resolved::Stale));
}

#[test]
fn h2_can_be_repeated() {
    let seen = live(State::Open(Phase::Indeterminate, FIRST_ATTEMPT));
    assert_eq!(hold(&seen, TOKEN, UNKNOWN_RETENTION), Decision::Reply(Resolved::Yes));
}

#[test]
fn h3_refuses_another_token() {
    for seen in presences() {
        for token in [OTHER, Token(TOKEN.0 + 1)] {
            assert_eq!(hold(&seen, token, UNKNOWN_RETENTION), Decision::Reply(Resolved::Stale));
        }
    }
}

#[test]
fn h3_refuses_every_other_state() {
    let mut others = absences();
    others.extend(
        [answered("it"), State::Open(Phase::Released, FIRST_ATTEMPT), State::Open(Phase::Dead, FIRST_ATTEMPT)]
            .map(live),
    );
    for seen in others {
        assert_eq!(hold(&seen, TOKEN, UNKNOWN_RETENTION), Decision::Reply(Resolved::Stale));
    }
}
