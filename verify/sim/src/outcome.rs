//! The vocabulary that the simulation and the sweeps share: handler outcomes, caller outcomes, lapse policies and
//! record states.

use std::fmt;
use std::time::Duration;

use hapax_core::gate::{Failure, Provenance, Reason, Recorded, Refused, RunResult};
use hapax_core::{Error, ErrorKind, Phase, State};

/// The type that a handler returns to the gate.
pub type HandlerResult = Result<String, Failure<String>>;

/// The outcome that a handler reports. In the harnesses the report is always true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerOutcome {
    /// The effect happened.
    Applied,
    /// The request is rejected for good; there is an answer and no effect.
    Final,
    /// Nothing happened, and a retry may run.
    NotApplied,
    /// The handler cannot say whether the effect happened.
    Unknown,
}

impl HandlerOutcome {
    /// Whether the handler also returns an answer.
    pub fn has_answer(self) -> bool {
        match self {
            Self::Applied | Self::Final => true,
            Self::NotApplied | Self::Unknown => false,
        }
    }

    /// The value that the handler returns to the gate for this outcome.
    ///
    /// # Errors
    /// For every outcome but [`Self::Applied`].
    pub fn into_result(self, answer: String) -> HandlerResult {
        let error = || Error::new(ErrorKind::Invalid, "the handler reports a failure");
        match self {
            Self::Applied => Ok(answer),
            Self::Final => Err(Failure::finally(answer)),
            Self::NotApplied => Err(Failure::not_applied(error())),
            Self::Unknown => Err(Failure::unknown(error())),
        }
    }
}

/// The outcome that a caller receives from the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are those of the gate")]
pub enum CallerOutcome {
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

impl CallerOutcome {
    /// The answer, if the caller received one.
    pub fn answer(&self) -> Option<&str> {
        if let Self::Answer { answer, .. } = self { Some(answer) } else { None }
    }

    /// The name under which the simulation counts this outcome.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::Yes, .. } => "answer: fresh",
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::Pending, .. } => "answer: pending",
            Self::Answer { provenance: Provenance::Fresh, recorded: Recorded::No, .. } => "answer: unprotected",
            Self::Answer { provenance: Provenance::Replayed, .. } => "answer: replayed",
            Self::Answer { provenance: Provenance::Canonical, .. } => "answer: canonical",
            Self::Busy(_) => "refused: busy",
            Self::Mismatch => "refused: mismatch",
            Self::Indeterminate => "refused: indeterminate",
            Self::Dead => "refused: dead",
            Self::Overloaded => "refused: overloaded",
            Self::NotApplied => "error: not applied",
            Self::Unknown => "error: outcome unknown",
            Self::Unrecorded => "error: outcome unrecorded",
            Self::Store(ErrorKind::Damaged) => "error: record damaged",
            Self::Store(ErrorKind::Full) => "error: store full",
            Self::Store(ErrorKind::Unusable) => "error: store unusable",
            Self::Store(_) => "error: store unavailable",
        }
    }
}

impl From<Result<RunResult<String>, Refused<String>>> for CallerOutcome {
    fn from(ran: Result<RunResult<String>, Refused<String>>) -> Self {
        match ran {
            Ok(ran) => Self::Answer { answer: ran.answer, provenance: ran.provenance, recorded: ran.recorded },
            Err(Refused { reason: Reason::Busy { retry_after }, .. }) => Self::Busy(retry_after),
            Err(Refused { reason: Reason::Mismatch, .. }) => Self::Mismatch,
            Err(Refused { reason: Reason::Indeterminate { .. }, .. }) => Self::Indeterminate,
            Err(Refused { reason: Reason::Dead, .. }) => Self::Dead,
            Err(Refused { reason: Reason::Overloaded, .. }) => Self::Overloaded,
            Err(Refused { reason: Reason::NotApplied { .. }, .. }) => Self::NotApplied,
            Err(Refused { reason: Reason::Unknown { .. }, .. }) => Self::Unknown,
            Err(Refused { reason: Reason::Unrecorded, .. }) => Self::Unrecorded,
            Err(Refused { reason: Reason::Store(kind), .. }) => Self::Store(kind),
        }
    }
}

impl fmt::Display for CallerOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Answer { answer, provenance, recorded } = self {
            write!(f, "`{answer}`, {provenance:?}, recorded: {recorded:?}")
        } else {
            write!(f, "{self:?}")
        }
    }
}

/// What protects the effect of a route, and what happens there after a lapse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectPolicy {
    /// The gate alone, under `Hold`.
    Hold,
    /// The gate and a probe, under `Resolve`. The probe never returns a wrong outcome.
    Resolve,
    /// A ledger that returns its first answer again, under `Retry`.
    Ledger {
        /// Whether calls run without a record while the store is down.
        pass: bool,
    },
    /// Declared repeatable, under `Retry`: after a lapse the effect may happen again, each time with another answer.
    Repeatable,
}

impl EffectPolicy {
    /// Whether the gate alone keeps the effect from happening twice.
    pub fn is_at_most_once(self) -> bool {
        match self {
            Self::Hold | Self::Resolve => true,
            Self::Ledger { .. } | Self::Repeatable => false,
        }
    }

    pub(crate) fn has_ledger(self) -> bool {
        matches!(self, Self::Ledger { .. })
    }
}

/// The name of a record's state in traces.
pub fn state_name(state: &State) -> &'static str {
    match state {
        State::Completed(_) => "completed",
        State::Open(Phase::InProgress, holding) if holding.is_abandoned() => "abandoned",
        State::Open(Phase::InProgress, _) => "in progress",
        State::Open(Phase::Released, _) => "released",
        State::Open(Phase::Indeterminate, _) => "indeterminate",
        State::Open(Phase::Dead, _) => "dead",
    }
}
