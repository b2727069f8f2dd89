//! How each key must end. After all faults have ended, every key is called until its final outcome is known.
//!
//! - The final outcome is an answer. Under `Hold` alone it may also be indeterminate. It is dead only if the record is.
//! - An indeterminate outcome has a reason. The attempt that holds the record had an unknown outcome, broke off, or
//!   could not record its answer; or a process that had called the key crashed or lost its tasks; or the store forgot
//!   the record, or could not read it. So a key whose attempts all applied nothing never ends indeterminate, whatever
//!   the network does. Relaxed if records live for a few leases only: a process stops giving back a record that should
//!   have expired.
//! - No record is in progress for an attempt that applied nothing or never started. Relaxed for takeovers, if the
//!   process crashed or dropped its tasks, if the store forgot, if the record was damaged, and if records live for a
//!   few leases only.
//! - An answer that a caller received as recorded or pending is the final one. Relaxed if the store forgot a live
//!   record, and for pending answers if records live for a few leases only.
//! - Two processes report the same, and the store has it.

use std::time::Duration;

use hapax_core::settings::Found;
use hapax_core::{OperationId, Owner, Phase, Record, State};

use super::history::{AttemptHistory, CallHistory, KeyHistory};
use super::{Oracle, OracleState};
use crate::outcome::{CallerOutcome, EffectPolicy};
use crate::plan::FaultClass;
use crate::rules;

impl Oracle {
    /// The payload of the record, which the last calls must send to avoid a mismatch.
    pub(crate) fn recorded_payload(&self, key: usize) -> usize {
        let known = self.lock();
        let seen = self.shelf.observed(&known.keys[key].rk);
        seen.live().and_then(|record| known.keys[key].payload_of(record.fingerprint)).unwrap_or_default()
    }

    /// Every key that was called.
    pub(crate) fn called_keys(&self) -> Vec<usize> {
        let known = self.lock();
        (0..known.keys.len()).filter(|key| !known.keys[*key].calls.is_empty()).collect()
    }

    /// Checks that no record is held for an attempt that has ended.
    pub(crate) fn check_all_given_back(&self) {
        let mut known = self.lock();
        for key in 0..known.keys.len() {
            let seen = self.shelf.observed(&known.keys[key].rk);
            let held_without_attempt = seen.live().is_some_and(|record| known.is_held_without_attempt(key, record));
            // A gate stops giving a record back when the record should have expired.
            let given_up = self.plan.allows(FaultClass::Expiry);
            known.check(
                key,
                !held_without_attempt || given_up,
                "a record is held for an attempt that ended or never started",
            );
        }
    }

    /// Checks the final outcomes of a key, as two processes report them.
    pub(crate) fn finish_key(&self, key: usize, last: &[CallerOutcome]) {
        let mut known = self.lock();
        let seen = self.shelf.observed(&known.keys[key].rk);
        for outcome in last {
            known.trace.line(format_args!("key {key}: its final outcome is {outcome}"));
            if let Some(rule) =
                known.check_final_outcome(key, outcome, seen.live(), self.plan.allows(FaultClass::Expiry))
            {
                known.check(key, false, rule);
            }
        }
        let answers: Vec<_> = last.iter().map(CallerOutcome::answer).collect();
        let alike = answers.windows(2).all(|pair| pair[0] == pair[1]);
        known.check(key, alike, rules::PROCESSES_DISAGREE);
    }

    /// Checks that each call got an outcome, unless its process crashed or dropped its tasks, or its caller hung up.
    pub(crate) fn check_all_received(&self, gone: impl Fn(usize) -> bool) {
        let mut known = self.lock();
        let has_no_outcome = |call: &usize| {
            let CallHistory { received, started, life, .. } = &known.calls[*call];
            let life = &known.lives[*life];
            received.is_none() && !life.crashed && life.cut_off < Some(*started) && !gone(*call)
        };
        let first = (0..known.calls.len()).find(has_no_outcome);
        if let Some(call) = first {
            known.fail(&format!("call {call}"), rules::NO_OUTCOME_AT_ALL);
        }
    }

    /// The true outcome of an operation, for a probe or an operator.
    pub(crate) fn find_out(&self, operation: OperationId) -> Found {
        let mut known = self.lock();
        let key = known.keys.iter().position(|key| key.rk.operation() == operation);
        let Some(key) = key else { return Found::Unknown };
        let found = known.find_out(key, self.plan.route(key).lease);
        known.trace.count(match found {
            Found::Done(_) => "probe: done",
            Found::NotDone => "probe: not done",
            Found::Unknown => "probe: unknown",
        });
        known.trace.line(format_args!("key {key}: the probe finds {found:?}"));
        found
    }
}

