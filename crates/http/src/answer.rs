//! What a caller is given, once it is known what became of its call.

use std::time::{Duration, UNIX_EPOCH};

use hapax_core::gate::{Provenance, Recorded, Refused, RunResult};
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
        (Err(Refused::NotApplied { .. }), Some(Answered::ToPassOn(response))) => {
            Handled::mark(response?, Some(rk), "not-applied")
        }
        (Err(Refused::Unknown { .. }), Some(Answered::ToPassOn(response))) => {
            Handled::mark(response?, Some(rk), "unknown")
        }
        (Ok(ran), _) => match replayed(ran.answer) {
            Some(response) => Handled::mark(marked(response, ran.recorded, ran.expiry), Some(rk), "replayed"),
            None => shown(problems, &Problem::NotReplayable, Some(rk)),
        },
        (Err(refused), _) => shown(problems, &problem_of(&rk, refused), Some(rk)),
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
        Err(Refused::NotApplied { unrecorded, .. } | Refused::Unknown { unrecorded, .. }) => *unrecorded,
        Err(Refused::Busy { .. } | Refused::Mismatch | Refused::Indeterminate { .. } | Refused::Dead) => false,
        Err(Refused::Overloaded | Refused::Unrecorded(_) | Refused::Store(_)) => false,
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

fn problem_of(rk: &RecordKey, refused: Refused<Stored>) -> Problem {
    match refused {
        Refused::Busy { retry_after } => Problem::InProgress { retry_after },
        Refused::Mismatch => Problem::KeyReused,
        Refused::Indeterminate { .. } | Refused::Dead => Problem::OutcomeUnknown,
        // Of a copy whose twin ran: of this very request the service's own response was passed on. What was not applied never
        // comes here, since each copy begins for itself then; should it, nothing is promised.
        Refused::NotApplied { .. } | Refused::Unknown { .. } => Problem::OutcomeUnknown,
        Refused::Unrecorded(_) => Problem::OutcomeUnrecorded,
        Refused::Overloaded => Problem::Overloaded,
        Refused::Store(error) => {
            tracing::error!(?rk, ?error, "the store cannot be used");
            if error.kind() == ErrorKind::Damaged { Problem::RecordDamaged } else { Problem::StoreUnavailable }
        }
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
