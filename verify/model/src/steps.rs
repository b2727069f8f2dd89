//! What happens when something happens.

use crate::action::Action;
use crate::ask::{Ask, Op, Who};
use crate::space::Space;
use crate::store::{Lease, Slot, Store};
use crate::world::World;

impl World {
    /// Takes a step; nothing if it comes to the same as another one, or there is no room for it.
    pub(crate) fn take(&mut self, space: &Space, action: Action) -> Option<()> {
        match action {
            Action::Start(number) => self.asks(Who::Attempt(number), Ask::first(Op::Begin)),
            Action::Deliver(who) => self.deliver(space, who),
            Action::LoseReply(who) => return self.lose_reply(space, who),
            Action::LoseRequest(who) => self.lose_request(space, who),
            Action::Delay(who) => return self.delay(space, who),
            Action::Duplicate(who) => return self.duplicate(space, who),
            Action::MixUp(number) => self.mix_up(space, number),
            Action::Arrive(place) => self.arrive(space, place),
            Action::Renew(number) => self.renew(space, number),
            Action::RenewLate(number) => return self.renew_late(number),
            Action::Act(number, word) => self.act(space, number, word),
            Action::Refrain(number, word) => self.refrain(space, number, word),
            Action::Strand(number) => self.strand(space, number),
            Action::TakeEffect(number) => self.arrive_effect(space, number),
            Action::TooLate(number) => self.come_too_late(number),
            Action::Spill(number) => self.spill(space, number),
            Action::Pass(number) => self.pass(number),
            Action::GiveUp(number) => self.not_applied(space, number),
            Action::LookFirst(number) => self.look_first(space, number),
            Action::Probe(number) => self.probe(space, number),
            Action::Crash(number, leaving) => return self.crash(number, leaving),
            Action::Lapse(key) => self.slot(key).lapse(),
            Action::Expire(key) => self.expire(key),
            Action::Sweep(key) => *self.slot(key) = Slot::default(),
            Action::StepBack(key) => self.step_back(key),
            Action::Forget => self.forget(),
            Action::CatchUp => self.replica = self.store,
            Action::FailOver => self.fail_over(),
            Action::Look => self.look(),
            Action::FindOut => self.find_out(space),
        }
        Some(())
    }

    fn slot(&mut self, key: u8) -> &mut Slot {
        &mut self.store.slots[usize::from(key)]
    }

    fn expire(&mut self, key: u8) {
        self.left.expiries -= 1;
        self.history.forgot = true;
        self.slot(key).expired = true;
    }

    fn step_back(&mut self, key: u8) {
        self.left.steps_back -= 1;
        self.slot(key).lease = Lease::Overlong;
    }

    fn forget(&mut self) {
        self.left.amnesias -= 1;
        self.history.forgot = true;
        self.store = Store::default();
    }

    fn fail_over(&mut self) {
        self.left.failovers -= 1;
        (self.history.forgot, self.history.rolled_back) = (true, true);
        self.store = std::mem::take(&mut self.replica);
    }
}
