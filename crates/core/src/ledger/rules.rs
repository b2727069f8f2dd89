//! Every decision of the ledger, pure. The rows are numbered in [`rows.md`](self#the-rows).
#![doc = include_str!("rows.md")]

use std::time::Duration;

use bytes::Bytes;

use crate::chaos::Mutant;
use crate::ledger::{Call, FaultKind, FoundRow, LedgerVerdict, Tried};

/// What a call gets after its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRuling {
    /// The operation is new: run it in this transaction.
    Fresh,
    /// The operation has ended before.
    Replay {
        /// How it ended.
        verdict: LedgerVerdict,
        /// The encoded answer.
        answer: Bytes,
        /// Whether an earlier try of this very run ended it, whose COMMIT got no reply.
        is_own: bool,
    },
    /// The operation has ended with another payload.
    Mismatch,
    /// Another transaction runs the operation, or what was in its way is gone.
    Busy,
    /// The operation is closed after too many attempts.
    Dead,
    /// This transaction has claimed the operation before.
    ClaimedTwice,
    /// The row of the operation does not say how it ended.
    Damaged,
}

/// Decides the reply to a call after its claim. `found` is the row that a later statement read, if the call was not
/// claimed. `own` are the transactions of this run whose COMMIT got no reply.
pub fn claim(call: &Call, tried: Tried, found: Option<&FoundRow>, own: &[u64]) -> ClaimRuling {
    match (tried, found) {
        (Tried::Inserted, _) => ClaimRuling::Fresh, // K2
        (Tried::NotInserted | Tried::Locked, Some(FoundRow::Row(row))) => {
            let is_own = row.transaction.is_some_and(|transaction| own.contains(&transaction));
            let is_same = call.accepts(row.fingerprint) || Mutant::LedgerPayloadIgnored.is_on();
            match is_own || is_same {
                true => ClaimRuling::Replay { verdict: row.verdict, answer: row.answer.clone(), is_own }, // K3, K4
                false => ClaimRuling::Mismatch,                                                           // K5
            }
        }
        (Tried::NotInserted | Tried::Locked, Some(FoundRow::Damaged)) => ClaimRuling::Damaged, // K9
        (Tried::Locked | Tried::LockedUnread, _) => ClaimRuling::Busy,                         // K1
        (Tried::NotInserted, _) if Mutant::ViolationIsSuccess.is_on() => {
            ClaimRuling::Replay { verdict: LedgerVerdict::Applied, answer: Bytes::new(), is_own: false }
        }
        (Tried::ClaimedHere, _) | (Tried::NotInserted, Some(FoundRow::ClaimedHere)) => ClaimRuling::ClaimedTwice, // K6
        (Tried::NotInserted, Some(FoundRow::Dead)) => ClaimRuling::Dead,                                          // K7
        (Tried::NotInserted, Some(FoundRow::Nothing) | None) => ClaimRuling::Busy,                                // K8
    }
}

impl ClaimRuling {
    /// Whether the operation has a row, so that a look for it would have saved the claim.
    pub(super) fn has_row(&self) -> bool {
        match self {
            Self::Replay { .. } | Self::Mismatch | Self::Damaged => true,
            Self::Fresh | Self::Busy | Self::Dead | Self::ClaimedTwice => false,
        }
    }
}

/// Decides the reply to a call whose row was read before a claim. None: the call has to be claimed.
pub fn read(call: &Call, found: &FoundRow, own: &[u64]) -> Option<ClaimRuling> {
    match found {
        FoundRow::Row(row) if Mutant::CopyPayloadIgnored.is_on() => {
            Some(ClaimRuling::Replay { verdict: row.verdict, answer: row.answer.clone(), is_own: false })
        }
        FoundRow::Row(_) | FoundRow::Damaged => Some(claim(call, Tried::NotInserted, Some(found), own)), // F1
        // Another transaction may run an operation that is dead: only a claim finds its lock.
        FoundRow::Dead | FoundRow::Nothing | FoundRow::ClaimedHere => None, // F2
    }
}

/// How a transaction with fresh operations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has committed.
    Committed,
    /// It has not, because of the database.
    Fault(FaultKind),
    /// A statement of the ledger failed before a handler ran.
    ClaimFailed,
    /// It was rolled back, because the handler failed. The handler may name the operation, by its place among those
    /// that it got.
    HandlerFailed(Option<usize>),
}

/// A transaction that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How it ended.
    pub ending: Ending,
    /// The number of its fresh operations.
    pub operations: usize,
    /// How many more transactions these operations may have, if the database again rolls back or gives no reply.
    pub tries_left: u32,
    /// Whether an earlier COMMIT of these operations got no reply, and this transaction did not get to claim them.
    pub is_commit_open: bool,
    /// Whether the transaction before it had the same operations, and ended as this one because a row was there.
    pub had_row: bool,
    /// Whether failures of one operation are counted.
    pub is_counting: bool,
}

