//! The steps that are possible in a state.

use crate::action::{Action, CrashRemnant, ReportedOutcome};
use crate::attempt::{AttemptPhase, ModelAttempt};
use crate::record::ModelRecord;
use crate::request::{CancelRound, Operation, ProtocolRequest, Sender};
use crate::setting::{BrokenRule, OperatorKind};
use crate::space::StateSpace;
use crate::store::LeaseStatus;
use crate::world::{OperatorPhase, World};

impl World {
    /// Collects the possible steps.
    pub(crate) fn collect_actions(&self, space: &StateSpace, actions: &mut Vec<Action>) {
        for number in (0..).take(space.setting.calls.len()) {
            self.collect_attempt_actions(space, number, actions);
        }
        if self.pending_request(Sender::Operator).is_some() {
            self.collect_network_actions(Sender::Operator, actions);
        }
        self.collect_operator_actions(space, actions);
        actions.extend((0..).zip(&self.late).filter(|(_, late)| late.is_some()).map(|(at, _)| Action::Arrive(at)));
        for key in (0..).take(space.slots()) {
            self.collect_time_actions(space, key, actions);
        }
        if self.faults_left.failovers > 0 && self.replica != self.store {
            actions.extend([Action::CatchUp, Action::FailOver]);
        }
        if self.faults_left.amnesias > 0 && self.store.slots.iter().any(|slot| slot.record.is_some()) {
            actions.push(Action::Forget);
        }
    }

    fn collect_attempt_actions(&self, space: &StateSpace, number: u8, actions: &mut Vec<Action>) {
        let attempt = &self.attempts[usize::from(number)];
        match attempt.phase {
            AttemptPhase::NotStarted if self.is_next(space, number) => actions.push(Action::Start(number)),
            AttemptPhase::NotStarted | AttemptPhase::Ended(_) | AttemptPhase::Crashed => {}
            AttemptPhase::AwaitingStore(request) => self.collect_request_actions(space, number, request, actions),
            AttemptPhase::BeforeProbe => actions.push(Action::LookFirst(number)),
            AttemptPhase::Probing { .. } => actions.push(Action::Probe(number)),
            AttemptPhase::Running | AttemptPhase::RunningUnprotected if space.setting.has_transactions() => {
                self.collect_ledger_actions(number, actions);
            }
            AttemptPhase::Running => self.collect_handler_actions(space, number, actions),
            AttemptPhase::RunningUnprotected => actions.push(Action::Act(number, ReportedOutcome::Applied)),
        }
        if attempt.journal.is_some() {
            self.collect_network_actions(Sender::Journal(number), actions);
        }
        if attempt.under_way {
            actions.push(Action::TakeEffect(number));
            if space.setting.has_transactions() {
                actions.push(Action::RollBack(number));
            }
        }
        if attempt.renews(space.setting.violates(BrokenRule::RenewsWhileGivingBack)) {
            actions.push(Action::Renew(number));
            if self.faults_left.network > 0 {
                actions.push(Action::RenewLate(number));
            }
        }
        self.collect_crash_actions(space, number, actions);
    }

    /// Attempts with equal calls start in order. Other orders lead to the same states with other numbers.
    fn is_next(&self, space: &StateSpace, number: u8) -> bool {
        let call = space.setting.call(number);
        let alike =
            space.setting.calls.iter().zip(&self.attempts).take(number.into()).filter(|(other, _)| **other == call);
        alike.map(|(_, attempt)| attempt.phase).all(|phase| phase != AttemptPhase::NotStarted)
    }

    fn collect_request_actions(
        &self,
        space: &StateSpace,
        number: u8,
        request: ProtocolRequest,
        actions: &mut Vec<Action>,
    ) {
        let (setting, first) = (&space.setting, request.swap.is_none());
        let with_swaps = !setting.violates(BrokenRule::CancelsWhileSwapsAreUnderWay);
        if request.operation == Operation::Cancel(CancelRound::Later)
            && first
            && self.begin_is_under_way(number, with_swaps)
        {
            return;
        }
        self.collect_network_actions(Sender::Attempt(number), actions);
        if first && self.faults_left.network > 0 && setting.has_two_keys() {
            actions.push(Action::MixUp(number));
        }
        if first && request.operation == Operation::Complete && setting.allowed.spills {
            actions.push(Action::Spill(number));
        }
        if first && request.operation == Operation::Begin && setting.allowed.passes {
            actions.push(Action::Pass(number));
        }
        if first && request.operation == Operation::Begin && setting.allowed.waits {
            actions.push(Action::GiveUp(number));
        }
    }

