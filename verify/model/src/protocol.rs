//! One step of an operation, as the store and the protocol over it carry it out. All decisions come from the core's
//! machine.

use hapax_core::machine::{self, Claim, Decision, Observed, Verdict};
use hapax_core::{Record, Token};

use crate::history::WriteCause;
use crate::invariant::Invariant;
use crate::record::{ModelRecord, ModelState, bytes, owner};
use crate::reply::ProtocolReply;
use crate::request::{Operation, ProtocolRequest, Sender};
use crate::setting::{
    BrokenRule, ModelCall, RELEASED_RETENTION, RETENTION, StoreClock, UNKNOWN_RETENTION, claim, completion,
};
use crate::space::StateSpace;
use crate::store::StoreSlot;
use crate::world::{StepResult, World};

impl World {
    /// Carries out one step of a request.
    pub(crate) fn carry_out(&mut self, space: &StateSpace, sender: Sender, request: ProtocolRequest) -> StepResult {
        let at = space.slot_of(sender);
        let Some(swap) = request.swap else {
            return self.first_step(space, sender, request.operation);
        };
        let blind =
            matches!(swap.next.state, ModelState::Indeterminate(_)) && space.setting.violates(BrokenRule::HoldsBlindly);
        if !blind && !self.store.slots[at].admits(&swap) {
            return StepResult::RecordChanged;
        }
        self.write(
            space,
            at,
            swap.next,
            WriteCause { sender, operation: request.operation, lapsed: swap.seen_lapsed && !swap.renewed },
        );
        StepResult::Replied(swap.reply)
    }

    /// The store's own step for operations that have one, otherwise a read. The machine judges the result at once.
    fn first_step(&mut self, space: &StateSpace, sender: Sender, operation: Operation) -> StepResult {
        let at = space.slot_of(sender);
        let slot = self.store.slots[at];
        let seen = slot.observe(self.now(space), self.store.mark);
        let decision = self.judge(space, &seen, sender, operation);
        let (Decision::Reply(reply) | Decision::Change(_, reply)) = &decision;
        self.check_reply(sender, operation, &slot, *reply);
        if operation == Operation::Complete {
            self.check_completion(space, sender, &slot, *reply);
        }
        match decision {
            Decision::Reply(reply) => StepResult::Replied(reply),
            Decision::Change(change, reply) if self.is_one_step(space, &seen, sender, operation) => {
                self.write(
                    space,
                    at,
                    ModelRecord::from(&change.record),
                    WriteCause { sender, operation, lapsed: slot.lapsed() },
                );
                StepResult::Replied(reply)
            }
            Decision::Change(change, reply) => StepResult::NeedsSwap(slot.pending_swap(&change, reply)),
        }
    }

    /// Whether the store carries the operation out in one step: it does if no other attempt's grant is affected.
    fn is_one_step(&self, space: &StateSpace, seen: &Observed, sender: Sender, operation: Operation) -> bool {
        match operation {
            Operation::Begin => seen.live().is_none() || space.setting.violates(BrokenRule::BeginsInOneStep),
            Operation::Renew => true,
            Operation::Complete => seen.live().is_none_or(|record| {
                let (claim, holding) = (self.claim(sender), record.state.holding());
                record.token == claim.token && holding.is_none_or(|holding| holding.owner == claim.owner)
            }),
            Operation::Release
            | Operation::Abandon
            | Operation::Bury
            | Operation::Cancel(_)
            | Operation::Hold { .. }
            | Operation::Resolve { .. }
            | Operation::Reopen { .. } => false,
        }
    }

    /// The decision of the machine for an operation and an observed record.
    pub(crate) fn judge(
        &self,
        space: &StateSpace,
        seen: &Observed,
        sender: Sender,
        operation: Operation,
    ) -> Decision<ProtocolReply> {
        let claim = self.claim(sender);
        match operation {
            Operation::Begin => self.judge_begin(space, seen, sender),
            Operation::Renew => mapped(machine::renew(seen, &claim)),
            Operation::Complete => {
                let (number, call) = numbered(space, sender);
                let answer = self.attempts[usize::from(number)].answer.expect("it completes with an answer");
                mapped(machine::complete(seen, &completion(claim, call.payload, answer)))
            }
            Operation::Release => mapped(machine::release(seen, &claim, RELEASED_RETENTION)),
            Operation::Abandon => mapped(machine::abandon(seen, &claim)),
            Operation::Bury => mapped(machine::bury(seen, &claim, UNKNOWN_RETENTION)),
            Operation::Cancel(_) => mapped(machine::cancel(seen, claim.owner, RELEASED_RETENTION)),
            Operation::Hold { expected } => mapped(machine::hold(seen, Token(expected.into()), UNKNOWN_RETENTION)),
            Operation::Resolve { expected, done } => {
                let verdict = match done {
                    Some(answer) => Verdict::Done { answer: bytes(answer), retention: RETENTION },
                    None => Verdict::NotDone { lifetime: RELEASED_RETENTION },
                };
                mapped(machine::resolve(seen, Token(expected.into()), &verdict))
            }
            Operation::Reopen { expected } => mapped(machine::reopen(seen, Token(expected.into()), RELEASED_RETENTION)),
        }
    }

