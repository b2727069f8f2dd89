//! The engine's rules, as `hapax_core::gate` follows them: what an attempt does about a reply, about none, and about its handler.

use crate::action::{Leaving, Word};
use crate::ask::{Ask, Op, Reply, Round, Who};
use crate::attempt::{Attempt, End, Phase};
use crate::invariant::Invariant;
use crate::kept::{Answer, OPERATORS_WORDS};
use crate::setting::{Effect, Wrong};
use crate::space::Space;
use crate::world::{Late, World};

impl World {
    /// A definite answer of the store.
    pub(crate) fn hear(&mut self, space: &Space, who: Who, reply: Reply) {
        let Some(ask) = self.asked(who) else { return };
        match (who, ask.op) {
            (Who::Operator, op) => self.operator_hears(op, reply),
            (Who::Journal(number), _) => self.attempt(number).journal = None,
            (Who::Attempt(number), Op::Begin) => self.begun(space, number, reply),
            (Who::Attempt(number), Op::Complete) => self.completed(space, number, reply),
            (Who::Attempt(number), Op::Release) if space.setting.is(Wrong::ReleasesWithoutCancelling) => {
                self.attempt(number).phase = Phase::Over(End::NotApplied);
            }
            (Who::Attempt(number), Op::Release) => self.not_applied(space, number),
            (Who::Attempt(number), Op::Bury) => self.attempt(number).phase = Phase::Over(End::NotApplied),
            (Who::Attempt(number), Op::Abandon) => {
                let attempt = self.attempt(number);
                attempt.abandoned = reply == Reply::Yes;
                attempt.phase = Phase::Over(End::Unknown);
            }
            (Who::Attempt(number), Op::Cancel(Round::AtOnce)) if !space.setting.is(Wrong::CancelsOnce) => {
                self.asks(Who::Attempt(number), Ask::first(Op::Cancel(Round::Later)));
            }
            (Who::Attempt(number), Op::Cancel(_)) => self.attempt(number).phase = Phase::Over(End::NotApplied),
            // Also when somebody else knew: the next begin shows what.
            (Who::Attempt(_), Op::Resolve { .. }) => self.asks(who, Ask::first(Op::Begin)),
            (Who::Attempt(_), Op::Renew | Op::Hold { .. } | Op::Reopen { .. }) => {
                unreachable!("no attempt waits for that")
            }
        }
    }

    fn begun(&mut self, space: &Space, number: u8, reply: Reply) {
        let waits = space.setting.allowed.waits;
        match reply {
            Reply::Granted { token, .. } => {
                let attempt = self.attempt(number);
                (attempt.token, attempt.phase) = (token, Phase::Running);
            }
            Reply::Replay(answer) => {
                self.tell(space, number, answer);
                self.not_applied(space, number);
            }
            Reply::Indeterminate if space.setting.allowed.probes => self.attempt(number).phase = Phase::Looking,
            // It looks again later: the next begin is as this one.
            Reply::Busy | Reply::Indeterminate if waits => self.asks(Who::Attempt(number), Ask::first(Op::Begin)),
            Reply::Busy | Reply::Indeterminate | Reply::Mismatch | Reply::Dead => self.not_applied(space, number),
            Reply::Recorded | Reply::Lost(_) | Reply::Gone | Reply::Yes | Reply::No => {
                unreachable!("no begin is answered so")
            }
        }
    }

    /// It applied nothing: what an earlier begin may have left is cancelled.
    pub(crate) fn not_applied(&mut self, space: &Space, number: u8) {
        let cancels = self.attempt(number).ambiguous && !space.setting.is(Wrong::NeverCancels);
        self.attempt(number).phase =
            if cancels { Phase::Asking(Ask::first(Op::Cancel(Round::AtOnce))) } else { Phase::Over(End::NotApplied) };
    }

    fn completed(&mut self, space: &Space, number: u8, reply: Reply) {
        let own = self.attempt(number).answer;
        let told = match reply {
            Reply::Recorded => own,
            Reply::Lost(Some(_)) if space.setting.is(Wrong::AnswersForItselfWhenLost) => own,
            Reply::Lost(canonical) => canonical,
            Reply::Gone
            | Reply::Granted { .. }
            | Reply::Busy
            | Reply::Replay(_)
            | Reply::Mismatch
            | Reply::Indeterminate
            | Reply::Dead
            | Reply::Yes
            | Reply::No => None,
        };
        if let Some(answer) = told {
            self.tell(space, number, answer);
        }
        self.attempt(number).phase = Phase::Over(if told.is_some() { End::Answered } else { End::Unknown });
    }

    /// No answer in time. Everything is repeated, a begin once.
    pub(crate) fn hear_nothing(&mut self, space: &Space, who: Who) {
        let Some(ask) = self.asked(who) else { return };
        match (who, ask.op) {
            (Who::Attempt(number), Op::Begin) if self.attempt(number).ambiguous => self.not_applied(space, number),
            (Who::Attempt(number), Op::Begin) => {
                self.attempt(number).ambiguous = true;
                self.asks(who, Ask::first(Op::Begin));
            }
            (Who::Attempt(number), Op::Resolve { .. }) => self.not_applied(space, number),
            (Who::Attempt(_) | Who::Journal(_) | Who::Operator, op) => self.asks(who, Ask::first(op)),
        }
    }

