//! Which outcomes callers may receive.
//!
//! - An answer was given by a handler for the same key and payload. A fresh answer was given by the caller's own
//!   handler. The payload is not compared if the store forgot a record and the outcome was then found out by operation,
//!   which has no payload.
//! - An answer that is marked as recorded is or was in the store.
//! - An answer that is marked as pending is in the journal of its process, or in the store. Relaxed if each run gives
//!   another answer, because the pending one may have lost against a recorded one. Relaxed if the store forgot a live
//!   record.
//! - All callers of a key receive the same answer. Relaxed if the store forgot a live record and there is no ledger.
//!   Relaxed for pending answers if each run gives another answer.
//! - A mismatch is possible only if a record was made for the other payload.
//! - A caller receives `not applied` only if its own handler reported it, and `unknown` only if an attempt has an
//!   unknown outcome. A caller whose handler gave an answer receives neither, and no refusal. Relaxed if the tasks of
//!   the process were dropped, for a forgotten key with two payloads or an ambiguous token, and for an answer past its
//!   retention.
//! - A call that was made after an answer was recorded is never refused as indeterminate. Relaxed if the store forgot,
//!   and for a follower of a call that was made before.
//! - A caller is refused as overloaded only while as many other calls of its process are in flight as may run at once.
//! - `Busy` never asks for a delay longer than a lease, and the only call of a key is never busy. The second is relaxed
//!   if an operator, a worker or a probe may have changed the record.
//! - No answer is lost in a process with a journal.

use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::Journal;
use hapax_core::gate::{Provenance, Recorded};

use super::history::{AttemptHistory, CallHistory};
use super::{Oracle, OracleState};
use crate::outcome::{CallerOutcome, EffectPolicy, HandlerOutcome};
use crate::plan::FaultClass;
use crate::rules;

impl Oracle {
    /// A caller hung up. Its handler runs on.
    pub(crate) fn hang_up(&self, call: usize) {
        let mut known = self.lock();
        let key = known.calls[call].key;
        known.trace.count("caller hung up");
        known.trace.line(format_args!("key {key} call {call}: the caller hangs up"));
    }

    /// Checks an outcome at the moment at which a caller receives it.
    pub(crate) fn receive(&self, call: usize, outcome: &CallerOutcome) {
        let mut known = self.lock();
        let key = known.calls[call].key;
        known.trace.count(outcome.name());
        known.trace.line(format_args!("key {key} call {call}: receives {outcome}"));
        known.calls[call].received = Some(outcome.clone());
        if matches!(outcome, CallerOutcome::Answer { recorded: Recorded::Pending, .. })
            && self.plan.allows(FaultClass::Expiry)
        {
            known.keys[key].excuse("its answer may stay in a journal for longer than its record lives");
        }
        if let Some(rule) = self.broken_rule(&mut known, call, outcome) {
            known.check(key, false, rule);
        }
    }

    /// The rule that an outcome breaks. Remembers an answer, so that later ones are compared with it.
    fn broken_rule(&self, known: &mut OracleState, call: usize, outcome: &CallerOutcome) -> Option<&'static str> {
        let route = self.plan.route(known.calls[call].key);
        match outcome {
            CallerOutcome::Answer { answer, provenance, recorded } => known
                .check_answer(call, answer, *provenance)
                .or_else(|| known.check_recorded(call, answer, *recorded))
                .or_else(|| known.check_same_answer(call, answer, *recorded)),
            CallerOutcome::Busy(after) if *after > route.lease => Some("a caller must retry after more than a lease"),
            CallerOutcome::Mismatch => known.check_mismatch(call),
            CallerOutcome::Indeterminate => known.check_indeterminate(call),
            CallerOutcome::Dead if known.keys[known.calls[call].key].worked_by.is_empty() => {
                Some("a caller was refused because of a dead key, and no attempt buried it")
            }
            CallerOutcome::Overloaded if !self.is_busy(known, call) => {
                Some("a caller was refused as overloaded although few calls are in flight")
            }
            CallerOutcome::NotApplied => known.check_not_applied(call),
            CallerOutcome::Unknown => known.check_unknown(call, route.retention),
            CallerOutcome::Unrecorded => known.check_unrecorded(call),
            CallerOutcome::Busy(_) => known.check_not_started(call).or_else(|| known.check_other_call(call)),
            CallerOutcome::Overloaded | CallerOutcome::Dead => known.check_not_started(call),
            CallerOutcome::Store(kind) => {
                known.check_not_started(call).or_else(|| self.check_store_error(known, call, *kind))
            }
        }
    }
}

