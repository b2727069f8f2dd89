//! From the response of the inner service to the response that the caller gets.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hapax_core::gate::{Attempt, Detail, Failure, Provenance, Reason, Recorded, Refused, RunResult};
use hapax_core::{BoxError, Call, Error, ErrorKind, RecordKey};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, response};
use http_body::Body;
use httpdate::fmt_http_date;
use tower_service::Service;

use crate::body::{BodyRead, RequestBody, ResponseBody, read_body};
use crate::headers::{HAPAX_RECORDED, HAPAX_UNRECORDED, IDEMPOTENCY_KEY_EXPIRES, IDEMPOTENT_REPLAYED, is_reserved};
use crate::layer::LayerConfig;
use crate::outcome::Outcome;
use crate::problem::{Problem, ShowProblem};
use crate::stored::StoredResponse;

/// The outcome of a protected request, in the extensions of its response: for access logs around the layer.
///
/// ```
/// use hapax::http::RequestSummary;
/// use http::Response;
///
/// /// A line of an access log. The record key is logged as its first 8 digits.
/// fn log_line<B>(response: &Response<B>) -> Option<String> {
///     let summary = response.extensions().get::<RequestSummary>()?;
///     Some(format!("{} {} {:?}", response.status().as_u16(), summary.outcome.as_str(), summary.record_key?))
/// }
/// # log_line(&Response::new(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSummary {
    /// The key of the request's record. `None` if the request was refused before its key was known.
    pub record_key: Option<RecordKey>,
    /// What the caller got.
    pub outcome: ProtectedOutcome,
}

/// What the caller of a protected request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtectedOutcome {
    /// The answer to the request, of its own run or a recorded one.
    Answered(Provenance),
    /// The response of a run without effect, which was passed on.
    NotApplied,
    /// The response of a run whose effect is unknown, which was passed on.
    Unknown,
    /// A problem instead of a response of the inner service.
    Problem(Problem),
}

impl ProtectedOutcome {
    /// The name for logs: `fresh`, `replayed`, `canonical`, `not-applied`, `unknown`, or the name of the problem.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(provenance) => provenance.as_str(),
            Self::NotApplied => "not-applied",
            Self::Unknown => "unknown",
            Self::Problem(problem) => problem.name(),
        }
    }
}

impl RequestSummary {
    fn attach<R>(
        mut response: Response<R>,
        record_key: impl Into<Option<RecordKey>>,
        outcome: ProtectedOutcome,
    ) -> Response<R> {
        response.extensions_mut().insert(Self { record_key: record_key.into(), outcome });
        response
    }
}

/// The response of the inner service, for the caller whose request ran it.
pub(crate) enum LiveResponse<R, E> {
    /// The caller gets it if this very response was recorded.
    ToRecord(Response<ResponseBody<R>>),
    /// The caller gets it as it is. It is not recorded.
    ToPassOn(Result<Response<ResponseBody<R>>, E>),
}

/// The outcome of the inner service for the gate, and its response for the caller.
pub(crate) type HandlerReturn<R, E> = (Result<StoredResponse, Failure<StoredResponse>>, LiveResponse<R, E>);

/// The gate's handler: calls the inner service and judges its response.
pub(crate) async fn run_handler<S, B, R>(
    config: Arc<LayerConfig>,
    mut inner: S,
    mut request: Request<RequestBody<B>>,
    attempt: Attempt,
) -> HandlerReturn<R, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let rk = attempt.record_key();
    // Handlers find their attempt here, and an inner idempotency layer sees that the request is protected (H39).
    request.extensions_mut().insert(attempt);
    let (mut head, body) = match inner.call(request).await {
        Ok(response) => response.into_parts(),
        Err(error) => return (Err(unknown("the inner service failed")), LiveResponse::ToPassOn(Err(error))),
    };
    remove_reserved(&mut head.headers);
    // The errors below only carry the outcome to the gate: the caller gets the live response instead of their text.
    let failure = match Outcome::declared_by(&head).unwrap_or_else(|| config.outcome.outcome(&head)) {
        Outcome::Applied => return capture(&config, rk, head, body).await,
        Outcome::Final => {
            return match capture(&config, rk, head, body).await {
                (Ok(stored), live) => (Err(Failure::finally(stored)), live),
                failed @ (Err(_), _) => failed,
            };
        }
        Outcome::NotApplied => Failure::not_applied(Error::new(ErrorKind::NotApplied, "see the response")),
        Outcome::Denied => Failure::denied(Error::new(ErrorKind::NotApplied, "see the response")),
        Outcome::Unknown => unknown("see the response"),
    };
    (Err(failure), LiveResponse::ToPassOn(Ok(Response::from_parts(head, ResponseBody::streaming(body)))))
}

/// Reads the body of a response to be recorded, up to the limit for stored bodies.
async fn capture<R, E>(config: &LayerConfig, rk: RecordKey, mut head: response::Parts, body: R) -> HandlerReturn<R, E>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let read = if is_event_stream(&head) {
        BodyRead::TooLong(ResponseBody::streaming(body))
    } else {
        read_body(body, config.max_stored_body).await
    };
    let (stored, body) = match read {
        BodyRead::Complete(body) => {
            if !body.is_empty() {
                // The server around the layer writes the length of this body. The service may have claimed another.
                head.headers.remove(CONTENT_LENGTH);
            }
            let stored = StoredResponse::replayable(&head, body.clone(), &config.store_headers);
            (stored, ResponseBody::whole(body))
        }
        // The gate records this before the first byte of the body is sent, so no copy runs meanwhile (H19).
        BodyRead::TooLong(body) => (StoredResponse::NotReplayable, body),
        BodyRead::Failed(error) => {
            let error = error.into();
            let operation = rk.operation();
            tracing::warn!(?rk, %operation, %error, "the response of the service broke off; outcome unknown");
            let problem = if is_timeout(&*error) { Problem::UpstreamTimeout } else { Problem::UpstreamCut };
            let shown = config.problem.show(&problem, Some(&rk)).map(ResponseBody::whole);
            return (Err(unknown("the response of the service broke off")), LiveResponse::ToPassOn(Ok(shown)));
        }
    };
    (Ok(stored), LiveResponse::ToRecord(Response::from_parts(head, body)))
}

