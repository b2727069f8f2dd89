mod spec;
mod template;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::RecordKey;
use http::header::{CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

pub(crate) use spec::PROBLEMS;
use spec::ProblemSpec;
pub use template::ProblemTemplate;

/// The default path of the policy page, which explains the contract of a server and its problems.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use hapax::http::{IdempotencyLayer, PAGE};
/// use http::HeaderMap;
///
/// fn add_page(router: Router, layer: &IdempotencyLayer) -> Router {
///     let page = layer.page();
///     router.route(PAGE, get(|headers: HeaderMap| async move { page.response(&headers).map(axum::body::Body::from) }))
/// }
/// ```
pub const PAGE: &str = "/.well-known/idempotency";

/// Every refusal of the contract. It replaces the response of the inner service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// 400: a protected request has no key. The text names the place of the key; see
    /// [`FindKey::place`](crate::FindKey::place).
    KeyMissing(String),
    /// 400: the key cannot be read. The text is the reason.
    KeyMalformed(String),
    /// 400: the caller cannot be identified. The text is the remedy.
    CallerUnknown(String),
    /// 422: the key was used before with another payload.
    KeyReused,
    /// 409: an earlier copy still runs.
    InProgress {
        /// The remaining lease of that copy.
        retry_after: Duration,
    },
    /// 409: an earlier copy may or may not have had its effect.
    OutcomeUnknown,
    /// 409: an earlier copy was answered, and the answer was not stored.
    NotReplayable,
    /// 502: the connection to the service behind broke during the request or the response.
    UpstreamCut,
    /// 502: the service behind did not receive the request.
    UpstreamUnreachable,
    /// 504: the service behind did not answer in time.
    UpstreamTimeout,
    /// 503: the store cannot be used.
    StoreUnavailable,
    /// 503: too many requests run, in total or for this tenant.
    Overloaded,
    /// 500: the record of the request cannot be read.
    RecordDamaged,
    /// 500: the effect happened, and its answer could not be recorded.
    OutcomeUnrecorded,
    /// 413: the body of a protected request is too long.
    BodyTooLarge {
        /// The longest body that is accepted, in bytes.
        limit: usize,
    },
    /// 400: the request body did not arrive completely.
    BodyCut,
    /// 408: the request body did not arrive completely in time.
    BodyTimeout,
    /// The request is a call of gRPC, which cannot be protected. Over HTTP/2 the layer shows this as the status
    /// `UNIMPLEMENTED` of gRPC, in a response 200 as gRPC has it; over HTTP/1.1 it is 501.
    GrpcCall,
}

impl Problem {
    fn spec(&self) -> &'static ProblemSpec {
        match self {
            Self::KeyMissing(_) => &spec::KEY_MISSING,
            Self::KeyMalformed(_) => &spec::KEY_MALFORMED,
            Self::CallerUnknown(_) => &spec::CALLER_UNKNOWN,
            Self::KeyReused => &spec::KEY_REUSED,
            Self::InProgress { .. } => &spec::IN_PROGRESS,
            Self::OutcomeUnknown => &spec::OUTCOME_UNKNOWN,
            Self::NotReplayable => &spec::NOT_REPLAYABLE,
            Self::UpstreamCut => &spec::UPSTREAM_CUT,
            Self::UpstreamUnreachable => &spec::UPSTREAM_UNREACHABLE,
            Self::UpstreamTimeout => &spec::UPSTREAM_TIMEOUT,
            Self::StoreUnavailable => &spec::STORE_UNAVAILABLE,
            Self::Overloaded => &spec::OVERLOADED,
            Self::RecordDamaged => &spec::RECORD_DAMAGED,
            Self::OutcomeUnrecorded => &spec::OUTCOME_UNRECORDED,
            Self::BodyTooLarge { .. } => &spec::BODY_TOO_LARGE,
            Self::BodyCut => &spec::BODY_CUT,
            Self::BodyTimeout => &spec::BODY_TIMEOUT,
            Self::GrpcCall => &spec::GRPC_CALL,
        }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.spec().status
    }

    /// The names of all problems.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROBLEMS.iter().map(|spec| spec.name)
    }

    /// The name, which is the fragment of the member `type`.
    pub fn name(&self) -> &'static str {
        self.spec().name
    }

    /// What happened, in one or two sentences for a reader of the client's log.
    pub fn detail(&self) -> Cow<'static, str> {
        let detail = self.spec().detail;
        if let Self::KeyMissing(value) | Self::KeyMalformed(value) | Self::CallerUnknown(value) = self {
            return detail.replace("{}", value).into();
        }
        if let Self::BodyTooLarge { limit } = self {
            return detail.replace("{}", &limit.to_string()).into();
        }
        detail.into()
    }

    /// The `Retry-After` of the response, in seconds. `None` if waiting does not help or the time is not known.
    pub fn retry_after(&self, rk: Option<&RecordKey>) -> Option<u64> {
        let Self::InProgress { retry_after } = self else {
            return self.spec().retry_after;
        };
        let remaining = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        // One second for half of the keys and two for the others, so that retries do not arrive all at once.
        let spread = rk.map_or(1, |rk| 1 + u64::from(rk.as_bytes()[0] & 1));
        Some(remaining.clamp(1, spread))
    }
}

