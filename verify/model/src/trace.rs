//! Prints the way to a state: each step, and the record after it.

use std::fmt::Write;

use stateright::Model;

use crate::action::Action;
use crate::ledger::LedgerRow;
use crate::record::{ModelHolding, ModelRecord, ModelState};
use crate::request::{ProtocolRequest, Sender};
use crate::space::StateSpace;
use crate::store::{LeaseStatus, StoreSlot};
use crate::world::World;

/// Prints one line for each step.
pub(crate) fn describe_trace(space: &StateSpace, way: &[Action]) -> String {
    let (mut world, mut text) = (space.start(), String::new());
    for (step, action) in (1..).zip(way) {
        let Some(next) = space.next_state(&world, *action) else { break };
        let what = format!("{action}{}", request_of(&world, *action));
        let records: Vec<_> =
            next.store.slots.iter().filter(|slot| slot.record.is_some()).map(describe_record).collect();
        let record = if records.is_empty() { "no record".to_owned() } else { records.join(" | ") };
        let _ = writeln!(text, "{step:>4}  {what:<62} {record}{}", changes(&world, &next));
        world = next;
    }
    text
}

/// The request of a step, with its sender if the step does not name it.
fn request_of(world: &World, action: Action) -> String {
    if let Action::Arrive(place) = action {
        let late = world.late[usize::from(place)];
        return late.map(|late| format!(" {}'s {}", late.from, describe_request(late.request))).unwrap_or_default();
    }
    let Some(sender) = sender_of(action) else { return String::new() };
    world.pending_request(sender).map(|request| format!(" {}", describe_request(request))).unwrap_or_default()
}

/// The sender whose request a step is about.
fn sender_of(action: Action) -> Option<Sender> {
    if let Action::MixUp(number) = action {
        return Some(Sender::Attempt(number));
    }
    if let Action::Deliver(sender)
    | Action::LoseReply(sender)
    | Action::LoseRequest(sender)
    | Action::Delay(sender)
    | Action::Duplicate(sender) = action
    {
        return Some(sender);
    }
    None
}

fn describe_request(request: ProtocolRequest) -> String {
    if request.swap.is_some() { format!("{}, swap", request.operation) } else { request.operation.to_string() }
}

fn describe_record(slot: &StoreSlot) -> String {
    let Some(ModelRecord { token, state, .. }) = slot.record else { return "no record".to_owned() };
    let lease = match slot.lease {
        LeaseStatus::Runs => ", lease runs",
        LeaseStatus::Overlong => ", lease too long",
        LeaseStatus::Over => ", lapsed",
    };
    let by = |held: ModelHolding| {
        format!("token {token} of owner {}{}", held.owner, if held.takeover { ", takeover" } else { "" })
    };
    let text = match state {
        ModelState::InProgress(held) if held.is_abandoned() => format!("in progress, {}, abandoned", by(held)),
        ModelState::InProgress(held) => format!("in progress, {}{lease}", by(held)),
        ModelState::Completed(answer) => format!("completed, token {token}, answer {}", answer + 1),
        ModelState::Released(held) => format!("released, {}", by(held)),
        ModelState::Indeterminate(held) => format!("indeterminate, {}", by(held)),
        ModelState::Dead(held) => format!("dead, {}", by(held)),
    };
    if slot.expired { format!("expired: {text}") } else { text }
}

/// The new effects, the new rows of the ledger, and the new answers of callers.
fn changes(before: &World, after: &World) -> String {
    let mut text = String::new();
    if before.history.effects != after.history.effects {
        let _ = write!(text, " | effects: {}", after.history.effects.iter().sum::<u8>());
    }
    for row in after.history.ledger.iter().filter(|row| !before.history.ledger.contains(row)).flatten() {
        let _ = match row {
            LedgerRow::Open => write!(text, " | open row"),
            LedgerRow::Finished(answer) => write!(text, " | row with answer {}", answer + 1),
        };
    }
    if before.history.delivered != after.history.delivered {
        let answers = (0..8u8).filter(|answer| after.history.delivered.iter().any(|bits| bits & (1 << answer) != 0));
        let answers: Vec<_> = answers.map(|answer| (answer + 1).to_string()).collect();
        let _ = write!(text, " | answers of callers: {}", answers.join(", "));
    }
    text
}
