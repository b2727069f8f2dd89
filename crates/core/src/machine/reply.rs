//! The replies of the operations. Each variant says what is true and what the caller does next.

use std::time::Duration;

use crate::key::{Fingerprint, RecordKey};
use crate::record::{Completion, Owner, Record, Timestamp, Token};

/// The right to run an operation until its lease expires or another attempt takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The record.
    pub rk: RecordKey,
    /// The attempt that holds the grant.
    pub owner: Owner,
    /// The fencing token. Pass it to every system that the attempt writes to.
    pub token: Token,
    /// The number of this attempt, from 1.
    pub attempt: u16,
    /// Whether the lease of an earlier attempt expired. The effect of that attempt may have happened.
    pub takeover: bool,
    /// The payload's fingerprint, as in the record.
    pub fingerprint: Fingerprint,
}

/// The reply to a begin.
///
/// ```
/// use hapax::machine::Begun;
///
/// fn explain(begun: &Begun) -> &'static str {
///     match begun {
///         Begun::Granted(_) | Begun::Mine(_) => "run the operation",
///         Begun::Busy(_) => "another attempt is running; try again later",
///         Begun::Replay(_) => "the operation happened; return the recorded answer",
///         Begun::Mismatch => "the key belongs to another payload",
///         Begun::Indeterminate(_) | Begun::Dead => "an operator has to act",
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The grant is written. Run the operation.
    Granted(Grant),
    /// An earlier begin of the same owner was granted and its reply was lost. Run the operation.
    Mine(Grant),
    /// Another attempt holds the lease for this long. Try again after that.
    Busy(Duration),
    /// The operation happened. Return this answer.
    Replay(Completion),
    /// The key was used for another payload. Refuse the request.
    Mismatch,
    /// The outcome is unknown since this instant. Do not run the operation; the record has to be resolved.
    Indeterminate(Timestamp),
    /// The record is closed after too many attempts. Do not run the operation; an operator may reopen the record.
    Dead,
}

/// The reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease starts again. Go on.
    Yes,
    /// The record no longer belongs to this attempt. Start no further effect.
    Lost,
    /// There is no record, so no other attempt holds a grant. Go on; the completion recreates the record.
    Gone,
}

/// The reply to a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The answer is recorded. Return it.
    Done,
    /// The record was absent; the answer is recorded now. Return it.
    Recreated,
    /// This very answer was recorded under this token before. Return it.
    Already,
    /// This record stays. [`recorded_answer`](crate::machine::recorded_answer) says whether its answer may be returned.
    Lost(Record),
    /// The record is absent and the answer is older than its retention. Report the outcome as unknown.
    Gone,
}

/// The reply to a release, an abandonment or a burial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The record is as requested, by this call or an earlier one. Stop here.
    Yes,
    /// The record does not belong to this attempt, or is absent. Nothing was written; there is nothing to give back.
    Lost,
}

/// The reply to a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The begin took effect and its grant is given back. Stop here.
    Yes,
    /// The attempt has no grant, or not yet. Cancel once more when the begin can no longer arrive.
    Gone,
}

impl From<Settled> for Cancelled {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Yes => Self::Yes,
            Settled::Lost => Self::Gone,
        }
    }
}

/// The reply to a hold, a resolve or a reopen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The record is as requested, by this call or an earlier one. Stop here.
    Yes,
    /// The record is not the expected one. Nothing was written; read the record again before the next try.
    Stale,
}

/// The reply to a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// The record is removed, and its key is free.
    Yes,
    /// The record is not the expected one, or is absent. Nothing was removed; read it again before the next try.
    Stale,
    /// An attempt holds the lease. Nothing was removed; wait until the lease has expired.
    Running,
    /// The outcome is unknown: without the record a retry may run the operation a second time. Nothing was removed.
    Unknown,
}
