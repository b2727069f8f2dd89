//! What callers may hear.
//!
//! - An answer was decided behind a handler of that very key and payload; a fresh one by the caller's own. The payload is not compared
//!   where the store forgot a record and somebody, who knows of operations only, found out.
//! - An answer that counts as recorded is in the store, or was. Relaxed for keys of which the store forgot a live record, if its clock
//!   stepped, too: a token may then name two grants.
//! - One that is pending is in the journal of its process, or in the store. Relaxed where runs have answers of their own, so that it may
//!   just have lost against another, and for keys of which the store forgot a live record.
//! - All callers of a key are told the same answer. Relaxed for keys of which the store forgot a live record, unless a ledger has it;
//!   and for what is pending where each run gives an answer of its own.
//! - A mismatch is told only where a record was made for the other payload.
//! - `Not applied` is told only to whom its own handler said so, `unknown` only where somebody does not know, and neither, nor any
//!   refusal, to whom its own handler gave an answer. Relaxed where the tasks of the process were dropped, and for a key that was
//!   forgotten and is used for another payload, or whose token came again after the store's clock stepped,
//!   and for an answer past its retention.
//! - Nobody who comes after an answer was recorded hears that the outcome is unknown. Relaxed where the store forgot, and for a copy of
//!   a call that came before, and hears what that one hears.
//! - Nobody is told to come back later than a lease from now, nor because of itself: the first call of a key runs.
//!   Relaxed where somebody else may have looked into it.
//! - No answer is lost in a process with a journal.

use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::gate::{Provenance, Recorded};
use hapax_core::{ErrorKind, Journal};

use super::history::{AttemptHistory, CallHistory};
use super::{Known, Oracle};
use crate::outcome::{CallerOutcome, EffectPolicy, HandlerOutcome};
use crate::plan::Class;
use crate::rules;

impl Oracle {
    /// A caller hung up; its handler goes on.
    pub(crate) fn hangs_up(&self, call: usize) {
        let mut known = self.lock();
        let key = known.calls[call].key;
        known.trace.count("caller hung up");
        known.trace.line(format_args!("key {key} call {call}: the caller hangs up"));
    }

    /// A caller was told.
    pub(crate) fn told(&self, call: usize, told: &CallerOutcome) {
        let mut known = self.lock();
        let key = known.calls[call].key;
        known.trace.count(told.name());
        known.trace.line(format_args!("key {key} call {call}: is told {told}"));
        known.calls[call].told = Some(told.clone());
        if matches!(told, CallerOutcome::Answer { recorded: Recorded::Pending, .. }) && self.plan.may(Class::Expiry) {
            known.keys[key].excuse("its answer may stay in a journal for longer than its record lives");
        }
        let rule = match told {
            CallerOutcome::Answer { answer, provenance, recorded } => known
                .may_hear(call, answer, *provenance)
                .or_else(|| known.is_kept(call, answer, *recorded))
                .or_else(|| known.is_the_same(call, answer, *recorded)),
            CallerOutcome::Busy(after) if *after > self.plan.route(key).lease => {
                Some("a caller is told to come back after more than a lease")
            }
            CallerOutcome::Mismatch => known.is_for_another_payload(call),
            CallerOutcome::Indeterminate => known.may_be_indeterminate(call),
            CallerOutcome::Dead => Some("a caller is told that a key is dead though nobody buried it"),
            CallerOutcome::Overloaded if self.plan.max_in_flight > self.plan.clients => {
                Some("a caller is told that too many attempts run")
            }
            CallerOutcome::NotApplied => known.was_in_vain(call),
            CallerOutcome::Unknown => known.may_be_unknown(call, self.plan.route(key).retention),
            CallerOutcome::Unrecorded => known.may_be_unrecorded(call),
            CallerOutcome::Busy(_) => known.was_not_run(call).or_else(|| known.is_not_alone(call)),
            CallerOutcome::Store(ErrorKind::NotApplied | ErrorKind::Unknown) | CallerOutcome::Overloaded => {
                known.was_not_run(call)
            }
            CallerOutcome::Store(_) => Some("a caller is told that a record is damaged, or a setting wrong"),
        };
        if let Some(rule) = rule {
            known.hold(key, false, rule);
        }
    }
}

impl Known {
    fn own(&self, call: usize) -> Option<&AttemptHistory> {
        self.calls[call].attempt.as_ref()
    }

    fn own_word(&self, call: usize) -> Option<HandlerOutcome> {
        self.own(call).and_then(AttemptHistory::said)
    }

