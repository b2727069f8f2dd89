//! An attempt: one call in one process, from its begin to its end.

use crate::ask::{Ask, Op};
use crate::kept::Answer;

/// How many attempts there are at most.
pub(crate) const ATTEMPTS: usize = 3;

/// An attempt, and what its process knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    /// The token of its grant; 0 without one.
    pub(crate) token: u8,
    /// Whether the outcome of one of its begins is unknown to it.
    pub(crate) ambiguous: bool,
    /// What its handler answered.
    pub(crate) answer: Option<Answer>,
    /// Its spilled completion. It outlives the process.
    pub(crate) journal: Option<Ask>,
    /// Whether its effect is under way although its handler has ended.
    pub(crate) under_way: bool,
    /// Whether the store confirmed that it was abandoned.
    pub(crate) abandoned: bool,
}

/// What an attempt does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Waiting,
    /// It waits for the store.
    Asking(Ask),
    /// It is about to look at a record whose outcome is unknown.
    Looking,
    /// It asks the probe about the record with this token.
    Probing {
        expected: u8,
    },
    /// Its handler runs, and has applied nothing yet.
    Running,
    /// Likewise, without a record.
    RunningUnprotected,
    Over(End),
    Crashed,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Answered,
    /// Known: it applied nothing.
    NotApplied,
    Unknown,
}

impl Attempt {
    /// Whether its handler may still have an effect.
    pub(crate) fn can_act(&self) -> bool {
        self.under_way
            || match self.phase {
                Phase::Running | Phase::RunningUnprotected => true,
                Phase::Waiting
                | Phase::Asking(_)
                | Phase::Looking
                | Phase::Probing { .. }
                | Phase::Over(_)
                | Phase::Crashed => false,
            }
    }

    /// Whether its heartbeat goes on: until it completed, or starts to give its grant back.
    pub(crate) fn renews(&self, to_the_end: bool) -> bool {
        match self.phase {
            Phase::Running => true,
            Phase::Asking(ask) => ask.op == Op::Complete || to_the_end && self.token != 0,
            Phase::Over(_) => self.journal.is_some(),
            Phase::Waiting | Phase::Looking | Phase::Probing { .. } | Phase::RunningUnprotected | Phase::Crashed => {
                false
            }
        }
    }

    /// Whether it will do nothing more.
    pub(crate) fn at_rest(&self) -> bool {
        let still = match self.phase {
            Phase::Waiting | Phase::Over(_) | Phase::Crashed => true,
            Phase::Asking(_) | Phase::Looking | Phase::Probing { .. } | Phase::Running | Phase::RunningUnprotected => {
                false
            }
        };
        still && self.journal.is_none() && !self.under_way
    }

    /// Whether it is known that it applied nothing, also when it never began.
    pub(crate) fn applied_nothing(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Over(End::NotApplied)) && self.at_rest()
    }
}