/// Removes the fields that only the layer may set: an inner service could claim a replay or a record that does not
/// exist.
fn remove_reserved(headers: &mut HeaderMap) {
    let reserved = headers.keys().filter(|name| is_reserved(name)).cloned().collect::<Vec<_>>();
    for name in reserved {
        headers.remove(name);
    }
}

fn unknown<A>(message: &'static str) -> Failure<A> {
    Failure::unknown(Error::new(ErrorKind::Unknown, message))
}

/// Whether the response is a stream of events. It may never end, so its body is passed on without being read first.
fn is_event_stream(head: &response::Parts) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let media_type = content_type.and_then(|value| value.get(..EVENT_STREAM.len()));
    media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case(EVENT_STREAM))
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// The response for one caller: the live one if this request ran and its answer was recorded, else the recorded one or
/// a problem.
pub(crate) fn respond<R, E>(
    problems: &dyn ShowProblem,
    call: &Call,
    result: Result<RunResult<StoredResponse>, Refused<StoredResponse>>,
    live: Option<LiveResponse<R, E>>,
) -> Result<Response<ResponseBody<R>>, E> {
    let rk = call.record_key();
    let is_unrecorded = is_unrecorded(&result);
    let mut response = match (result, live) {
        (Ok(run @ RunResult { provenance: Provenance::Fresh, .. }), Some(LiveResponse::ToRecord(response))) => {
            let response = describe_record(response, run.recorded, run.expiry);
            RequestSummary::attach(response, rk, ProtectedOutcome::Answered(run.provenance))
        }
        (Err(Refused { reason: Reason::NotApplied { .. }, .. }), Some(LiveResponse::ToPassOn(response))) => {
            RequestSummary::attach(response?, rk, ProtectedOutcome::NotApplied)
        }
        (Err(Refused { reason: Reason::Unknown { .. }, .. }), Some(LiveResponse::ToPassOn(response))) => {
            RequestSummary::attach(response?, rk, ProtectedOutcome::Unknown)
        }
        // A replay, or another attempt recorded its answer first: then the live response is discarded.
        (Ok(run), _) => match replay(run.answer) {
            Some(response) => {
                let response = describe_record(response, run.recorded, run.expiry);
                RequestSummary::attach(response, rk, ProtectedOutcome::Answered(run.provenance))
            }
            None => problem_response(problems, Problem::NotReplayable, Some(rk)),
        },
        (Err(refused), _) => {
            if let Reason::Store(_) = refused.reason {
                log_store_error(rk, refused.detail.as_ref());
            }
            problem_response(problems, problem_of(refused.reason), Some(rk))
        }
    };
    if is_unrecorded {
        response.headers_mut().insert(HAPAX_UNRECORDED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn log_store_error<A>(rk: RecordKey, detail: Option<&Detail<A>>) {
    let error = match detail {
        Some(Detail::Error(error)) => Some(tracing::field::debug(error)),
        Some(Detail::Answer(_)) | None => None,
    };
    tracing::error!(?rk, operation = %rk.operation(), error, "the store cannot be used");
}

/// Whether the handler ran without a record.
fn is_unrecorded<A>(result: &Result<RunResult<A>, Refused<A>>) -> bool {
    match result {
        Ok(run) => run.recorded == Recorded::No,
        Err(refused) => refused.reason.is_unrecorded(),
    }
}

/// The response that shows a problem to the caller.
pub(crate) fn problem_response<R>(
    problems: &dyn ShowProblem,
    problem: Problem,
    rk: Option<RecordKey>,
) -> Response<ResponseBody<R>> {
    let response = problems.show(&problem, rk.as_ref()).map(ResponseBody::whole);
    RequestSummary::attach(response, rk, ProtectedOutcome::Problem(problem))
}

/// The recorded response, marked as a replay. `None` if the answer was not stored.
fn replay<R>(stored: StoredResponse) -> Option<Response<ResponseBody<R>>> {
    let StoredResponse::Replayable { status, headers, body } = stored else {
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
        // Only for followers: the leader's caller already got the live response. A follower of a leader that was not
        // applied begins for itself.
        Reason::NotApplied { .. } | Reason::Unknown { .. } => Problem::OutcomeUnknown,
        Reason::Unrecorded => Problem::OutcomeUnrecorded,
        Reason::Overloaded => Problem::Overloaded,
        Reason::Store(ErrorKind::Damaged) => Problem::RecordDamaged,
        Reason::Store(_) => Problem::StoreUnavailable,
    }
}

/// Adds the expiry of the answer, and a mark if the store has not confirmed its record yet.
fn describe_record<R>(mut response: Response<R>, recorded: Recorded, expiry: Option<u32>) -> Response<R> {
    let headers = response.headers_mut();
    if let Some(seconds) = expiry {
        let date = fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.into()));
        headers.insert(IDEMPOTENCY_KEY_EXPIRES, HeaderValue::try_from(date).expect("a date is a valid field value"));
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
            ("still_unknown", "outcome-unknown"),
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
