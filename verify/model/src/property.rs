//! The checks of the invariants on a single state.

use hapax_core::machine::Lapse;
use stateright::Property;

use crate::attempt::ModelAttempt;
use crate::invariant::Invariant;
use crate::ledger::LedgerRow;
use crate::record::ModelRecord;
use crate::setting::ModelCall;
use crate::space::StateSpace;
use crate::world::World;

/// Returns whether an invariant holds in a state.
type StateCheck = fn(&StateSpace, &World) -> bool;

/// The invariants of single states, the most serious first.
const ALWAYS: &[(Invariant, StateCheck)] = &[
    (Invariant::OneEffect, |_, world| world.history.effects.iter().all(|effects| *effects <= 1)),
    (Invariant::OneAnswer, |_, world| world.history.delivered.iter().all(|answers| answers.count_ones() <= 1)),
    (Invariant::AnswerFits, |_, world| !world.history.broke(Invariant::AnswerFits)),
    (Invariant::AnswerHasEffect, |_, world| !world.history.broke(Invariant::AnswerHasEffect)),
    (Invariant::CompletedStays, completed_stays),
    (Invariant::NoGrantAfterCompleted, |_, world| !world.history.broke(Invariant::NoGrantAfterCompleted)),
    (Invariant::AnswerIsKept, answer_is_kept),
    (Invariant::TokensGrow, |_, world| !world.history.broke(Invariant::TokensGrow)),
    (Invariant::OnlyTheLapsed, |_, world| !world.history.broke(Invariant::OnlyTheLapsed)),
    (Invariant::NoReleaseAfterEffect, |_, world| !world.history.broke(Invariant::NoReleaseAfterEffect)),
    (Invariant::AbandonedStaysOver, abandoned_stays_abandoned),
    (Invariant::NoGrantAfterTheEnd, |_, world| !world.history.broke(Invariant::NoGrantAfterTheEnd)),
    (Invariant::KnownEffectCounts, |_, world| !world.history.broke(Invariant::KnownEffectCounts)),
    (Invariant::RenewsItsOwn, |_, world| !world.history.broke(Invariant::RenewsItsOwn)),
    (Invariant::VerdictFits, |_, world| !world.history.broke(Invariant::VerdictFits)),
    (Invariant::ExpiredIsNothing, |_, world| !world.history.broke(Invariant::ExpiredIsNothing)),
    (Invariant::OwnBeginIsMine, |_, world| !world.history.broke(Invariant::OwnBeginIsMine)),
    (Invariant::NothingHeldForNobody, no_key_left_unknown),
];

/// All invariants of single states, in the form that the checker takes.
pub(crate) fn properties() -> Vec<Property<StateSpace>> {
    ALWAYS.iter().map(|(invariant, holds)| Property::always(invariant.sentence(), *holds)).collect()
}

/// The most serious invariant that is broken in this state.
pub(crate) fn broken_invariant(space: &StateSpace, world: &World) -> Option<Invariant> {
    ALWAYS.iter().find(|(_, holds)| !holds(space, world)).map(|(invariant, _)| *invariant)
}

fn completed_stays(space: &StateSpace, world: &World) -> bool {
    (0..space.slots()).all(|key| {
        let recorded = world.history.completed[key];
        recorded.is_none()
            || world.history.forgot
            || recorded == world.store.slots[key].live().and_then(ModelRecord::answer)
    })
}

fn answer_is_kept(space: &StateSpace, world: &World) -> bool {
    world.history.forgot
        || space.setting.calls.iter().all(|call| {
            let key = usize::from(call.tenant);
            let mut delivered = (0..8).filter(|answer| world.history.delivered[key] & (1 << answer) != 0);
            delivered.all(|answer| is_kept(space, world, *call, answer))
        })
}

/// An answer that a caller got as unrecorded need not be kept.
fn is_kept(space: &StateSpace, world: &World, call: ModelCall, answer: u8) -> bool {
    let key = usize::from(call.tenant);
    let spilled = |attempt: &ModelAttempt| attempt.journal.is_some() && attempt.answer == Some(answer);
    world.store.slots[space.slot(call)].live().and_then(ModelRecord::answer) == Some(answer)
        || world.history.unrecorded & (1 << answer) != 0
        || world.history.ledger[key] == Some(LedgerRow::Finished(answer))
        || world.attempts.iter().any(spilled)
}

fn abandoned_stays_abandoned(space: &StateSpace, world: &World) -> bool {
    (0..space.setting.calls.len()).all(|number| {
        let (attempt, slot) = (&world.attempts[number], &world.store.slots[space.slot(space.setting.calls[number])]);
        let own = slot.live().filter(|record| record.token == attempt.token).and_then(ModelRecord::in_progress);
        let own = own.filter(|held| usize::from(held.owner) == number + 1);
        !attempt.abandoned || world.history.forgot || own.is_none() || slot.lapsed()
    })
}

/// Exempt are policies that take over, because the next call then runs at once, and runs in which the store forgot.
fn no_key_left_unknown(space: &StateSpace, world: &World) -> bool {
    let known = space.setting.on_lapse == Lapse::Hold
        && !world.history.forgot
        && world.history.effects == [0, 0]
        && world.attempts.iter().all(ModelAttempt::applied_nothing)
        && world.late.iter().all(Option::is_none);
    !known || !world.store.slots.iter().any(|slot| slot.live().is_some_and(ModelRecord::is_unknown))
}
