//! The machine with its mutants: each function applies the chosen mutant, or calls the function of the same name in
//! `machine.rs`.
//!
//! Under the feature `chaos` this module is `hapax_core::machine`. What it does not define itself is that of
//! `machine.rs`.

use crate::chaos::Mutant;
use crate::record::{Holding, Millis, Owner, Phase, Record, Seconds, State, Token};
use crate::unaltered::machine as unaltered;

pub use crate::unaltered::machine::*;

/// See `begin` in `machine.rs`.
pub fn begin(seen: &Observed, ask: &Begin) -> Decision<Begun> {
    match altered_begin(seen, ask).unwrap_or_else(|| unaltered::begin(seen, ask)) {
        Decision::Change(change, Begun::Granted(grant)) => Decision::Change(shortened(change), Begun::Granted(grant)),
        other @ (Decision::Reply(_) | Decision::Change(..)) => other,
    }
}

/// See `first_grant` in `machine/change.rs`.
pub fn first_grant(ask: &Begin, seen: &Observed) -> (Change, Grant) {
    let (change, grant) = unaltered::first_grant(ask, seen);
    (shortened(change), grant)
}

/// A granted record lives only as long as its lease.
fn shortened(mut change: Change) -> Change {
    if let State::Open(Phase::InProgress, holding) = &mut change.record.state
        && Mutant::LeaseIsLife.is_on()
    {
        holding.lifetime = Seconds(holding.lease.0.div_ceil(1000));
        change.lifetime = holding.lifetime;
    }
    change
}

fn altered_begin(seen: &Observed, ask: &Begin) -> Option<Decision<Begun>> {
    let record = seen.live()?;
    let accepts = ask.call.accepts(record.fingerprint);
    if !accepts && Mutant::PayloadIgnored.is_on() {
        let call = ask.call.fingerprint(record.fingerprint);
        return Some(unaltered::begin(seen, &Begin { call, ..*ask }));
    }
    match &record.state {
        State::Completed(completion) if !accepts && Mutant::MismatchAfterReplay.is_on() => {
            Some(Decision::Reply(Begun::Replay(completion.clone())))
        }
        State::Open(Phase::InProgress, holding) => altered_begin_in_progress(seen, ask, record, holding),
        State::Completed(_) | State::Open(..) => None,
    }
}

fn altered_begin_in_progress(
    seen: &Observed,
    ask: &Begin,
    record: &Record,
    holding: &Holding,
) -> Option<Decision<Begun>> {
    let is_mine = holding.owner == ask.owner;
    if is_mine && Mutant::MineIsBusy.is_on() {
        return Some(Decision::Reply(Begun::Busy(seen.lease_left)));
    }
    if is_mine && holding.is_abandoned() && Mutant::MineWhenAbandoned.is_on() {
        let record = in_progress(record, Holding { lease: ask.lease, ..*holding });
        let seen = Observed { record: Some(record), ..seen.clone() };
        return Some(unaltered::begin(&seen, ask));
    }
    if seen.lease_left > holding.lease.into() && Mutant::ClockBackSticks.is_on() {
        return Some(Decision::Reply(Begun::Busy(seen.lease_left)));
    }
    if Mutant::TwinRunsToo.is_on() {
        // An expired lease under `Retry` is row B7: it grants a second run at once.
        let lapsed = Observed { lease_left: std::time::Duration::ZERO, ..seen.clone() };
        return Some(unaltered::begin(&lapsed, &Begin { on_lapse: Lapse::Retry, ..*ask }));
    }
    if Mutant::TakeoverUnderHold.is_on() {
        return Some(unaltered::begin(seen, &Begin { on_lapse: Lapse::Retry, ..*ask }));
    }
    if Mutant::TokenStandsStill.is_on() {
        return Some(granted_under(record.token, unaltered::begin(seen, ask)));
    }
    if Mutant::TakeoverTokenByCaller.is_on() {
        let slow = Token(seen.now.0.saturating_sub(3_600_000_000));
        return Some(granted_under(slow, unaltered::begin(seen, ask)));
    }
    None
}

/// The same grant under another token.
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

/// See `renew` in `machine.rs`.
pub fn renew(seen: &Observed, claim: &Claim) -> Decision<Renewed> {
    altered_renew(seen, claim).unwrap_or_else(|| unaltered::renew(seen, claim))
}

