//! The way to a state, to be read: what happened at each step, and the record after it.

use std::fmt::Write;

use stateright::Model;

use crate::action::Action;
use crate::ask::{Ask, Who};
use crate::kept::{Held, Kept, Stands};
use crate::setting::Setting;
use crate::space::Space;
use crate::store::{Lease, Slot};
use crate::world::World;

/// One line for each step.
pub fn tell(setting: Setting, way: &[Action]) -> String {
    let space = Space::new(setting);
    let (mut world, mut told) = (space.start(), String::new());
    for (step, action) in (1..).zip(way) {
        let Some(next) = space.next_state(&world, *action) else { break };
        let what = format!("{action}{}", asked(&world, *action));
        let records: Vec<_> = next.store.slots.iter().filter(|slot| slot.record.is_some()).map(record).collect();
        let record = if records.is_empty() { "no record".to_owned() } else { records.join(" | ") };
        let _ = writeln!(told, "{step:>4}  {what:<62} {record}{}", effects(&world, &next));
        world = next;
    }
    told
}

/// What is asked in a step, and by whom if the step does not say it.
fn asked(world: &World, action: Action) -> String {
    if let Action::Arrive(place) = action {
        let late = world.late[usize::from(place)];
        return late.map(|late| format!(" {}'s {}", late.from, described(late.ask))).unwrap_or_default();
    }
    let Some(who) = waiting(action) else { return String::new() };
    world.asked(who).map(|ask| format!(" {}", described(ask))).unwrap_or_default()
}

/// Whose wait for the store ends in a step.
fn waiting(action: Action) -> Option<Who> {
    if let Action::MixUp(number) = action {
        return Some(Who::Attempt(number));
    }
    if let Action::Deliver(who)
    | Action::LoseReply(who)
    | Action::LoseRequest(who)
    | Action::Delay(who)
    | Action::Duplicate(who) = action
    {
        return Some(who);
    }
    None
}

fn described(ask: Ask) -> String {
    if ask.swap.is_some() { format!("{}, swap", ask.op) } else { ask.op.to_string() }
}

fn record(slot: &Slot) -> String {
    let Some(Kept { token, stands, .. }) = slot.record else { return "no record".to_owned() };
    let lease = match slot.lease {
        Lease::Runs => ", lease runs",
        Lease::Overlong => ", lease too long",
        Lease::Over => ", lapsed",
    };
    let by =
        |held: Held| format!("token {token} of owner {}{}", held.owner, if held.takeover { ", takeover" } else { "" });
    let text = match stands {
        Stands::InProgress(held) if held.is_abandoned() => format!("in progress, {}, abandoned", by(held)),
        Stands::InProgress(held) => format!("in progress, {}{lease}", by(held)),
        Stands::Completed(answer) => format!("completed, token {token}, answer {}", answer + 1),
        Stands::Released(held) => format!("released, {}", by(held)),
        Stands::Indeterminate(held) => format!("indeterminate, {}", by(held)),
        Stands::Dead(held) => format!("dead, {}", by(held)),
    };
    if slot.expired { format!("expired: {text}") } else { text }
}

/// What is new for the callers.
fn effects(before: &World, after: &World) -> String {
    let mut told = String::new();
    if before.history.effects != after.history.effects {
        let _ = write!(told, " | effects: {}", after.history.effects.iter().sum::<u8>());
    }
    if before.history.delivered != after.history.delivered {
        let answers = (0..8u8).filter(|answer| after.history.delivered.iter().any(|bits| bits & (1 << answer) != 0));
        let answers: Vec<_> = answers.map(|answer| (answer + 1).to_string()).collect();
        let _ = write!(told, " | answers given: {}", answers.join(", "));
    }
    told
}
