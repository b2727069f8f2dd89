//! The rows of `purge`.

use super::*;

const CAREFUL: Purge = Purge { expected: TOKEN, forget_unknown: false };
const FORGET: Purge = Purge { expected: TOKEN, forget_unknown: true };

#[test]
fn u1_refuses_another_token() {
    for seen in presences() {
        for expected in [OTHER, Token(TOKEN.0 + 1)] {
            assert_eq!(purge(&seen, &Purge { expected, ..FORGET }), Purged::Stale);
        }
    }
}

#[test]
fn u1_refuses_what_is_absent() {
    for seen in absences() {
        assert_eq!(purge(&seen, &FORGET), Purged::Stale);
    }
}

#[test]
fn u2_never_breaks_a_live_lease() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        let seen = live(State::Open(Phase::InProgress, holding));
        assert_eq!(purge(&seen, &CAREFUL), Purged::Running);
        assert_eq!(purge(&seen, &FORGET), Purged::Running);
    }
}

#[test]
fn u3_u4_an_unknown_outcome_is_forgotten_only_on_demand() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        let unknown = [
            lapsed(State::Open(Phase::InProgress, holding)),
            lapsed(State::Open(Phase::InProgress, ABANDONED)),
            live(State::Open(Phase::InProgress, ABANDONED)),
            live(State::Open(Phase::Indeterminate, holding)),
        ];
        for seen in unknown {
            assert_eq!(purge(&seen, &CAREFUL), Purged::Unknown);
            assert_eq!(purge(&seen, &FORGET), Purged::Yes);
        }
    }
}

#[test]
fn u4_removes_a_known_outcome() {
    let known = [answered("it"), State::Open(Phase::Released, FIRST_ATTEMPT), State::Open(Phase::Dead, FIRST_ATTEMPT)];
    for seen in known.map(live) {
        assert_eq!(purge(&seen, &CAREFUL), Purged::Yes);
    }
}