    fn may_hear(&self, call: usize, answer: &str, provenance: Provenance) -> Option<&'static str> {
        let (key, payload) = (&self.keys[self.calls[call].key], self.calls[call].payload);
        let for_this = |by: usize| self.calls[by].payload == payload || key.mixes_payloads();
        if !key.decisions.iter().any(|decision| decision.answer == answer && for_this(decision.call)) {
            return Some(rules::FOREIGN_ANSWER);
        }
        let own_answer = self.own(call).and_then(AttemptHistory::answer);
        let fits = match provenance {
            Provenance::Fresh => own_answer == Some(answer),
            Provenance::Canonical => own_answer.is_some(),
            Provenance::Replayed => self.own(call).is_none(),
        };
        (!fits).then_some(rules::WRONG_PROVENANCE)
    }

    /// Whether an answer is where it is said to be.
    fn is_kept(&self, call: usize, answer: &str, recorded: Recorded) -> Option<&'static str> {
        let key = &self.keys[self.calls[call].key];
        let in_store = key.recorded.iter().any(|recorded| recorded == answer);
        match recorded {
            Recorded::Yes => {
                let confused = self.may_be_confused(self.calls[call].key);
                (!in_store && !confused).then_some("an answer was told as recorded that is not")
            }
            Recorded::Pending => {
                let journal = self.lives[self.calls[call].life].journal.as_ref();
                let entries = journal.and_then(|journal| journal.replay().now_or_never()).and_then(Result::ok);
                let holds = |answer: &str| {
                    entries.iter().flatten().any(|(_, spilled)| spilled.complete.answer == *answer.as_bytes())
                };
                let lost = key.completed && key.effect == EffectPolicy::Repeatable || key.was_forgotten();
                (!in_store && !lost && !holds(answer)).then_some("an answer was told as pending that is nowhere")
            }
            Recorded::No => (key.effect != EffectPolicy::Ledger { pass: true })
                .then_some("an answer was not recorded, and not under Pass"),
        }
    }

    fn is_the_same(&mut self, call: usize, answer: &str, recorded: Recorded) -> Option<&'static str> {
        let key = &mut self.keys[self.calls[call].key];
        let pending = recorded != Recorded::Yes;
        let counts = |pending: bool| !(pending && key.effect == EffectPolicy::Repeatable);
        let differs = key.told.iter().any(|(told, was_pending)| told != answer && counts(pending || *was_pending));
        key.told.push((answer.into(), pending));
        let excused = key.was_forgotten() && !key.effect.has_ledger();
        (differs && !excused).then_some(rules::DIFFERENT_ANSWERS)
    }

    fn is_for_another_payload(&self, call: usize) -> Option<&'static str> {
        let (key, payload) = (&self.keys[self.calls[call].key], self.calls[call].payload);
        (!key.payloads[1 - payload])
            .then_some("a mismatch was told though there is no other payload")
            .or(self.was_not_run(call))
    }

    fn may_be_indeterminate(&self, call: usize) -> Option<&'static str> {
        let CallPlace { key, life } = self.place(call);
        let key = &self.keys[key];
        let copies = key.calls.iter().any(|other| {
            let CallHistory { life: there, told, .. } = &self.calls[*other];
            *there == life
                && !self.comes_after_completion(*other)
                && matches!(told, Some(CallerOutcome::Indeterminate) | None)
        });
        if self.comes_after_completion(call) && !copies {
            return Some("a caller that came after an answer was told that the outcome is unknown");
        }
        let rule = (!key.effect.is_at_most_once()).then_some("a key is indeterminate under Retry");
        rule.or_else(|| self.was_not_run(call)).or_else(|| self.is_not_alone(call))
    }

    fn was_in_vain(&self, call: usize) -> Option<&'static str> {
        (self.own_word(call) != Some(HandlerOutcome::NotApplied)).then_some("a caller was told `not applied` by nobody")
    }

    /// Whether somebody does not know: its own handler, or that of the call that it copies.
    fn may_be_unknown(&self, call: usize, retention: Duration) -> Option<&'static str> {
        let CallPlace { key, life } = self.place(call);
        if self.lives[life].cut_off.is_some() {
            return None;
        }
        let too_late = |own: &AttemptHistory| own.answer().is_some() && self.trace.now() >= own.ended_at + retention;
        let unknown = |own: &AttemptHistory| own.is_unknown() || too_late(own) || self.may_be_lost(key);
        if let Some(own) = self.own(call) {
            return (!unknown(own)).then_some(rules::LESS_THAN_HANDLER_KNEW);
        }
        // What a leader could not record is unknown to its copies.
        let has_journal = self.lives[life].journal.is_some();
        let leaves_unknown = |own: &AttemptHistory| unknown(own) || own.answer().is_some() && !has_journal;
        let same_process = self.keys[key].calls.iter().filter(|other| self.calls[**other].life == life);
        let mut leaders = same_process.filter_map(|other| self.own(*other));
        (!leaders.any(leaves_unknown)).then_some("a caller was told that the outcome is unknown by nobody")
    }

    /// Whether an answer may lose to something else than an answer.
    fn may_be_lost(&self, key: usize) -> bool {
        let known = &self.keys[key];
        self.may_be_confused(key) || known.was_forgotten() && known.payloads == [true, true]
    }

    /// Whether one token may name two grants: the store forgets them, and its clock steps back.
    fn may_be_confused(&self, key: usize) -> bool {
        self.keys[key].was_forgotten() && self.store_clock_stepped.is_some()
    }

    fn may_be_unrecorded(&self, call: usize) -> Option<&'static str> {
        let CallPlace { life, .. } = self.place(call);
        let answers = self.own_word(call).is_some_and(HandlerOutcome::has_answer);
        let has_journal = self.lives[life].journal.is_some();
        (!answers || has_journal).then_some("an answer was lost in a process with a journal, or there was none")
    }

    fn was_not_run(&self, call: usize) -> Option<&'static str> {
        self.own(call).map(|_| rules::REFUSED_AFTER_START)
    }

    /// Whether there is another call at all that may have stood in the way.
    fn is_not_alone(&self, call: usize) -> Option<&'static str> {
        let key = &self.keys[self.calls[call].key];
        let alone = key.calls == [call] && !key.is_found_out;
        alone.then_some("a caller was told that another attempt runs though there never was one")
    }

    fn place(&self, call: usize) -> CallPlace {
        CallPlace { key: self.calls[call].key, life: self.calls[call].life }
    }
}

/// Which key a call is for, and in which life of a process.
struct CallPlace {
    key: usize,
    life: usize,
}
