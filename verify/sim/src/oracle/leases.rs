//! What is owed to leases, and what leases owe.
//!
//! - Whoever runs has a grant that the store believes, or was told to stop. So a handler that looks has no effect under any other.
//!   Relaxed while its process or its heartbeat's thread stood still since the grant, where the store's clock stepped since, where the store
//!   forgot the record, and where an answer is recorded: that is learnt with the next renewal.
//! - Whoever was refused a renewal was told to stop.
//! - No lease runs out under an attempt that is not over, before `max_execution`. Relaxed if a begin or renewal of its process met a
//!   fault, or the process stood still or dropped its tasks, or the store was in trouble, since it was granted.
//! - A handler that runs for longer loses its lease. Relaxed where the store's clock stepped.
//! - No grant is given back while a renewal of it is under way. Relaxed while the heartbeat's thread stood still, and
//!   where the tasks of the process were dropped.
//! - No record expires before its time, and no answer comes back after it. The second is relaxed where the clocks of processes step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::machine::{Grant, Observed};
use hapax_core::{Owner, Phase, Record, RecordKey, State};

use super::history::AttemptHistory;
use super::{Known, Oracle};
use crate::plan::{Class, Route};
use crate::rules;

/// A renewal that is under way.
pub(crate) struct UnderWay {
    oracle: Arc<Oracle>,
    renewal: (usize, Owner),
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut known = self.oracle.lock();
        if let Some(place) = known.renewals.iter().position(|renewal| *renewal == self.renewal) {
            known.renewals.swap_remove(place);
        }
    }
}

impl Oracle {
    /// A begin is sent.
    pub(crate) fn begins(&self, life: usize, owner: Owner) {
        self.lock().begun.insert(owner.0, life);
    }

    /// A renewal is sent.
    pub(crate) fn renews(self: &Arc<Self>, life: usize, owner: Owner) -> UnderWay {
        let renewal = (life, owner);
        self.lock().renewals.push(renewal);
        UnderWay { oracle: Arc::clone(self), renewal }
    }

    /// A renewal is answered: the grant is lost.
    pub(crate) fn loses(&self, owner: Owner) {
        let mut known = self.lock();
        known.trace.count("renewal refused");
        if let Some(call) = known.running_under(owner) {
            known.attempt(call).lost = true;
        }
    }

    /// A swap is sent that may give a grant back.
    pub(crate) fn gives_back(&self, life: usize, rk: &RecordKey, state: &State) {
        let mut known = self.lock();
        let Some(&key) = known.by_rk.get(rk) else { return };
        let owner = match state {
            State::Open(Phase::InProgress, holding) if holding.is_abandoned() => holding.owner,
            // There it may be a verdict on the attempt.
            State::Open(Phase::Released, holding) if !known.keys[key].is_found_out => holding.owner,
            State::Completed(_) | State::Open(..) => return,
        };
        let races = known.renewals.contains(&(life, owner));
        let stood_still = known.lives[life].stalled_until + 2 * self.plan.store_timeout >= known.trace.now();
        // Whoever is dropped while it waits for the renewal cannot wait for it.
        let cut_off = known.lives[life].cut_off.is_some();
        known.hold(key, !races || stood_still || cut_off, "a grant was given back while a renewal of it was under way");
    }

    /// Looks after every handler that runs, once time has passed.
    pub(super) fn looks_after_leases(&self, known: &mut Known) {
        let now = known.trace.now();
        for place in (0..known.running.len()).rev() {
            let (call, due) = known.running[place];
            let attempt = known.attempt(call);
            if attempt.lost && !attempt.was_told_to_stop() {
                let key = known.calls[call].key;
                known.hold(key, false, "a handler was not told to stop though a renewal of its grant was refused");
            } else if due <= now {
                match self.looks_after(known, call) {
                    Some(next) => known.running[place].1 = next,
                    None => drop(known.running.swap_remove(place)),
                }
            }
        }
    }

    /// Looks after one handler; when to look again.
    fn looks_after(&self, known: &mut Known, call: usize) -> Option<Duration> {
        let now = known.trace.now();
        let key = known.calls[call].key;
        let route = self.plan.route(key);
        let Some((grant, since)) = known.granted_to(call) else { return Some(now + route.lease) };
        let seen = self.shelf.observed(&grant.rk);
        if holds(&grant, &seen) {
            let ran = now.saturating_sub(known.attempt(call).started);
            let too_long = ran > route.max_execution + 2 * route.lease && known.store_clock_stepped < Some(since);
            known.hold(key, !too_long, "a handler that ran for too long kept its lease");
            return Some(now + seen.lease_left);
        }
        if known.attempt(call).was_told_to_stop() {
            return None;
        }
        let excused = self.may_be_misled(known, call, since, &seen);
        known.hold(key, excused, rules::NOT_CANCELLED);
        Some(now + route.lease / 4)
    }