fn altered_renew(seen: &Observed, claim: &Claim) -> Option<Decision<Renewed>> {
    let record = seen.live()?;
    if matches!(record.state, State::Completed(_)) && Mutant::RenewShortensAnswer.is_on() {
        return Some(Decision::Change(Change { record: record.clone(), lifetime: Seconds(1) }, Renewed::Lost));
    }
    let State::Open(Phase::InProgress, holding) = &record.state else { return None };
    let holders = Claim { owner: holding.owner, token: record.token };
    if Mutant::RenewUnfenced.is_on() {
        return Some(unaltered::renew(seen, &holders));
    }
    if holding.is_abandoned() && holders == *claim && Mutant::RenewRevivesAbandoned.is_on() {
        let record = in_progress(record, Holding { lease: Millis(1000), ..*holding });
        let seen = Observed { record: Some(record), ..seen.clone() };
        return Some(unaltered::renew(&seen, claim));
    }
    None
}

/// See `complete` in `machine.rs`.
pub fn complete(seen: &Observed, ask: &Complete) -> Decision<Completed> {
    altered_complete(seen, ask).unwrap_or_else(|| unaltered::complete(seen, ask))
}

fn altered_complete(seen: &Observed, ask: &Complete) -> Option<Decision<Completed>> {
    let Some(record) = seen.live() else {
        return Mutant::CompleteNeedsRecord.is_on().then_some(Decision::Reply(Completed::Gone));
    };
    if Mutant::CompleteUnfenced.is_on() {
        // Without a record, row C1 writes whatever the store has.
        let absent = Observed { record: None, ..seen.clone() };
        return match unaltered::complete(&absent, ask) {
            Decision::Change(change, _) => Some(Decision::Change(change, Completed::Done)),
            Decision::Reply(_) => None,
        };
    }
    let is_same_token = record.token == ask.claim.token;
    if is_same_token && record.state.phase().is_none() && Mutant::AnotherAnswerAlready.is_on() {
        return Some(Decision::Reply(Completed::Already));
    }
    let is_lapsed = matches!(record.state, State::Open(Phase::InProgress, _)) && seen.lease_left.is_zero();
    let is_closed = matches!(record.state, State::Open(Phase::Released | Phase::Dead, _));
    let is_shared = is_same_token && record.state.holding().is_some_and(|holding| holding.owner != ask.claim.owner);
    let is_refused = is_lapsed && Mutant::CompleteNeedsLease.is_on()
        || is_closed && Mutant::KnownEffectRefused.is_on()
        || is_shared && Mutant::SameTokenRefused.is_on();
    is_refused.then(|| Decision::Reply(Completed::Lost(record.clone())))
}

/// See `release` in `machine.rs`.
pub fn release(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Decision<Settled> {
    altered_release(seen, claim, lifetime).unwrap_or_else(|| unaltered::release(seen, claim, lifetime))
}

fn altered_release(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Option<Decision<Settled>> {
    let record = seen.live()?;
    let holding = record.state.holding().copied();
    if Mutant::ReleaseUnfenced.is_on() {
        let lease = Millis(1000);
        let any = Holding { owner: claim.owner, attempt: 1, takeover: false, lease, lifetime };
        let released = Holding { lifetime, ..holding.unwrap_or(any) };
        let record = Record { state: State::Open(Phase::Released, released), ..record.clone() };
        return Some(Decision::Change(Change { record, lifetime }, Settled::Yes));
    }
    let holding = holding.filter(|holding| holding.takeover && Mutant::TakeoverReleased.is_on())?;
    let plain = Observed { record: Some(in_progress(record, Holding { takeover: false, ..holding })), ..seen.clone() };
    Some(unaltered::release(&plain, claim, lifetime))
}

/// See `cancel` in `machine.rs`. A cancellation is a release, so the mutants of the release apply.
pub fn cancel(seen: &Observed, owner: Owner, lifetime: Seconds) -> Decision<Cancelled> {
    let claim = seen.live().map(|record| Claim { owner, token: record.token });
    match claim.and_then(|claim| altered_release(seen, &claim, lifetime)) {
        Some(released) => released.map(Cancelled::from),
        None => unaltered::cancel(seen, owner, lifetime),
    }
}

/// See `resolve` in `machine.rs`.
pub fn resolve(seen: &Observed, expected: Token, verdict: &Verdict) -> Decision<Resolved> {
    match seen.live() {
        Some(record) if Mutant::ResolveAnyToken.is_on() => unaltered::resolve(seen, record.token, verdict),
        Some(_) | None => unaltered::resolve(seen, expected, verdict),
    }
}

/// See `reopen` in `machine.rs`.
pub fn reopen(seen: &Observed, expected: Token, lifetime: Seconds) -> Decision<Resolved> {
    match unaltered::reopen(seen, expected, lifetime) {
        Decision::Change(mut change, resolved) if Mutant::ReopenKeepsToken.is_on() => {
            change.record.token = expected;
            Decision::Change(change, resolved)
        }
        decision @ (Decision::Reply(_) | Decision::Change(..)) => decision,
    }
}
