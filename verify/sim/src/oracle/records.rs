//! How records may change. Each record is compared before and after each request that the store carries out.
//!
//! - A recorded answer stays, with its record.
//! - Under one token a record moves in one direction only: in progress, abandoned, indeterminate, released, completed.
//! - Every grant has a larger token than any record before it. Starts anew after the store forgot.
//! - For a free key (absent, released or dead) no handler runs and no effect happened. Except where outcomes are found
//!   out, none of its attempts has an unknown outcome. Relaxed for attempts whose record the store forgot, and for
//!   attempts that ran without a record.
//! - No request ends or renews the lease of another attempt. Ending is relaxed just after the store's clock stepped, or
//!   if processes stand still: the process may have judged the lease before the step.
//! - A record is taken over only under `Retry`, and is marked so. It is indeterminate only under other policies. It is
//!   dead only if a worker buried it under its own grant, and then only reopened under a larger token, or completed.
//!   It keeps its fingerprint.
//! - A recorded answer was given by a handler for that payload. The payload is not compared if the store forgot a
//!   record and the outcome was then found out by operation, which has no payload.

use std::time::Duration;

use hapax_core::machine::Observed;
use hapax_core::{Holding, Phase, Record, RecordKey, State, Token};

use super::changes::{ENDED_EARLY, change_name, may_follow};
use super::history::{AttemptHistory, GrantHistory};
use super::{Oracle, OracleState};
use crate::outcome::state_name;
use crate::plan::{FaultClass, RoutePlan};
use crate::rules;
use crate::store::{Arrival, StoreCall};

impl Oracle {
    /// Checks a request that the store has carried out.
    pub(crate) fn carried_out(
        &self,
        rk: &RecordKey,
        (request, when): (StoreCall, Arrival),
        before: &Observed,
        after: &Observed,
    ) {
        let mut known = self.lock();
        let Some(&key) = known.by_rk.get(rk) else { return };
        known.latest = known.latest.max(before.now);
        self.check_expiry(&mut known, key, before);
        known.check_free_key(key, before.live());
        if before.record == after.record && before.life_left == after.life_left {
            return;
        }
        known.trace_change(key, (request, when), before, after);
        self.check_change(&mut known, key, &request, (before, after));
        known.check_free_key(key, after.live());
        let route = self.plan.route(key);
        known.keys[key].stands =
            after.live().map(|record| (after.now.plus(lifetime(route, &record.state)), record.state.phase()));
        known.remember(key, when == Arrival::Late, after);
    }

    /// Checks a change against the record before it and against the other attempts.
    fn check_change(
        &self,
        known: &mut OracleState,
        key: usize,
        request: &StoreCall,
        (before, after): (&Observed, &Observed),
    ) {
        if let Some(rule) = known.broken_rule(key, request, before, after) {
            let stands_still = self.plan.allows(FaultClass::Pause) || self.plan.allows(FaultClass::ExecutorLate);
            let is_soon = |at| known.trace.now() <= at + self.plan.store_timeout + self.plan.route(key).lease;
            let judged_before_a_step = known.store_clock_stepped.is_some_and(|at| stands_still || is_soon(at));
            known.check(key, rule == ENDED_EARLY && judged_before_a_step, rule);
        }
        match (before.live().map(|record| &record.state), after.live()) {
            (Some(State::Open(Phase::InProgress, was)), Some(record))
                if !was.is_abandoned() && ends_another(was, record) =>
            {
                self.check_lease_had_expired(known, key, was.owner);
            }
            (None, Some(record)) => self.check_recreated(known, key, record),
            (Some(_), Some(_)) | (_, None) => {}
        }
    }

    /// Call this just before the store forgets everything.
    pub(crate) fn forget_all(&self) {
        let mut known = self.lock();
        known.store_troubled = Some(known.trace.now());
        for key in 0..known.keys.len() {
            known.keys[key].largest_token = Token(0);
            // A record that had expired must not count as live again after the clock steps back.
            let stood = known.keys[key].stands.take().is_some();
            if self.shelf.observed(&known.keys[key].rk).live().is_some() || stood {
                known.forget_record(key, "the store forgot its record");
            }
        }
    }
}

impl OracleState {
    fn trace_change(&mut self, key: usize, (request, when): (StoreCall, Arrival), before: &Observed, after: &Observed) {
        let Some(record) = after.live() else { return };
        let when = match when {
            Arrival::InTime => "",
            Arrival::Late => ", late,",
            Arrival::Duplicate => ", duplicate,",
        };
        if before.live() == Some(record) {
            self.trace.count(if before.lease_left > after.lease_left {
                "armed anew after a step back"
            } else {
                "renewed"
            });
            self.trace.line(format_args!("key {key}: {request}{when} arms the lease anew"));
            return;
        }
        let (name, token) = (state_name(&record.state), record.token.0);
        self.trace.line(format_args!("key {key}: {request}{when} makes it {name}, token {token}"));
        self.trace.count(change_name(before.live().map(|record| &record.state), &record.state));
        self.trace_cancellation(key, record);
    }

    /// Counts a release of an attempt whose handler never started: that is a cancellation.
    fn trace_cancellation(&mut self, key: usize, record: &Record) {
        let State::Open(Phase::Released, holding) = &record.state else { return };
        let known = &self.keys[key];
        let started =
            self.attempts_of(known).filter_map(AttemptHistory::grant).any(|grant| grant.owner == holding.owner);
        let late = known.grants.iter().any(|grant| grant.owner == holding.owner && grant.late);
        if !started {
            self.trace.count(if late { "late begin cancelled" } else { "cancelled" });
        }
    }

