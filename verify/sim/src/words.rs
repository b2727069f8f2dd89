//! What handlers say and callers are told.

use std::fmt;
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::gate::{Provenance, Recorded, Refused, RunResult};

/// What a handler says in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Applied,
    Final,
    NotApplied,
    Unknown,
}

impl Word {
    /// Whether there is an answer with it.
    pub(crate) fn answers(self) -> bool {
        match self {
            Self::Applied | Self::Final => true,
            Self::NotApplied | Self::Unknown => false,
        }
    }
}

/// What a caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Answer { answer: String, provenance: Provenance, recorded: Recorded },
    Busy(Duration),
    Mismatch,
    Indeterminate,
    Dead,
    Overloaded,
    NotApplied,
    Unknown,
    Unrecorded,
    Store(ErrorKind),
}

impl Told {
    /// Its name in tallies.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::Yes, .. } => "told fresh",
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::Pending, .. } => "told pending",
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::No, .. } => "told unprotected",
            Self::Answer { provenance: Provenance::Replayed, .. } => "told replayed",
            Self::Answer { provenance: Provenance::Canonical, .. } => "told canonical",
            Self::Busy(_) => "told busy",
            Self::Mismatch => "told mismatch",
            Self::Indeterminate => "told indeterminate",
            Self::Dead => "told dead",
            Self::Overloaded => "told overloaded",
            Self::NotApplied => "told not applied",
            Self::Unknown => "told unknown",
            Self::Unrecorded => "told unrecorded",
            Self::Store(_) => "told that the store cannot be asked",
        }
    }
}

impl From<Result<RunResult<String>, Refused<String>>> for Told {
    fn from(ran: Result<RunResult<String>, Refused<String>>) -> Self {
        match ran {
            Ok(ran) => Self::Answer { answer: ran.answer, provenance: ran.provenance, recorded: ran.recorded },
            Err(Refused::Busy { retry_after }) => Self::Busy(retry_after),
            Err(Refused::Mismatch) => Self::Mismatch,
            Err(Refused::Indeterminate { .. }) => Self::Indeterminate,
            Err(Refused::Dead) => Self::Dead,
            Err(Refused::Overloaded) => Self::Overloaded,
            Err(Refused::NotApplied { .. }) => Self::NotApplied,
            Err(Refused::Unknown { .. }) => Self::Unknown,
            Err(Refused::Unrecorded(_)) => Self::Unrecorded,
            Err(Refused::Store(error)) => Self::Store(error.kind()),
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Answer { answer, provenance, recorded } = self {
            write!(f, "`{answer}`, {provenance:?}, recorded: {recorded:?}")
        } else {
            write!(f, "{self:?}")
        }
    }
}
