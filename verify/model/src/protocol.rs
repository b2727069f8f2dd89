//! One step of an operation, as the store and the protocol over it carry it out: what is read or asked is judged by the core's
//! machine, and nothing else decides.

use hapax_core::machine::{self, Claim, Decision, Observed, Verdict};
use hapax_core::{Record, Token};

use crate::ask::{Ask, Op, Reply, Who};
use crate::history::Cause;
use crate::invariant::Invariant;
use crate::kept::{Kept, Stands, bytes, owner};
use crate::setting::{Clock, RELEASED_RETENTION, RETENTION, Sent, UNKNOWN_RETENTION, Wrong, claim, completion};
use crate::space::Space;
use crate::store::Slot;
use crate::world::{Led, World};

impl World {
    /// Carries out one step of what somebody asks.
    pub(crate) fn carry_out(&mut self, space: &Space, who: Who, ask: Ask) -> Led {
        let at = space.slot_of(who);
        let Some(swap) = ask.swap else {
            return self.first_step(space, who, ask.op);
        };
        let blind = matches!(swap.next.stands, Stands::Indeterminate(_)) && space.setting.is(Wrong::HoldsBlindly);
        if !blind && !self.store.slots[at].admits(&swap) {
            return Led::Changed;
        }
        self.write(space, at, swap.next, Cause { who, op: ask.op, lapsed: swap.seen_lapsed && !swap.renewed });
        Led::Replied(swap.reply)
    }

    /// The store's own step where it has one, else a look; what it shows is judged at once.
    fn first_step(&mut self, space: &Space, who: Who, op: Op) -> Led {
        let at = space.slot_of(who);
        let slot = self.store.slots[at];
        let seen = slot.observe(self.now(space), self.store.mark);
        let decision = self.judge(space, &seen, who, op);
        let (Decision::Reply(reply) | Decision::Change(_, reply)) = &decision;
        self.check_reply(who, op, &slot, *reply);
        match decision {
            Decision::Reply(reply) => Led::Replied(reply),
            Decision::Change(change, reply) if self.is_one_step(&seen, who, op) => {
                self.write(space, at, Kept::from(&change.record), Cause { who, op, lapsed: slot.lapsed() });
                Led::Replied(reply)
            }
            Decision::Change(change, reply) => Led::ToSwap(slot.swap(&change, reply)),
        }
    }

    /// Stores decide in their one step what touches no other attempt's grant.
    fn is_one_step(&self, seen: &Observed, who: Who, op: Op) -> bool {
        match op {
            Op::Begin => seen.live().is_none(),
            Op::Renew => true,
            Op::Complete => seen.live().is_none_or(|record| record.token == self.claim(who).token),
            Op::Release
            | Op::Abandon
            | Op::Bury
            | Op::Cancel(_)
            | Op::Hold { .. }
            | Op::Resolve { .. }
            | Op::Reopen { .. } => false,
        }
    }

    /// What the machine says of an operation on what was observed.
    pub(crate) fn judge(&self, space: &Space, seen: &Observed, who: Who, op: Op) -> Decision<Reply> {
        let claim = self.claim(who);
        match op {
            Op::Begin => self.judge_begin(space, seen, who),
            Op::Renew => mapped(machine::renew(seen, &claim)),
            Op::Complete => {
                let (number, call) = numbered(space, who);
                let answer = self.attempts[usize::from(number)].answer.expect("it completes with an answer");
                mapped(machine::complete(seen, &completion(claim, call.payload, answer)))
            }
            Op::Release => mapped(machine::release(seen, &claim, RELEASED_RETENTION)),
            Op::Abandon => mapped(machine::abandon(seen, &claim)),
            Op::Bury => mapped(machine::bury(seen, &claim, UNKNOWN_RETENTION)),
            Op::Cancel(_) => mapped(machine::cancel(seen, claim.owner, RELEASED_RETENTION)),
            Op::Hold { expected } => mapped(machine::hold(seen, Token(expected.into()), UNKNOWN_RETENTION)),
            Op::Resolve { expected, done } => {
                let verdict = match done {
                    Some(answer) => Verdict::Done { answer: bytes(answer), retention: RETENTION },
                    None => Verdict::NotDone { lifetime: RELEASED_RETENTION },
                };
                mapped(machine::resolve(seen, Token(expected.into()), &verdict))
            }
            Op::Reopen { expected } => mapped(machine::reopen(seen, Token(expected.into()), RELEASED_RETENTION)),
        }
    }

