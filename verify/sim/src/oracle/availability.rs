//! When the gate may treat the store as down.
//!
//! - A caller is refused for the store's sake, and a handler runs without a record, only if the store failed a call of
//!   the process just before. A damaged record is no such failure: it concerns one key. Relaxed where calls are slow
//!   compared with the store timeout.
//! - On a route that runs without a record while the store is down, only a damaged record refuses a caller.
//! - A caller is told that a record is damaged only if the store said so of that key.
//! - After five begins in a row have failed, a process sends at most one begin a second until one succeeds. Relaxed if
//!   the tasks of the process were dropped.
//! - A spilled answer is not tried again once its record must have expired. Relaxed if the process stood still.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::Claim;
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result, State};

use super::{Oracle, OracleState};
use crate::outcome::EffectPolicy;
use crate::rules;
use crate::store::StoreCall;

/// How many begins in a row must fail before the gate refuses begins at once.
const FAILURES: u32 = 5;

/// How often a process may then send a begin. The clock of a process runs up to one percent too fast.
const PROBE_EVERY: Duration = Duration::from_millis(980);

/// The begins of one process.
#[derive(Default)]
pub(super) struct BeginHistory {
    /// How many have failed since the last one that may have succeeded: a lower bound.
    failures: u32,
    /// How many calls have failed since the last begin that certainly succeeded: an upper bound.
    suspected: u32,
    /// While the breaker is certainly open, when the last begin was sent.
    probed_at: Option<Duration>,
}

/// A begin in flight. If it is dropped before it ends, it failed.
pub(crate) struct PendingBegin {
    oracle: Arc<Oracle>,
    life: usize,
    result: BeginResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeginResult {
    Failed,
    /// The store found a record. A swap may follow and fail.
    Found,
    Succeeded,
}

impl PendingBegin {
    pub(crate) fn end(mut self, inserted: &Result<Inserted>) {
        self.result = match inserted {
            Ok(Inserted::Granted(_)) => BeginResult::Succeeded,
            Ok(Inserted::Found(seen)) => match seen.live().map(|record| &record.state) {
                Some(State::Completed(_)) => BeginResult::Succeeded,
                Some(State::Open(..)) | None => BeginResult::Found,
            },
            Err(error) if is_an_answer(error) => BeginResult::Succeeded,
            Err(_) => BeginResult::Failed,
        };
    }
}

/// A store without room, or with a damaged record, answers.
fn is_an_answer(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full | ErrorKind::Damaged | ErrorKind::Invalid)
}

impl Drop for PendingBegin {
    fn drop(&mut self) {
        let mut known = self.oracle.lock();
        let now = known.trace.now();
        let begins = &mut known.lives[self.life].begins;
        let was_open = begins.is_open();
        if self.result != BeginResult::Failed {
            begins.probed_at = None;
        }
        match self.result {
            BeginResult::Failed => begins.failures += 1,
            BeginResult::Found => begins.failures = 0,
            BeginResult::Succeeded => (begins.failures, begins.suspected) = (0, 0),
        }
        if was_open && !begins.is_open() {
            // Callers that were refused before this begin succeeded receive their outcome just after it.
            known.lives[self.life].fail_until(now);
        }
    }
}

impl BeginHistory {
    /// Whether the gate may refuse begins at once.
    fn is_open(&self) -> bool {
        self.suspected >= FAILURES
    }

    fn suspect(&mut self, failures: u32) {
        self.suspected = self.suspected.saturating_add(failures);
    }

    /// Every begin in flight may fail.
    pub(super) fn suspect_all(&mut self) {
        self.suspect(FAILURES);
    }
}

