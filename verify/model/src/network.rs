//! What becomes of a request: it is carried out, lost, late or sent twice.

use crate::ask::{Ask, Op, Who};
use crate::setting::Wrong;
use crate::space::Space;
use crate::world::{Late, Led, World};

impl World {
    pub(crate) fn deliver(&mut self, space: &Space, who: Who) {
        let Some(ask) = self.asked(who) else { return };
        match self.carry_out(space, who, ask) {
            Led::Replied(reply) => self.hear(space, who, reply),
            Led::ToSwap(swap) => self.asks(who, Ask { op: ask.op, swap: Some(swap) }),
            Led::Changed => self.asks(who, Ask::first(ask.op)),
        }
    }

    /// Nothing if nothing was written: that is as if the request had been lost.
    pub(crate) fn lose_reply(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let (ask, before) = (self.asked(who)?, self.store);
        self.carry_out(space, who, ask);
        if self.store == before {
            return None;
        }
        self.hear_nothing(space, who);
        Some(())
    }

    pub(crate) fn lose_request(&mut self, space: &Space, who: Who) {
        self.left.network -= 1;
        self.hear_nothing(space, who);
    }

    pub(crate) fn delay(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let late = Late { from: who, ask: self.asked(who)? };
        self.hear_nothing(space, who);
        self.leave(late).then_some(())
    }

    pub(crate) fn duplicate(&mut self, space: &Space, who: Who) -> Option<()> {
        self.left.network -= 1;
        let late = Late { from: who, ask: self.asked(who)? };
        self.deliver(space, who);
        self.leave(late).then_some(())
    }

    pub(crate) fn mix_up(&mut self, space: &Space, number: u8) {
        self.left.network -= 1;
        match self.mixed_up(space, number, space.setting.is(Wrong::TakesRepliesOfOtherKeys)) {
            Some(reply) => self.hear(space, Who::Attempt(number), reply),
            None => self.hear_nothing(space, Who::Attempt(number)),
        }
    }

    /// A late request arrives. Nobody waits for its reply, and a swap that would follow is not sent.
    pub(crate) fn arrive(&mut self, space: &Space, place: u8) {
        if let Some(late) = self.take_late(place) {
            self.carry_out(space, late.from, late.ask);
        }
    }

    pub(crate) fn renew(&mut self, space: &Space, number: u8) {
        self.carry_out(space, Who::Attempt(number), Ask::first(Op::Renew));
    }

    pub(crate) fn renew_late(&mut self, number: u8) -> Option<()> {
        self.left.network -= 1;
        self.leave(Late { from: Who::Attempt(number), ask: Ask::first(Op::Renew) }).then_some(())
    }
}
