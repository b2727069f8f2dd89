//! An attempt: one call in one process, from its begin to its end.

use crate::record::AnswerId;
use crate::request::{Operation, ProtocolRequest};

/// The largest number of attempts.
pub(crate) const ATTEMPTS: usize = 3;

/// An attempt, with the knowledge of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelAttempt {
    pub(crate) phase: AttemptPhase,
    /// The token of its grant; 0 without a grant.
    pub(crate) token: u8,
    /// Whether one of its begins is ambiguous.
    pub(crate) ambiguous: bool,
    /// The answer of its handler.
    pub(crate) answer: Option<AnswerId>,
    /// Its spilled completion, which survives a crash.
    pub(crate) journal: Option<ProtocolRequest>,
    /// The transaction of the ledger that its handler runs in.
    pub(crate) transaction: TransactionPhase,
    /// Whether its effect is in transit although its handler has ended; in a ledger, whether a transaction is in doubt.
    pub(crate) under_way: bool,
    /// Whether the store confirmed an abandon.
    pub(crate) abandoned: bool,
}

/// The phase of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum AttemptPhase {
    #[default]
    NotStarted,
    /// It waits for a reply of the store.
    AwaitingStore(ProtocolRequest),
    /// It is about to read a record with an unknown outcome.
    BeforeProbe,
    /// It waits for the probe, about the record with this token.
    Probing {
        expected: u8,
    },
    /// Its handler runs and has had no effect yet.
    Running,
    /// Its handler runs without a record and has had no effect yet.
    RunningUnprotected,
    Ended(AttemptEnd),
    Crashed,
}

/// The phase of a handler's transaction in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum TransactionPhase {
    #[default]
    NotBegun,
    /// It has a fresh claim.
    Claimed,
    /// Its COMMIT got no reply, and the handler has not claimed since.
    CommitOpen,
    /// The handler has no transaction, but had one before.
    Over,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AttemptEnd {
    Answered,
    /// It is known to have applied nothing.
    NotApplied,
    Unknown,
}

impl ModelAttempt {
    /// Whether its handler has a transaction with a fresh claim.
    pub(crate) fn has_claim(&self) -> bool {
        self.transaction == TransactionPhase::Claimed
    }

    /// Whether its handler may still have an effect.
    pub(crate) fn can_act(&self) -> bool {
        self.under_way
            || match self.phase {
                AttemptPhase::Running | AttemptPhase::RunningUnprotected => true,
                AttemptPhase::NotStarted
                | AttemptPhase::AwaitingStore(_)
                | AttemptPhase::BeforeProbe
                | AttemptPhase::Probing { .. }
                | AttemptPhase::Ended(_)
                | AttemptPhase::Crashed => false,
            }
    }

    /// Whether its heartbeat runs. The heartbeat stops when the attempt has completed or starts to give its grant back.
    pub(crate) fn renews(&self, to_the_end: bool) -> bool {
        match self.phase {
            AttemptPhase::Running => true,
            AttemptPhase::AwaitingStore(request) => {
                request.operation == Operation::Complete || to_the_end && self.token != 0
            }
            AttemptPhase::Ended(_) => self.journal.is_some(),
            AttemptPhase::NotStarted
            | AttemptPhase::BeforeProbe
            | AttemptPhase::Probing { .. }
            | AttemptPhase::RunningUnprotected
            | AttemptPhase::Crashed => false,
        }
    }

    /// Whether it will take no more steps.
    pub(crate) fn at_rest(&self) -> bool {
        let still = match self.phase {
            AttemptPhase::NotStarted | AttemptPhase::Ended(_) | AttemptPhase::Crashed => true,
            AttemptPhase::AwaitingStore(_)
            | AttemptPhase::BeforeProbe
            | AttemptPhase::Probing { .. }
            | AttemptPhase::Running
            | AttemptPhase::RunningUnprotected => false,
        };
        still && self.journal.is_none() && !self.under_way
    }

    /// Whether it is known to have applied nothing. An attempt that never began applied nothing.
    pub(crate) fn applied_nothing(&self) -> bool {
        matches!(self.phase, AttemptPhase::NotStarted | AttemptPhase::Ended(AttemptEnd::NotApplied)) && self.at_rest()
    }
}
