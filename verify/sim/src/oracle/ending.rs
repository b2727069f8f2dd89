//! How it all ends, once everything is well again: every key is asked until its end is known.
//!
//! - The end is an answer, or, under `Hold` alone, also with an operator, that the outcome is unknown.
//! - That has a reason: the very attempt that holds the record did not know, broke off, or had an answer that could not be recorded; or
//!   a process that had worked on the key crashed or lost its tasks, or the store forgot its record. So a key whose attempts are all
//!   known to have done nothing never ends like that, whatever the network does, and neither does one that is held for nobody. Relaxed
//!   where records live for a few leases only: a process stops giving back what should be gone.
//! - By then no key is held under a grant whose attempt did nothing or never started. Relaxed for takeovers, where its process crashed or
//!   dropped its tasks, where the store forgot, and where records live for a few leases only.
//! - An answer that was told as recorded or pending is the end. Relaxed for keys of which the store forgot a live record, and for
//!   what is pending where records live for a few leases only.
//! - Two processes say the same; the store has what they say; no record is left in progress.

use std::time::Duration;

use hapax_core::settings::Found;
use hapax_core::{OperationId, Owner, Phase, Record, State};

use super::history::{AttemptHistory, CallHistory, KeyHistory};
use super::{Known, Oracle};
use crate::outcome::{CallerOutcome, EffectPolicy};
use crate::plan::Class;
use crate::rules;

impl Oracle {
    /// What the store holds a key to, for whoever asks last: the payload of its record.
    pub(crate) fn payload_to_ask_with(&self, key: usize) -> usize {
        let known = self.lock();
        let seen = self.shelf.observed(&known.keys[key].rk);
        seen.live().and_then(|record| known.keys[key].payload_of(record.fingerprint)).unwrap_or_default()
    }

    /// Every key that was ever asked for.
    pub(crate) fn keys_asked(&self) -> Vec<usize> {
        let known = self.lock();
        (0..known.keys.len()).filter(|key| !known.keys[*key].calls.is_empty()).collect()
    }

    /// Everything is over: no key is held for nobody.
    pub(crate) fn all_is_given_back(&self) {
        let mut known = self.lock();
        for key in 0..known.keys.len() {
            let seen = self.shelf.observed(&known.keys[key].rk);
            let held_for_nobody = seen.live().is_some_and(|record| known.is_held_for_nobody(key, record));
            // A gate stops trying when the record should be gone.
            let given_up = self.plan.may(Class::Expiry);
            known.hold(key, !held_for_nobody || given_up, "a key is held for an attempt that is over, or never was");
        }
    }

    /// The last words on a key, of two processes.
    pub(crate) fn closes(&self, key: usize, last: &[CallerOutcome]) {
        let mut known = self.lock();
        let seen = self.shelf.observed(&known.keys[key].rk);
        for told in last {
            known.trace.line(format_args!("key {key}: its end is {told}"));
            if let Some(rule) = known.may_end(key, told, seen.live(), self.plan.may(Class::Expiry)) {
                known.hold(key, false, rule);
            }
        }
        let answers: Vec<_> = last.iter().map(CallerOutcome::answer).collect();
        let alike = answers.windows(2).all(|pair| pair[0] == pair[1]);
        known.hold(key, alike, rules::PROCESSES_DISAGREE);
    }

    /// Every call that was made was told something, or its process had crashed or dropped its tasks, or its caller gone.
    pub(crate) fn all_were_told(&self, gone: impl Fn(usize) -> bool) {
        let mut known = self.lock();
        let untold = |call: &usize| {
            let CallHistory { told, started, life, .. } = &known.calls[*call];
            let life = &known.lives[*life];
            told.is_none() && !life.crashed && life.cut_off < Some(*started) && !gone(*call)
        };
        let first = (0..known.calls.len()).find(untold);
        if let Some(call) = first {
            known.breaks(&format!("call {call}"), rules::NO_OUTCOME_AT_ALL);
        }
    }

    /// What is true of an operation, for a probe: whoever sees the whole world knows whether anything can still happen.
    pub(crate) fn finds_out(&self, operation: OperationId) -> Found {
        let mut known = self.lock();
        let key = known.keys.iter().position(|key| key.rk.operation() == operation);
        let Some(key) = key else { return Found::Unknown };
        let found = known.finds_out(key, self.plan.route(key).lease);
        known.trace.count(match found {
            Found::Done(_) => "probe: done",
            Found::NotDone => "probe: not done",
            Found::Unknown => "probe: unknown",
        });
        known.trace.line(format_args!("key {key}: the probe says {found:?}"));
        found
    }
}

