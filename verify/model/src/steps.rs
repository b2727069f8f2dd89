//! The effect of each step.

use crate::action::Action;
use crate::request::{Operation, ProtocolRequest, Sender};
use crate::space::StateSpace;
use crate::store::{LeaseStatus, ModelStore, StoreSlot};
use crate::world::World;

impl World {
    /// Applies a step. Returns none if another step has the same effect, or if there is no room for a late request.
    pub(crate) fn apply(&mut self, space: &StateSpace, action: Action) -> Option<()> {
        match action {
            Action::Start(number) => self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Begin)),
            Action::Deliver(sender) => self.deliver(space, sender),
            Action::LoseReply(sender) => return self.lose_reply(space, sender),
            Action::LoseRequest(sender) => self.lose_request(space, sender),
            Action::Delay(sender) => return self.delay(space, sender),
            Action::Duplicate(sender) => return self.duplicate(space, sender),
            Action::MixUp(number) => self.mix_up(space, number),
            Action::Arrive(place) => self.arrive(space, place),
            Action::Renew(number) => self.renew(space, number),
            Action::RenewLate(number) => return self.renew_late(number),
            Action::Act(number, word) => self.act(space, number, word),
            Action::Refrain(number, word) => self.refrain(space, number, word),
            Action::Strand(number) => self.strand(space, number),
            Action::TakeEffect(number) => self.arrive_effect(space, number),
            Action::Claim(number) => self.claim_operation(space, number),
            Action::FailToClaim(number) => self.fail_to_claim(space, number),
            Action::Commit(number) => self.commit(space, number),
            Action::LoseCommit(number) => self.lose_commit(space, number),
            Action::Conflict(number) => self.conflict(number),
            Action::RollBack(number) => self.attempt(number).under_way = false,
            Action::TooLate(number) => self.come_too_late(number),
            Action::Spill(number) => self.spill(space, number),
            Action::Pass(number) => self.pass(number),
            Action::GiveUp(number) => self.not_applied(space, number),
            Action::LookFirst(number) => self.look_first(space, number),
            Action::Probe(number) => self.probe(space, number),
            Action::Crash(number, leaving) => return self.crash(number, leaving),
            Action::Lapse(key) => self.slot(key).lapse(),
            Action::Expire(key) => self.expire(key),
            Action::Sweep(key) => *self.slot(key) = StoreSlot::default(),
            Action::StepBack(key) => self.step_back(key),
            Action::Forget => self.forget(),
            Action::CatchUp => self.replica = self.store,
            Action::FailOver => self.fail_over(),
            Action::Look => self.look(),
            Action::FindOut => self.find_out(space),
        }
        Some(())
    }

    fn slot(&mut self, key: u8) -> &mut StoreSlot {
        &mut self.store.slots[usize::from(key)]
    }

    fn expire(&mut self, key: u8) {
        self.faults_left.expiries -= 1;
        self.history.forgot = true;
        self.slot(key).expired = true;
    }

    fn step_back(&mut self, key: u8) {
        self.faults_left.steps_back -= 1;
        self.slot(key).lease = LeaseStatus::Overlong;
    }

    fn forget(&mut self) {
        self.faults_left.amnesias -= 1;
        self.history.forgot = true;
        self.store = ModelStore::default();
    }

    fn fail_over(&mut self) {
        self.faults_left.failovers -= 1;
        (self.history.forgot, self.history.rolled_back) = (true, true);
        self.store = std::mem::take(&mut self.replica);
    }
}
