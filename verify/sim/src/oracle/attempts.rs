//! Which handlers may run.
//!
//! - Under `Hold` and `Resolve`, an effect that only the gate protects happens at most once. Relaxed for keys whose
//!   live record the store forgot.
//! - A handler starts only if every other attempt is known to have applied nothing. That is known if the attempt
//!   reported so. Under `Resolve`, and where there is an operator, it is also known after the outcome was found out.
//!   Under `Retry`, a grant after an attempt with an unknown outcome must be a takeover. Relaxed for attempts whose
//!   record the store forgot, and for attempts that ran without a record.
//! - No handler starts for a call that was made after an answer was recorded. Relaxed where the store forgot.
//! - No handler starts for a call that has its outcome, nor under the token of another attempt.
//! - A handler breaks off only if it panics, or if its process crashes or drops its tasks.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Attempt;
use hapax_core::machine::Grant;

use super::history::{AttemptHistory, CallHistory, HandlerEnd, KeyHistory, ServiceDecision};
use super::{Oracle, OracleState};
use crate::outcome::{EffectPolicy, HandlerOutcome};
use crate::rules;

/// A handler that runs. If it is dropped before it reports an outcome, it broke off.
pub(crate) struct RunningHandler {
    oracle: Arc<Oracle>,
    call: usize,
    ended: bool,
}

impl Oracle {
    /// A client calls. Returns the number of the call.
    pub(crate) fn start_call(&self, key: usize, payload: usize, life: usize) -> usize {
        let mut known = self.lock();
        let call = known.calls.len();
        let found = (known.keys[key].completed, known.keys[key].forgotten);
        let started = known.trace.now();
        known.calls.push(CallHistory { key, payload, life, started, found, attempt: None, received: None });
        known.keys[key].calls.push(call);
        let process = known.lives[life].process;
        known.trace.count("call");
        known.trace.line(format_args!("key {key} call {call}: calls process {process}, payload {payload}"));
        call
    }

    /// A handler starts.
    pub(crate) fn start_handler(self: Arc<Self>, call: usize, attempt: &Attempt) -> RunningHandler {
        let mut known = self.lock();
        let is_down = self.may_count_as_down(&known, known.calls[call].life);
        known.check_start(call, attempt.grant(), is_down);
        let (started, key) = (known.trace.now(), known.calls[call].key);
        let granted = attempt.grant().and_then(|grant| known.keys[key].granted(grant.owner, grant.token));
        let since = granted.map_or(started, |granted| granted.at);
        let forgotten = attempt.grant().is_some_and(|grant| known.keys[key].has_forgotten(grant));
        known.calls[call].attempt = Some(AttemptHistory {
            attempt: attempt.clone(),
            since,
            started,
            decided: false,
            ended: None,
            ended_at: Duration::ZERO,
            forgotten,
            lost: false,
            panics: false,
        });
        known.running.push((call, started));
        drop(known);
        RunningHandler { oracle: self, call, ended: false }
    }
}

impl RunningHandler {
    /// The effect happens, or the request is rejected for good. Returns the answer; a ledger returns its first answer
    /// again.
    pub(crate) fn decide(&self, applied: bool, careful: bool) -> String {
        let mut known = self.oracle.lock();
        if careful {
            self.oracle.check_grant_held(&mut known, self.call);
        }
        self.oracle.check_lease_kept(&mut known, self.call);
        known.decide(self.call, applied)
    }

    pub(crate) fn announce_panic(&self) {
        let mut known = self.oracle.lock();
        known.trace.count("handler panicked");
        known.attempt(self.call).panics = true;
    }

    pub(crate) fn report(mut self, word: HandlerOutcome, answer: &str) {
        self.ended = true;
        let mut known = self.oracle.lock();
        self.oracle.check_lease_kept(&mut known, self.call);
        let key = known.calls[self.call].key;
        known.trace.line(format_args!("key {key} call {}: its handler reports {word:?} {answer}", self.call));
        known.trace.count(match word {
            HandlerOutcome::Applied => "handler applied",
            HandlerOutcome::Final => "handler final",
            HandlerOutcome::NotApplied => "handler not applied",
            HandlerOutcome::Unknown => "handler unknown",
        });
        known.end_handler(self.call, HandlerEnd::Reported(word, answer.into()));
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut known = self.oracle.lock();
        let (key, life) = (known.calls[self.call].key, known.calls[self.call].life);
        known.trace.line(format_args!("key {key} call {}: its handler breaks off", self.call));
        known.trace.count("handler broke off");
        let process_ended = known.lives[life].crashed || known.lives[life].cut_off.is_some() || known.over;
        known.end_handler(self.call, HandlerEnd::BrokeOff);
        let panics = known.attempt(self.call).panics;
        known.check(key, panics || process_ended, "a handler was dropped although its process lives on");
    }
}

