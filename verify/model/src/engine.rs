//! The engine's rules, as `hapax_core::gate` follows them: how an attempt reacts to a reply, to a timeout, and to its
//! handler.

use crate::action::{CrashRemnant, ReportedOutcome};
use crate::attempt::{AttemptEnd, AttemptPhase, ModelAttempt, TransactionPhase};
use crate::invariant::Invariant;
use crate::ledger::LedgerRow;
use crate::record::{AnswerId, OPERATORS_ANSWER};
use crate::reply::ProtocolReply;
use crate::request::{CancelRound, Operation, ProtocolRequest, Sender};
use crate::setting::{BrokenRule, EffectKind};
use crate::space::StateSpace;
use crate::world::{LateRequest, World};

impl World {
    /// A definite reply of the store.
    pub(crate) fn receive_reply(&mut self, space: &StateSpace, sender: Sender, reply: ProtocolReply) {
        let Some(request) = self.pending_request(sender) else { return };
        match (sender, request.operation) {
            (Sender::Operator, operation) => self.operator_receives(operation, reply),
            (Sender::Journal(number), _) => self.attempt(number).journal = None,
            (Sender::Attempt(number), Operation::Begin) => self.begun(space, number, reply),
            (Sender::Attempt(number), Operation::Complete) => self.completed(space, number, reply),
            (Sender::Attempt(number), Operation::Release)
                if space.setting.violates(BrokenRule::ReleasesWithoutCancelling) =>
            {
                self.attempt(number).phase = AttemptPhase::Ended(AttemptEnd::NotApplied);
            }
            (Sender::Attempt(number), Operation::Release) => self.not_applied(space, number),
            (Sender::Attempt(number), Operation::Bury) => {
                self.attempt(number).phase = AttemptPhase::Ended(AttemptEnd::NotApplied);
            }
            (Sender::Attempt(number), Operation::Abandon) => {
                let attempt = self.attempt(number);
                attempt.abandoned = reply == ProtocolReply::Yes;
                attempt.phase = AttemptPhase::Ended(AttemptEnd::Unknown);
            }
            (Sender::Attempt(number), Operation::Cancel(CancelRound::AtOnce))
                if !space.setting.violates(BrokenRule::CancelsOnce) =>
            {
                self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Cancel(CancelRound::Later)));
            }
            (Sender::Attempt(number), Operation::Cancel(_)) => {
                self.attempt(number).phase = AttemptPhase::Ended(AttemptEnd::NotApplied);
            }
            // Also if the record was resolved before: the next begin shows the result.
            (Sender::Attempt(_), Operation::Resolve { .. }) => {
                self.send(sender, ProtocolRequest::first(Operation::Begin));
            }
            (Sender::Attempt(_), Operation::Renew | Operation::Hold { .. } | Operation::Reopen { .. }) => {
                unreachable!("no attempt sends these operations and waits")
            }
        }
    }

    fn begun(&mut self, space: &StateSpace, number: u8, reply: ProtocolReply) {
        let waits = space.setting.allowed.waits;
        match reply {
            ProtocolReply::Granted { token, .. } => {
                let attempt = self.attempt(number);
                (attempt.token, attempt.phase) = (token, AttemptPhase::Running);
            }
            ProtocolReply::Replay(answer) => {
                self.give_answer(space, number, answer);
                self.not_applied(space, number);
            }
            ProtocolReply::Indeterminate if space.setting.allowed.probes => {
                self.attempt(number).phase = AttemptPhase::BeforeProbe;
            }
            // The attempt waits and begins again. The next begin is equal to this one.
            ProtocolReply::Busy | ProtocolReply::Indeterminate if waits => {
                self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Begin));
            }
            ProtocolReply::Busy | ProtocolReply::Indeterminate | ProtocolReply::Mismatch | ProtocolReply::Dead => {
                self.not_applied(space, number);
            }
            ProtocolReply::Recorded
            | ProtocolReply::Lost(_)
            | ProtocolReply::Gone
            | ProtocolReply::Yes
            | ProtocolReply::No => {
                unreachable!("a begin has no such reply")
            }
        }
    }

    /// The attempt applied nothing. An ambiguous begin is cancelled.
    pub(crate) fn not_applied(&mut self, space: &StateSpace, number: u8) {
        let cancels = self.attempt(number).ambiguous && !space.setting.violates(BrokenRule::NeverCancels);
        self.attempt(number).phase = if cancels {
            AttemptPhase::AwaitingStore(ProtocolRequest::first(Operation::Cancel(CancelRound::AtOnce)))
        } else {
            AttemptPhase::Ended(AttemptEnd::NotApplied)
        };
    }

    fn completed(&mut self, space: &StateSpace, number: u8, reply: ProtocolReply) {
        let own = self.attempt(number).answer;
        let delivered = match reply {
            ProtocolReply::Recorded => own,
            ProtocolReply::Lost(Some(_)) if space.setting.violates(BrokenRule::ReturnsOwnAnswerWhenLost) => own,
            ProtocolReply::Lost(canonical) => canonical,
            ProtocolReply::Gone
            | ProtocolReply::Granted { .. }
            | ProtocolReply::Busy
            | ProtocolReply::Replay(_)
            | ProtocolReply::Mismatch
            | ProtocolReply::Indeterminate
            | ProtocolReply::Dead
            | ProtocolReply::Yes
            | ProtocolReply::No => None,
        };
        if let Some(answer) = delivered {
            self.give_answer(space, number, answer);
        }
        self.attempt(number).phase =
            AttemptPhase::Ended(if delivered.is_some() { AttemptEnd::Answered } else { AttemptEnd::Unknown });
    }

    /// No reply in time. Every operation is repeated, a begin only once.
    pub(crate) fn time_out(&mut self, space: &StateSpace, sender: Sender) {
        let Some(request) = self.pending_request(sender) else { return };
        match (sender, request.operation) {
            (Sender::Attempt(number), Operation::Begin) if self.attempt(number).ambiguous => {
                self.not_applied(space, number);
            }
            (Sender::Attempt(number), Operation::Begin) => {
                self.attempt(number).ambiguous = true;
                self.send(sender, ProtocolRequest::first(Operation::Begin));
            }
            (Sender::Attempt(number), Operation::Resolve { .. }) => self.not_applied(space, number),
            (Sender::Attempt(_) | Sender::Journal(_) | Sender::Operator, operation) => {
                self.send(sender, ProtocolRequest::first(operation));
            }
        }
    }

    /// The handler has its effect.
    pub(crate) fn act(&mut self, space: &StateSpace, number: u8, word: ReportedOutcome) {
        if word == ReportedOutcome::Unknown {
            self.faults_left.errors -= 1;
        }
        let answer = self.take_effect(space, number).filter(|_| word == ReportedOutcome::Applied);
        let Some(answer) = answer else {
            return self.give_up(space, number);
        };
        self.applied(space, number, answer);
    }

    /// The handler returns the answer of its effect.
    pub(crate) fn applied(&mut self, space: &StateSpace, number: u8, answer: AnswerId) {
        let protected = self.attempt(number).phase == AttemptPhase::Running;
        self.attempt(number).answer = Some(answer);
        if !protected {
            self.history.unrecorded |= 1 << answer;
            self.give_answer(space, number, answer);
            return self.not_applied(space, number);
        }
        if space.setting.violates(BrokenRule::RepliesBeforeRecording) {
            self.give_answer(space, number, answer);
        }
        self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Complete));
    }

    /// Returns the answer of the effect; none if the resource refused it.
    pub(crate) fn take_effect(&mut self, space: &StateSpace, number: u8) -> Option<AnswerId> {
        let key = usize::from(space.setting.call(number).tenant);
        let token = self.attempt(number).token;
        match space.setting.effect {
            EffectKind::Ledger if let Some(LedgerRow::Finished(answer)) = self.history.ledger[key] => {
                return Some(answer);
            }
            EffectKind::Fence if token < self.history.fence => return None,
            EffectKind::Ledger | EffectKind::MintedIds | EffectKind::Transaction => {
                self.history.ledger[key] = Some(LedgerRow::Finished(number));
            }
            EffectKind::Fence => self.history.fence = token,
            EffectKind::Plain => {}
        }
        if !space.setting.violates(BrokenRule::ActsOutsideTheTransaction) {
            self.history.takes_effect(key, number);
        }
        Some(number)
    }

    pub(crate) fn refrain(&mut self, space: &StateSpace, number: u8, word: ReportedOutcome) {
        self.faults_left.errors -= 1;
        self.attempt(number).transaction = TransactionPhase::Over;
        match word {
            ReportedOutcome::NotApplied => {
                self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Release));
            }
            ReportedOutcome::LastNotApplied => {
                self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Bury));
            }
            ReportedOutcome::Unknown => self.give_up(space, number),
            ReportedOutcome::Applied => unreachable!("a handler without an effect does not report `applied`"),
        }
    }

    /// The outcome is unknown: the attempt is abandoned.
    pub(crate) fn give_up(&mut self, space: &StateSpace, number: u8) {
        let operation =
            if space.setting.violates(BrokenRule::ReleasesOnUnknown) { Operation::Release } else { Operation::Abandon };
        self.send(Sender::Attempt(number), ProtocolRequest::first(operation));
    }

    pub(crate) fn spill(&mut self, space: &StateSpace, number: u8) {
        let attempt = self.attempt(number);
        let answer = attempt.answer.expect("an attempt completes with an answer");
        if !space.setting.violates(BrokenRule::ForgetsWhatItSpilled) {
            attempt.journal = Some(ProtocolRequest::first(Operation::Complete));
        }
        attempt.phase = AttemptPhase::Ended(AttemptEnd::Answered);
        self.give_answer(space, number, answer);
    }

    /// The caller gets an answer.
    fn give_answer(&mut self, space: &StateSpace, number: u8, answer: AnswerId) {
        let call = space.setting.call(number);
        let given_for = space.setting.calls.get(usize::from(answer));
        if answer != OPERATORS_ANSWER && given_for != Some(&call) {
            self.history.breaks(Invariant::AnswerFits);
        }
        self.history.delivers(call.tenant.into(), answer);
    }

    pub(crate) fn crash(&mut self, number: u8, leaving: CrashRemnant) -> Option<()> {
        self.faults_left.crashes -= 1;
        let sender = Sender::Attempt(number);
        let left = self.pending_request(sender).filter(|_| leaving == CrashRemnant::Request);
        let attempt = self.attempt(number);
        (attempt.phase, attempt.transaction) = (AttemptPhase::Crashed, TransactionPhase::Over);
        attempt.under_way |= leaving == CrashRemnant::Effect;
        if let Some(journal) = &mut attempt.journal {
            *journal = ProtocolRequest::first(Operation::Complete);
        }
        left.is_none_or(|request| self.add_late(LateRequest { from: sender, request })).then_some(())
    }

    /// The handler reports an unknown outcome while its effect is in transit.
    pub(crate) fn strand(&mut self, space: &StateSpace, number: u8) {
        self.faults_left.errors -= 1;
        self.attempt(number).under_way = true;
        self.give_up(space, number);
    }

    /// An effect in transit happens.
    pub(crate) fn arrive_effect(&mut self, space: &StateSpace, number: u8) {
        self.attempt(number).under_way = false;
        self.take_effect(space, number);
    }

    /// The grant arrived so late that the lease may have expired, so the handler is not started.
    pub(crate) fn come_too_late(&mut self, number: u8) {
        self.faults_left.errors -= 1;
        self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Cancel(CancelRound::AtOnce)));
    }

    /// Reads the record that the probe is called about. It may have changed since the begin.
    pub(crate) fn look_first(&mut self, space: &StateSpace, number: u8) {
        let found = self.store.slots[space.slot_of(Sender::Attempt(number))].live().map(|record| record.token);
        self.attempt(number).phase = match found {
            Some(expected) => AttemptPhase::Probing { expected },
            None => AttemptPhase::AwaitingStore(ProtocolRequest::first(Operation::Begin)),
        };
    }

    /// The probe does not know the outcome while an attempt may still have an effect.
    pub(crate) fn probe(&mut self, space: &StateSpace, number: u8) {
        let AttemptPhase::Probing { expected } = self.attempt(number).phase else { return };
        if self.attempts.iter().any(ModelAttempt::can_act) {
            return self.not_applied(space, number);
        }
        let done = self.history.produced[usize::from(space.setting.call(number).tenant)];
        self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Resolve { expected, done }));
    }

    /// The store is down, and the policy lets the handler run.
    pub(crate) fn pass(&mut self, number: u8) {
        self.history.excused = true;
        self.attempt(number).phase = AttemptPhase::RunningUnprotected;
    }
}
