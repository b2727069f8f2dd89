//! What may run.
//!
//! - Behind nothing but the gate, under `Hold` and `Resolve`, an effect happens at most once. Relaxed for keys of which the store
//!   forgot a live record.
//! - A handler starts only if every other attempt is known to have done nothing: by its own word, or, under `Resolve`
//!   and where there is an operator, because somebody found out. Under `Retry` a grant after an attempt of which that is not known is a takeover. Relaxed for attempts of
//!   which the store forgot the record, and for those that ran without one.
//! - No handler starts for a call that came after an answer was recorded, nor for one that was told something, nor under the token
//!   of another. The first is relaxed where the store forgot.
//! - A handler breaks off only by a panic of its own, or when its process crashes or drops its tasks.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Attempt;
use hapax_core::machine::Grant;

use super::history::{AttemptHistory, CallHistory, Decision, Ended, KeyHistory};
use super::{Known, Oracle};
use crate::outcome::{EffectPolicy, HandlerOutcome};
use crate::rules;

/// A handler that runs. Dropped without a word, it broke off.
pub(crate) struct Running {
    oracle: Arc<Oracle>,
    call: usize,
    ended: bool,
}

impl Oracle {
    /// A caller asks; the number of the call.
    pub(crate) fn asks(&self, key: usize, payload: usize, life: usize) -> usize {
        let mut known = self.lock();
        let call = known.calls.len();
        let found = (known.keys[key].completed, known.keys[key].forgotten);
        let started = known.trace.now();
        known.calls.push(CallHistory { key, payload, life, started, found, attempt: None, told: None });
        known.keys[key].calls.push(call);
        let process = known.lives[life].process;
        known.trace.count("call");
        known.trace.line(format_args!("key {key} call {call}: asks process {process}, payload {payload}"));
        call
    }

    /// A handler starts.
    pub(crate) fn starts(self: Arc<Self>, call: usize, attempt: &Attempt) -> Running {
        let mut known = self.lock();
        known.may_start(call, attempt.grant());
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
        Running { oracle: self, call, ended: false }
    }
}

impl Running {
    /// What the handler does takes effect, or is finally rejected; the answer that follows. A ledger gives its first one again.
    pub(crate) fn decides(&self, applied: bool, careful: bool) -> String {
        let mut known = self.oracle.lock();
        if careful {
            self.oracle.is_believed(&mut known, self.call);
        }
        self.oracle.keeps_its_lease(&mut known, self.call);
        known.decides(self.call, applied)
    }

    pub(crate) fn is_about_to_panic(&self) {
        let mut known = self.oracle.lock();
        known.trace.count("handler panicked");
        known.attempt(self.call).panics = true;
    }

    pub(crate) fn says(mut self, word: HandlerOutcome, answer: &str) {
        self.ended = true;
        let mut known = self.oracle.lock();
        self.oracle.keeps_its_lease(&mut known, self.call);
        let key = known.calls[self.call].key;
        known.trace.line(format_args!("key {key} call {}: its handler says {word:?} {answer}", self.call));
        known.trace.count(match word {
            HandlerOutcome::Applied => "handler applied",
            HandlerOutcome::Final => "handler final",
            HandlerOutcome::NotApplied => "handler not applied",
            HandlerOutcome::Unknown => "handler unknown",
        });
        known.ends(self.call, Ended::Said(word, answer.into()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut known = self.oracle.lock();
        let (key, life) = (known.calls[self.call].key, known.calls[self.call].life);
        known.trace.line(format_args!("key {key} call {}: its handler breaks off", self.call));
        known.trace.count("handler broke off");
        let process_ended = known.lives[life].crashed || known.lives[life].cut_off.is_some() || known.over;
        known.ends(self.call, Ended::BrokeOff);
        let panics = known.attempt(self.call).panics;
        known.hold(key, panics || process_ended, "a handler was dropped though its process goes on");
    }
}

impl Known {
    pub(super) fn attempt(&mut self, call: usize) -> &mut AttemptHistory {
        self.calls[call].attempt.as_mut().expect("its handler started")
    }

    /// Whether an answer was recorded when a call was made, and still is.
    pub(super) fn comes_after_completion(&self, call: usize) -> bool {
        let CallHistory { key, found, .. } = &self.calls[call];
        self.keys[*key].completed && *found == (true, self.keys[*key].forgotten)
    }

    fn ends(&mut self, call: usize, ended: Ended) {
        let now = self.trace.now();
        self.running.retain(|(running, _)| *running != call);
        let attempt = self.attempt(call);
        attempt.ended = Some(ended);
        attempt.ended_at = now;
    }

    fn may_start(&mut self, call: usize, grant: Option<&Grant>) {
        let key = self.calls[call].key;
        let effect = self.keys[key].effect;
        let untold = self.calls[call].told.is_none() && self.calls[call].attempt.is_none();
        self.hold(key, untold, rules::STARTED_AFTER_REFUSAL);
        let Some(grant) = grant else {
            self.trace.line(format_args!("key {key} call {call}: its handler starts without a record"));
            self.trace.count("run without a record");
            self.hold(
                key,
                effect == EffectPolicy::Ledger { pass: true },
                "a handler ran without a record, and not under Pass",
            );
            return;
        };
        let (token, number, takeover) = (grant.token.0, grant.attempt, grant.takeover);
        self.trace.line(format_args!(
            "key {key} call {call}: its handler starts, token {token}, attempt {number}, takeover {takeover}"
        ));
        self.trace.count(if takeover { "takeover" } else { "handler started" });
        let late = self.comes_after_completion(call);
        self.hold(key, !late, "a handler started for a call that came after an answer was recorded");
        self.hold(key, !takeover || !effect.is_at_most_once(), "a lapsed attempt was taken over, and not under Retry");
        if let Some(rule) = self.is_barred(key, grant).filter(|_| !self.keys[key].has_forgotten(grant)) {
            self.hold(key, false, rule);
        }
    }

    /// Which other attempt stands in the way of a grant.
    fn is_barred(&self, key: usize, grant: &Grant) -> Option<&'static str> {
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
                EffectPolicy::Hold | EffectPolicy::Resolve => other.was_in_vain(),
                EffectPolicy::Ledger { .. } | EffectPolicy::Repeatable => {
                    grant.takeover || other.was_in_vain() || *token > grant.token
                }
            };
            if !harmless {
                return Some("a handler started though another attempt may have had its effect");
            }
        }
        None
    }

    pub(super) fn attempts_of<'a>(&'a self, key: &'a KeyHistory) -> impl Iterator<Item = &'a AttemptHistory> {
        key.calls.iter().filter_map(|call| self.calls[*call].attempt.as_ref())
    }

    fn decides(&mut self, call: usize, applied: bool) -> String {
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
        known.decisions.push(Decision { call, answer: answer.clone() });
        let what = if applied { "effect" } else { "rejection" };
        self.trace.count(what);
        self.trace.line(format_args!("key {key} call {call}: {what}"));
        self.hold(key, once, rules::TWO_EFFECTS);
        answer
    }
}