impl OracleState {
    pub(super) fn attempt(&mut self, call: usize) -> &mut AttemptHistory {
        self.calls[call].attempt.as_mut().expect("its handler started")
    }

    /// Whether an answer was recorded when a call was made, and the store has not forgotten it since.
    pub(super) fn is_after_completion(&self, call: usize) -> bool {
        let CallHistory { key, found, .. } = &self.calls[call];
        self.keys[*key].completed && *found == (true, self.keys[*key].forgotten)
    }

    fn end_handler(&mut self, call: usize, ended: HandlerEnd) {
        let now = self.trace.now();
        self.running.retain(|(running, _)| *running != call);
        let attempt = self.attempt(call);
        attempt.ended = Some(ended);
        attempt.ended_at = now;
    }

    /// `is_down`: whether the gate may treat the store as down.
    fn check_start(&mut self, call: usize, grant: Option<&Grant>, is_down: bool) {
        let key = self.calls[call].key;
        let effect = self.keys[key].effect;
        let no_outcome = self.calls[call].received.is_none() && self.calls[call].attempt.is_none();
        self.check(key, no_outcome, rules::STARTED_AFTER_REFUSAL);
        let Some(grant) = grant else {
            self.trace.line(format_args!("key {key} call {call}: its handler starts without a record"));
            self.trace.count("run without a record");
            self.check(key, is_down, "a handler ran without a record, and the store answered");
            self.check(
                key,
                effect == EffectPolicy::Ledger { pass: true },
                "a handler ran without a record, and the route does not allow that",
            );
            return;
        };
        let (token, number, takeover) = (grant.token.0, grant.attempt, grant.takeover);
        self.trace.line(format_args!(
            "key {key} call {call}: its handler starts, token {token}, attempt {number}, takeover {takeover}"
        ));
        self.trace.count(if takeover { "takeover" } else { "handler started" });
        let late = self.is_after_completion(call);
        self.check(key, !late, "a handler started for a call that was made after an answer was recorded");
        self.check(
            key,
            !takeover || !effect.is_at_most_once(),
            "a lapsed attempt was taken over, and the policy is not Retry",
        );
        if let Some(rule) = self.barred_by(key, grant).filter(|_| !self.keys[key].has_forgotten(grant)) {
            self.check(key, false, rule);
        }
    }

    /// The rule that a grant breaks because of another attempt.
    fn barred_by(&self, key: usize, grant: &Grant) -> Option<&'static str> {
        let known = &self.keys[key];
        for other in self.attempts_of(known).filter(|other| !other.forgotten) {
            let Some(Grant { token, .. }) = other.grant() else { continue };
            if *token == grant.token {
                return Some("two handlers ran under the same token");
            }
            let harmless = match known.effect {
                EffectPolicy::Hold | EffectPolicy::Resolve if known.is_found_out => {
                    other.ended.is_some() && !other.decided
                }
                EffectPolicy::Hold | EffectPolicy::Resolve => other.is_not_applied(),
                EffectPolicy::Ledger { .. } | EffectPolicy::Repeatable => {
                    grant.takeover || other.is_not_applied() || *token > grant.token
                }
            };
            if !harmless {
                return Some("a handler started although another attempt may have had its effect");
            }
        }
        None
    }

    pub(super) fn attempts_of<'a>(&'a self, key: &'a KeyHistory) -> impl Iterator<Item = &'a AttemptHistory> {
        key.calls.iter().filter_map(|call| self.calls[*call].attempt.as_ref())
    }

    fn decide(&mut self, call: usize, applied: bool) -> String {
        let CallHistory { key, payload, .. } = self.calls[call];
        let attempt = self.attempt(call);
        attempt.decided = true;
        let counts = applied && !attempt.forgotten;
        let known = &mut self.keys[key];
        if let (true, Some(first)) = (known.effect.has_ledger(), known.decisions.first()) {
            let answer = first.answer.clone();
            self.trace.line(format_args!("key {key} call {call}: the ledger has `{answer}`"));
            self.trace.count("ledger replayed");
            return answer;
        }
        known.effects += usize::from(counts);
        let once = known.effects <= 1 || !known.effect.is_at_most_once();
        let answer = format!("key {key} payload {payload} call {call}");
        known.decisions.push(ServiceDecision { call, answer: answer.clone() });
        let what = if applied { "effect" } else { "rejection" };
        self.trace.count(what);
        self.trace.line(format_args!("key {key} call {call}: {what}"));
        self.check(key, once, rules::TWO_EFFECTS);
        answer
    }
}
