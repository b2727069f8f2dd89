use hapax::broker::DeadCause;
use hapax::gate::{Detail, Reason, Refused, RunResult};

use super::{TargetAnswer, Told};
use crate::causes::in_words;

/// The last error of a message, for operators, in case it becomes a dead letter. `told` is what an attempt of this
/// delivery has learned.
pub(super) fn dead_cause(
    ran: &Result<RunResult<TargetAnswer>, Refused<TargetAnswer>>,
    told: Option<&Told>,
) -> Option<DeadCause> {
    match told {
        Some(Told::Final(status)) => DeadCause::new(&format!("the target answered {status}")),
        Some(Told::GivenUp(status)) => DeadCause::new(&format!("the target answered {status} in the last attempt")),
        Some(Told::Unknown(cause)) => cause.clone(),
        Some(Told::Applied | Told::NotApplied { .. } | Told::Unreachable) => None,
        None => DeadCause::new(&without_attempt(ran)?),
    }
}

/// Why a message is dead although no attempt of this delivery has come to an end.
fn without_attempt(ran: &Result<RunResult<TargetAnswer>, Refused<TargetAnswer>>) -> Option<String> {
    let Err(refused) = ran else { return Some("the target rejected an earlier delivery of the message".into()) };
    match refused.reason {
        Reason::Indeterminate { .. } => Some("an earlier attempt ended without a known outcome".into()),
        Reason::Dead => Some("earlier deliveries used up all attempts".into()),
        Reason::Unknown { .. } | Reason::Unrecorded | Reason::Store(_) => match &refused.detail {
            Some(Detail::Error(error)) => Some(in_words(&**error)),
            Some(Detail::Answer(_)) | None => None,
        },
        Reason::Mismatch | Reason::Busy { .. } | Reason::Overloaded | Reason::NotApplied { .. } => None,
    }
}
