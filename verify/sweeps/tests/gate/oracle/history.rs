//! The history of one key, and the rules about handlers and answers.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::gate::{Attempt, Provenance, Recorded};
use hapax_core::{ErrorKind, Record, Token};
use hapax_sim::outcome::{CallerOutcome, HandlerOutcome, state_name};
use hapax_sim::rules;

/// The excuse under which a caller may miss the outcome of its own handler.
pub(crate) const TASKS_DROPPED: &str = "all tasks of a process were dropped";

/// One line of a trace.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "traces print the fields")]
pub(super) enum TraceEvent {
    HandlerStarts {
        call: usize,
        token: Token,
        attempt: u16,
        takeover: bool,
    },
    Effect {
        token: Token,
    },
    HandlerReturns {
        token: Token,
        outcome: HandlerOutcome,
    },
    /// The handler was dropped, or it panicked.
    HandlerBreaksOff {
        token: Token,
    },
    CallerReceives {
        call: usize,
        outcome: CallerOutcome,
    },
    Record {
        token: Token,
        state: &'static str,
    },
    Note(String),
}

#[derive(Default)]
pub(super) struct KeyHistory {
    pub(super) events: Vec<(Duration, TraceEvent)>,
    pub(super) attempts: Vec<AttemptHistory>,
    pub(super) effects: usize,
    /// The answer that callers received, and whether one of them received it as recorded.
    pub(super) answer: Option<(String, bool)>,
    /// The calls that were refused.
    pub(super) refused: Vec<usize>,
    /// Why the final outcome may be unknown.
    pub(super) excuse: Option<&'static str>,
    /// The kinds of errors with which the store refuses calls, besides that it does not answer.
    pub(super) expected_errors: Vec<ErrorKind>,
    pub(super) now: Duration,
    pub(super) last_seen: Option<(Token, &'static str)>,
    pub(super) violation: Option<String>,
}

pub(super) struct AttemptHistory {
    pub(super) call: usize,
    pub(super) attempt: Attempt,
    pub(super) had_effect: bool,
    pub(super) ended: bool,
    /// The outcome that its handler reported, with the answer.
    pub(super) reported: Option<(HandlerOutcome, String)>,
    pub(super) reported_at: Duration,
}

impl AttemptHistory {
    pub(super) fn token(&self) -> Token {
        self.attempt.grant().map_or(Token(0), |grant| grant.token)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.attempt.cancelled().now_or_never().is_some()
    }
}

pub(super) fn answer_under(token: Token) -> String {
    format!("the answer under {}", token.0)
}

impl KeyHistory {
    pub(super) fn push(&mut self, event: TraceEvent) {
        self.events.push((self.now, event));
    }

    /// Keeps the first rule that does not hold: later ones often follow from it.
    pub(super) fn check(&mut self, holds: bool, rule: &str) {
        if !holds && self.violation.is_none() {
            self.push(TraceEvent::Note(format!("VIOLATION: {rule}")));
            self.violation = Some(rule.into());
        }
    }

    /// Traces the record if it changed.
    pub(super) fn observe(&mut self, record: Option<&Record>) {
        let seen = record.map(|record| (record.token, state_name(&record.state)));
        if self.last_seen != seen {
            self.last_seen = seen;
            let (token, state) = seen.unwrap_or((Token(0), "absent"));
            self.push(TraceEvent::Record { token, state });
        }
    }

    /// Checks that a handler may start now.
    pub(super) fn check_start(&mut self, call: usize, token: Token, takeover: bool) {
        let refused = self.refused.contains(&call);
        self.check(!refused, rules::STARTED_AFTER_REFUSAL);
        let may_follow = self.effects == 0 || takeover;
        self.check(may_follow, "a handler started after an effect, and not by takeover");
        let alone = self.attempts.iter().all(|other| other.ended || other.is_cancelled());
        self.check(alone, "a handler started while another one ran that was not cancelled");
        let newest = self.attempts.iter().map(AttemptHistory::token).max();
        self.check(newest < Some(token), rules::TOKEN_DID_NOT_GROW);
    }

    /// Checks that a caller receives what its own handler reported, and soon enough.
    pub(super) fn check_received(&mut self, call: usize, outcome: &CallerOutcome, patience: Duration) {
        let own = self.attempts.iter().find(|attempt| attempt.call == call && attempt.reported.is_some());
        let in_time = own.is_none_or(|own| self.now <= own.reported_at + patience);
        let has_answer = own.and_then(|own| own.reported.as_ref()).is_some_and(|(outcome, _)| outcome.has_answer());
        let received_it = matches!(outcome, CallerOutcome::Answer { .. } | CallerOutcome::Unrecorded);
        let tasks_dropped = self.excuse == Some(TASKS_DROPPED);
        self.check(in_time, "a caller waited for longer than a lease after its handler had reported");
        self.check(!has_answer || received_it || tasks_dropped, rules::LESS_THAN_HANDLER_KNEW);
    }

    /// Checks a refusal: the caller's handler must not have started.
    pub(super) fn check_refusal(&mut self, call: usize) {
        self.refused.push(call);
        let ran = self.attempts.iter().any(|attempt| attempt.call == call);
        self.check(!ran, rules::REFUSED_AFTER_START);
    }

    pub(super) fn check_answer(&mut self, call: usize, answer: &str, provenance: Provenance, recorded: Recorded) {
        let gave = |attempt: &AttemptHistory| {
            let reported = |(outcome, given): &(HandlerOutcome, String)| outcome.has_answer() && given == answer;
            attempt.reported.as_ref().is_some_and(reported)
                || attempt.had_effect && answer_under(attempt.token()) == answer
        };
        let giver = self.attempts.iter().find(|attempt| gave(attempt)).map(|attempt| attempt.call);
        self.check(giver.is_some(), rules::FOREIGN_ANSWER);
        self.check(provenance != Provenance::Fresh || giver == Some(call), rules::WRONG_PROVENANCE);
        let same = self.answer.as_ref().is_none_or(|(before, _)| before == answer);
        self.check(same, rules::DIFFERENT_ANSWERS);
        let was_recorded = self.answer.as_ref().is_some_and(|(_, recorded)| *recorded);
        self.answer = Some((answer.into(), was_recorded || recorded == Recorded::Yes));
    }
}

impl fmt::Display for KeyHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in &self.events {
            writeln!(f, "    {:>10.3} s  {event:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