    fn judge_begin(&self, space: &Space, seen: &Observed, who: Who) -> Decision<Reply> {
        let (number, call) = numbered(space, who);
        let rk = space.record_keys[usize::from(call.tenant)];
        let ask = space.setting.begin(rk, number + 1, call.payload);
        if seen.live().is_none() {
            let (change, grant) = machine::first_grant(&ask, seen);
            return Decision::Change(change, machine::Begun::Granted(grant).into());
        }
        mapped(machine::begin(seen, &ask))
    }

    /// What is wrong with a reply by itself.
    fn check_reply(&mut self, who: Who, op: Op, slot: &Slot, reply: Reply) {
        let as_if_absent = matches!(reply, Reply::Granted { takeover: false, .. } | Reply::Recorded | Reply::No);
        if slot.expired && !as_if_absent {
            self.history.breaks(Invariant::ExpiredIsNothing);
        }
        let holder = slot.live().and_then(Kept::in_progress).map(|held| held.owner);
        let own = match who {
            Who::Attempt(number) | Who::Journal(number) => holder == Some(number + 1),
            Who::Operator => false,
        };
        match (op, reply) {
            (Op::Begin, Reply::Busy) if own => self.history.breaks(Invariant::OwnBeginIsMine),
            (Op::Complete, Reply::Lost(None) | Reply::Gone) => self.history.breaks(Invariant::KnownEffectCounts),
            _ => {}
        }
    }

    /// Names who asks: owner and token of its attempt.
    fn claim(&self, who: Who) -> Claim {
        match who {
            Who::Attempt(number) | Who::Journal(number) => claim(number + 1, self.attempts[usize::from(number)].token),
            Who::Operator => Claim { owner: owner(0), token: Token(0) },
        }
    }

    /// A reading of the store's clock.
    pub(crate) fn now(&self, space: &Space) -> u8 {
        match space.setting.clock {
            Clock::Stands => 0,
            Clock::GoesOn => self.history.newest_token + 1,
        }
    }

    /// What this attempt hears if the reply is that of the other key: the record in its stored form, which is bound to its key.
    pub(crate) fn mixed_up(&self, space: &Space, number: u8, trusting: bool) -> Option<Reply> {
        let ask = self.asked(Who::Attempt(number)).filter(|ask| ask.swap.is_none())?;
        let own = space.slot_of(Who::Attempt(number));
        let other = 1 - own;
        let mut seen = self.store.slots[other].observe(self.now(space), self.store.mark);
        let (theirs, ours) = (&space.record_keys[other], &space.record_keys[own]);
        let record = seen.record.take()?;
        let read = if trusting { Ok(record) } else { Record::decode(ours, &record.encode(theirs)) };
        seen.record = Some(read.ok()?);
        match self.judge(space, &seen, Who::Attempt(number), ask.op) {
            Decision::Reply(reply) => Some(reply),
            Decision::Change(..) => None,
        }
    }
}

fn numbered(space: &Space, who: Who) -> (u8, Sent) {
    match who {
        Who::Attempt(number) | Who::Journal(number) => (number, space.setting.call(number)),
        Who::Operator => unreachable!("an operator neither begins nor completes"),
    }
}

fn mapped<R: Into<Reply>>(decision: Decision<R>) -> Decision<Reply> {
    match decision {
        Decision::Reply(reply) => Decision::Reply(reply.into()),
        Decision::Change(change, reply) => Decision::Change(change, reply.into()),
    }
}
