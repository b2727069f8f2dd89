//! The replies of the store and the machine.

use hapax_core::machine::{Begun, Cancelled, Completed, Renewed, Resolved, Settled};

use crate::record::{AnswerId, ModelRecord, small};

/// A reply to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ProtocolReply {
    Granted {
        token: u8,
        takeover: bool,
    },
    Busy,
    Replay(AnswerId),
    Mismatch,
    Indeterminate,
    Dead,
    Recorded,
    /// The completion was not written, because the record belongs to another grant or is final. Holds the record's
    /// answer, if it has one.
    Lost(Option<AnswerId>),
    /// The record is absent and may not be recreated. Only for a completion.
    Gone,
    /// The store carried out a renewal, release, abandonment, burial, cancellation, hold, resolution or reopen.
    Yes,
    /// The store refused one of these operations: the record is absent, or is not the expected one.
    No,
}

impl From<Begun> for ProtocolReply {
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

impl From<Completed> for ProtocolReply {
    fn from(completed: Completed) -> Self {
        match completed {
            Completed::Done | Completed::Recreated | Completed::Already => Self::Recorded,
            Completed::Lost(record) => Self::Lost(ModelRecord::from(&record).answer()),
            Completed::Gone => Self::Gone,
        }
    }
}

impl From<Renewed> for ProtocolReply {
    fn from(renewed: Renewed) -> Self {
        match renewed {
            Renewed::Yes => Self::Yes,
            Renewed::Lost | Renewed::Gone => Self::No,
        }
    }
}

impl From<Settled> for ProtocolReply {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Yes => Self::Yes,
            Settled::Lost => Self::No,
        }
    }
}

impl From<Cancelled> for ProtocolReply {
    fn from(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Yes => Self::Yes,
            Cancelled::Gone => Self::No,
        }
    }
}

impl From<Resolved> for ProtocolReply {
    fn from(resolved: Resolved) -> Self {
        match resolved {
            Resolved::Yes => Self::Yes,
            Resolved::Stale => Self::No,
        }
    }
}
