//! What happens when something happens.

use crate::action::{Action, Leaving, Word};
use crate::ask::{Ask, Op, Reply, Round, Who};
use crate::attempt::{Attempt, End, Phase};
use crate::invariant::Invariant;
use crate::kept::{Answer, OPERATORS_WORDS};
use crate::setting::{Effect, Operator, Wrong};
use crate::space::Space;
use crate::store::{Lease, Slot, Store};
use crate::world::{Finding, Late, Led, World};

impl World {
    /// Takes a step; nothing if it comes to the same as another one.
    pub(crate) fn take(&mut self, space: &Space, action: Action) -> Option<()> {
        match action {
            Action::Start(number) => self.asks(Who::Attempt(number), Ask::first(Op::Begin)),
            Action::Deliver(who) => self.deliver(space, who),
            Action::LoseReply(who) => return self.lose_reply(space, who),
            Action::LoseRequest(who) => self.lose_request(space, who),
            Action::Delay(who) => return self.delay(space, who),
            Action::Duplicate(who) => return self.duplicate(space, who),
            Action::MixUp(number) => self.mix_up(space, number),
            Action::Arrive(place) => {
                let late = self.take_late(place)?;
                self.carry_out(space, late.from, late.ask);
            }
            Action::Renew(number) => {
                self.carry_out(space, Who::Attempt(number), Ask::first(Op::Renew));
            }
            Action::RenewLate(number) => {
                self.left.network -= 1;
                return self.leave(Late { from: Who::Attempt(number), ask: Ask::first(Op::Renew) }).then_some(());
            }
            Action::Act(number, word) => self.act(space, number, word),
            Action::Refrain(number, word) => self.refrain(space, number, word),
            Action::Strand(number) => {
                self.left.errors -= 1;
                self.attempt(number).under_way = true;
                self.give_up(space, number);
            }
            Action::TakeEffect(number) => {
                self.attempt(number).under_way = false;
                self.take_effect(space, number);
            }
            Action::TooLate(number) => {
                self.left.errors -= 1;
                self.asks(Who::Attempt(number), Ask::first(Op::Cancel(Round::AtOnce)));
            }
            Action::Spill(number) => self.spill(space, number),
            Action::Pass(number) => {
                self.history.excused = true;
                self.attempt(number).phase = Phase::RunningUnprotected;
            }
            Action::GiveUp(number) => self.refused(space, number),
            Action::Crash(number, leaving) => return self.crash(space, number, leaving),
            Action::Lapse(key) => self.slot(key).lapse(),
            Action::Expire(key) => self.expire(key),
            Action::Sweep(key) => *self.slot(key) = Slot::default(),
            Action::StepBack(key) => {
                self.left.steps_back -= 1;
                self.slot(key).lease = Lease::Overlong;
            }
            Action::Forget => {
                self.left.amnesias -= 1;
                self.history.forgot = true;
                self.store = Store::default();
            }
            Action::CatchUp => self.replica = self.store,
            Action::FailOver => {
                self.left.failovers -= 1;
                (self.history.forgot, self.history.rolled_back) = (true, true);
                self.store = std::mem::take(&mut self.replica);
            }
            Action::Look => self.look(),
            Action::FindOut => self.find_out(space),
        }
        Some(())
    }

    fn slot(&mut self, key: u8) -> &mut Slot {
        &mut self.store.slots[usize::from(key)]
    }

    fn deliver(&mut self, space: &Space, who: Who) {
        let Some(ask) = self.asked(who) else { return };
        match self.carry_out(space, who, ask) {
            Led::Replied(reply) => self.hear(space, who, reply),
            Led::ToSwap(swap) => self.asks(who, Ask { op: ask.op, swap: Some(swap) }),
            Led::Changed => self.asks(who, Ask::first(ask.op)),
        }
    }

    /// Nothing if nothing was written: that is as if the request had been lost.
    fn lose_reply(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let (ask, before) = (self.asked(who)?, self.store);
        self.carry_out(space, who, ask);
        if self.store == before {
            return None;
        }
        self.hear_nothing(space, who);
        Some(())
    }

    fn lose_request(&mut self, space: &Space, who: Who) {
        self.left.network -= 1;
        self.hear_nothing(space, who);
    }

    fn delay(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let late = Late { from: who, ask: self.asked(who)? };
        self.hear_nothing(space, who);
        self.leave(late).then_some(())
    }

