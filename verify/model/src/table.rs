//! The rows of the machine's table that a setting reaches. A model that never reaches a row proves nothing about it.

use std::collections::BTreeSet;

use hapax_core::machine::Decision;

use crate::reach;
use crate::record::{ModelHolding, ModelRecord, ModelState};
use crate::reply::ProtocolReply;
use crate::request::{Operation, Sender};
use crate::setting::ModelSetting;
use crate::space::StateSpace;
use crate::store::{LeaseStatus, StoreSlot};
use crate::world::World;

/// A row: the operation, the state of the record, and the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtocolRow(pub &'static str, pub &'static str, pub &'static str);

/// All rows that the states of a setting reach.
pub fn rows(setting: &ModelSetting) -> BTreeSet<ProtocolRow> {
    let space = StateSpace::new(*setting);
    let mut rows = BTreeSet::new();
    reach::explore(&space, |world| {
        let attempts = (0..3).take(setting.calls.len());
        let everybody =
            attempts.flat_map(|number| [Sender::Attempt(number), Sender::Journal(number)]).chain([Sender::Operator]);
        rows.extend(everybody.filter_map(|sender| pending_row(&space, world, sender)));
        let renewing = (0..3).filter(|number| world.attempts[usize::from(*number)].renews(false));
        rows.extend(renewing.map(|number| row_of(&space, world, Sender::Attempt(number), Operation::Renew)));
    });
    rows
}

fn pending_row(space: &StateSpace, world: &World, sender: Sender) -> Option<ProtocolRow> {
    let request = world.pending_request(sender).filter(|request| request.swap.is_none())?;
    Some(row_of(space, world, sender, request.operation))
}

fn row_of(space: &StateSpace, world: &World, sender: Sender, operation: Operation) -> ProtocolRow {
    let slot = &world.store.slots[space.slot_of(sender)];
    let decision = world.judge(space, &slot.observe(world.now(space), world.store.mark), sender, operation);
    let (Decision::Reply(reply) | Decision::Change(_, reply)) = decision;
    ProtocolRow(operation_name(operation), state_name(world, slot, sender, operation), reply_name(reply))
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Begin => "begin",
        Operation::Renew => "renew",
        Operation::Complete => "complete",
        Operation::Release => "release",
        Operation::Abandon => "abandon",
        Operation::Bury => "bury",
        Operation::Cancel(_) => "cancel",
        Operation::Hold { .. } => "hold",
        Operation::Resolve { done: Some(_), .. } => "resolve done",
        Operation::Resolve { done: None, .. } => "resolve not done",
        Operation::Reopen { .. } => "reopen",
    }
}

fn state_name(world: &World, slot: &StoreSlot, sender: Sender, operation: Operation) -> &'static str {
    let Some(record) = &slot.record else { return "nothing" };
    if slot.expired {
        return "expired";
    }
    match record.state {
        ModelState::Completed(_) => "completed",
        ModelState::InProgress(held) => in_progress(slot, held, is_own(world, record, held, sender, operation)),
        ModelState::Released(held) => {
            either(is_own(world, record, held, sender, operation), "released own", "released")
        }
        ModelState::Dead(held) => either(is_own(world, record, held, sender, operation), "dead own", "dead"),
        ModelState::Indeterminate(held) => {
            let own = either(held.takeover, "indeterminate own takeover", "indeterminate own");
            either(is_own(world, record, held, sender, operation), own, "indeterminate")
        }
    }
}

fn in_progress(slot: &StoreSlot, held: ModelHolding, own: bool) -> &'static str {
    match (own, held.is_abandoned(), slot.lease) {
        (true, true, _) => "abandoned own",
        (true, false, LeaseStatus::Over) => either(held.takeover, "lapsed own takeover", "lapsed own"),
        (true, false, _) => either(held.takeover, "live own takeover", "live own"),
        (false, true, _) => "abandoned",
        (false, false, LeaseStatus::Over) => "lapsed",
        (false, false, LeaseStatus::Runs) => "live",
        (false, false, LeaseStatus::Overlong) => "overlong",
    }
}

/// Whether the record has the grant of the sender. Operations without a token compare only the owner.
fn is_own(world: &World, record: &ModelRecord, held: ModelHolding, sender: Sender, operation: Operation) -> bool {
    match (sender, operation) {
        (_, Operation::Hold { expected } | Operation::Resolve { expected, .. } | Operation::Reopen { expected }) => {
            record.token == expected
        }
        (Sender::Attempt(number), Operation::Begin | Operation::Cancel(_)) => held.owner == number + 1,
        (Sender::Attempt(number) | Sender::Journal(number), _) => {
            held.owner == number + 1 && record.token == world.attempts[usize::from(number)].token
        }
        (Sender::Operator, _) => false,
    }
}

fn either(first: bool, so: &'static str, otherwise: &'static str) -> &'static str {
    if first { so } else { otherwise }
}

fn reply_name(reply: ProtocolReply) -> &'static str {
    match reply {
        ProtocolReply::Granted { takeover: false, .. } => "granted",
        ProtocolReply::Granted { takeover: true, .. } => "taken over",
        ProtocolReply::Busy => "busy",
        ProtocolReply::Replay(_) => "replay",
        ProtocolReply::Mismatch => "mismatch",
        ProtocolReply::Indeterminate => "indeterminate",
        ProtocolReply::Dead => "dead",
        ProtocolReply::Recorded => "recorded",
        ProtocolReply::Lost(_) => "lost",
        ProtocolReply::Gone => "gone",
        ProtocolReply::Yes => "yes",
        ProtocolReply::No => "no",
    }
}