    /// Collects the ways in which the network can treat a request.
    fn collect_network_actions(&self, sender: Sender, actions: &mut Vec<Action>) {
        actions.push(Action::Deliver(sender));
        if self.faults_left.network > 0 {
            actions.extend([Action::LoseReply(sender), Action::LoseRequest(sender)]);
            if self.pending_request(sender).is_some_and(|request| request.writes()) {
                actions.extend([Action::Delay(sender), Action::Duplicate(sender)]);
            }
        }
    }

    fn collect_handler_actions(&self, space: &StateSpace, number: u8, actions: &mut Vec<Action>) {
        actions.push(Action::Act(number, ReportedOutcome::Applied));
        if self.faults_left.errors > 0 {
            actions.extend([
                Action::Act(number, ReportedOutcome::Unknown),
                Action::Refrain(number, ReportedOutcome::NotApplied),
                Action::Refrain(number, ReportedOutcome::Unknown),
                Action::Strand(number),
                Action::TooLate(number),
            ]);
            if space.setting.allowed.buries {
                actions.push(Action::Refrain(number, ReportedOutcome::LastNotApplied));
            }
        }
    }

    fn collect_crash_actions(&self, space: &StateSpace, number: u8, actions: &mut Vec<Action>) {
        if self.faults_left.crashes == 0 {
            return;
        }
        let attempt = &self.attempts[usize::from(number)];
        match attempt.phase {
            AttemptPhase::NotStarted | AttemptPhase::Crashed => {}
            AttemptPhase::BeforeProbe | AttemptPhase::Probing { .. } => {
                actions.push(Action::Crash(number, CrashRemnant::Nothing));
            }
            AttemptPhase::Ended(_) => {
                if attempt.journal.is_some() {
                    actions.push(Action::Crash(number, CrashRemnant::Nothing));
                }
            }
            AttemptPhase::AwaitingStore(request) => {
                actions.push(Action::Crash(number, CrashRemnant::Nothing));
                if request.writes() {
                    actions.push(Action::Crash(number, CrashRemnant::Request));
                }
            }
            AttemptPhase::Running | AttemptPhase::RunningUnprotected => {
                actions.push(Action::Crash(number, CrashRemnant::Nothing));
                if attempt.has_claim() || !space.setting.has_transactions() {
                    actions.push(Action::Crash(number, CrashRemnant::Effect));
                }
            }
        }
    }

    fn collect_operator_actions(&self, space: &StateSpace, actions: &mut Vec<Action>) {
        match self.operator {
            OperatorPhase::Idle => {
                let slot = &self.store.slots[0];
                let worth_it =
                    slot.live().is_some_and(|record| record.is_dead() || record.is_unknown() && slot.lapsed());
                if self.faults_left.looks > 0 && worth_it && space.setting.operator != OperatorKind::Nobody {
                    actions.push(Action::Look);
                }
            }
            OperatorPhase::Waiting(_) => {}
            OperatorPhase::FindingOut { .. } => {
                let no_attempt_can_act = !self.attempts.iter().any(ModelAttempt::can_act);
                if no_attempt_can_act || space.setting.operator == OperatorKind::Hasty {
                    actions.push(Action::FindOut);
                }
            }
        }
    }

    fn collect_time_actions(&self, space: &StateSpace, key: u8, actions: &mut Vec<Action>) {
        let slot = &self.store.slots[usize::from(key)];
        if slot.record.is_some() && slot.expired {
            actions.push(Action::Sweep(key));
        }
        let Some(record) = slot.live() else { return };
        if slot.lease == LeaseStatus::Runs && !space.setting.violates(BrokenRule::HasNoLease) {
            actions.push(Action::Lapse(key));
        }
        let held = ModelRecord::in_progress(record).filter(|held| !held.is_abandoned());
        if self.faults_left.steps_back > 0 && held.is_some() && slot.lease != LeaseStatus::Overlong {
            actions.push(Action::StepBack(key));
        }
        if self.faults_left.expiries > 0 && slot.lease == LeaseStatus::Over {
            actions.push(Action::Expire(key));
        }
    }
}
