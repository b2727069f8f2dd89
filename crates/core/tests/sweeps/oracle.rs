//! What is known to have happened, and what must never follow from it. Shares no code with the engine: it looks at handlers,
//! at what callers are told, and at the record.

mod history;
mod words;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::gate::Attempt;
use hapax_core::machine::Observed;
use hapax_core::settings::{Found, Probe};
use hapax_core::store::Memory;
use hapax_core::{BoxError, OperationId, Phase, RecordKey, State, Store, Token};
use hapax_testkit::turn;

use crate::act::{Handled, handled};
use crate::world::Terms;
use history::{Attempted, Event, Known, answer_under};

pub(crate) use history::CUT_OFF;
pub(crate) use words::{Lapse, Told, Weather, Word};

/// The history of one key, and what it breaks.
pub(crate) struct Oracle {
    rk: RecordKey,
    store: Arc<Memory>,
    lapse: Lapse,
    /// How well the store answers.
    weather: Weather,
    /// How long a caller may wait once its handler has ended.
    patience: Duration,
    known: Mutex<Known>,
}

impl Oracle {
    pub(crate) fn new(rk: RecordKey, store: Arc<Memory>, terms: Terms, weather: Weather) -> Arc<Self> {
        let (lapse, patience) = (terms.lapse, terms.lease + 3 * terms.timeout + Duration::from_secs(1));
        Arc::new(Self { rk, store, lapse, weather, patience, known: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        let known = self.lock();
        known.events.iter().filter(|(_, event)| matches!(event, Event::BreaksOff { .. })).count()
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.lock().push(Event::Note(note.into()));
    }

    /// From now on the outcome may be unknown.
    pub(crate) fn excuse(&self, reason: &'static str) {
        self.note(reason);
        self.lock().reason.get_or_insert(reason);
    }

    /// A handler starts.
    pub(crate) fn starts(self: Arc<Self>, call: usize, attempt: &Attempt) -> Running {
        let grant = *attempt.grant().expect("no policy of the sweeps runs a handler without a record");
        let mut known = self.lock();
        let (token, takeover) = (grant.token, grant.takeover);
        known.push(Event::Starts { call, token, attempt: grant.attempt, takeover });
        let first = known.effects == 0 || !self.lapse.runs_once();
        known.hold_to(first, "a handler started after an effect, and not under Retry");
        known.may_start(call, token, takeover);
        let number = known.attempts.len();
        known.attempts.push(Attempted {
            call,
            attempt: attempt.clone(),
            had_its_effect: false,
            ended: false,
            said: None,
            said_at: Duration::ZERO,
        });
        drop(known);
        Running { oracle: self, number, token }
    }

    /// A caller was told.
    pub(crate) fn told(&self, call: usize, told: &Told) {
        let seen = self.observed();
        let mut known = self.lock();
        known.push(Event::Told { call, told: told.clone() });
        known.hears(call, told, self.patience);
        match told {
            Told::Answer(answer, how, recorded) => known.told_answer(call, answer, *how, *recorded),
            Told::NotApplied => {
                let in_vain = known.effects == 0 || !self.lapse.runs_once();
                known.hold_to(in_vain, "a caller was told `not applied` after an effect");
                let ran = known.attempts.iter().any(|attempted| attempted.call == call);
                known.hold_to(ran, "a caller was told `not applied` though its handler did not run");
                self.hold_back(&mut known, call, &seen);
            }
            Told::Unknown => self.hold_back(&mut known, call, &seen),
            Told::Unrecorded => {
                let stormy = self.weather == Weather::Storm;
                known.hold_to(stormy, "one call that failed lost an answer");
                known.reason.get_or_insert("an answer could not be recorded");
            }
            Told::Store(_) => {
                let stormy = self.weather == Weather::Storm;
                known.hold_to(stormy, "one call that failed turned a caller away");
                known.refused(call);
            }
            Told::Busy(_) | Told::Mismatch | Told::Indeterminate | Told::Dead | Told::Overloaded => {
                known.refused(call);
            }
        }
    }

    /// A grant is given back before its caller is told, if the store answers.
    fn hold_back(&self, known: &mut Known, call: usize, seen: &Observed) {
        let mine = known.attempts.iter().find(|attempted| attempted.call == call);
        let token = mine.map(Attempted::token);
        let held = seen.runs() && seen.live().map(|record| record.token) == token;
        let fair = self.weather == Weather::Fair;
        known.hold_to(!held || !fair, "a caller was told before the grant was given back");
    }

    /// Looks at the record, after each step of the world.
    pub(crate) fn look(&self, now: Duration) {
        let seen = self.observed();
        let mut known = self.lock();
        known.now = now;
        known.saw(seen.live());
        let free = seen.live().is_none_or(|record| matches!(record.state, State::Open(Phase::Released, _)));
        let effects = known.effects;
        known.hold_to(!free || effects == 0, "the key is free with an effect behind it");
        known.hold_to(effects <= 1 || !self.lapse.runs_once(), "two effects, and not under Retry");
        let lost = known.answer.as_ref().is_some_and(|(answer, recorded)| *recorded && !stands(&seen, answer));
        known.hold_to(!lost, "a caller was told an answer that the record does not have");
        self.hold_grants(&mut known, &seen);
    }

    /// Whoever runs has a grant that the store believes, or was told to stop. A recorded answer ends the attempt that still ran,
    /// which learns of it with its next renewal.
    fn hold_grants(&self, known: &mut Known, seen: &Observed) {
        if matches!(seen.live().map(|record| &record.state), Some(State::Completed(_))) {
            return;
        }
        let token = seen.live().filter(|_| seen.runs()).map(|record| record.token);
        let lapsed = |one: &&Attempted| !one.ended && Some(one.token()) != token;
        let stormy = self.weather == Weather::Storm;
        let kept = !known.attempts.iter().any(|one| lapsed(&one));
        let stopped = known.attempts.iter().filter(lapsed).all(Attempted::was_told_to_stop);
        known.hold_to(kept || stormy, "a lease ran out while its handler ran");
        known.hold_to(stopped, "a handler was not told to stop though the store does not believe its grant");
    }

    /// Holds the end to what must be true of it.
    pub(crate) fn closes(&self, last: &Told) {
        let seen = self.observed();
        let mut known = self.lock();
        match (last, seen.live().map(|record| &record.state)) {
            (Told::Answer(..), state) => {
                known.hold_to(matches!(state, Some(State::Completed(_))), "an answer was told, but none is recorded");
            }
            (Told::Indeterminate, Some(State::Open(Phase::Indeterminate, _))) => {
                known.hold_to(self.lapse == Lapse::Hold, "the last word is `unknown`, and not under Hold");
                let reason = known.reason;
                known.hold_to(reason.is_some(), "indeterminate for no reason");
                let open = known.answer.is_none();
                known.hold_to(open, "an answer was told, and then the outcome is unknown");
            }
            _ => known.hold_to(false, "the last word fits no record"),
        }
    }

    /// Everything that happened, for whoever reads a violation.
    pub(crate) fn trace(&self) -> String {
        self.lock().to_string()
    }

    pub(crate) fn breaks(&self, rule: &str) {
        self.lock().hold_to(false, rule);
    }
}

/// Whether this is the recorded answer.
fn stands(seen: &Observed, answer: &str) -> bool {
    match seen.live().map(|record| &record.state) {
        Some(State::Completed(completion)) => completion.answer == *answer.as_bytes(),
        Some(State::Open(..)) | None => false,
    }
}

/// Whoever sees all of the world finds out what happened in it, once nothing can happen any more.
#[async_trait]
impl Probe for Oracle {
    async fn probe(&self, _: OperationId) -> Result<Found, BoxError> {
        turn().await;
        let found = {
            let known = self.lock();
            match known.attempts.iter().find(|attempted| attempted.had_its_effect) {
                Some(attempted) => Found::Done(answer_under(attempted.token()).into()),
                None if known.attempts.iter().all(|attempted| attempted.ended) => Found::NotDone,
                None => Found::Unknown,
            }
        };
        self.note(format!("the probe says {found:?}"));
        turn().await;
        Ok(found)
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Oracle")
    }
}

/// A handler that runs.
pub(crate) struct Running {
    oracle: Arc<Oracle>,
    number: usize,
    token: Token,
}

impl Running {
    /// `believed`: the handler looked whether its grant is believed, so that it must be.
    pub(crate) fn has_its_effect(&self, believed: bool) {
        let seen = self.oracle.observed();
        let mut known = self.oracle.lock();
        known.effects += 1;
        known.attempts[self.number].had_its_effect = true;
        known.push(Event::Effect { token: self.token });
        let granted = seen.runs() && seen.live().is_some_and(|record| record.token == self.token);
        known.hold_to(granted || !believed, "an effect was not stopped though the store does not believe its grant");
    }

    pub(crate) fn ends(self, word: Word) -> Handled {
        let answer = answer_under(self.token);
        let mut known = self.oracle.lock();
        known.push(Event::Says { token: self.token, word });
        let now = known.now;
        known.attempts[self.number].said = Some((word, answer.clone()));
        known.attempts[self.number].said_at = now;
        if word == Word::Unknown {
            known.reason.get_or_insert("a handler does not know");
        }
        drop(known);
        handled(word, answer)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut known = self.oracle.lock();
        known.attempts[self.number].ended = true;
        if known.attempts[self.number].said.is_none() {
            known.push(Event::BreaksOff { token: self.token });
            known.reason.get_or_insert("a handler broke off");
        }
    }
}