    fn duplicate(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let late = Late { from: who, ask: self.asked(who)? };
        self.deliver(space, who);
        self.leave(late).then_some(())
    }

    fn mix_up(&mut self, space: &Space, number: u8) {
        self.left.network -= 1;
        match self.mixed_up(space, number, space.setting.is(Wrong::TakesRepliesOfOtherKeys)) {
            Some(reply) => self.hear(space, Who::Attempt(number), reply),
            None => self.hear_nothing(space, Who::Attempt(number)),
        }
    }

    /// A definite answer of the store.
    fn hear(&mut self, space: &Space, who: Who, reply: Reply) {
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
            (Who::Attempt(_), Op::Renew | Op::Hold { .. } | Op::Resolve { .. } | Op::Reopen { .. }) => {
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
                self.refused(space, number);
            }
            // It looks again later: the next begin is as this one.
            Reply::Busy | Reply::Indeterminate if waits => self.asks(Who::Attempt(number), Ask::first(Op::Begin)),
            Reply::Busy | Reply::Indeterminate | Reply::Mismatch | Reply::Dead => self.refused(space, number),
            Reply::Recorded | Reply::Lost(_) | Reply::Gone | Reply::Yes | Reply::No => {
                unreachable!("no begin is answered so")
            }
        }
    }

    /// Not granted: what an earlier begin may have left is cancelled.
    fn refused(&mut self, space: &Space, number: u8) {
        self.not_applied(space, number);
    }

    fn not_applied(&mut self, space: &Space, number: u8) {
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
    fn hear_nothing(&mut self, space: &Space, who: Who) {
        let Some(ask) = self.asked(who) else { return };
        match (who, ask.op) {
            (Who::Attempt(number), Op::Begin) if self.attempt(number).ambiguous => self.refused(space, number),
            (Who::Attempt(number), Op::Begin) => {
                self.attempt(number).ambiguous = true;
                self.asks(who, Ask::first(Op::Begin));
            }
            (Who::Attempt(_) | Who::Journal(_) | Who::Operator, op) => self.asks(who, Ask::first(op)),
        }
    }

    /// The handler has its effect.
    fn act(&mut self, space: &Space, number: u8, word: Word) {
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

    fn refrain(&mut self, space: &Space, number: u8, word: Word) {
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

    fn spill(&mut self, space: &Space, number: u8) {
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

    fn crash(&mut self, space: &Space, number: u8, leaving: Leaving) -> Option<()> {
        self.left.crashes -= 1;
        let who = Who::Attempt(number);
        let left = self.asked(who).filter(|_| leaving == Leaving::Request);
        let attempt = self.attempt(number);
        attempt.phase = Phase::Crashed;
        attempt.under_way |= leaving == Leaving::Effect;
        if let Some(journal) = &mut attempt.journal {
            *journal = Ask::first(Op::Complete);
        }
        debug_assert!(space.setting.calls.len() > usize::from(number), "it is one of the attempts");
        left.is_none_or(|ask| self.leave(Late { from: who, ask })).then_some(())
    }

    fn expire(&mut self, key: u8) {
        self.left.expiries -= 1;
        self.history.forgot = true;
        self.slot(key).expired = true;
    }

    /// A lapsed record is held first; finding out begins after that.
    fn look(&mut self) {
        self.left.looks -= 1;
        let Some(record) = self.store.slots[0].live().copied() else { return };
        let expected = record.token;
        self.operator = if record.is_dead() {
            Finding::Asking(Ask::first(Op::Reopen { expected }))
        } else {
            Finding::Asking(Ask::first(Op::Hold { expected }))
        };
    }

    fn operator_hears(&mut self, op: Op, reply: Reply) {
        self.operator = match (op, reply) {
            (Op::Hold { expected }, Reply::Yes) => Finding::Out { expected },
            _ => Finding::Idle,
        };
    }

    fn find_out(&mut self, space: &Space) {
        let Finding::Out { expected } = self.operator else { return };
        let found = self.history.produced[usize::from(space.setting.calls[0].tenant)];
        let done = match space.setting.operator {
            Operator::InOwnWords => found.map(|_| OPERATORS_WORDS),
            Operator::Careful | Operator::Hasty | Operator::Nobody => found,
        };
        // What happens after the question is not in the answer.
        self.history.excused |= done.is_none() && self.attempts.iter().any(Attempt::can_act);
        self.asks(Who::Operator, Ask::first(Op::Resolve { expected, done }));
    }
}