/// What follows after a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Give the answers.
    Answer,
    /// Run the same operations again after a pause.
    Again,
    /// Run each half in a transaction of its own.
    Halves,
    /// Run those before the operation, the operation, and those after it in transactions of their own.
    Around(usize),
    /// Count the failure of the one operation.
    Count,
    /// Report that nothing was applied.
    NotApplied,
    /// Report that the database cannot be used now.
    Unavailable,
    /// Report that the tables cannot be used until somebody corrects the set-up.
    Unusable,
    /// Report that the outcome is unknown.
    Unknown,
}

/// Decides what follows after a transaction.
pub fn next(ended: &Ended) -> Next {
    let is_one = ended.operations <= 1;
    match ended.ending {
        Ending::Committed => Next::Answer, // T1
        Ending::Fault(FaultKind::CommitUnknown) if Mutant::CommitTrusted.is_on() => Next::Answer,
        Ending::Fault(FaultKind::CommitUnknown) if ended.tries_left > 0 => Next::Again, // T2
        Ending::Fault(FaultKind::CommitUnknown) => Next::Unknown,                       // T3
        Ending::Fault(FaultKind::Conflict | FaultKind::Unavailable) if ended.tries_left > 0 => Next::Again, // T4
        Ending::Fault(FaultKind::RowExists) if !ended.had_row && ended.tries_left > 0 => Next::Again, // T16
        Ending::ClaimFailed if ended.tries_left > 0 => Next::Again,                     // T15
        Ending::Fault(_) | Ending::ClaimFailed if ended.is_commit_open => Next::Unknown, // T13
        Ending::Fault(FaultKind::Conflict) => Next::NotApplied,                         // T5
        Ending::Fault(FaultKind::RowExists) if !ended.had_row => Next::NotApplied,      // T5
        Ending::Fault(FaultKind::Unavailable) | Ending::ClaimFailed => Next::Unavailable, // T6
        Ending::Fault(FaultKind::Unusable) => Next::Unusable,                           // T14
        Ending::Fault(FaultKind::TooLarge) if is_one => Next::NotApplied,               // T7
        Ending::Fault(FaultKind::TooLarge) => Next::Halves,                             // T8
        Ending::HandlerFailed(_) | Ending::Fault(FaultKind::Failed | FaultKind::RowExists)
            if is_one && ended.is_counting =>
        {
            Next::Count
        } // T9
        Ending::HandlerFailed(_) | Ending::Fault(FaultKind::Failed | FaultKind::RowExists) if is_one => {
            Next::NotApplied
        } // T10
        Ending::HandlerFailed(Some(place)) if place < ended.operations => Next::Around(place), // T11
        Ending::HandlerFailed(_) | Ending::Fault(FaultKind::Failed | FaultKind::RowExists) => Next::Halves, // T12
    }
}

/// What follows after a failure was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Run it again after this time.
    Retry(Duration),
    /// The operation is closed.
    Dead,
}

/// Decides what follows after the `attempts`-th failure of an operation.
pub fn counted(attempts: u32, max_attempts: u32) -> Counted {
    match attempts >= max_attempts {
        true => Counted::Dead,                      // N1
        false => Counted::Retry(backoff(attempts)), // N2
    }
}

/// What follows after a failure that could not be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncounted {
    /// Report that nothing was applied.
    NotApplied,
    /// Report that the tables cannot be used until somebody corrects the set-up.
    Unusable,
}

/// Decides what follows after a failure that could not be counted: an operation that always fails must have an end.
pub fn uncounted(kind: FaultKind) -> Uncounted {
    match kind {
        FaultKind::Conflict | FaultKind::RowExists => Uncounted::NotApplied, // N3
        FaultKind::Unavailable | FaultKind::CommitUnknown => Uncounted::NotApplied, // N3
        FaultKind::TooLarge | FaultKind::Failed | FaultKind::Unusable => Uncounted::Unusable, // N4
    }
}

/// The pause after the n-th failure: 200 ms, doubling to 1 minute.
pub fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    Duration::from_millis(200 << doublings).min(Duration::from_mins(1))
}

/// The pause before the next transaction of the same operations. The longest pause is 5 ms and doubles with each try,
/// up to 1 s; the pause is a random time between half of it and all of it.
pub fn pause(tries: u32, random: u32) -> Duration {
    let longest = Duration::from_millis(5 << tries.min(16)).min(Duration::from_secs(1));
    let half = longest / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
