//! A state of the model: the store, the attempts, what is under way between them, and what happened.

use crate::ask::{Ask, Op, Reply, Who};
use crate::attempt::{ATTEMPTS, Attempt, Phase};
use crate::history::{Cause, History};
use crate::kept::Kept;
use crate::setting::{Faults, Wrong};
use crate::space::Space;
use crate::store::{Store, Swap};

/// How many requests can be late at a time.
pub(crate) const LATE: usize = 4;

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    /// What a replica has of it.
    pub(crate) replica: Store,
    pub(crate) attempts: [Attempt; ATTEMPTS],
    /// Requests that nobody waits for any more, in order.
    pub(crate) late: [Option<Late>; LATE],
    pub(crate) operator: Finding,
    pub(crate) history: History,
    pub(crate) left: Faults,
}

/// A request that arrives late, if ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Late {
    pub(crate) from: Who,
    pub(crate) ask: Ask,
}

/// What the operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Finding {
    Idle,
    Asking(Ask),
    /// Finds out about the indeterminate record with this token.
    Out {
        expected: u8,
    },
}

impl World {
    pub(crate) fn attempt(&mut self, number: u8) -> &mut Attempt {
        &mut self.attempts[usize::from(number)]
    }

    /// What somebody waits for.
    pub(crate) fn asked(&self, who: Who) -> Option<Ask> {
        match who {
            Who::Attempt(number) => match self.attempts[usize::from(number)].phase {
                Phase::Asking(ask) => Some(ask),
                Phase::Waiting
                | Phase::Looking
                | Phase::Probing { .. }
                | Phase::Running
                | Phase::RunningUnprotected
                | Phase::Over(_)
                | Phase::Crashed => None,
            },
            Who::Journal(number) => self.attempts[usize::from(number)].journal,
            Who::Operator => match self.operator {
                Finding::Asking(ask) => Some(ask),
                Finding::Idle | Finding::Out { .. } => None,
            },
        }
    }

    /// Lets somebody wait for this.
    pub(crate) fn asks(&mut self, who: Who, ask: Ask) {
        match who {
            Who::Attempt(number) => self.attempt(number).phase = Phase::Asking(ask),
            Who::Journal(number) => self.attempt(number).journal = Some(ask),
            Who::Operator => self.operator = Finding::Asking(ask),
        }
    }

    /// Leaves a request in the network. Says whether there is room.
    pub(crate) fn leave(&mut self, late: Late) -> bool {
        let Some(place) = self.late.iter_mut().find(|place| place.is_none()) else {
            return false;
        };
        *place = Some(late);
        // In order: states that differ in it alone are one.
        self.late.sort_unstable_by_key(|late| std::cmp::Reverse(*late));
        true
    }

    /// Takes a late request out of the network.
    pub(crate) fn take_late(&mut self, place: u8) -> Option<Late> {
        let late = self.late[usize::from(place)].take();
        self.late.sort_unstable_by_key(|late| std::cmp::Reverse(*late));
        late
    }

    /// Whether a begin of this attempt can still arrive; its first step alone, or the swap after it, too.
    pub(crate) fn begin_is_under_way(&self, number: u8, with_swaps: bool) -> bool {
        let begins = |late: &Late| late.ask.op == Op::Begin && (with_swaps || late.ask.swap.is_none());
        self.late.iter().flatten().any(|late| late.from == Who::Attempt(number) && begins(late))
    }

    /// Writes a record into a slot. Every swap under way that saw it as the same value is now stale.
    pub(crate) fn write(&mut self, space: &Space, at: usize, next: Kept, cause: Cause) {
        let slot = &mut self.store.slots[at];
        self.history.writes(at, slot, &next, cause);
        let before = slot.live().copied();
        let same = before == Some(next);
        slot.write(next);
        if !space.setting.is(Wrong::MarksByBeginAlone) || before.is_none() {
            self.store.mark = self.store.mark.max(next.token);
        }
        if same {
            self.stale(space, at, next);
        }
    }

    fn stale(&mut self, space: &Space, at: usize, armed: Kept) {
        let mark = |who: Who, ask: &mut Ask| {
            if let Some(swap) = ask.swap.as_mut().filter(|swap| swap.seen == Some(armed) && space.slot_of(who) == at) {
                swap.renewed = true;
            }
        };
        for (number, attempt) in (0..).zip(&mut self.attempts).take(space.setting.calls.len()) {
            if let Phase::Asking(ask) = &mut attempt.phase {
                mark(Who::Attempt(number), ask);
            }
            if let Some(ask) = &mut attempt.journal {
                mark(Who::Journal(number), ask);
            }
        }
        self.late.iter_mut().flatten().for_each(|late| mark(late.from, &mut late.ask));
        if let Finding::Asking(ask) = &mut self.operator {
            mark(Who::Operator, ask);
        }
    }
}

/// What one step of the store led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Led {
    /// To the reply.
    Replied(Reply),
    /// To a look at the record, and a change that is still to be sent.
    ToSwap(Swap),
    /// To nothing: the record changed since it was looked at.
    Changed,
}
