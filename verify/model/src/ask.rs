//! What is asked of the store, and what is heard back.

use hapax_core::machine::{Begun, Cancelled, Completed, Renewed, Resolved, Settled};

use crate::kept::{Answer, Kept, small};
use crate::store::Swap;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The attempt with this number, from 0.
    Attempt(u8),
    /// Whoever drains what that attempt spilled.
    Journal(u8),
    /// Somebody who finds out what became of an operation.
    Operator,
}

/// An operation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Op {
    Begin,
    Renew,
    Complete,
    Release,
    Abandon,
    Bury,
    Cancel(Round),
    Hold { expected: u8 },
    Resolve { expected: u8, done: Option<Answer> },
    Reopen { expected: u8 },
}

/// A begin that may still be under way is cancelled twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Round {
    AtOnce,
    /// When none of the attempt's begins can arrive any more.
    Later,
}

/// An operation under way: at its first step, or at the swap that follows what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ask {
    pub(crate) op: Op,
    pub(crate) swap: Option<Swap>,
}

impl Ask {
    pub(crate) fn first(op: Op) -> Self {
        Self { op, swap: None }
    }

    /// Whether the request can change something when it arrives late: a late look changes nothing.
    pub(crate) fn writes(&self) -> bool {
        match self.op {
            Op::Begin | Op::Renew | Op::Complete => true,
            Op::Release
            | Op::Abandon
            | Op::Bury
            | Op::Cancel(_)
            | Op::Hold { .. }
            | Op::Resolve { .. }
            | Op::Reopen { .. } => self.swap.is_some(),
        }
    }
}

/// What the store and the machine reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reply {
    Granted {
        token: u8,
        takeover: bool,
    },
    Busy,
    Replay(Answer),
    Mismatch,
    Indeterminate,
    Dead,
    Recorded,
    /// Something else stands there; with the answer, if it is one.
    Lost(Option<Answer>),
    Gone,
    Yes,
    No,
}

impl From<Begun> for Reply {
    fn from(begun: Begun) -> Self {
        match begun {
            Begun::Granted(grant) | Begun::Mine(grant) => {
                Self::Granted { token: small(grant.token), takeover: grant.takeover }
            }
            Begun::Busy(_) => Self::Busy,
            Begun::Replay(completion) => Self::Replay(completion.answer[0]),
            Begun::Mismatch => Self::Mismatch,
            Begun::Indeterminate(_) => Self::Indeterminate,
            Begun::Dead => Self::Dead,
        }
    }
}

impl From<Completed> for Reply {
    fn from(completed: Completed) -> Self {
        match completed {
            Completed::Done | Completed::Recreated | Completed::Already => Self::Recorded,
            Completed::Lost(record) => Self::Lost(Kept::from(&record).answer()),
            Completed::Gone => Self::Gone,
        }
    }
}

impl From<Renewed> for Reply {
    fn from(renewed: Renewed) -> Self {
        match renewed {
            Renewed::Yes => Self::Yes,
            Renewed::Lost | Renewed::Gone => Self::No,
        }
    }
}

impl From<Settled> for Reply {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Yes => Self::Yes,
            Settled::Lost => Self::No,
        }
    }
}

impl From<Cancelled> for Reply {
    fn from(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Yes => Self::Yes,
            Cancelled::Gone => Self::No,
        }
    }
}

impl From<Resolved> for Reply {
    fn from(resolved: Resolved) -> Self {
        match resolved {
            Resolved::Yes => Self::Yes,
            Resolved::Stale => Self::No,
        }
    }
}