impl Oracle {
    /// Whether so many other calls of the process are in flight that the limit may be reached. A call whose caller hung
    /// up counts: its attempt may run on.
    fn is_busy(&self, known: &OracleState, call: usize) -> bool {
        let life = known.calls[call].life;
        let in_flight = |other: &&CallHistory| other.life == life && other.received.is_none();
        // The call itself has its outcome already, so it is not counted.
        known.calls.iter().filter(in_flight).count() >= self.plan.max_in_flight
    }
}

impl OracleState {
    fn own(&self, call: usize) -> Option<&AttemptHistory> {
        self.calls[call].attempt.as_ref()
    }

    fn own_outcome(&self, call: usize) -> Option<HandlerOutcome> {
        self.own(call).and_then(AttemptHistory::reported)
    }

    fn check_answer(&self, call: usize, answer: &str, provenance: Provenance) -> Option<&'static str> {
        let (key, payload) = (&self.keys[self.calls[call].key], self.calls[call].payload);
        let for_this = |by: usize| self.calls[by].payload == payload || key.can_mix_payloads();
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

    /// Checks that an answer is in the store or in the journal, as it is marked.
    fn check_recorded(&self, call: usize, answer: &str, recorded: Recorded) -> Option<&'static str> {
        let key = &self.keys[self.calls[call].key];
        let in_store = key.recorded.iter().any(|recorded| recorded == answer);
        match recorded {
            Recorded::Yes => (!in_store).then_some("an answer is marked as recorded and is not"),
            Recorded::Pending => {
                let journal = self.lives[self.calls[call].life].journal.as_ref();
                let entries = journal.and_then(|journal| journal.replay().now_or_never()).and_then(Result::ok);
                let holds = |answer: &str| {
                    entries.iter().flatten().any(|(_, spilled)| spilled.complete.answer == *answer.as_bytes())
                };
                let lost = key.completed && key.effect == EffectPolicy::Repeatable || key.has_forgotten_record();
                (!in_store && !lost && !holds(answer))
                    .then_some("an answer is marked as pending and is neither in the journal nor in the store")
            }
            Recorded::No => (key.effect != EffectPolicy::Ledger { pass: true })
                .then_some("an answer is marked as not recorded, and the route does not allow that"),
        }
    }

    fn check_same_answer(&mut self, call: usize, answer: &str, recorded: Recorded) -> Option<&'static str> {
        let key = &mut self.keys[self.calls[call].key];
        let pending = recorded != Recorded::Yes;
        let counts = |pending: bool| !(pending && key.effect == EffectPolicy::Repeatable);
        let differs =
            key.received.iter().any(|(received, was_pending)| received != answer && counts(pending || *was_pending));
        key.received.push((answer.into(), pending));
        let excused = key.has_forgotten_record() && !key.effect.has_ledger();
        (differs && !excused).then_some(rules::DIFFERENT_ANSWERS)
    }

    fn check_mismatch(&self, call: usize) -> Option<&'static str> {
        let (key, payload) = (&self.keys[self.calls[call].key], self.calls[call].payload);
        (!key.payloads[1 - payload])
            .then_some("a caller received a mismatch although no record has the other payload")
            .or(self.check_not_started(call))
    }

    fn check_indeterminate(&self, call: usize) -> Option<&'static str> {
        let CallOrigin { key, life } = self.place(call);
        let key = &self.keys[key];
        let copies = key.calls.iter().any(|other| {
            let CallHistory { life: there, received, .. } = &self.calls[*other];
            *there == life
                && !self.is_after_completion(*other)
                && matches!(received, Some(CallerOutcome::Indeterminate) | None)
        });
        if self.is_after_completion(call) && !copies {
            return Some("a call made after an answer was recorded was refused as indeterminate");
        }
        let rule = (!key.effect.is_at_most_once()).then_some("a key is indeterminate under Retry");
        rule.or_else(|| self.check_not_started(call)).or_else(|| self.check_other_call(call))
    }

    fn check_not_applied(&self, call: usize) -> Option<&'static str> {
        (self.own_outcome(call) != Some(HandlerOutcome::NotApplied))
            .then_some("a caller received `not applied`, and its handler did not report it")
    }

    /// Checks that the outcome of the own handler, or that of the leader, is unknown.
    fn check_unknown(&self, call: usize, retention: Duration) -> Option<&'static str> {
        let CallOrigin { key, life } = self.place(call);
        if self.lives[life].cut_off.is_some() {
            return None;
        }
        let too_late = |own: &AttemptHistory| own.answer().is_some() && self.trace.now() >= own.ended_at + retention;
        let unknown = |own: &AttemptHistory| own.is_unknown() || too_late(own) || self.can_be_lost(key);
        if let Some(own) = self.own(call) {
            return (!unknown(own)).then_some(rules::LESS_THAN_HANDLER_KNEW);
        }
        // If the leader could not record its answer, its followers receive `unknown`.
        let has_journal = self.lives[life].journal.is_some();
        let leaves_unknown = |own: &AttemptHistory| unknown(own) || own.answer().is_some() && !has_journal;
        let same_process = self.keys[key].calls.iter().filter(|other| self.calls[**other].life == life);
        let mut leaders = same_process.filter_map(|other| self.own(*other));
        (!leaders.any(leaves_unknown))
            .then_some("a caller received `unknown`, and no handler of its process left its outcome unknown")
    }

    /// Whether a completion can lose against a record that has no answer for this payload.
    fn can_be_lost(&self, key: usize) -> bool {
        let known = &self.keys[key];
        self.has_ambiguous_token(key) || known.has_forgotten_record() && known.payloads == [true, true]
    }

    /// Whether one token can name two grants: the store forgot a record, and its clock stepped.
    fn has_ambiguous_token(&self, key: usize) -> bool {
        self.keys[key].has_forgotten_record() && self.store_clock_stepped.is_some()
    }

    fn check_unrecorded(&self, call: usize) -> Option<&'static str> {
        let CallOrigin { life, .. } = self.place(call);
        let answers = self.own_outcome(call).is_some_and(HandlerOutcome::has_answer);
        let has_journal = self.lives[life].journal.is_some();
        (!answers || has_journal)
            .then_some("a caller received `unrecorded`, and its process has a journal or its handler gave no answer")
    }

    fn check_not_started(&self, call: usize) -> Option<&'static str> {
        self.own(call).map(|_| rules::REFUSED_AFTER_START)
    }

    /// Checks that there is another call that can cause this refusal.
    fn check_other_call(&self, call: usize) -> Option<&'static str> {
        let key = &self.keys[self.calls[call].key];
        let alone = key.calls == [call] && !key.is_found_out && key.worked_by.is_empty();
        alone.then_some("a caller was refused because of another attempt, and there is none")
    }

    fn place(&self, call: usize) -> CallOrigin {
        CallOrigin { key: self.calls[call].key, life: self.calls[call].life }
    }
}

/// The key of a call, and the life of the process that was called.
struct CallOrigin {
    key: usize,
    life: usize,
}
