use std::time::Duration;

use bytes::Bytes;
use hapax_core::RecordKey;
use http::header::{CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

/// Where the contract of a server is published by default, and its problems are explained.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use hapax_http::{IdempotencyLayer, PAGE};
/// use http::HeaderMap;
///
/// fn with_page(router: Router, layer: &IdempotencyLayer) -> Router {
///     let page = layer.page();
///     router.route(PAGE, get(|headers: HeaderMap| async move { page.response(&headers).map(axum::body::Body::from) }))
/// }
/// ```
pub const PAGE: &str = "/.well-known/idempotency";

/// Every refusal of the contract, made without or instead of an answer of the service behind.
///
/// ```
/// use hapax_http::Problem;
///
/// let problem = Problem::BodyTooLarge { limit: 1 << 20 };
/// assert_eq!((problem.status().as_u16(), problem.name()), (413, "body-too-large"));
/// assert_eq!(problem.detail(), "At most 1048576 bytes are taken. Nothing was done.");
/// assert_eq!((problem.retry_after(None), Problem::Overloaded.retry_after(None)), (None, Some(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// 400: a protected request without a key.
    KeyMissing,
    /// 400: a key that cannot be read, and why.
    KeyMalformed(String),
    /// 400: nobody knows whose key it is; the text is the remedy.
    CallerUnknown(String),
    /// 422: the key came before with another payload.
    KeyReused,
    /// 409: an earlier copy still runs.
    InProgress {
        /// What is left of its lease.
        retry_after: Duration,
    },
    /// 409: an earlier copy may or may not have had its effect.
    OutcomeUnknown,
    /// 409: an earlier copy got the last word, an effect or a refusal, and it was not kept.
    NotReplayable,
    /// 502: the service behind was cut off in mid-answer, or in mid-request.
    UpstreamCut,
    /// 502: the service behind was never reached.
    UpstreamUnreachable,
    /// 504: the service behind did not answer in time.
    UpstreamTimeout,
    /// 503: the store cannot be asked.
    StoreUnavailable,
    /// 503: too many requests run, in all or of this tenant.
    Overloaded,
    /// 500: the record of the request cannot be read.
    RecordDamaged,
    /// 500: the effect happened and could not be recorded.
    OutcomeUnrecorded,
    /// 413: a protected request with more than this many bytes.
    BodyTooLarge {
        /// The most that is taken, in bytes.
        limit: usize,
    },
    /// 400: the request did not arrive whole.
    BodyCut,
    /// 408: the request did not arrive whole in time.
    BodyTimeout,
}

/// What never changes about a problem.
pub(crate) struct Row {
    pub(crate) status: u16,
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What the client should do next: send it again with the same key, with a new one, or never.
    pub(crate) retry: &'static str,
}

const SAME_KEY: &str = "same-key";
const NEW_KEY: &str = "new-key";
const NEVER: &str = "never";

/// The table of the contract, by the numbers that [`Problem::number`] gives.
#[rustfmt::skip]
pub(crate) const TABLE: [Row; 17] = [
    Row { status: 400, name: "key-missing", title: "Idempotency-Key is missing", retry: NEW_KEY },
    Row { status: 400, name: "key-malformed", title: "Idempotency-Key is malformed", retry: NEW_KEY },
    Row { status: 400, name: "caller-unknown", title: "The caller cannot be told", retry: SAME_KEY },
    Row { status: 422, name: "key-reused", title: "Idempotency-Key is already used", retry: NEW_KEY },
    Row { status: 409, name: "in-progress", title: "A request is outstanding for this Idempotency-Key", retry: SAME_KEY },
    Row { status: 409, name: "outcome-unknown", title: "The outcome of this request is unknown", retry: SAME_KEY },
    Row { status: 409, name: "not-replayable", title: "The answer was not kept", retry: NEVER },
    Row { status: 502, name: "upstream-cut", title: "The answer was cut off", retry: SAME_KEY },
    Row { status: 502, name: "upstream-unreachable", title: "The service cannot be reached", retry: SAME_KEY },
    Row { status: 504, name: "upstream-timeout", title: "The service did not answer in time", retry: SAME_KEY },
    Row { status: 503, name: "store-unavailable", title: "Requests cannot be protected at the moment", retry: SAME_KEY },
    Row { status: 503, name: "overloaded", title: "Too many requests are running", retry: SAME_KEY },
    Row { status: 500, name: "record-damaged", title: "The record of this request cannot be read", retry: SAME_KEY },
    Row { status: 500, name: "outcome-unrecorded", title: "The outcome could not be recorded", retry: SAME_KEY },
    Row { status: 413, name: "body-too-large", title: "The body is too large", retry: NEVER },
    Row { status: 400, name: "body-cut", title: "The body was cut off", retry: SAME_KEY },
    Row { status: 408, name: "body-timeout", title: "The body came too slowly", retry: SAME_KEY },
];