impl Oracle {
    /// A process sends a begin. It is in flight until the guard is dropped.
    pub(crate) fn start_begin(self: &Arc<Self>, life: usize) -> PendingBegin {
        let mut known = self.lock();
        let now = known.trace.now();
        let cut_off = known.lives[life].cut_off.is_some();
        let begins = &mut known.lives[life].begins;
        if begins.failures >= FAILURES {
            let is_due = begins.probed_at.is_none_or(|at| now >= at + PROBE_EVERY);
            begins.probed_at = Some(now);
            known.trace.count("begin while the store is down");
            if !is_due && !cut_off {
                known.fail("a process", "more than one begin a second was sent although five in a row had failed");
            }
        }
        PendingBegin { oracle: Arc::clone(self), life, result: BeginResult::Failed }
    }

    /// A swap ended. If the store answered it, the begin that sent it did not fail.
    pub(crate) fn record_swap(&self, life: usize, swapped: &Result<Swapped>) {
        if swapped.as_ref().err().is_none_or(is_an_answer) {
            let begins = &mut self.lock().lives[life].begins;
            (begins.failures, begins.probed_at) = (0, None);
        }
    }

    /// The store fails a call of a process, or answers it late.
    pub(crate) fn record_unavailable(&self, life: usize) {
        let mut known = self.lock();
        let now = known.trace.now();
        known.lives[life].fail_until(now);
        known.lives[life].begins.suspect(1);
    }

    /// The store refuses a call with an error of this kind.
    pub(crate) fn record_refused_call(&self, life: usize, rk: RecordKey, request: &StoreCall, kind: ErrorKind) {
        self.record_call_fault(life, rk, request, &format_args!("{kind:?}"));
        if kind != ErrorKind::Damaged {
            return self.record_unavailable(life);
        }
        let mut known = self.lock();
        if let Some(&key) = known.by_rk.get(&rk) {
            known.keys[key].damaged = true;
            known.keys[key].excuse("its record was damaged");
        }
    }

    /// Checks a refusal for the store's sake.
    pub(super) fn check_store_error(&self, known: &OracleState, call: usize, kind: ErrorKind) -> Option<&'static str> {
        let (key, life) = (&known.keys[known.calls[call].key], known.calls[call].life);
        if kind == ErrorKind::Damaged {
            return (!key.damaged)
                .then_some("a caller was told that a record is damaged, and the store did not say so");
        }
        if kind == ErrorKind::Invalid {
            return Some("a caller received a store error that no fault causes");
        }
        if key.effect == (EffectPolicy::Ledger { pass: true }) {
            return Some("a caller was refused although its route runs without a record while the store is down");
        }
        (!self.may_count_as_down(known, life)).then_some(rules::REFUSED_WITHOUT_OUTAGE)
    }

    /// Whether a process may treat the store as down now.
    pub(super) fn may_count_as_down(&self, known: &OracleState, life: usize) -> bool {
        // A begin waits for one timeout, is repeated once, and then opens the breaker for a second.
        let window = 2 * self.plan.store_timeout + Duration::from_millis(1200);
        // A begin of several slow calls may reach its timeout.
        let is_slow = self.plan.latency * 20 > self.plan.store_timeout;
        let life = &known.lives[life];
        // The breaker is open until a begin succeeds. Meanwhile most callers are refused at once.
        is_slow || life.begins.is_open() || life.failed.is_some_and(|at| at + window >= known.trace.now())
    }

    /// A process sends a completion of an answer of this age.
    pub(crate) fn check_completion_sent(&self, life: usize, rk: &RecordKey, claim: Claim, age: Duration) {
        let mut known = self.lock();
        let Some(&key) = known.by_rk.get(rk) else { return };
        if age < self.plan.route(key).unknown_retention {
            return;
        }
        let (now, attempt) = (known.trace.now(), (life, claim.owner.0));
        let Some(&first) = known.tried_last.get(&attempt) else {
            known.tried_last.insert(attempt, now);
            return known.trace.count("last try of a spilled answer");
        };
        // One try may send several requests within one timeout.
        let is_same_try = now <= first + 2 * self.plan.store_timeout;
        let stood_still = known.lives[life].failed >= Some(first) && known.lives[life].has_stood_still;
        known.check(
            key,
            is_same_try || stood_still,
            "a spilled answer was tried again although its record must have expired",
        );
    }
}
