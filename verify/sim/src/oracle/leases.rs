//! For how long a handler may run under its lease.
//!
//! - A running handler holds the grant that the store has, or it was cancelled. So a handler that checks for
//!   cancellation has no effect without a grant. Relaxed if its process or its heartbeat's thread stood still since the
//!   grant, if the store's clock stepped since, if the store forgot the record, and if an answer is recorded: an
//!   attempt learns of that with its next renewal.
//! - A handler is cancelled when a renewal of its grant is refused.
//! - Before `max_execution`, no lease expires while its attempt runs. Relaxed if, since the grant, a begin or a renewal
//!   of the process met a fault, the process stood still or dropped its tasks, or the store was unavailable.
//! - A handler that runs longer than `max_execution` loses its lease. Relaxed if the store's clock stepped.
//! - No grant is given back while a renewal of it is in flight. Relaxed while the heartbeat's thread stands still, and
//!   if the tasks of the process were dropped.
//! - No record expires early, and no answer is recorded after its retention. The second is relaxed if the clocks of
//!   processes step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::machine::{Grant, Observed};
use hapax_core::{Owner, Phase, Record, RecordKey, State};

use super::history::AttemptHistory;
use super::{Oracle, OracleState};
use crate::plan::{FaultClass, RoutePlan};
use crate::rules;

/// A renewal in flight.
pub(crate) struct PendingRenewal {
    oracle: Arc<Oracle>,
    renewal: (usize, Owner),
}

impl Drop for PendingRenewal {
    fn drop(&mut self) {
        let mut known = self.oracle.lock();
        if let Some(place) = known.renewals.iter().position(|renewal| *renewal == self.renewal) {
            known.renewals.swap_remove(place);
        }
    }
}

impl Oracle {
    /// A process sends a begin.
    pub(crate) fn record_begin(&self, life: usize, owner: Owner) {
        self.lock().begun.insert(owner.0, life);
    }

    /// A process sends a renewal. It is in flight until the guard is dropped.
    pub(crate) fn start_renewal(self: &Arc<Self>, life: usize, owner: Owner) -> PendingRenewal {
        let renewal = (life, owner);
        self.lock().renewals.push(renewal);
        PendingRenewal { oracle: Arc::clone(self), renewal }
    }

    /// The store refused a renewal.
    pub(crate) fn lose_grant(&self, owner: Owner) {
        let mut known = self.lock();
        known.trace.count("renewal refused");
        if let Some(call) = known.running_under(owner) {
            known.attempt(call).lost = true;
        }
    }

    /// Checks a swap that may give a grant back, when it is sent.
    pub(crate) fn check_give_back(&self, life: usize, rk: &RecordKey, state: &State) {
        let mut known = self.lock();
        let Some(&key) = known.by_rk.get(rk) else { return };
        let owner = match state {
            State::Open(Phase::InProgress, holding) if holding.is_abandoned() => holding.owner,
            // With a probe or an operator, a release may be a verdict instead.
            State::Open(Phase::Released, holding) if !known.keys[key].is_found_out => holding.owner,
            State::Completed(_) | State::Open(..) => return,
        };
        let races = known.renewals.contains(&(life, owner));
        let stood_still = known.lives[life].stalled_until + 2 * self.plan.store_timeout >= known.trace.now();
        // A dropped task cannot wait for the renewal.
        let cut_off = known.lives[life].cut_off.is_some();
        known.check(
            key,
            !races || stood_still || cut_off,
            "a grant was given back while a renewal of it was in flight",
        );
    }

    /// Checks each running handler whose check is due.
    pub(super) fn check_leases(&self, known: &mut OracleState) {
        let now = known.trace.now();
        for place in (0..known.running.len()).rev() {
            let (call, due) = known.running[place];
            let attempt = known.attempt(call);
            if attempt.lost && !attempt.is_cancelled() {
                let key = known.calls[call].key;
                known.check(key, false, "a handler was not cancelled although a renewal of its grant was refused");
            } else if due <= now {
                match self.check_handler_lease(known, call) {
                    Some(next) => known.running[place].1 = next,
                    None => drop(known.running.swap_remove(place)),
                }
            }
        }
    }

    /// Checks one handler. Returns when to check it again.
    fn check_handler_lease(&self, known: &mut OracleState, call: usize) -> Option<Duration> {
        let now = known.trace.now();
        let key = known.calls[call].key;
        let route = self.plan.route(key);
        let Some((grant, since)) = known.granted_to(call) else { return Some(now + route.lease) };
        let seen = self.shelf.observed(&grant.rk);
        if holds(&grant, &seen) {
            let ran = now.saturating_sub(known.attempt(call).started);
            let too_long = ran > route.max_execution + 2 * route.lease && known.store_clock_stepped < Some(since);
            known.check(key, !too_long, "a handler that ran for too long kept its lease");
            return Some(now + seen.lease_left);
        }
        if known.attempt(call).is_cancelled() {
            return None;
        }
        let excused = self.is_excused(known, call, since, &seen);
        known.check(key, excused, rules::NOT_CANCELLED);
        Some(now + route.lease / 4)
    }