    /// Holds an effect that was not stopped to what the store believes.
    pub(super) fn is_believed(&self, known: &mut Known, call: usize) {
        let Some((grant, since)) = known.granted_to(call) else { return };
        let (seen, key) = (self.shelf.observed(&grant.rk), known.calls[call].key);
        let excused = self.may_be_misled(known, call, since, &seen);
        let rule = rules::EFFECT_WITHOUT_GRANT;
        known.hold(key, holds(&grant, &seen) || excused, rule);
    }

    /// Whether a handler may run on although the store does not believe its grant.
    fn may_be_misled(&self, known: &Known, call: usize, since: Duration, seen: &Observed) -> bool {
        known.lives[known.calls[call].life].stalled_until >= since
            || known.store_clock_stepped >= Some(since)
            || known.keys[known.calls[call].key].was_forgotten()
            || matches!(seen.live().map(|record| &record.state), Some(State::Completed(_)))
    }

    /// Holds the heartbeat to its work.
    pub(super) fn keeps_its_lease(&self, known: &mut Known, call: usize) {
        let Some((grant, since)) = known.granted_to(call) else { return };
        let key = known.calls[call].key;
        let route = self.plan.route(key);
        if !known.is_calm(call, since, route) || known.attempt(call).lost || known.trace.now() < since + route.lease {
            return;
        }
        let seen = self.shelf.observed(&grant.rk);
        let completed = matches!(seen.live().map(|record| &record.state), Some(State::Completed(_)));
        known.hold(key, holds(&grant, &seen) || completed, rules::LEASE_EXPIRED_EARLY);
        known.trace.count("lease kept");
    }

    /// Somebody found a lapsed lease, and ended it: was it that of an attempt that goes on?
    pub(super) fn was_over(&self, known: &mut Known, key: usize, owner: Owner) {
        let route = self.plan.route(key);
        let of_owner = |call: &&usize| known.grant_of(**call).is_some_and(|grant| grant.owner == owner);
        let Some(&call) = known.keys[key].calls.iter().find(of_owner) else { return };
        let Some((_, since)) = known.granted_to(call) else { return };
        let now = known.trace.now();
        let attempt = known.attempt(call);
        let settles = attempt.answer().is_some() && now < attempt.ended_at + route.lease;
        let goes_on = attempt.ended.is_none() || settles && known.calls[call].told.is_none();
        let wrong = goes_on && known.is_calm(call, since, route);
        known.hold(key, !wrong, "a lease ran out under an attempt that was not over, though nothing was wrong");
    }

    /// What was there is gone: it expired, in its time.
    pub(super) fn expires(&self, known: &mut Known, key: usize, before: &Observed) {
        let Some((until, _)) = known.keys[key].stands.filter(|_| before.live().is_none()) else { return };
        // What had expired may have been swept away before the clock stepped back.
        let in_time = known.latest >= until;
        known.hold(key, in_time, "a record expired before its time");
        known.trace.count(Class::Expiry.name());
        known.trace.line(format_args!("key {key}: its record has expired"));
        known.is_forgotten(key, "its record expired");
    }

    /// An answer is recorded where there was nothing.
    pub(super) fn comes_back(&self, known: &mut Known, key: usize, record: &Record) {
        let State::Completed(completion) = &record.state else { return };
        let route = self.plan.route(key);
        let of_answer =
            |attempt: &&AttemptHistory| attempt.answer().is_some_and(|said| completion.answer == *said.as_bytes());
        let said_at = known.attempts_of(&known.keys[key]).filter(of_answer).map(|attempt| attempt.ended_at).max();
        let in_time = said_at.is_none_or(|at| known.trace.now() <= at + route.retention + route.lease);
        known.hold(key, in_time || self.plan.may(Class::Clocks), "an answer came back after its retention");
    }
}

/// Whether the store believes a grant.
fn holds(grant: &Grant, seen: &Observed) -> bool {
    seen.is_running() && seen.live().is_some_and(|record| record.token == grant.token)
}

impl Known {
    fn running_under(&self, owner: Owner) -> Option<usize> {
        let mut calls = self.running.iter().map(|(call, _)| *call);
        calls.find(|call| self.grant_of(*call).is_some_and(|grant| grant.owner == owner))
    }

    fn grant_of(&self, call: usize) -> Option<&Grant> {
        self.calls[call].attempt.as_ref().and_then(AttemptHistory::grant)
    }

    /// The grant of a call whose record the store has not forgotten, and since when the store has made it.
    fn granted_to(&self, call: usize) -> Option<(Grant, Duration)> {
        let attempt = self.calls[call].attempt.as_ref().filter(|attempt| !attempt.forgotten)?;
        Some((*attempt.grant()?, attempt.since))
    }

    /// Whether nothing has been wrong with the renewals of an attempt.
    fn is_calm(&self, call: usize, since: Duration, route: Route) -> bool {
        let life = &self.lives[self.calls[call].life];
        let untroubled = life.troubled < Some(since) && self.store_troubled < Some(since);
        let ran = self.trace.now().saturating_sub(since);
        untroubled && life.cut_off.is_none() && !life.crashed && ran < route.max_execution - route.lease / 3
    }
}

impl AttemptHistory {
    fn was_told_to_stop(&self) -> bool {
        self.attempt.cancelled().now_or_never().is_some()
    }
}
