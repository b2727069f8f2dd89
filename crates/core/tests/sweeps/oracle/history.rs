//! What is known to have happened.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::gate::{Attempt, Provenance, Recorded};
use hapax_core::{Phase, Record, State, Token};

use super::words::{Told, Word};

/// Why a caller may hear nothing from its own handler.
pub(crate) const CUT_OFF: &str = "all tasks of a process were dropped";

/// One line of a history.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "a trace shows them")]
pub(super) enum Event {
    Starts {
        call: usize,
        token: Token,
        attempt: u16,
        takeover: bool,
    },
    Effect {
        token: Token,
    },
    Says {
        token: Token,
        word: Word,
    },
    /// Dropped, or panicked.
    BreaksOff {
        token: Token,
    },
    Told {
        call: usize,
        told: Told,
    },
    Record {
        token: Token,
        state: &'static str,
    },
    Note(String),
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) events: Vec<(Duration, Event)>,
    pub(super) attempts: Vec<Attempted>,
    pub(super) effects: usize,
    /// The answer that a caller was told, and whether the store was said to have it.
    pub(super) answer: Option<(String, bool)>,
    pub(super) refused: Vec<usize>,
    /// Why the outcome may be unknown in the end.
    pub(super) reason: Option<&'static str>,
    pub(super) now: Duration,
    pub(super) last_seen: Option<(Token, &'static str)>,
    pub(super) violation: Option<String>,
}

pub(super) struct Attempted {
    pub(super) call: usize,
    pub(super) attempt: Attempt,
    pub(super) had_its_effect: bool,
    pub(super) ended: bool,
    pub(super) said: Option<(Word, String)>,
    pub(super) said_at: Duration,
}

impl Attempted {
    pub(super) fn token(&self) -> Token {
        self.attempt.grant().map_or(Token(0), |grant| grant.token)
    }

    pub(super) fn was_told_to_stop(&self) -> bool {
        self.attempt.cancelled().now_or_never().is_some()
    }
}

pub(super) fn answer_under(token: Token) -> String {
    format!("the answer under {}", token.0)
}

impl Known {
    pub(super) fn push(&mut self, event: Event) {
        self.events.push((self.now, event));
    }

    pub(super) fn hold_to(&mut self, holds: bool, rule: &str) {
        if !holds && self.violation.is_none() {
            self.push(Event::Note(format!("VIOLATION: {rule}")));
            self.violation = Some(rule.into());
        }
    }

    /// The record as it is now.
    pub(super) fn saw(&mut self, record: Option<&Record>) {
        let seen = record.map(|record| (record.token, name(&record.state)));
        if self.last_seen != seen {
            self.last_seen = seen;
            let (token, state) = seen.unwrap_or((Token(0), "absent"));
            self.push(Event::Record { token, state });
        }
    }

    /// Holds a handler that is about to start to what happened before it.
    pub(super) fn may_start(&mut self, call: usize, token: Token, takeover: bool) {
        let refused = self.refused.contains(&call);
        self.hold_to(!refused, "a handler started after its caller was refused");
        let first = self.effects == 0 || takeover;
        self.hold_to(first, "a handler started after an effect, and not by takeover");
        let alone = self.attempts.iter().all(|other| other.ended || other.was_told_to_stop());
        self.hold_to(alone, "a handler started while another ran that was not told to stop");
        let newest = self.attempts.iter().map(Attempted::token).max();
        self.hold_to(newest < Some(token), "a grant's token does not grow");
    }

    /// Nobody waits for ever for what is known, nor is told anything else.
    pub(super) fn hears(&mut self, call: usize, told: &Told, patience: Duration) {
        let mine = self.attempts.iter().find(|attempted| attempted.call == call && attempted.said.is_some());
        let soon = mine.is_none_or(|mine| self.now <= mine.said_at + patience);
        let known = mine.is_some_and(|mine| matches!(mine.said, Some((Word::Applied | Word::Final, _))));
        let told_so = matches!(told, Told::Answer(..) | Told::Unrecorded);
        let cut_off = self.reason == Some(CUT_OFF);
        self.hold_to(soon, "a caller waited for longer than a lease for what its handler had said");
        self.hold_to(!known || told_so || cut_off, "a caller was told less than its handler knew");
    }

    /// A caller was told that its handler did not run.
    pub(super) fn refused(&mut self, call: usize) {
        self.refused.push(call);
        let ran = self.attempts.iter().any(|attempted| attempted.call == call);
        self.hold_to(!ran, "a caller was refused though its handler had started");
    }

    pub(super) fn told_answer(&mut self, call: usize, answer: &str, provenance: Provenance, recorded: Recorded) {
        let given = |attempted: &Attempted| {
            let said = matches!(&attempted.said, Some((Word::Applied | Word::Final, said)) if said == answer);
            said || attempted.had_its_effect && answer_under(attempted.token()) == answer
        };
        let by_whom = self.attempts.iter().find(|attempted| given(attempted)).map(|attempted| attempted.call);
        self.hold_to(by_whom.is_some(), "a caller was told an answer that no handler gave");
        self.hold_to(
            provenance != Provenance::Fresh || by_whom == Some(call),
            "an answer counts as fresh that is another's",
        );
        let same = self.answer.as_ref().is_none_or(|(before, _)| before == answer);
        self.hold_to(same, "two callers were told different answers");
        let was_recorded = self.answer.as_ref().is_some_and(|(_, recorded)| *recorded);
        self.answer = Some((answer.into(), was_recorded || recorded == Recorded::Yes));
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in &self.events {
            writeln!(f, "    {:>10.3} s  {event:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Open(Phase::InProgress, holding) if holding.abandoned() => "in progress, abandoned",
        State::Open(Phase::InProgress, _) => "in progress",
        State::Completed(_) => "completed",
        State::Open(Phase::Released, _) => "released",
        State::Open(Phase::Indeterminate, _) => "indeterminate",
        State::Open(Phase::Dead, _) => "dead",
    }
}
