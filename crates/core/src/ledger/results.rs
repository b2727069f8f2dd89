//! The results of calls, from what claims found and handlers returned.

use std::error::Error as StdError;
use std::time::Duration;

use crate::gate::{Answer, Detail, Failure, Provenance, Reason, Recorded, Refused, RunResult};
use crate::ledger::rules::ClaimRuling;
use crate::ledger::{CallResult, claims};

/// How long a caller waits before it tries a busy operation again.
pub(super) const BUSY: Reason = Reason::Busy { retry_after: Duration::from_secs(1) };

/// The result of a claim that needs no handler.
pub(super) fn decided<A: Answer>(claim: ClaimRuling) -> Option<CallResult<A>> {
    let refused = |reason: Reason| Some(Err(Refused::from(reason)));
    match claim {
        ClaimRuling::Fresh => None,
        ClaimRuling::Replay { answer, is_own, .. } => {
            let provenance = if is_own { Provenance::Fresh } else { Provenance::Replayed };
            Some(claims::decode(answer).map(|answer| answered(answer, provenance)).map_err(Refused::store))
        }
        ClaimRuling::Mismatch => refused(Reason::Mismatch),
        ClaimRuling::Busy => refused(BUSY),
        ClaimRuling::Dead => refused(Reason::Dead),
        ClaimRuling::ClaimedTwice => Some(Err(Refused::store(claims::claimed_twice()))),
        ClaimRuling::Damaged => Some(Err(Refused::store(claims::damaged()))),
    }
}

pub(super) fn answered<A>(answer: A, provenance: Provenance) -> RunResult<A> {
    RunResult { answer, provenance, recorded: Recorded::Yes, expiry: None }
}

/// Whether later calls with the same ordering key wait, because the operation has not come to its end.
pub(super) fn holds_its_key<A>(result: &CallResult<A>) -> bool {
    match result {
        Ok(_) => false,
        Err(refused) => match refused.reason {
            Reason::Mismatch | Reason::Dead => false,
            Reason::Busy { .. } | Reason::NotApplied { .. } | Reason::Unknown { .. } | Reason::Store(_) => true,
            Reason::Indeterminate { .. } | Reason::Overloaded | Reason::Unrecorded => true,
        },
    }
}

/// What a failed handler told its caller.
pub(super) fn told<A>(failure: Failure<A>) -> Option<Detail<A>> {
    match failure {
        Failure::Final(answer) => Some(Detail::Answer(answer)),
        Failure::NotApplied(detail) | Failure::Denied(detail) => Some(detail),
        Failure::GivenUp(detail) | Failure::Unknown(detail) => Some(detail),
    }
}

/// What operators see of a failure: the message of the error and those of its causes, up to 500 characters.
pub(super) fn shown<A>(detail: &Detail<A>) -> String {
    match detail {
        Detail::Error(error) => {
            let error: &(dyn StdError + 'static) = &**error;
            let causes = std::iter::successors(Some(error), |error| (*error).source());
            let messages: Vec<String> = causes.map(ToString::to_string).collect();
            // PostgreSQL keeps no text with a NUL.
            messages.join(": ").replace('\0', "").chars().take(500).collect()
        }
        Detail::Answer(_) => "the handler returned an answer that says: not applied".into(),
    }
}
