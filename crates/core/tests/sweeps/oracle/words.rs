//! What handlers say and callers are told, and under which terms.

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
    /// It never ends by itself.
    Nothing,
}

/// What a caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Answer(String, Provenance, Recorded),
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
    pub(crate) fn answer(&self) -> Option<&str> {
        if let Self::Answer(answer, ..) = self { Some(answer) } else { None }
    }
}

impl From<Result<RunResult<String>, Refused<String>>> for Told {
    fn from(ran: Result<RunResult<String>, Refused<String>>) -> Self {
        match ran {
            Ok(ran) => Self::Answer(ran.answer, ran.provenance, ran.recorded),
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

/// What follows a lapse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lapse {
    Hold,
    Retry,
    /// The probe of the sweeps always finds out, and always truly.
    Resolve,
}

impl Lapse {
    /// Whether an effect is never run again, whatever happens.
    pub(crate) fn runs_once(self) -> bool {
        match self {
            Self::Hold | Self::Resolve => true,
            Self::Retry => false,
        }
    }
}

/// How much goes wrong, which bounds what a caller may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Every call is answered.
    Fair,
    /// One call is not, or not in time, or with an error that says nothing.
    OneGust,
    /// Anything else.
    Storm,
}