impl OracleState {
    fn check_final_outcome(
        &mut self,
        key: usize,
        outcome: &CallerOutcome,
        record: Option<&Record>,
        records_expire: bool,
    ) -> Option<&'static str> {
        // A gate stops giving back a record that should have expired, and a store whose clock stepped back may still
        // have it.
        let given_up = records_expire && record.is_some_and(|record| self.is_held_without_attempt(key, record));
        let known = &self.keys[key];
        match (outcome, record.map(|record| &record.state)) {
            (CallerOutcome::Answer { answer, .. }, Some(State::Completed(completion))) => {
                self.trace.count("ended with an answer");
                (completion.answer != *answer.as_bytes()).then_some("the final answer is not the recorded one")
            }
            // The record expired before this check.
            (CallerOutcome::Answer { .. } | CallerOutcome::Indeterminate | CallerOutcome::Dead, None)
                if records_expire =>
            {
                None
            }
            (CallerOutcome::Dead, Some(State::Open(Phase::Dead, _))) => {
                self.trace.count("ended dead");
                None
            }
            (CallerOutcome::Indeterminate, Some(State::Open(Phase::Indeterminate, holding))) => {
                self.trace.count("ended indeterminate");
                if known.effect != EffectPolicy::Hold {
                    return Some(rules::UNKNOWN_WITHOUT_HOLD);
                }
                let has_reason =
                    !known.reasons.is_empty() || self.has_left_unknown(known, holding.owner, records_expire);
                if !has_reason && !given_up {
                    return Some(rules::UNKNOWN_WITHOUT_REASON);
                }
                let in_time = |pending: bool| !(pending && records_expire);
                let received =
                    known.received.iter().any(|(_, pending)| in_time(*pending)) && !known.has_forgotten_record();
                received.then_some(rules::UNKNOWN_AFTER_ANSWER)
            }
            _ => Some(rules::FINAL_OUTCOME_MISFIT),
        }
    }

    /// Whether a record is in progress or indeterminate under a grant whose attempt applied nothing or never started,
    /// although the process could have given it back.
    fn is_held_without_attempt(&self, key: usize, record: &Record) -> bool {
        let State::Open(Phase::InProgress | Phase::Indeterminate, holding) = &record.state else { return false };
        let life = self.begun.get(&holding.owner.0).map(|life| &self.lives[*life]);
        let there = life.is_some_and(|life| !life.crashed && life.cut_off.is_none());
        let holds = |attempt: &&AttemptHistory| {
            attempt.grant().is_some_and(|grant| (grant.owner, grant.token) == (holding.owner, record.token))
        };
        let known = &self.keys[key];
        let in_vain = self.attempts_of(known).find(holds).is_none_or(AttemptHistory::is_not_applied);
        // A takeover is never given back as released, because the outcome of the lapsed attempt before it is unknown.
        let is_excused = known.has_forgotten_record() || known.damaged;
        there && in_vain && !holding.takeover && !holding.is_abandoned() && !is_excused
    }

    /// Whether the attempt that held the record last left its outcome unknown: its handler did not report one, or its
    /// answer was lost before it was recorded.
    fn has_left_unknown(&self, key: &KeyHistory, owner: Owner, records_expire: bool) -> bool {
        key.calls.iter().map(|call| &self.calls[*call]).any(|call| {
            let Some(attempt) = &call.attempt else { return false };
            let is_kept = self.lives[call.life].journal.is_some() && !records_expire;
            let unheard = call.received.is_none() && !is_kept;
            let lost = attempt.answer().is_some() && (unheard || call.received == Some(CallerOutcome::Unrecorded));
            attempt.grant().is_some_and(|grant| grant.owner == owner) && (attempt.is_unknown() || lost)
        })
    }

    fn find_out(&self, key: usize, lease: Duration) -> Found {
        let known = &self.keys[key];
        if let Some(first) = known.decisions.first() {
            return Found::Done(first.answer.clone().into());
        }
        let runs = self.attempts_of(known).any(|attempt| attempt.ended.is_none());
        // The reply of a begin may still be in transit; its handler can start within one lease.
        let settled = known.granted_at.is_none_or(|at| self.trace.now() > at + lease + lease / 10);
        if runs || !settled { Found::Unknown } else { Found::NotDone }
    }
}
