//! What the result of a call means for the message behind it. The rows are numbered in
//! [`verdicts.md`](self#the-rows-of-verdicts).
#![doc = include_str!("verdicts.md")]

use std::time::Duration;

use crate::broker::{DeadReason, Verdict};
use crate::error::ErrorKind;
use crate::gate::{Provenance, Reason};
use crate::ledger::LedgerVerdict;
use crate::ledger::rules::backoff;

/// How a call of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// It has an answer.
    Answered(Provenance, LedgerVerdict),
    /// It has none.
    Refused(Reason),
}

/// How long a worker waits while the database cannot be used.
const PAUSE: Duration = Duration::from_secs(1);

/// The verdict about a job. `attempts` is the number of failures of the operation, if one was counted now.
pub fn verdict(end: CallEnd, attempts: Option<u32>) -> Verdict {
    let dead = |reason| Verdict::dead(reason, attempts.unwrap_or(0));
    let reason = match end {
        CallEnd::Answered(_, LedgerVerdict::Rejected) => return dead(DeadReason::Rejected), // V3
        CallEnd::Answered(provenance, LedgerVerdict::Applied) => {
            return match provenance {
                Provenance::Fresh | Provenance::Canonical => Verdict::Done { caught: false }, // V1
                Provenance::Replayed => Verdict::Done { caught: true },                       // V2
            };
        }
        CallEnd::Refused(reason) => reason,
    };
    match reason {
        Reason::Busy { retry_after } => Verdict::Busy { after: retry_after }, // V4
        Reason::Mismatch => dead(DeadReason::KeyReused),                      // V5
        Reason::Dead => dead(DeadReason::AttemptsExhausted),                  // V6
        Reason::NotApplied { .. } if let Some(attempts) = attempts => Verdict::Retry { after: backoff(attempts) }, // V7
        Reason::NotApplied { .. } | Reason::Unknown { .. } | Reason::Overloaded => {
            Verdict::Retry { after: backoff(1) } // V8
        }
        Reason::Store(ErrorKind::Damaged) => dead(DeadReason::RecordDamaged), // V9
        Reason::Store(_) => Verdict::Pause { after: PAUSE },                  // V10
        Reason::Indeterminate { .. } | Reason::Unrecorded => dead(DeadReason::OutcomeUnknown), // V11
    }
}
