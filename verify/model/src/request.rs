//! Requests to the store: their senders and their operations.

use crate::record::AnswerId;
use crate::store::PendingSwap;

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sender {
    /// The attempt with this number, from 0.
    Attempt(u8),
    /// The task that drains the journal of that attempt.
    Journal(u8),
    /// The operator.
    Operator,
}

/// An operation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Begin,
    Renew,
    Complete,
    Release,
    Abandon,
    Bury,
    Cancel(CancelRound),
    Hold { expected: u8 },
    Resolve { expected: u8, done: Option<AnswerId> },
    Reopen { expected: u8 },
}

/// A begin that may still be in transit is cancelled twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CancelRound {
    AtOnce,
    /// When none of the attempt's begins can arrive any more.
    Later,
}

/// An operation in progress: at its first step, or at the swap that follows a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProtocolRequest {
    pub(crate) operation: Operation,
    pub(crate) swap: Option<PendingSwap>,
}

impl ProtocolRequest {
    pub(crate) fn first(operation: Operation) -> Self {
        Self { operation, swap: None }
    }

    /// Whether the request can change a record when it arrives late. A late read cannot.
    pub(crate) fn writes(&self) -> bool {
        match self.operation {
            Operation::Begin | Operation::Renew | Operation::Complete => true,
            Operation::Release
            | Operation::Abandon
            | Operation::Bury
            | Operation::Cancel(_)
            | Operation::Hold { .. }
            | Operation::Resolve { .. }
            | Operation::Reopen { .. } => self.swap.is_some(),
        }
    }
}