    /// The handler has its effect.
    pub(crate) fn act(&mut self, space: &Space, number: u8, word: Word) {
        let protected = self.attempt(number).phase == Phase::Running;
        if word == Word::Unknown {
            self.left.errors -= 1;
        }
        let answer = self.take_effect(space, number).filter(|_| word == Word::Applied);
        let Some(answer) = answer else {
            return self.give_up(space, number);
        };
        self.attempt(number).answer = Some(answer);
        if !protected {
            self.history.unrecorded |= 1 << answer;
            self.tell(space, number, answer);
            return self.not_applied(space, number);
        }
        if space.setting.is(Wrong::RepliesBeforeRecording) {
            self.tell(space, number, answer);
        }
        self.asks(Who::Attempt(number), Ask::first(Op::Complete));
    }

    /// The answer of the effect; none if the resource refused it.
    fn take_effect(&mut self, space: &Space, number: u8) -> Option<Answer> {
        let key = usize::from(space.setting.call(number).tenant);
        let token = self.attempt(number).token;
        match space.setting.effect {
            Effect::Ledger if self.history.ledger[key].is_some() => return self.history.ledger[key],
            Effect::Fence if token < self.history.fence => return None,
            Effect::Ledger | Effect::MintedIds => self.history.ledger[key] = Some(number),
            Effect::Fence => self.history.fence = token,
            Effect::Plain => {}
        }
        self.history.takes_effect(key, number);
        Some(number)
    }

    pub(crate) fn refrain(&mut self, space: &Space, number: u8, word: Word) {
        self.left.errors -= 1;
        match word {
            Word::NotApplied => self.asks(Who::Attempt(number), Ask::first(Op::Release)),
            Word::LastNotApplied => self.asks(Who::Attempt(number), Ask::first(Op::Bury)),
            Word::Unknown => self.give_up(space, number),
            Word::Applied => unreachable!("without an effect nothing was applied"),
        }
    }

    /// The outcome is unknown.
    fn give_up(&mut self, space: &Space, number: u8) {
        let op = if space.setting.is(Wrong::ReleasesOnUnknown) { Op::Release } else { Op::Abandon };
        self.asks(Who::Attempt(number), Ask::first(op));
    }

    pub(crate) fn spill(&mut self, space: &Space, number: u8) {
        let attempt = self.attempt(number);
        let answer = attempt.answer.expect("it completes with an answer");
        if !space.setting.is(Wrong::ForgetsWhatItSpilled) {
            attempt.journal = Some(Ask::first(Op::Complete));
        }
        attempt.phase = Phase::Over(End::Answered);
        self.tell(space, number, answer);
    }

    /// The caller is given an answer.
    fn tell(&mut self, space: &Space, number: u8, answer: Answer) {
        let call = space.setting.call(number);
        let given_for = space.setting.calls.get(usize::from(answer));
        if answer != OPERATORS_WORDS && given_for != Some(&call) {
            self.history.breaks(Invariant::AnswerFits);
        }
        self.history.delivers(call.tenant.into(), answer);
    }

    pub(crate) fn crash(&mut self, number: u8, leaving: Leaving) -> Option<()> {
        self.left.crashes -= 1;
        let who = Who::Attempt(number);
        let left = self.asked(who).filter(|_| leaving == Leaving::Request);
        let attempt = self.attempt(number);
        attempt.phase = Phase::Crashed;
        attempt.under_way |= leaving == Leaving::Effect;
        if let Some(journal) = &mut attempt.journal {
            *journal = Ask::first(Op::Complete);
        }
        left.is_none_or(|ask| self.leave(Late { from: who, ask })).then_some(())
    }

    /// The handler fails while its effect is under way.
    pub(crate) fn strand(&mut self, space: &Space, number: u8) {
        self.left.errors -= 1;
        self.attempt(number).under_way = true;
        self.give_up(space, number);
    }

    /// The effect that was under way happens.
    pub(crate) fn arrive_effect(&mut self, space: &Space, number: u8) {
        self.attempt(number).under_way = false;
        self.take_effect(space, number);
    }

    /// Granted so late that the lease may be over: the handler is not started.
    pub(crate) fn come_too_late(&mut self, number: u8) {
        self.left.errors -= 1;
        self.asks(Who::Attempt(number), Ask::first(Op::Cancel(Round::AtOnce)));
    }

    /// What is there by now is what the probe is asked about.
    pub(crate) fn look_first(&mut self, space: &Space, number: u8) {
        let found = self.store.slots[space.slot_of(Who::Attempt(number))].live().map(|record| record.token);
        self.attempt(number).phase = match found {
            Some(expected) => Phase::Probing { expected },
            None => Phase::Asking(Ask::first(Op::Begin)),
        };
    }

    /// While somebody may still act the probe does not know.
    pub(crate) fn probe(&mut self, space: &Space, number: u8) {
        let Phase::Probing { expected } = self.attempt(number).phase else { return };
        if self.attempts.iter().any(Attempt::can_act) {
            return self.not_applied(space, number);
        }
        let done = self.history.produced[usize::from(space.setting.call(number).tenant)];
        self.asks(Who::Attempt(number), Ask::first(Op::Resolve { expected, done }));
    }

    /// The store is down, and the policy lets the handler run.
    pub(crate) fn pass(&mut self, number: u8) {
        self.history.excused = true;
        self.attempt(number).phase = Phase::RunningUnprotected;
    }
}