impl Problem {
    fn row(&self) -> &'static Row {
        &TABLE[self.number()]
    }

    /// Its place in the table.
    fn number(&self) -> usize {
        match self {
            Self::KeyMissing => 0,
            Self::KeyMalformed(_) => 1,
            Self::CallerUnknown(_) => 2,
            Self::KeyReused => 3,
            Self::InProgress { .. } => 4,
            Self::OutcomeUnknown => 5,
            Self::NotReplayable => 6,
            Self::UpstreamCut => 7,
            Self::UpstreamUnreachable => 8,
            Self::UpstreamTimeout => 9,
            Self::StoreUnavailable => 10,
            Self::Overloaded => 11,
            Self::RecordDamaged => 12,
            Self::OutcomeUnrecorded => 13,
            Self::BodyTooLarge { .. } => 14,
            Self::BodyCut => 15,
            Self::BodyTimeout => 16,
        }
    }

    /// Its status.
    ///
    /// # Panics
    /// Never: the table holds valid statuses.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.row().status).expect("the table holds valid statuses")
    }

    /// Its name: the fragment of its `type`.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// What happened, in one or two sentences for whoever reads the client's log.
    pub fn detail(&self) -> String {
        match self {
            Self::KeyMissing => "This operation needs an idempotency key, in an Idempotency-Key field unless the page says otherwise; send a new random one, a UUID for instance.".into(),
            Self::KeyMalformed(why) => format!("The idempotency key cannot be read: {why}."),
            Self::CallerUnknown(remedy) => format!("Nothing was done: {remedy}."),
            Self::KeyReused => "The key was used for a request with another method, path, query, content type or body. Nothing was done.".into(),
            Self::InProgress { .. } => "An earlier copy of this request is still running; ask again for its answer.".into(),
            Self::OutcomeUnknown => {
                "An earlier copy of this request may or may not have had its effect. It is not run again until that is known.".into()
            }
            Self::NotReplayable => "An earlier copy of this request got its answer, which was not kept. It is not run again.".into(),
            Self::UpstreamCut => "The connection to the service behind broke; whether the request had its effect is unknown.".into(),
            Self::UpstreamUnreachable => "The service behind cannot be reached. This request did not get there.".into(),
            Self::UpstreamTimeout => "The service behind did not answer; whether the request had its effect is unknown.".into(),
            Self::StoreUnavailable => "The record of requests cannot be reached. This request was not run.".into(),
            Self::Overloaded => "Too many requests are running, in all or of this caller. Nothing was done.".into(),
            Self::RecordDamaged => {
                "What is recorded of this request cannot be read. It is not run again until an operator has mended it.".into()
            }
            Self::OutcomeUnrecorded => "The request was run, but its answer could not be recorded.".into(),
            Self::BodyTooLarge { limit } => format!("At most {limit} bytes are taken. Nothing was done."),
            Self::BodyCut => "The body did not arrive whole. Nothing was done.".into(),
            Self::BodyTimeout => "The body did not arrive whole in time. Nothing was done.".into(),
        }
    }

    /// After how many seconds the client should ask again, where that is known.
    pub fn retry_after(&self, rk: Option<&RecordKey>) -> Option<u64> {
        match self {
            Self::InProgress { retry_after } => {
                let remaining = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
                // One second for half of the keys and two for the others, so that retries do not come all together.
                let spread = rk.map_or(1, |rk| 1 + u64::from(rk.as_bytes()[0] & 1));
                Some(remaining.clamp(1, spread))
            }
            Self::StoreUnavailable | Self::Overloaded | Self::UpstreamUnreachable => Some(1),
            Self::KeyMissing
            | Self::KeyMalformed(_)
            | Self::CallerUnknown(_)
            | Self::KeyReused
            | Self::OutcomeUnknown
            | Self::NotReplayable
            | Self::UpstreamCut
            | Self::UpstreamTimeout
            | Self::OutcomeUnrecorded
            | Self::RecordDamaged
            | Self::BodyTooLarge { .. }
            | Self::BodyCut
            | Self::BodyTimeout => None,
        }
    }
}

