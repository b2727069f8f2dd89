//! The arguments of the operations.

use std::time::Duration;

use bytes::Bytes;

use super::reply::Grant;
use crate::key::{Call, Fingerprint};
use crate::record::{Millis, Owner, Seconds, Timestamp, Token};

/// What a begin does with a record in progress whose lease expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// The begin takes over and the operation runs again. Only for effects that are safe to repeat.
    Retry,
    /// The record becomes indeterminate until it is resolved.
    Hold,
}

/// The arguments of [`begin`](crate::machine::begin).
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    /// The operation and its payload.
    pub call: Call,
    /// The attempt. Every repetition of this begin has the same owner.
    pub owner: Owner,
    /// How long the grant is valid without renewal.
    pub lease: Millis,
    /// How long a record lives while its outcome is unknown.
    pub unknown_retention: Seconds,
    /// What to do with a record in progress whose lease expired.
    pub on_lapse: Lapse,
}

/// Names the grant under which an attempt renews, completes, releases, abandons or buries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The attempt.
    pub owner: Owner,
    /// The token of its grant.
    pub token: Token,
}

impl From<&Grant> for Claim {
    fn from(grant: &Grant) -> Self {
        Self { owner: grant.owner, token: grant.token }
    }
}

/// The arguments of [`complete`](crate::machine::complete).
#[derive(Clone, Debug)]
pub struct Complete {
    /// The attempt that produced the answer.
    pub claim: Claim,
    /// The payload's fingerprint, as in the grant.
    pub fingerprint: Fingerprint,
    /// The answer to record.
    pub answer: Bytes,
    /// How long the recorded answer lives.
    pub retention: Seconds,
    /// When the attempt ended, by its own wall clock. The record shows the expiry of the answer by this clock.
    pub ended: Timestamp,
    /// How long ago the attempt ended, by its own clock. An answer older than its retention is not written to an absent
    /// record.
    pub age: Duration,
}

/// What an operator or a probe found out about an indeterminate record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The effect happened.
    Done {
        /// The answer to record.
        answer: Bytes,
        /// How long the recorded answer lives.
        retention: Seconds,
    },
    /// The effect did not happen. Without a ledger this is safe only when the old owner can no longer act.
    NotDone {
        /// How long the released record lives.
        lifetime: Seconds,
    },
}

/// What an operator wants to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The token of the record that the operator saw.
    pub expected: Token,
    /// Whether to remove a record whose outcome is unknown, too. A retry then runs the operation again.
    pub forget_unknown: bool,
}