    /// The rule that a change of a record breaks.
    fn broken_rule(
        &self,
        key: usize,
        request: &StoreCall,
        before: &Observed,
        after: &Observed,
    ) -> Option<&'static str> {
        let known = &self.keys[key];
        let record = after.live()?;
        let Some(payload) = known.payload_of(record.fingerprint) else {
            return Some("a record has a fingerprint that no call has");
        };
        if let State::Completed(completion) = &record.state {
            let by_payload = |call: usize| self.calls[call].payload == payload || known.can_mix_payloads();
            let mut decided = known.decisions.iter().filter(|decision| by_payload(decision.call));
            if !decided.any(|decision| completion.answer == *decision.answer.as_bytes()) {
                return Some("an answer was recorded that no handler gave for this payload");
            }
        }
        if let State::Open(Phase::Dead, holding) = &record.state
            && !known.worked_by.contains(&holding.owner)
        {
            return Some("a record is dead, and no worker buried it");
        }
        let was = before.live();
        if let (Some(was), StoreCall::Renew(claim)) = (was, request) {
            let own = was.state.holding().map(|holding| (was.token, holding.owner)) == Some((claim.token, claim.owner));
            return (!own || was != record).then_some("a renewal changed a record of another grant");
        }
        match was {
            Some(was) => may_follow(known.effect, was, record, before).or(known.check_token(was, record)),
            None => known.check_first_token(record),
        }
    }

    /// Checks a key that the next begin would be granted, at the latest after an operator has reopened it.
    fn check_free_key(&mut self, key: usize, record: Option<&Record>) {
        if record.is_some_and(|record| !matches!(record.state, State::Open(Phase::Released | Phase::Dead, _))) {
            return;
        }
        let known = &self.keys[key];
        let unknown_is_found_out = known.is_found_out;
        let mut rule = None;
        for attempt in self.attempts_of(known).filter(|attempt| !attempt.forgotten && attempt.grant().is_some()) {
            if attempt.decided {
                rule = Some(rules::FREE_AFTER_EFFECT);
            } else if attempt.ended.is_none() {
                rule = Some("a key is free while its handler runs");
            } else if attempt.is_unknown() && !unknown_is_found_out {
                rule = Some("a key is free although the outcome of its handler is unknown");
            }
        }
        if let Some(rule) = rule {
            self.check(key, false, rule);
        }
    }

    fn remember(&mut self, key: usize, late: bool, after: &Observed) {
        let (now, known) = (self.trace.now(), &mut self.keys[key]);
        let Some(record) = after.live() else { return };
        known.largest_token = known.largest_token.max(record.token);
        if let Some(payload) = known.payload_of(record.fingerprint) {
            known.payloads[payload] = true;
        }
        match &record.state {
            State::Open(Phase::InProgress, holding) if !holding.is_abandoned() => {
                known.granted_at = Some(now);
                let owner = holding.owner;
                if known.granted(owner, record.token).is_none() {
                    known.grants.push(GrantHistory { owner, token: record.token, at: now, late, forgotten: false });
                }
            }
            State::Completed(completion) => {
                known.recorded.push(String::from_utf8_lossy(&completion.answer).into_owned());
                known.completed = true;
            }
            State::Open(..) => {}
        }
    }

    /// Resets the history of a key whose record the store no longer has.
    pub(super) fn forget_record(&mut self, key: usize, reason: &'static str) {
        let known = &mut self.keys[key];
        known.forgotten += 1;
        known.effects = 0;
        known.completed = false;
        known.received.clear();
        known.stands = None;
        known.excuse(reason);
        known.grants.iter_mut().for_each(|grant| grant.forgotten = true);
        for call in known.calls.clone() {
            if let Some(attempt) = &mut self.calls[call].attempt {
                attempt.forgotten = true;
            }
        }
    }
}

impl super::history::KeyHistory {
    /// A record with another token than before is a new grant and its token grew, or the record is completed.
    fn check_token(&self, was: &Record, record: &Record) -> Option<&'static str> {
        let grows = record.token > self.largest_token || record.token == was.token;
        let answers = matches!(record.state, State::Completed(_));
        (!grows && !answers).then_some(rules::TOKEN_DID_NOT_GROW)
    }

    fn check_first_token(&self, record: &Record) -> Option<&'static str> {
        let grows = record.token > self.largest_token || matches!(record.state, State::Completed(_));
        (!grows).then_some(rules::TOKEN_DID_NOT_GROW)
    }
}

/// Whether this attempt lost its grant to another attempt or to a hold.
fn ends_another(was: &Holding, record: &Record) -> bool {
    match &record.state {
        State::Open(Phase::InProgress, holding) => holding.owner != was.owner,
        State::Open(Phase::Indeterminate, _) => true,
        State::Completed(_) | State::Open(Phase::Released | Phase::Dead, _) => false,
    }
}

/// The lifetime of a record in its state.
fn lifetime(route: RoutePlan, state: &State) -> Duration {
    match state {
        State::Open(Phase::InProgress | Phase::Indeterminate | Phase::Dead, _) => route.unknown_retention,
        State::Completed(_) => route.retention,
        State::Open(Phase::Released, _) => route.released_retention,
    }
}
