//! Which state of a record may follow which, and the names of these changes in the trace.

use hapax_core::machine::Observed;
use hapax_core::{Holding, Phase, Record, State};

use crate::outcome::EffectPolicy;
use crate::rules;

/// A change took a grant away while its lease was still valid.
pub(super) const ENDED_EARLY: &str = "a lease was ended before it expired";

/// The rule that a change from one record to another breaks.
pub(super) fn may_follow(
    effect: EffectPolicy,
    was: &Record,
    record: &Record,
    before: &Observed,
) -> Option<&'static str> {
    if was.fingerprint != record.fingerprint {
        return Some("a record changed its fingerprint");
    }
    if matches!(was.state, State::Completed(_)) {
        return (was != record).then_some("a recorded answer was overwritten");
    }
    if was.token == record.token && rank(&record.state) < rank(&was.state) {
        return Some("a record went back to what it was under the same token");
    }
    let holder = |state: &State| state.holding().map(|holding: &Holding| holding.owner);
    let another = holder(&was.state) != holder(&record.state);
    match (&was.state, &record.state) {
        (State::Open(Phase::InProgress | Phase::Indeterminate, _), State::Open(Phase::Dead, _))
            if !another && was.token == record.token =>
        {
            None
        }
        (_, State::Open(Phase::Dead, _)) => Some("a record is dead, and its attempt did not bury it"),
        (State::Open(Phase::Dead, _), State::Open(Phase::Released, _)) => {
            (record.token <= was.token).then_some("a dead record was reopened under a token that its attempt still has")
        }
        (State::Open(Phase::Dead, _), State::Open(..)) => Some("a dead record was granted"),
        (_, State::Open(Phase::Indeterminate, _)) if !effect.is_at_most_once() => {
            Some("a record is indeterminate under Retry")
        }
        (State::Open(Phase::InProgress, held), State::Open(Phase::InProgress | Phase::Indeterminate, _))
            if is_live(held, before) && (another || matches!(record.state, State::Open(Phase::Indeterminate, _))) =>
        {
            Some(ENDED_EARLY)
        }
        (State::Open(Phase::InProgress, _), State::Open(Phase::InProgress, _)) if another => {
            takes_over(effect, was, record)
        }
        (State::Open(Phase::Released, _), State::Open(Phase::InProgress, holding)) => grants_anew(holding, was, record),
        (State::Open(Phase::Indeterminate, _), State::Open(Phase::InProgress, _)) => {
            Some("a record with an unknown outcome was granted")
        }
        (
            State::Completed(_) | State::Open(..),
            State::Completed(_) | State::Open(Phase::InProgress | Phase::Released | Phase::Indeterminate, _),
        ) => None,
    }
}

/// Whether the lease of a grant was still valid before the change.
fn is_live(held: &Holding, before: &Observed) -> bool {
    !held.is_abandoned() && !before.lease_left.is_zero()
}

/// The rule that a takeover breaks.
fn takes_over(effect: EffectPolicy, was: &Record, record: &Record) -> Option<&'static str> {
    let shown = record.state.holding().is_some_and(|holding| holding.takeover);
    match (effect.is_at_most_once(), shown, record.token > was.token) {
        (true, _, _) => Some("a lapsed record was granted, and the policy is not Retry"),
        (false, false, _) => Some("a takeover is not marked in the record"),
        (false, true, false) => Some("the token of a takeover does not grow"),
        (false, true, true) => None,
    }
}

/// The rule that a grant after a release breaks.
fn grants_anew(holding: &Holding, was: &Record, record: &Record) -> Option<&'static str> {
    let counts = was.state.holding().is_some_and(|before| before.attempt.checked_add(1) == Some(holding.attempt));
    match (counts, record.token > was.token) {
        (true, true) => None,
        (false, _) => Some("a grant does not increase the attempt number"),
        (true, false) => Some(rules::TOKEN_DID_NOT_GROW),
    }
}

/// The position of a state in the order that records follow under one token.
fn rank(state: &State) -> usize {
    match state {
        State::Open(Phase::InProgress, holding) if !holding.is_abandoned() => 0,
        State::Open(Phase::InProgress, _) => 1,
        State::Open(Phase::Indeterminate, _) => 2,
        State::Open(Phase::Released, _) => 3,
        State::Completed(_) | State::Open(Phase::Dead, _) => 4,
    }
}

/// The name under which the trace counts a change of a record. Without a state before it, the record was absent.
pub(super) fn change_name(before: Option<&State>, after: &State) -> &'static str {
    match (before, after) {
        (None, State::Open(Phase::InProgress, _)) => "granted",
        (None, State::Completed(_)) => "recreated",
        (Some(State::Open(Phase::InProgress, _)), State::Open(Phase::Indeterminate, _)) => "held",
        (Some(State::Open(Phase::InProgress, _)), State::Open(Phase::InProgress, holding))
            if holding.is_abandoned() =>
        {
            "abandoned"
        }
        (Some(State::Open(Phase::InProgress, _)), State::Open(Phase::InProgress, _)) => "granted by takeover",
        (Some(State::Open(Phase::Released, _)), State::Open(Phase::InProgress, _)) => "granted after a release",
        (Some(State::Open(Phase::Indeterminate, _)), State::Completed(_)) => "healed or resolved",
        (Some(State::Open(Phase::Indeterminate, _)), State::Open(Phase::Released, _)) => "indeterminate, then released",
        (Some(_), State::Completed(_)) => "completed",
        (Some(State::Open(Phase::Dead, _)), State::Open(Phase::Released, _)) => "reopened",
        (Some(_), State::Open(Phase::Released, _)) => "released",
        (Some(_), State::Open(Phase::Dead, _)) => "buried",
        (Some(_) | None, State::Open(Phase::Dead | Phase::Indeterminate | Phase::Released, _))
        | (Some(_), State::Open(Phase::InProgress, _)) => "another change",
    }
}