/// Makes the response of a refused request.
///
/// ```
/// use bytes::Bytes;
/// use hapax::RecordKey;
/// use hapax::http::{Problem, ShowProblem};
/// use http::Response;
///
/// /// Uses the format of the service's other errors.
/// fn show(problem: &Problem, _rk: Option<&RecordKey>) -> Response<Bytes> {
///     let mut response = Response::new(Bytes::from(format!("error: {}\n", problem.name())));
///     *response.status_mut() = problem.status();
///     response
/// }
/// # fn is_one(_: impl ShowProblem) {}
/// # is_one(show);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not show problems",
    label = "does not implement `ShowProblem`",
    note = "pass a `ProblemDetails`, a `ProblemTemplate`, or a closure `|problem: &Problem, rk| -> Response<Bytes>`"
)]
pub trait ShowProblem: Send + Sync + 'static {
    /// The response. `rk` is the key of the request's record, if the request has one.
    fn show(&self, problem: &Problem, rk: Option<&RecordKey>) -> Response<Bytes>;
}

impl<F> ShowProblem for F
where
    F: Fn(&Problem, Option<&RecordKey>) -> Response<Bytes> + Send + Sync + 'static,
{
    fn show(&self, problem: &Problem, rk: Option<&RecordKey>) -> Response<Bytes> {
        self(problem, rk)
    }
}

/// Problem details (RFC 9457): `type`, `title`, `status`, `detail`, `retry` (whether to send the request again), the
/// record as `instance`, and the operation id as `operation`.
///
/// The extensions of the response contain the [`Problem`], for logs and metrics around the layer.
///
/// ```
/// use hapax::http::{Problem, ProblemDetails, ShowProblem};
///
/// let problems = ProblemDetails::explained_at("https://docs.example/idempotency")?;
/// let response = problems.show(&Problem::KeyReused, None);
/// assert_eq!(response.status(), 422);
/// assert_eq!(response.headers()["link"], "<https://docs.example/idempotency>; rel=\"describedby\"");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemDetails {
    page: String,
    link: HeaderValue,
}

impl ProblemDetails {
    /// Links every problem to this page, a path or a URL. The member `type` is a fragment of the page.
    ///
    /// # Errors
    /// Fails if the page has a character that is not allowed in a header.
    pub fn explained_at(page: impl Into<String>) -> Result<Self, http::Error> {
        let page = page.into();
        let link = HeaderValue::try_from(described_by(&page))?;
        Ok(Self { page, link })
    }

    /// The response with this detail instead of that of the problem.
    pub fn show_with_detail(&self, problem: &Problem, detail: &str, rk: Option<&RecordKey>) -> Response<Bytes> {
        let spec = problem.spec();
        let mut document = json!({
            "type": format!("{}#{}", self.page, spec.name),
            "title": spec.title,
            "status": spec.status.as_u16(),
            "detail": detail,
            "retry": spec.retry,
        });
        if let Some(rk) = rk {
            document["instance"] = format!("urn:hapax:record:{rk}").into();
            document["operation"] = rk.operation().to_string().into();
        }
        self.response(problem, rk, ("application/problem+json", document))
    }

    /// The response with this document of this media type.
    fn response(
        &self,
        problem: &Problem,
        rk: Option<&RecordKey>,
        (media_type, document): (&'static str, Value),
    ) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(document.to_string()));
        *response.status_mut() = problem.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(LINK, self.link.clone());
        if let Some(seconds) = problem.retry_after(rk) {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(problem.clone());
        response
    }
}

impl Default for ProblemDetails {
    fn default() -> Self {
        Self::explained_at(PAGE).expect("a path is a valid field value")
    }
}

pub(crate) fn described_by(page: &str) -> String {
    format!("<{page}>; rel=\"describedby\"")
}

impl ShowProblem for ProblemDetails {
    fn show(&self, problem: &Problem, rk: Option<&RecordKey>) -> Response<Bytes> {
        self.show_with_detail(problem, &problem.detail(), rk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_an_entry_in_the_table() {
        let problems = [
            Problem::KeyMissing("an Idempotency-Key field".into()),
            Problem::KeyMalformed("why".into()),
            Problem::CallerUnknown("remedy".into()),
            Problem::KeyReused,
            Problem::InProgress { retry_after: Duration::ZERO },
            Problem::OutcomeUnknown,
            Problem::NotReplayable,
            Problem::UpstreamCut,
            Problem::UpstreamUnreachable,
            Problem::UpstreamTimeout,
            Problem::StoreUnavailable,
            Problem::Overloaded,
            Problem::RecordDamaged,
            Problem::OutcomeUnrecorded,
            Problem::BodyTooLarge { limit: 1 },
            Problem::BodyCut,
            Problem::BodyTimeout,
            Problem::GrpcCall,
        ];
        assert!(problems.iter().map(Problem::name).eq(Problem::names()));
        for problem in &problems {
            let response = ProblemDetails::default().show(problem, None);
            assert_eq!(response.status(), problem.status());
            let is_advised = problem.spec().retry == spec::SAME_KEY;
            assert!(is_advised || !response.headers().contains_key(RETRY_AFTER), "{}", problem.name());
            assert!(!problem.detail().is_empty() && !problem.detail().contains("{}"), "{}", problem.name());
        }
    }

    #[test]
    fn retry_after_is_the_rest_of_the_lease_up_to_two_seconds() {
        let wait = |left, first_byte| {
            let rk = RecordKey::from_bytes([first_byte; 16]);
            Problem::InProgress { retry_after: Duration::from_millis(left) }.retry_after(Some(&rk)).unwrap()
        };
        assert_eq!((wait(0, 1), wait(400, 1), wait(1001, 1), wait(30_000, 1)), (1, 1, 2, 2));
        assert_eq!((wait(0, 0), wait(30_000, 0)), (1, 1));
    }
}
