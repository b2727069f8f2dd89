//! Checks the run of one key. It shares no code with the engine: it observes handlers, caller outcomes and the record.

mod history;
mod level;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::gate::Attempt;
use hapax_core::machine::Observed;
use hapax_core::settings::{Found, Probe};
use hapax_core::store::Memory;
use hapax_core::{BoxError, ErrorKind, OperationId, Phase, RecordKey, State, Store, Token};
use hapax_sim::outcome::{CallerOutcome, EffectPolicy, HandlerOutcome, HandlerResult};
use hapax_sim::rules;
use hapax_testkit::yield_now;

use crate::setup::GateSetup;
use history::{AttemptHistory, KeyHistory, TraceEvent, answer_under};

pub(crate) use history::TASKS_DROPPED;
pub(crate) use level::FaultLevel;

/// The history of one key, and the first rule that was broken.
pub(crate) struct KeyOracle {
    rk: RecordKey,
    store: Arc<Memory>,
    effect: EffectPolicy,
    level: FaultLevel,
    /// How long a caller may wait after its handler has reported.
    patience: Duration,
    history: Mutex<KeyHistory>,
}

impl KeyOracle {
    pub(crate) fn new(rk: RecordKey, store: Arc<Memory>, setup: GateSetup, level: FaultLevel) -> Arc<Self> {
        let patience = setup.lease + 3 * setup.timeout + Duration::from_secs(1);
        Arc::new(Self { rk, store, effect: setup.effect, level, patience, history: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, KeyHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observed(&self) -> Observed {
        let seen = self.store.read(&self.rk).now_or_never();
        seen.expect("memory answers at once").expect("memory always answers")
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    /// How many handlers broke off.
    pub(crate) fn broken_off(&self) -> usize {
        let history = self.lock();
        history.events.iter().filter(|(_, event)| matches!(event, TraceEvent::HandlerBreaksOff { .. })).count()
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.lock().push(TraceEvent::Note(note.into()));
    }

    /// From now on the final outcome may be unknown.
    pub(crate) fn excuse(&self, reason: &'static str) {
        self.note(reason);
        self.lock().excuse.get_or_insert(reason);
    }

    /// From now on a caller may receive an error of this kind from the store.
    pub(crate) fn expect_error(&self, kind: ErrorKind) {
        self.lock().expected_errors.push(kind);
    }

    pub(crate) fn start_handler(self: Arc<Self>, call: usize, attempt: &Attempt) -> RunningHandler {
        let grant = *attempt.grant().expect("no policy of the sweeps runs a handler without a record");
        let mut history = self.lock();
        let (token, takeover) = (grant.token, grant.takeover);
        history.push(TraceEvent::HandlerStarts { call, token, attempt: grant.attempt, takeover });
        let may_run = history.effects == 0 || !self.effect.is_at_most_once();
        history.check(may_run, "a handler started after an effect, and the policy is not Retry");
        history.check_start(call, token, takeover);
        let number = history.attempts.len();
        history.attempts.push(AttemptHistory {
            call,
            attempt: attempt.clone(),
            had_effect: false,
            ended: false,
            reported: None,
            reported_at: Duration::ZERO,
        });
        drop(history);
        RunningHandler { oracle: self, number, token }
    }

    /// Checks an outcome at the moment at which a caller receives it.
    pub(crate) fn receive(&self, call: usize, outcome: &CallerOutcome) {
        let seen = self.observed();
        let mut history = self.lock();
        history.push(TraceEvent::CallerReceives { call, outcome: outcome.clone() });
        history.check_received(call, outcome, self.patience);
        match outcome {
            CallerOutcome::Answer { answer, provenance, recorded } => {
                history.check_answer(call, answer, *provenance, *recorded);
            }
            CallerOutcome::NotApplied => {
                let no_effect = history.effects == 0 || !self.effect.is_at_most_once();
                history.check(no_effect, "a caller received `not applied` after an effect");
                let ran = history.attempts.iter().any(|attempt| attempt.call == call);
                history.check(ran, "a caller received `not applied` although its handler did not run");
                self.check_given_back(&mut history, call, &seen);
            }
            CallerOutcome::Unknown => self.check_given_back(&mut history, call, &seen),
            CallerOutcome::Unrecorded => {
                let many_faults = self.level == FaultLevel::Many;
                history.check(many_faults, "one failed store call lost an answer");
                history.excuse.get_or_insert("an answer could not be recorded");
            }
            CallerOutcome::Store(kind) => {
                let many_faults = self.level == FaultLevel::Many;
                history.check(many_faults, "one failed store call refused a caller");
                // Without an answer in time the gate reports `Unknown`, and while the breaker is open `NotApplied`.
                let is_outage = matches!(kind, ErrorKind::NotApplied | ErrorKind::Unknown);
                let is_expected = is_outage || history.expected_errors.contains(kind);
                history.check(is_expected, "a caller received a store error that no fault causes");
                history.check_refusal(call);
            }
            CallerOutcome::Busy(_)
            | CallerOutcome::Mismatch
            | CallerOutcome::Indeterminate
            | CallerOutcome::Dead
            | CallerOutcome::Overloaded => history.check_refusal(call),
        }
    }

    /// A grant is given back before its caller receives an outcome, provided the store answers.
    fn check_given_back(&self, history: &mut KeyHistory, call: usize, seen: &Observed) {
        let own = history.attempts.iter().find(|attempt| attempt.call == call);
        let token = own.map(AttemptHistory::token);
        let is_held = seen.is_running() && seen.live().map(|record| record.token) == token;
        let no_fault = self.level == FaultLevel::None;
        history.check(!is_held || !no_fault, "a caller received an outcome before its grant was given back");
    }

    /// Checks the record after a step of the world.
    pub(crate) fn step(&self, now: Duration) {
        let seen = self.observed();
        let mut history = self.lock();
        history.now = now;
        history.observe(seen.live());
        let is_free = seen.live().is_none_or(|record| matches!(record.state, State::Open(Phase::Released, _)));
        let effects = history.effects;
        history.check(!is_free || effects == 0, rules::FREE_AFTER_EFFECT);
        history.check(effects <= 1 || !self.effect.is_at_most_once(), rules::TWO_EFFECTS);
        let lost = history.answer.as_ref().is_some_and(|(answer, recorded)| *recorded && !is_recorded(&seen, answer));
        history.check(!lost, "a caller received an answer as recorded that the record does not have");
        self.check_grants(&mut history, &seen);
    }

    /// A running handler holds the grant that the store has, or it was cancelled. A recorded answer ends an attempt
    /// that still runs; that attempt learns so with its next renewal, and is not checked.
    fn check_grants(&self, history: &mut KeyHistory, seen: &Observed) {
        if matches!(seen.live().map(|record| &record.state), Some(State::Completed(_))) {
            return;
        }
        let token = seen.live().filter(|_| seen.is_running()).map(|record| record.token);
        let is_lapsed = |one: &&AttemptHistory| !one.ended && Some(one.token()) != token;
        let many_faults = self.level == FaultLevel::Many;
        let none_lapsed = !history.attempts.iter().any(|one| is_lapsed(&one));
        let all_cancelled = history.attempts.iter().filter(is_lapsed).all(AttemptHistory::is_cancelled);
        history.check(none_lapsed || many_faults, rules::LEASE_EXPIRED_EARLY);
        history.check(all_cancelled, rules::NOT_CANCELLED);
    }

    /// Checks the final outcome of the key.
    pub(crate) fn finish(&self, last: &CallerOutcome) {
        let seen = self.observed();
        let mut history = self.lock();
        match (last, seen.live().map(|record| &record.state)) {
            (CallerOutcome::Answer { .. }, state) => {
                let recorded = matches!(state, Some(State::Completed(_)));
                history.check(recorded, "a caller received an answer, and none is recorded");
            }
            (CallerOutcome::Indeterminate, Some(State::Open(Phase::Indeterminate, _))) => {
                history.check(self.effect == EffectPolicy::Hold, rules::UNKNOWN_WITHOUT_HOLD);
                let has_reason = history.excuse.is_some();
                history.check(has_reason, rules::UNKNOWN_WITHOUT_REASON);
                let no_answer = history.answer.is_none();
                history.check(no_answer, rules::UNKNOWN_AFTER_ANSWER);
            }
            _ => history.check(false, rules::FINAL_OUTCOME_MISFIT),
        }
    }

    /// All events so far, one a line.
    pub(crate) fn trace(&self) -> String {
        self.lock().to_string()
    }

    pub(crate) fn fail(&self, rule: &str) {
        self.lock().check(false, rule);
    }
}

/// Whether the record has this answer.
fn is_recorded(seen: &Observed, answer: &str) -> bool {
    match seen.live().map(|record| &record.state) {
        Some(State::Completed(completion)) => completion.answer == *answer.as_bytes(),
        Some(State::Open(..)) | None => false,
    }
}

/// The oracle observes all handlers, so it also serves as a probe that is never wrong.
#[async_trait]
impl Probe for KeyOracle {
    async fn probe(&self, _: OperationId) -> Result<Found, BoxError> {
        yield_now().await;
        let found = {
            let history = self.lock();
            match history.attempts.iter().find(|attempt| attempt.had_effect) {
                Some(attempt) => Found::Done(answer_under(attempt.token()).into()),
                None if history.attempts.iter().all(|attempt| attempt.ended) => Found::NotDone,
                None => Found::Unknown,
            }
        };
        self.note(format!("the probe finds {found:?}"));
        yield_now().await;
        Ok(found)
    }
}

impl fmt::Debug for KeyOracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyOracle")
    }
}

/// A handler that runs. If it is dropped before it reports an outcome, it broke off.
pub(crate) struct RunningHandler {
    oracle: Arc<KeyOracle>,
    number: usize,
    token: Token,
}

impl RunningHandler {
    /// The effect happens. A careful handler has just checked for cancellation, so the store must still have its grant.
    pub(crate) fn apply_effect(&self, careful: bool) {
        let seen = self.oracle.observed();
        let mut history = self.oracle.lock();
        history.effects += 1;
        history.attempts[self.number].had_effect = true;
        history.push(TraceEvent::Effect { token: self.token });
        let granted = seen.is_running() && seen.live().is_some_and(|record| record.token == self.token);
        history.check(granted || !careful, rules::EFFECT_WITHOUT_GRANT);
    }

    /// The handler reports its outcome and returns.
    pub(crate) fn finish(self, outcome: HandlerOutcome) -> HandlerResult {
        let answer = answer_under(self.token);
        let mut history = self.oracle.lock();
        history.push(TraceEvent::HandlerReturns { token: self.token, outcome });
        let now = history.now;
        history.attempts[self.number].reported = Some((outcome, answer.clone()));
        history.attempts[self.number].reported_at = now;
        if outcome == HandlerOutcome::Unknown {
            history.excuse.get_or_insert("a handler does not know its outcome");
        }
        drop(history);
        outcome.into_result(answer)
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        let mut history = self.oracle.lock();
        history.attempts[self.number].ended = true;
        if history.attempts[self.number].reported.is_none() {
            history.push(TraceEvent::HandlerBreaksOff { token: self.token });
            history.excuse.get_or_insert("a handler broke off");
        }
    }
}
