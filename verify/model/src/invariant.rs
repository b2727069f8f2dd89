//! What must hold in every state.

use stateright::Property;

use crate::attempt::Attempt;
use crate::kept::Kept;
use crate::setting::Sent;
use crate::space::Space;
use crate::world::World;
use hapax_core::machine::Lapse;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1
    OneEffect,
    /// I2
    OneAnswer,
    /// I3
    AnswerHasEffect,
    /// I4
    CompletedStays,
    /// I5
    NoGrantAfterCompleted,
    /// I6
    AnswerIsKept,
    /// T
    TokensGrow,
    /// R
    AnswerFits,
    /// No live attempt is taken over or held.
    OnlyTheLapsed,
    /// What may have been applied is not released.
    NoReleaseAfterEffect,
    /// What was given up stays so.
    AbandonedStaysOver,
    /// A completion is not thrown away.
    KnownEffectCounts,
    /// A key is not left unknown by attempts that applied nothing.
    NothingHeldForNobody,
    /// A verdict is not written on a later attempt's record.
    VerdictFits,
    /// A record past its life decides nothing.
    ExpiredIsNothing,
    /// An attempt is not kept waiting by itself.
    OwnBeginIsMine,
    /// A renewal changes nothing else.
    RenewsItsOwn,
    /// N
    RestIsReachable,
}

/// Whether an invariant holds in a state.
type Holds = fn(&Space, &World) -> bool;

/// Every invariant that is true of single states, the most serious first.
const ALWAYS: &[(Invariant, Holds)] = &[
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
    (Invariant::AbandonedStaysOver, abandoned_stays_over),
    (Invariant::KnownEffectCounts, |_, world| !world.history.broke(Invariant::KnownEffectCounts)),
    (Invariant::RenewsItsOwn, |_, world| !world.history.broke(Invariant::RenewsItsOwn)),
    (Invariant::VerdictFits, |_, world| !world.history.broke(Invariant::VerdictFits)),
    (Invariant::ExpiredIsNothing, |_, world| !world.history.broke(Invariant::ExpiredIsNothing)),
    (Invariant::OwnBeginIsMine, |_, world| !world.history.broke(Invariant::OwnBeginIsMine)),
    (Invariant::NothingHeldForNobody, nothing_held_for_nobody),
];

impl Invariant {
    /// All of them, as the checker takes them.
    pub(crate) fn properties() -> Vec<Property<Space>> {
        ALWAYS.iter().map(|(invariant, holds)| Property::always(invariant.sentence(), *holds)).collect()
    }

    /// What is broken in this state, the most serious first.
    pub(crate) fn broken(space: &Space, world: &World) -> Option<Self> {
        ALWAYS.iter().find(|(_, holds)| !holds(space, world)).map(|(invariant, _)| *invariant)
    }

    /// Its short name: what its sentence begins with.
    pub fn letter(self) -> &'static str {
        self.sentence().split(' ').next().unwrap_or_default()
    }

    /// What it says.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::OneEffect => "I1 an operation has at most one effect",
            Self::OneAnswer => "I2 every copy gets the same answer",
            Self::AnswerHasEffect => "I3 an answer is given only after the effect",
            Self::CompletedStays => "I4 a recorded answer stays",
            Self::NoGrantAfterCompleted => "I5 nothing is granted after an answer was recorded",
            Self::AnswerIsKept => "I6 an answer that was given is kept somewhere",
            Self::TokensGrow => "T  tokens grow with every grant",
            Self::AnswerFits => "R  an answer was given for the same key and payload",
            Self::OnlyTheLapsed => "L  only what lapsed is taken over or held",
            Self::NoReleaseAfterEffect => "S  what had an effect is neither released nor cancelled",
            Self::AbandonedStaysOver => "A  a confirmed abandonment is for good",
            Self::KnownEffectCounts => "E  a known effect is never thrown away",
            Self::RenewsItsOwn => "W  a renewal arms its own grant and nothing else",
            Self::VerdictFits => "V  a verdict is written on the record it was found for",
            Self::ExpiredIsNothing => "X  a record past its life counts for nothing",
            Self::OwnBeginIsMine => "M  an attempt is never kept waiting by itself",
            Self::NothingHeldForNobody => "F  what nobody applied is not left unknown",
            Self::RestIsReachable => "N  a definite answer stays reachable",
        }
    }
}

fn completed_stays(space: &Space, world: &World) -> bool {
    (0..space.slots()).all(|key| {
        let recorded = world.history.completed[key];
        recorded.is_none() || world.history.forgot || recorded == world.store.slots[key].live().and_then(Kept::answer)
    })
}

fn answer_is_kept(space: &Space, world: &World) -> bool {
    world.history.forgot
        || space.setting.calls.iter().all(|call| {
            let key = usize::from(call.tenant);
            let mut given = (0..8).filter(|answer| world.history.delivered[key] & (1 << answer) != 0);
            given.all(|answer| is_kept(space, world, *call, answer))
        })
}

/// What was given as unrecorded is nobody's to keep.
fn is_kept(space: &Space, world: &World, call: Sent, answer: u8) -> bool {
    let key = usize::from(call.tenant);
    let spilled = |attempt: &Attempt| attempt.journal.is_some() && attempt.answer == Some(answer);
    world.store.slots[space.slot(call)].live().and_then(Kept::answer) == Some(answer)
        || world.history.unrecorded & (1 << answer) != 0
        || world.history.ledger[key] == Some(answer)
        || world.attempts.iter().any(spilled)
}

fn abandoned_stays_over(space: &Space, world: &World) -> bool {
    (0..space.setting.calls.len()).all(|number| {
        let (attempt, slot) = (&world.attempts[number], &world.store.slots[space.slot(space.setting.calls[number])]);
        let own = slot.live().filter(|record| record.token == attempt.token).and_then(Kept::in_progress);
        let own = own.filter(|held| usize::from(held.owner) == number + 1);
        !attempt.abandoned || world.history.forgot || own.is_none() || slot.lapsed()
    })
}

/// Under a policy that takes over, the next call runs at once. After an amnesia nobody knows what was known.
fn nothing_held_for_nobody(space: &Space, world: &World) -> bool {
    let known = space.setting.on_lapse == Lapse::Hold
        && !world.history.forgot
        && world.history.effects == [0, 0]
        && world.attempts.iter().all(Attempt::applied_nothing)
        && world.late.iter().all(Option::is_none);
    !known || !world.store.slots.iter().any(|slot| slot.live().is_some_and(Kept::is_unknown))
}