    /// Checks that the store has the grant of a careful handler at the moment of its effect.
    pub(super) fn check_grant_held(&self, known: &mut OracleState, call: usize) {
        let Some((grant, since)) = known.granted_to(call) else { return };
        let (seen, key) = (self.shelf.observed(&grant.rk), known.calls[call].key);
        let excused = self.is_excused(known, call, since, &seen);
        let rule = rules::EFFECT_WITHOUT_GRANT;
        known.check(key, holds(&grant, &seen) || excused, rule);
    }

    /// Whether a handler may run on although the store no longer has its grant.
    fn is_excused(&self, known: &OracleState, call: usize, since: Duration, seen: &Observed) -> bool {
        known.lives[known.calls[call].life].stalled_until >= since
            || known.store_clock_stepped >= Some(since)
            || known.keys[known.calls[call].key].has_forgotten_record()
            || matches!(seen.live().map(|record| &record.state), Some(State::Completed(_)))
    }

    /// Checks that the heartbeat kept the lease alive.
    pub(super) fn check_lease_kept(&self, known: &mut OracleState, call: usize) {
        let Some((grant, since)) = known.granted_to(call) else { return };
        let key = known.calls[call].key;
        let route = self.plan.route(key);
        if !known.is_calm(call, since, route) || known.attempt(call).lost || known.trace.now() < since + route.lease {
            return;
        }
        let seen = self.shelf.observed(&grant.rk);
        let completed = matches!(seen.live().map(|record| &record.state), Some(State::Completed(_)));
        known.check(key, holds(&grant, &seen) || completed, rules::LEASE_EXPIRED_EARLY);
        known.trace.count("lease kept");
    }

    /// A lapsed grant was taken over or held. Checks that its attempt was not still running without any fault.
    pub(super) fn check_lease_had_expired(&self, known: &mut OracleState, key: usize, owner: Owner) {
        let route = self.plan.route(key);
        let of_owner = |call: &&usize| known.grant_of(**call).is_some_and(|grant| grant.owner == owner);
        let Some(&call) = known.keys[key].calls.iter().find(of_owner) else { return };
        let Some((_, since)) = known.granted_to(call) else { return };
        let now = known.trace.now();
        let attempt = known.attempt(call);
        let settles = attempt.answer().is_some() && now < attempt.ended_at + route.lease;
        let goes_on = attempt.ended.is_none() || settles && known.calls[call].received.is_none();
        let wrong = goes_on && known.is_calm(call, since, route);
        known.check(key, !wrong, "a lease expired while its attempt was not finished and nothing was wrong");
    }

    /// Checks that a record that disappeared had expired.
    pub(super) fn check_expiry(&self, known: &mut OracleState, key: usize, before: &Observed) {
        let Some((until, _)) = known.keys[key].stands.filter(|_| before.live().is_none()) else { return };
        // The latest reading counts: the record may have been swept before the clock stepped back.
        let in_time = known.latest >= until;
        known.check(key, in_time, "a record expired before its time");
        known.trace.count(FaultClass::Expiry.name());
        known.trace.line(format_args!("key {key}: its record has expired"));
        known.forget_record(key, "its record expired");
    }

    /// An answer is recorded although there was no record.
    pub(super) fn check_recreated(&self, known: &mut OracleState, key: usize, record: &Record) {
        let State::Completed(completion) = &record.state else { return };
        let route = self.plan.route(key);
        let of_answer =
            |attempt: &&AttemptHistory| attempt.answer().is_some_and(|said| completion.answer == *said.as_bytes());
        let said_at = known.attempts_of(&known.keys[key]).filter(of_answer).map(|attempt| attempt.ended_at).max();
        let in_time = said_at.is_none_or(|at| known.trace.now() <= at + route.retention + route.lease);
        known.check(key, in_time || self.plan.allows(FaultClass::Clocks), "an answer was recorded after its retention");
    }
}

/// Whether the store has a grant, and its lease runs.
fn holds(grant: &Grant, seen: &Observed) -> bool {
    seen.is_running() && seen.live().is_some_and(|record| record.token == grant.token)
}

impl OracleState {
    fn running_under(&self, owner: Owner) -> Option<usize> {
        let mut calls = self.running.iter().map(|(call, _)| *call);
        calls.find(|call| self.grant_of(*call).is_some_and(|grant| grant.owner == owner))
    }

    fn grant_of(&self, call: usize) -> Option<&Grant> {
        self.calls[call].attempt.as_ref().and_then(AttemptHistory::grant)
    }

    /// The grant of a call and when it was granted; none if the store forgot the record.
    fn granted_to(&self, call: usize) -> Option<(Grant, Duration)> {
        let attempt = self.calls[call].attempt.as_ref().filter(|attempt| !attempt.forgotten)?;
        Some((*attempt.grant()?, attempt.since))
    }

    /// Whether no fault has affected the renewals of an attempt.
    fn is_calm(&self, call: usize, since: Duration, route: RoutePlan) -> bool {
        let life = &self.lives[self.calls[call].life];
        let untroubled = life.troubled < Some(since) && self.store_troubled < Some(since);
        let ran = self.trace.now().saturating_sub(since);
        untroubled && life.cut_off.is_none() && !life.crashed && ran < route.max_execution - route.lease / 3
    }
}

impl AttemptHistory {
    fn is_cancelled(&self) -> bool {
        self.attempt.cancelled().now_or_never().is_some()
    }
}
