//! What can happen next in a state.

use crate::action::{Action, Leaving, Word};
use crate::ask::{Ask, Op, Round, Who};
use crate::attempt::{Attempt, Phase};
use crate::kept::Kept;
use crate::setting::{Operator, Wrong};
use crate::space::Space;
use crate::store::Lease;
use crate::world::{Finding, World};

impl World {
    /// Collects what can happen next.
    pub(crate) fn possible(&self, space: &Space, actions: &mut Vec<Action>) {
        for number in (0..).take(space.setting.calls.len()) {
            self.attempt_may(space, number, actions);
        }
        if self.asked(Who::Operator).is_some() {
            self.store_may(Who::Operator, actions);
        }
        self.operator_may(space, actions);
        actions.extend((0..).zip(&self.late).filter(|(_, late)| late.is_some()).map(|(at, _)| Action::Arrive(at)));
        for key in (0..).take(space.slots()) {
            self.time_may(space, key, actions);
        }
        if self.left.failovers > 0 && self.replica != self.store {
            actions.extend([Action::CatchUp, Action::FailOver]);
        }
        if self.left.amnesias > 0 && self.store.slots.iter().any(|slot| slot.record.is_some()) {
            actions.push(Action::Forget);
        }
    }

    fn attempt_may(&self, space: &Space, number: u8, actions: &mut Vec<Action>) {
        let attempt = &self.attempts[usize::from(number)];
        match attempt.phase {
            Phase::Waiting if self.is_next(space, number) => actions.push(Action::Start(number)),
            Phase::Waiting | Phase::Over(_) | Phase::Crashed => {}
            Phase::Asking(ask) => self.asking_may(space, number, ask, actions),
            Phase::Looking => actions.push(Action::LookFirst(number)),
            Phase::Probing { .. } => actions.push(Action::Probe(number)),
            Phase::Running => self.handler_may(space, number, actions),
            Phase::RunningUnprotected => actions.push(Action::Act(number, Word::Applied)),
        }
        if attempt.journal.is_some() {
            self.store_may(Who::Journal(number), actions);
        }
        if attempt.under_way {
            actions.push(Action::TakeEffect(number));
        }
        if attempt.renews(space.setting.is(Wrong::RenewsWhileGivingBack)) {
            actions.push(Action::Renew(number));
            if self.left.network > 0 {
                actions.push(Action::RenewLate(number));
            }
        }
        self.process_may_die(number, actions);
    }

    /// Attempts that are alike begin in their order: which of them is first makes no difference.
    fn is_next(&self, space: &Space, number: u8) -> bool {
        let call = space.setting.call(number);
        let alike =
            space.setting.calls.iter().zip(&self.attempts).take(number.into()).filter(|(other, _)| **other == call);
        alike.map(|(_, attempt)| attempt.phase).all(|phase| phase != Phase::Waiting)
    }

    fn asking_may(&self, space: &Space, number: u8, ask: Ask, actions: &mut Vec<Action>) {
        let (setting, first) = (&space.setting, ask.swap.is_none());
        let with_swaps = !setting.is(Wrong::CancelsWhileSwapsAreUnderWay);
        if ask.op == Op::Cancel(Round::Later) && first && self.begin_is_under_way(number, with_swaps) {
            return;
        }
        self.store_may(Who::Attempt(number), actions);
        if first && self.left.network > 0 && setting.has_two_keys() {
            actions.push(Action::MixUp(number));
        }
        if first && ask.op == Op::Complete && setting.allowed.spills {
            actions.push(Action::Spill(number));
        }
        if first && ask.op == Op::Begin && setting.allowed.passes {
            actions.push(Action::Pass(number));
        }
        if first && ask.op == Op::Begin && setting.allowed.waits {
            actions.push(Action::GiveUp(number));
        }
    }

    /// What becomes of a request.
    fn store_may(&self, who: Who, actions: &mut Vec<Action>) {
        actions.push(Action::Deliver(who));
        if self.left.network > 0 {
            actions.extend([Action::LoseReply(who), Action::LoseRequest(who)]);
            if self.asked(who).is_some_and(|ask| ask.writes()) {
                actions.extend([Action::Delay(who), Action::Duplicate(who)]);
            }
        }
    }

    fn handler_may(&self, space: &Space, number: u8, actions: &mut Vec<Action>) {
        actions.push(Action::Act(number, Word::Applied));
        if self.left.errors > 0 {
            actions.extend([
                Action::Act(number, Word::Unknown),
                Action::Refrain(number, Word::NotApplied),
                Action::Refrain(number, Word::Unknown),
                Action::Strand(number),
                Action::TooLate(number),
            ]);
            if space.setting.allowed.buries {
                actions.push(Action::Refrain(number, Word::LastNotApplied));
            }
        }
    }

    fn process_may_die(&self, number: u8, actions: &mut Vec<Action>) {
        if self.left.crashes == 0 {
            return;
        }
        let attempt = &self.attempts[usize::from(number)];
        match attempt.phase {
            Phase::Waiting | Phase::Crashed => {}
            Phase::Looking | Phase::Probing { .. } => actions.push(Action::Crash(number, Leaving::Nothing)),
            Phase::Over(_) => {
                if attempt.journal.is_some() {
                    actions.push(Action::Crash(number, Leaving::Nothing));
                }
            }
            Phase::Asking(ask) => {
                actions.push(Action::Crash(number, Leaving::Nothing));
                if ask.writes() {
                    actions.push(Action::Crash(number, Leaving::Request));
                }
            }
            Phase::Running | Phase::RunningUnprotected => {
                let leavings = [Leaving::Nothing, Leaving::Effect];
                actions.extend(leavings.map(|leaving| Action::Crash(number, leaving)));
            }
        }
    }

    fn operator_may(&self, space: &Space, actions: &mut Vec<Action>) {
        match self.operator {
            Finding::Idle => {
                let slot = &self.store.slots[0];
                let worth_it =
                    slot.live().is_some_and(|record| record.is_dead() || record.is_unknown() && slot.lapsed());
                if self.left.looks > 0 && worth_it && space.setting.operator != Operator::Nobody {
                    actions.push(Action::Look);
                }
            }
            Finding::Asking(_) => {}
            Finding::Out { .. } => {
                let nobody_can_act = !self.attempts.iter().any(Attempt::can_act);
                if nobody_can_act || space.setting.operator == Operator::Hasty {
                    actions.push(Action::FindOut);
                }
            }
        }
    }

    fn time_may(&self, space: &Space, key: u8, actions: &mut Vec<Action>) {
        let slot = &self.store.slots[usize::from(key)];
        if slot.record.is_some() && slot.expired {
            actions.push(Action::Sweep(key));
        }
        let Some(record) = slot.live() else { return };
        if slot.lease == Lease::Runs && !space.setting.is(Wrong::HasNoLease) {
            actions.push(Action::Lapse(key));
        }
        let held = Kept::in_progress(record).filter(|held| !held.is_abandoned());
        if self.left.steps_back > 0 && held.is_some() && slot.lease != Lease::Overlong {
            actions.push(Action::StepBack(key));
        }
        if self.left.expiries > 0 && slot.lease == Lease::Over {
            actions.push(Action::Expire(key));
        }
    }
}