impl Known {
    fn may_end(
        &mut self,
        key: usize,
        told: &CallerOutcome,
        record: Option<&Record>,
        records_expire: bool,
    ) -> Option<&'static str> {
        // A gate stops trying to give back what should be gone by then; a store whose clock steps back has it still.
        let given_up = records_expire && record.is_some_and(|record| self.is_held_for_nobody(key, record));
        let known = &self.keys[key];
        match (told, record.map(|record| &record.state)) {
            (CallerOutcome::Answer { answer, .. }, Some(State::Completed(completion))) => {
                self.trace.count("ended with an answer");
                (completion.answer != *answer.as_bytes()).then_some("the last word is not what the store has")
            }
            // Its record was gone by the time that anybody looked.
            (CallerOutcome::Answer { .. } | CallerOutcome::Indeterminate, None) if records_expire => None,
            (CallerOutcome::Indeterminate, Some(State::Open(Phase::Indeterminate, holding))) => {
                self.trace.count("ended indeterminate");
                if known.effect != EffectPolicy::Hold {
                    return Some(rules::UNKNOWN_WITHOUT_HOLD);
                }
                let has_reason =
                    !known.reasons.is_empty() || self.is_left_unknown(known, holding.owner, records_expire);
                if !has_reason && !given_up {
                    return Some(rules::UNKNOWN_WITHOUT_REASON);
                }
                let in_time = |pending: bool| !(pending && records_expire);
                let told = known.told.iter().any(|(_, pending)| in_time(*pending)) && !known.was_forgotten();
                told.then_some(rules::UNKNOWN_AFTER_ANSWER)
            }
            _ => Some(rules::FINAL_OUTCOME_MISFIT),
        }
    }

    /// Whether a record is in progress, or was left so, under a grant whose attempt applied nothing or never started, though its process
    /// was there to give it back.
    fn is_held_for_nobody(&self, key: usize, record: &Record) -> bool {
        let State::Open(Phase::InProgress | Phase::Indeterminate, holding) = &record.state else { return false };
        let life = self.begun.get(&holding.owner.0).map(|life| &self.lives[*life]);
        let there = life.is_some_and(|life| !life.crashed && life.cut_off.is_none());
        let holds = |attempt: &&AttemptHistory| {
            attempt.grant().is_some_and(|grant| (grant.owner, grant.token) == (holding.owner, record.token))
        };
        let known = &self.keys[key];
        let in_vain = self.attempts_of(known).find(holds).is_none_or(AttemptHistory::was_in_vain);
        // What a lapsed attempt before it did is not known, so a takeover is never given back.
        there && in_vain && !holding.takeover && !holding.is_abandoned() && !known.was_forgotten()
    }

    /// Whether the attempt that holds the record last left it unknown: it did not know, or its answer was neither recorded nor kept for
    /// as long as it takes.
    fn is_left_unknown(&self, key: &KeyHistory, owner: Owner, records_expire: bool) -> bool {
        key.calls.iter().map(|call| &self.calls[*call]).any(|call| {
            let Some(attempt) = &call.attempt else { return false };
            let is_kept = self.lives[call.life].journal.is_some() && !records_expire;
            let unheard = call.told.is_none() && !is_kept;
            let lost = attempt.answer().is_some() && (unheard || call.told == Some(CallerOutcome::Unrecorded));
            attempt.grant().is_some_and(|grant| grant.owner == owner) && (attempt.is_unknown() || lost)
        })
    }

    fn finds_out(&self, key: usize, lease: Duration) -> Found {
        let known = &self.keys[key];
        if let Some(first) = known.decisions.first() {
            return Found::Done(first.answer.clone().into());
        }
        let runs = self.attempts_of(known).any(|attempt| attempt.ended.is_none());
        // A grant that is on its way to its process lets a handler start for a lease at most.
        let settled = known.granted_at.is_none_or(|at| self.trace.now() > at + lease + lease / 10);
        if runs || !settled { Found::Unknown } else { Found::NotDone }
    }
}