/// Makes a response of a problem.
///
/// ```
/// use bytes::Bytes;
/// use hapax_core::RecordKey;
/// use hapax_http::{Problem, ShowProblem};
/// use http::Response;
///
/// /// In the form of the service's other errors.
/// fn show(problem: &Problem, _rk: Option<&RecordKey>) -> Response<Bytes> {
///     let mut response = Response::new(Bytes::from(format!("error: {}\n", problem.name())));
///     *response.status_mut() = problem.status();
///     response
/// }
/// # fn is_one(_: impl ShowProblem) {}
/// # is_one(show);
/// ```
pub trait ShowProblem: Send + Sync + 'static {
    /// The response. `rk` is the record that it is about, where there is one.
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

/// Problem details (RFC 9457): `type`, `title`, `status`, `detail`, what to do next as `retry`, and the record as `instance`.
///
/// ```
/// use hapax_http::{Problem, ProblemDetails, ShowProblem};
///
/// let problems = ProblemDetails::explained_at("https://docs.example/idempotency")?;
/// let response = problems.show(&Problem::KeyMissing, None);
/// assert_eq!(response.status(), 400);
/// assert_eq!(response.headers()["link"], "<https://docs.example/idempotency>; rel=\"describedby\"");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemDetails {
    page: String,
    link: HeaderValue,
}

impl ProblemDetails {
    /// Types are fragments of this page, which every problem links to. A path or a URL.
    ///
    /// # Errors
    /// If the page has a character that no header may have.
    pub fn explained_at(page: impl Into<String>) -> Result<Self, http::Error> {
        let page = page.into();
        let link = HeaderValue::try_from(described_by(&page))?;
        Ok(Self { page, link })
    }
}

impl Default for ProblemDetails {
    fn default() -> Self {
        Self::explained_at(PAGE).expect("a path is a header")
    }
}

pub(crate) fn described_by(page: &str) -> String {
    format!("<{page}>; rel=\"describedby\"")
}

impl ShowProblem for ProblemDetails {
    fn show(&self, problem: &Problem, rk: Option<&RecordKey>) -> Response<Bytes> {
        let row = problem.row();
        let mut document = json!({
            "type": format!("{}#{}", self.page, row.name),
            "title": row.title,
            "status": row.status,
            "detail": problem.detail(),
            "retry": row.retry,
        });
        if let Some(rk) = rk {
            document["instance"] = format!("urn:hapax:record:{rk}").into();
        }
        let mut response = Response::new(Bytes::from(document.to_string()));
        *response.status_mut() = problem.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(LINK, self.link.clone());
        if let Some(seconds) = problem.retry_after(rk) {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_row_of_its_own() {
        let problems = [
            Problem::KeyMissing,
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
        ];
        assert_eq!(problems.len(), TABLE.len());
        for (place, problem) in problems.iter().enumerate() {
            assert_eq!(problem.number(), place);
            let shown = ProblemDetails::default().show(problem, None);
            assert_eq!((shown.status(), problem.row().status), (problem.status(), problem.status().as_u16()));
            assert!(
                !shown.headers().contains_key(RETRY_AFTER) || problem.row().retry == SAME_KEY,
                "{}",
                problem.name()
            );
        }
    }

    #[test]
    fn the_wait_is_what_is_left_of_the_lease_but_at_most_two_seconds() {
        let wait = |left, first_byte| {
            let rk = RecordKey::from_bytes([first_byte; 16]);
            Problem::InProgress { retry_after: Duration::from_millis(left) }.retry_after(Some(&rk)).unwrap()
        };
        assert_eq!((wait(0, 1), wait(400, 1), wait(1001, 1), wait(30_000, 1)), (1, 1, 2, 2));
        assert_eq!((wait(0, 0), wait(30_000, 0)), (1, 1));
    }
}