    fn judge_begin(&self, space: &StateSpace, seen: &Observed, sender: Sender) -> Decision<ProtocolReply> {
        let (number, call) = numbered(space, sender);
        let rk = space.record_keys[usize::from(call.tenant)];
        let request = space.setting.begin(rk, number + 1, call.payload);
        if seen.live().is_none() {
            let (change, grant) = machine::first_grant(&request, seen);
            return Decision::Change(change, machine::Begun::Granted(grant).into());
        }
        mapped(machine::begin(seen, &request))
    }

    /// Checks the invariants of replies.
    fn check_reply(&mut self, sender: Sender, operation: Operation, slot: &StoreSlot, reply: ProtocolReply) {
        let as_if_absent = matches!(
            reply,
            ProtocolReply::Granted { takeover: false, .. } | ProtocolReply::Recorded | ProtocolReply::No
        );
        if slot.expired && !as_if_absent {
            self.history.breaks(Invariant::ExpiredIsNothing);
        }
        let holder = slot.live().and_then(ModelRecord::in_progress).map(|held| held.owner);
        let own = match sender {
            Sender::Attempt(number) | Sender::Journal(number) => holder == Some(number + 1),
            Sender::Operator => false,
        };
        if own && (operation, reply) == (Operation::Begin, ProtocolReply::Busy) {
            self.history.breaks(Invariant::OwnBeginIsMine);
        }
    }

    /// Checks that a completion is not discarded. Exempt is a store that forgot its record, and granted the key to
    /// another payload since.
    fn check_completion(&mut self, space: &StateSpace, sender: Sender, slot: &StoreSlot, reply: ProtocolReply) {
        if !matches!(reply, ProtocolReply::Lost(None) | ProtocolReply::Gone) {
            return;
        }
        let (_, call) = numbered(space, sender);
        let is_foreign = slot.live().is_some_and(|record| record.payload != call.payload);
        if !(is_foreign && self.history.forgot) {
            self.history.breaks(Invariant::KnownEffectCounts);
        }
    }

    /// The owner and the token of the sender's attempt.
    fn claim(&self, sender: Sender) -> Claim {
        match sender {
            Sender::Attempt(number) | Sender::Journal(number) => {
                claim(number + 1, self.attempts[usize::from(number)].token)
            }
            Sender::Operator => Claim { owner: owner(0), token: Token(0) },
        }
    }

    /// A reading of the store's clock.
    pub(crate) fn now(&self, space: &StateSpace) -> u8 {
        match space.setting.clock {
            StoreClock::ModelState => 0,
            StoreClock::GoesOn => self.history.newest_token + 1,
        }
    }

    /// The reply that this attempt reads if it gets the reply for the other key. A stored record is bound to its key,
    /// so decoding fails unless the attempt trusts every reply.
    pub(crate) fn mixed_up(&self, space: &StateSpace, number: u8, trusting: bool) -> Option<ProtocolReply> {
        let request = self.pending_request(Sender::Attempt(number)).filter(|request| request.swap.is_none())?;
        let own = space.slot_of(Sender::Attempt(number));
        let other = 1 - own;
        let mut seen = self.store.slots[other].observe(self.now(space), self.store.mark);
        let (theirs, ours) = (&space.record_keys[other], &space.record_keys[own]);
        let record = seen.record.take()?;
        let read = if trusting { Ok(record) } else { Record::decode(ours, &record.encode(theirs)) };
        seen.record = Some(read.ok()?);
        match self.judge(space, &seen, Sender::Attempt(number), request.operation) {
            Decision::Reply(reply) => Some(reply),
            Decision::Change(..) => None,
        }
    }
}

fn numbered(space: &StateSpace, sender: Sender) -> (u8, ModelCall) {
    match sender {
        Sender::Attempt(number) | Sender::Journal(number) => (number, space.setting.call(number)),
        Sender::Operator => unreachable!("an operator neither begins nor completes"),
    }
}

fn mapped<R: Into<ProtocolReply>>(decision: Decision<R>) -> Decision<ProtocolReply> {
    match decision {
        Decision::Reply(reply) => Decision::Reply(reply.into()),
        Decision::Change(change, reply) => Decision::Change(change, reply.into()),
    }
}
