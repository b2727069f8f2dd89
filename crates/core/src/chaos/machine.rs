//! The machine's bugs. Each stands in front of the honest function and answers in its place, or lets it through.

use std::cell::Cell;

use crate::chaos::on;
use crate::machine::{
    self, Begin, Begun, Change, Claim, Complete, Completed, Decision, Observed, Renewed, Resolved, Settled, Verdict,
};
use crate::record::{Holding, Millis, Phase, Record, Seconds, State, Token};

thread_local! {
    static HONEST: Cell<bool> = const { Cell::new(false) };
}

/// What the machine decides without its bug.
fn honest<R>(decide: impl FnOnce() -> R) -> R {
    let before = HONEST.replace(true);
    let decided = decide();
    HONEST.set(before);
    decided
}

fn chosen(name: &str) -> bool {
    !HONEST.get() && on(name)
}

pub(crate) fn begin(seen: &Observed, ask: &Begin) -> Option<Decision<Begun>> {
    let record = seen.live()?;
    let accepts = ask.call.accepts(record.fingerprint);
    if !accepts && chosen("payload_ignored") {
        let call = ask.call.fingerprint(record.fingerprint);
        return Some(honest(|| machine::begin(seen, &Begin { call, ..*ask })));
    }
    match &record.state {
        State::Completed(completion) if !accepts && chosen("mismatch_after_replay") => {
            Some(Decision::Reply(Begun::Replay(completion.clone())))
        }
        State::Open(Phase::InProgress, holding) => begin_in_progress(seen, ask, record, holding),
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => None,
    }
}

fn begin_in_progress(seen: &Observed, ask: &Begin, record: &Record, holding: &Holding) -> Option<Decision<Begun>> {
    let mine = holding.owner == ask.owner;
    if mine && chosen("mine_is_busy") {
        return Some(Decision::Reply(Begun::Busy(seen.lease_left)));
    }
    if mine && holding.abandoned() && chosen("mine_when_abandoned") {
        let record = in_progress(record, Holding { lease: ask.lease, ..*holding });
        let seen = Observed { record: Some(record), ..seen.clone() };
        return Some(honest(|| machine::begin(&seen, ask)));
    }
    if seen.lease_left > holding.lease.into() && chosen("clock_back_sticks") {
        return Some(Decision::Reply(Begun::Busy(seen.lease_left)));
    }
    if chosen("twin_runs_too") {
        let lapsed = Observed { lease_left: std::time::Duration::ZERO, ..seen.clone() };
        return Some(honest(|| machine::begin(&lapsed, &Begin { on_lapse: machine::Lapse::Retry, ..*ask })));
    }
    if chosen("takeover_under_hold") {
        return Some(honest(|| machine::begin(seen, &Begin { on_lapse: machine::Lapse::Retry, ..*ask })));
    }
    if chosen("token_stands_still") {
        return Some(granted_under(record.token, honest(|| machine::begin(seen, ask))));
    }
    if chosen("takeover_token_by_caller") {
        let slow = Token(seen.now.0.saturating_sub(3_600_000_000));
        return Some(granted_under(slow, honest(|| machine::begin(seen, ask))));
    }
    None
}

/// The same grant, under another token.
fn granted_under(token: Token, decision: Decision<Begun>) -> Decision<Begun> {
    match decision {
        Decision::Change(mut change, Begun::Granted(mut grant)) => {
            change.record.token = token;
            grant.token = token;
            Decision::Change(change, Begun::Granted(grant))
        }
        other @ (Decision::Reply(_) | Decision::Change(..)) => other,
    }
}

fn in_progress(record: &Record, holding: Holding) -> Record {
    Record { state: State::Open(Phase::InProgress, holding), ..record.clone() }
}

/// A change that grants: its record may be made to live as long as its lease.
pub(crate) fn granted(change: &mut Change) {
    if let State::Open(Phase::InProgress, holding) = &mut change.record.state
        && chosen("lease_is_life")
    {
        holding.lifetime = Seconds(holding.lease.0.div_ceil(1000));
        change.lifetime = holding.lifetime;
    }
}

pub(crate) fn renew(seen: &Observed, claim: &Claim) -> Option<Decision<Renewed>> {
    let record = seen.live()?;
    if matches!(record.state, State::Completed(_)) && chosen("renew_shortens_answer") {
        return Some(Decision::Change(Change { record: record.clone(), lifetime: Seconds(1) }, Renewed::Lost));
    }
    let State::Open(Phase::InProgress, holding) = &record.state else { return None };
    let theirs = Claim { owner: holding.owner, token: record.token };
    if chosen("renew_unfenced") {
        return Some(honest(|| machine::renew(seen, &theirs)));
    }
    if holding.abandoned() && theirs == *claim && chosen("renew_revives_abandoned") {
        let record = in_progress(record, Holding { lease: Millis(1000), ..*holding });
        let seen = Observed { record: Some(record), ..seen.clone() };
        return Some(honest(|| machine::renew(&seen, claim)));
    }
    None
}

pub(crate) fn complete(seen: &Observed, ask: &Complete) -> Option<Decision<Completed>> {
    let Some(record) = seen.live() else {
        return chosen("complete_needs_record").then_some(Decision::Reply(Completed::Gone));
    };
    if chosen("complete_unfenced") {
        let absent = Observed { record: None, ..seen.clone() };
        return match honest(|| machine::complete(&absent, ask)) {
            Decision::Change(change, _) => Some(Decision::Change(change, Completed::Done)),
            Decision::Reply(_) => None,
        };
    }
    let lapsed = matches!(record.state, State::Open(Phase::InProgress, _)) && seen.lease_left.is_zero();
    let closed = matches!(record.state, State::Open(Phase::Released | Phase::Dead, _));
    let refused = lapsed && chosen("complete_needs_lease") || closed && chosen("known_effect_refused");
    refused.then(|| Decision::Reply(Completed::Lost(record.clone())))
}

pub(crate) fn release(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Option<Decision<Settled>> {
    let record = seen.live()?;
    let holding = record.state.holding().copied();
    if chosen("release_unfenced") {
        let lease = Millis(1000);
        let any = Holding { owner: claim.owner, attempt: 1, takeover: false, lease, lifetime };
        let released = Record {
            state: State::Open(Phase::Released, Holding { lifetime, ..holding.unwrap_or(any) }),
            ..record.clone()
        };
        return Some(Decision::Change(Change { record: released, lifetime }, Settled::Yes));
    }
    let holding = holding.filter(|holding| holding.takeover && chosen("takeover_released"))?;
    let plain = Observed { record: Some(in_progress(record, Holding { takeover: false, ..holding })), ..seen.clone() };
    Some(honest(|| machine::release(&plain, claim, lifetime)))
}

pub(crate) fn resolve(seen: &Observed, expected: Token, verdict: &Verdict) -> Option<Decision<Resolved>> {
    let token = seen.live()?.token;
    (token != expected && chosen("resolve_any_token")).then(|| honest(|| machine::resolve(seen, token, verdict)))
}

pub(crate) fn reopen(seen: &Observed, expected: Token, lifetime: Seconds) -> Option<Decision<Resolved>> {
    if !chosen("reopen_keeps_token") {
        return None;
    }
    Some(match honest(|| machine::reopen(seen, expected, lifetime)) {
        Decision::Change(mut change, resolved) => {
            change.record.token = expected;
            Decision::Change(change, resolved)
        }
        reply @ Decision::Reply(_) => reply,
    })
}
