//! Which rows of the machine's table a setting comes to: a model that never asks the question proves nothing about the answer.

use std::collections::BTreeSet;

use hapax_core::machine::Decision;

use crate::ask::{Op, Reply, Who};
use crate::kept::{Held, Kept, Stands};
use crate::reach;
use crate::setting::Setting;
use crate::space::Space;
use crate::store::{Lease, Slot};
use crate::world::World;

/// A row: what was asked, what stood there, and what was replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(pub &'static str, pub &'static str, pub &'static str);

/// Every row that one of the setting's states comes to.
pub fn rows(setting: Setting) -> BTreeSet<Row> {
    let space = Space::new(setting);
    let mut rows = BTreeSet::new();
    reach::walk(&space, |world| {
        let attempts = (0..3).take(setting.calls.len());
        let everybody = attempts.flat_map(|number| [Who::Attempt(number), Who::Journal(number)]).chain([Who::Operator]);
        rows.extend(everybody.filter_map(|who| row(&space, world, who)));
        let renewing = (0..3).filter(|number| world.attempts[usize::from(*number)].renews(false));
        rows.extend(renewing.map(|number| judged(&space, world, Who::Attempt(number), Op::Renew)));
    });
    rows
}

fn row(space: &Space, world: &World, who: Who) -> Option<Row> {
    let ask = world.asked(who).filter(|ask| ask.swap.is_none())?;
    Some(judged(space, world, who, ask.op))
}

fn judged(space: &Space, world: &World, who: Who, op: Op) -> Row {
    let slot = &world.store.slots[space.slot_of(who)];
    let decision = world.judge(space, &slot.observe(world.now(space), world.store.mark), who, op);
    let (Decision::Reply(reply) | Decision::Change(_, reply)) = decision;
    Row(asked(op), found(world, slot, who, op), heard(reply))
}

fn asked(op: Op) -> &'static str {
    match op {
        Op::Begin => "begin",
        Op::Renew => "renew",
        Op::Complete => "complete",
        Op::Release => "release",
        Op::Abandon => "abandon",
        Op::Bury => "bury",
        Op::Cancel(_) => "cancel",
        Op::Hold { .. } => "hold",
        Op::Resolve { done: Some(_), .. } => "resolve done",
        Op::Resolve { done: None, .. } => "resolve not done",
        Op::Reopen { .. } => "reopen",
    }
}

fn found(world: &World, slot: &Slot, who: Who, op: Op) -> &'static str {
    let Some(record) = &slot.record else { return "nothing" };
    if slot.expired {
        return "expired";
    }
    match record.stands {
        Stands::Completed(_) => "completed",
        Stands::InProgress(held) => in_progress(slot, held, is_own(world, record, held, who, op)),
        Stands::Released(held) => either(is_own(world, record, held, who, op), "released own", "released"),
        Stands::Dead(held) => either(is_own(world, record, held, who, op), "dead own", "dead"),
        Stands::Indeterminate(held) => {
            let own = either(held.takeover, "indeterminate own takeover", "indeterminate own");
            either(is_own(world, record, held, who, op), own, "indeterminate")
        }
    }
}

fn in_progress(slot: &Slot, held: Held, own: bool) -> &'static str {
    match (own, held.is_abandoned(), slot.lease) {
        (true, true, _) => "abandoned own",
        (true, false, Lease::Over) => either(held.takeover, "lapsed own takeover", "lapsed own"),
        (true, false, _) => either(held.takeover, "live own takeover", "live own"),
        (false, true, _) => "abandoned",
        (false, false, Lease::Over) => "lapsed",
        (false, false, Lease::Runs) => "live",
        (false, false, Lease::Overlong) => "overlong",
    }
}

/// The grant that the asker names; the owner alone where no token is known yet.
fn is_own(world: &World, record: &Kept, held: Held, who: Who, op: Op) -> bool {
    match (who, op) {
        (_, Op::Hold { expected } | Op::Resolve { expected, .. } | Op::Reopen { expected }) => record.token == expected,
        (Who::Attempt(number), Op::Begin | Op::Cancel(_)) => held.owner == number + 1,
        (Who::Attempt(number) | Who::Journal(number), _) => {
            held.owner == number + 1 && record.token == world.attempts[usize::from(number)].token
        }
        (Who::Operator, _) => false,
    }
}

fn either(first: bool, so: &'static str, otherwise: &'static str) -> &'static str {
    if first { so } else { otherwise }
}

fn heard(reply: Reply) -> &'static str {
    match reply {
        Reply::Granted { takeover: false, .. } => "granted",
        Reply::Granted { takeover: true, .. } => "taken over",
        Reply::Busy => "busy",
        Reply::Replay(_) => "replay",
        Reply::Mismatch => "mismatch",
        Reply::Indeterminate => "indeterminate",
        Reply::Dead => "dead",
        Reply::Recorded => "recorded",
        Reply::Lost(_) => "lost",
        Reply::Gone => "gone",
        Reply::Yes => "yes",
        Reply::No => "no",
    }
}
