//! The fate of a request: it is carried out, lost, late, or sent twice.

use crate::request::{Operation, ProtocolRequest, Sender};
use crate::setting::BrokenRule;
use crate::space::StateSpace;
use crate::world::{LateRequest, StepResult, World};

impl World {
    pub(crate) fn deliver(&mut self, space: &StateSpace, sender: Sender) {
        let Some(request) = self.pending_request(sender) else { return };
        match self.carry_out(space, sender, request) {
            StepResult::Replied(reply) => self.receive_reply(space, sender, reply),
            StepResult::NeedsSwap(swap) => {
                self.send(sender, ProtocolRequest { operation: request.operation, swap: Some(swap) });
            }
            StepResult::RecordChanged => self.send(sender, ProtocolRequest::first(request.operation)),
        }
    }

    /// Returns none if the request wrote nothing: then the step equals a lost request.
    pub(crate) fn lose_reply(&mut self, space: &StateSpace, sender: Sender) -> Option<()> {
        self.faults_left.network -= 1;
        let (request, before) = (self.pending_request(sender)?, self.store);
        self.carry_out(space, sender, request);
        if self.store == before {
            return None;
        }
        self.time_out(space, sender);
        Some(())
    }

    pub(crate) fn lose_request(&mut self, space: &StateSpace, sender: Sender) {
        self.faults_left.network -= 1;
        self.time_out(space, sender);
    }

    pub(crate) fn delay(&mut self, space: &StateSpace, sender: Sender) -> Option<()> {
        self.faults_left.network -= 1;
        let late = LateRequest { from: sender, request: self.pending_request(sender)? };
        self.time_out(space, sender);
        self.add_late(late).then_some(())
    }

    pub(crate) fn duplicate(&mut self, space: &StateSpace, sender: Sender) -> Option<()> {
        self.faults_left.network -= 1;
        let late = LateRequest { from: sender, request: self.pending_request(sender)? };
        self.deliver(space, sender);
        self.add_late(late).then_some(())
    }

    pub(crate) fn mix_up(&mut self, space: &StateSpace, number: u8) {
        self.faults_left.network -= 1;
        match self.mixed_up(space, number, space.setting.violates(BrokenRule::TakesRepliesOfOtherKeys)) {
            Some(reply) => self.receive_reply(space, Sender::Attempt(number), reply),
            None => self.time_out(space, Sender::Attempt(number)),
        }
    }

    /// A late request arrives. Its sender does not wait, so no swap follows.
    pub(crate) fn arrive(&mut self, space: &StateSpace, place: u8) {
        if let Some(late) = self.take_late(place) {
            self.carry_out(space, late.from, late.request);
        }
    }

    pub(crate) fn renew(&mut self, space: &StateSpace, number: u8) {
        self.carry_out(space, Sender::Attempt(number), ProtocolRequest::first(Operation::Renew));
    }

    pub(crate) fn renew_late(&mut self, number: u8) -> Option<()> {
        self.faults_left.network -= 1;
        self.add_late(LateRequest { from: Sender::Attempt(number), request: ProtocolRequest::first(Operation::Renew) })
            .then_some(())
    }
}
