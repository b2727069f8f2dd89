//! What a caller is given, once it is known what became of its call.

use std::time::{Duration, UNIX_EPOCH};

use hapax_core::gate::{Provenance, Reason, Recorded, Refused, RunResult};
use hapax_core::{Call, ErrorKind, RecordKey};
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response};
use httpdate::fmt_http_date;

use crate::body::ResponseBody;
use crate::headers::{HAPAX_RECORDED, HAPAX_UNRECORDED, IDEMPOTENCY_KEY_EXPIRES, IDEMPOTENT_REPLAYED};
use crate::problem::{Problem, ShowProblem};
use crate::stored::Stored;

/// What became of a protected request, in the extensions of its response: for logs around the layer.
///
/// ```
/// use hapax_http::Handled;
/// use http::Response;
///
/// /// A line of an access log, written by a layer around this one. Of the record it shows the first 8 digits.
/// fn line<B>(response: &Response<B>) -> Option<String> {
///     let handled = response.extensions().get::<Handled>()?;
///     Some(format!("{} {} {:?}", response.status().as_u16(), handled.outcome, handled.record_key?))
/// }
/// # line(&Response::new(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled {
    /// The record that it is about, where there is one.
    pub record_key: Option<RecordKey>,
    /// `fresh`, `replayed`, `not-applied` or `unknown` (passed on), or the name of a problem.
    pub outcome: &'static str,
}

impl Handled {
    fn mark<R>(mut response: Response<R>, record_key: Option<RecordKey>, outcome: &'static str) -> Response<R> {
        response.extensions_mut().insert(Self { record_key, outcome });
        response
    }
}

/// What the inner service answered.
pub(crate) enum Answered<R, E> {
    /// To be given out once it is recorded.
    ToRecord(Response<ResponseBody<R>>),
    /// Not recorded: passed on as it is.
    ToPassOn(Result<Response<ResponseBody<R>>, E>),
}

/// The live response where this very request ran and its outcome stands, else what is recorded or why not.
pub(crate) fn answer<R, E>(
    problems: &dyn ShowProblem,
    call: &Call,
    ran: Result<RunResult<Stored>, Refused<Stored>>,
    live: Option<Answered<R, E>>,
) -> Result<Response<ResponseBody<R>>, E> {
    let rk = call.record_key();
    let unrecorded = unrecorded(&ran);
    let mut response = match (ran, live) {
        (Ok(ran @ RunResult { provenance: Provenance::Fresh, .. }), Some(Answered::ToRecord(response))) => {
            Handled::mark(marked(response, ran.recorded, ran.expiry), Some(rk), "fresh")
        }
        (Err(Refused { reason: Reason::NotApplied { .. }, .. }), Some(Answered::ToPassOn(response))) => {
            Handled::mark(response?, Some(rk), "not-applied")
        }
        (Err(Refused { reason: Reason::Unknown { .. }, .. }), Some(Answered::ToPassOn(response))) => {
            Handled::mark(response?, Some(rk), "unknown")
        }
        (Ok(ran), _) => match replayed(ran.answer) {
            Some(response) => Handled::mark(marked(response, ran.recorded, ran.expiry), Some(rk), "replayed"),
            None => shown(problems, &Problem::NotReplayable, Some(rk)),
        },
        (Err(refused), _) => {
            if let Reason::Store(_) = refused.reason {
                tracing::error!(?rk, error = ?refused.detail, "the store cannot be used");
            }
            shown(problems, &problem_of(refused.reason), Some(rk))
        }
    };
    if unrecorded {
        response.headers_mut().insert(HAPAX_UNRECORDED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Whether the handler ran without a record.
fn unrecorded<A>(ran: &Result<RunResult<A>, Refused<A>>) -> bool {
    match ran {
        Ok(ran) => ran.recorded == Recorded::No,
        Err(refused) => refused.reason.is_unrecorded(),
    }
}

/// A problem as it is shown to this caller.
pub(crate) fn shown<R>(
    problems: &dyn ShowProblem,
    problem: &Problem,
    rk: Option<RecordKey>,
) -> Response<ResponseBody<R>> {
    Handled::mark(problems.show(problem, rk.as_ref()).map(ResponseBody::whole), rk, problem.name())
}

/// The recorded response; none if it was not kept.
fn replayed<R>(stored: Stored) -> Option<Response<ResponseBody<R>>> {
    let Stored::Response { status, headers, body } = stored else {
        return None;
    };
    let mut response = Response::new(ResponseBody::whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

fn problem_of(reason: Reason) -> Problem {
    match reason {
        Reason::Busy { retry_after } => Problem::InProgress { retry_after },
        Reason::Mismatch => Problem::KeyReused,
        Reason::Indeterminate { .. } | Reason::Dead => Problem::OutcomeUnknown,
        // Only for followers: the leader's caller already got the live response. A follower of a leader that was not applied
        // begins for itself.
        Reason::NotApplied { .. } | Reason::Unknown { .. } => Problem::OutcomeUnknown,
        Reason::Unrecorded => Problem::OutcomeUnrecorded,
        Reason::Overloaded => Problem::Overloaded,
        Reason::Store(ErrorKind::Damaged) => Problem::RecordDamaged,
        Reason::Store(_) => Problem::StoreUnavailable,
    }
}

/// Says until when the answer is given, and where the store does not have it yet.
fn marked<R>(mut response: Response<R>, recorded: Recorded, expiry: Option<u32>) -> Response<R> {
    let headers = response.headers_mut();
    if let Some(seconds) = expiry {
        let date = fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.into()));
        headers.insert(IDEMPOTENCY_KEY_EXPIRES, HeaderValue::try_from(date).expect("a date is a header"));
    }
    if recorded == Recorded::Pending {
        headers.insert(HAPAX_RECORDED, HeaderValue::from_static("pending"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_problem() {
        let problems = Reason::ALL.map(|reason| (reason.as_str(), problem_of(reason).name()));
        let expected = [
            ("busy", "in-progress"),
            ("mismatch", "key-reused"),
            ("indeterminate", "outcome-unknown"),
            ("dead", "outcome-unknown"),
            ("overloaded", "overloaded"),
            ("not_applied", "outcome-unknown"),
            ("unknown", "outcome-unknown"),
            ("unrecorded", "outcome-unrecorded"),
            ("store_error", "store-unavailable"),
        ];
        assert_eq!(problems, expected);
        assert_eq!(problem_of(Reason::Store(ErrorKind::Damaged)).name(), "record-damaged");
    }
}
