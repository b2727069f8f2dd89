use std::time::Duration;

use bytes::Bytes;
use hapax_core::RecordKey;
use http::header::{CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

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
}

/// The constant part of a problem, as published on the policy page.
pub(crate) struct ProblemType {
    pub(crate) status: u16,
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Whether to send the request again: with the same key, with a new key, or never.
    pub(crate) retry: &'static str,
}

const SAME_KEY: &str = "same-key";
const NEW_KEY: &str = "new-key";
const NEVER: &str = "never";

const fn problem_type(status: u16, name: &'static str, title: &'static str, retry: &'static str) -> ProblemType {
    ProblemType { status, name, title, retry }
}

/// The table of the contract, in the order of [`Problem::index`].
#[rustfmt::skip]
pub(crate) const PROBLEM_TYPES: [ProblemType; 17] = [
    problem_type(400, "key-missing", "Idempotency-Key is missing", NEW_KEY),
    problem_type(400, "key-malformed", "Idempotency-Key is malformed", NEW_KEY),
    problem_type(400, "caller-unknown", "The caller cannot be identified", SAME_KEY),
    problem_type(422, "key-reused", "Idempotency-Key is already used", NEW_KEY),
    problem_type(409, "in-progress", "A request is outstanding for this Idempotency-Key", SAME_KEY),
    problem_type(409, "outcome-unknown", "The outcome of this request is unknown", SAME_KEY),
    problem_type(409, "not-replayable", "The answer was not stored", NEVER),
    problem_type(502, "upstream-cut", "The connection to the service broke", SAME_KEY),
    problem_type(502, "upstream-unreachable", "The service cannot be reached", SAME_KEY),
    problem_type(504, "upstream-timeout", "The service did not answer in time", SAME_KEY),
    problem_type(503, "store-unavailable", "The record store cannot be used", SAME_KEY),
    problem_type(503, "overloaded", "Too many requests are running", SAME_KEY),
    problem_type(500, "record-damaged", "The record of this request cannot be read", SAME_KEY),
    problem_type(500, "outcome-unrecorded", "The outcome could not be recorded", SAME_KEY),
    problem_type(413, "body-too-large", "The request body is too large", NEVER),
    problem_type(400, "body-cut", "The request body is incomplete", SAME_KEY),
    problem_type(408, "body-timeout", "The request body arrived too slowly", SAME_KEY),
];

/// The `Retry-After` of an unknown outcome, in seconds. An operator or a probe needs some time, and a client that obeys
/// must not send its request in a loop.
const UNKNOWN_RETRY_AFTER: u64 = 30;

impl Problem {
    fn problem_type(&self) -> &'static ProblemType {
        &PROBLEM_TYPES[self.index()]
    }

    /// The index of this problem in the table.
    fn index(&self) -> usize {
        match self {
            Self::KeyMissing(_) => 0,
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

    /// The status of the response.
    ///
    /// # Panics
    /// Never: the table holds valid statuses.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.problem_type().status).expect("the table holds valid statuses")
    }

    /// The names of all problems.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROBLEM_TYPES.iter().map(|problem_type| problem_type.name)
    }

    /// The name, which is the fragment of the member `type`.
    pub fn name(&self) -> &'static str {
        self.problem_type().name
    }

    /// What happened, in one or two sentences for a reader of the client's log.
    pub fn detail(&self) -> String {
        let detail = match self {
            Self::KeyMissing(place) => {
                return format!(
                    "This operation requires an idempotency key. Send a new random one, for instance a UUID, in \
                     {place}."
                );
            }
            Self::KeyMalformed(why) => return format!("The idempotency key cannot be read: {why}."),
            Self::CallerUnknown(remedy) => return format!("The request was not run: {remedy}."),
            Self::BodyTooLarge { limit } => {
                return format!("The body may have at most {limit} bytes. The request was not run.");
            }
            Self::KeyReused => {
                "The key was used before for a request with another method, host, path, query, content type or body. \
                 This request was not run."
            }
            Self::InProgress { .. } => {
                "An earlier copy of this request is still running. Send this request again to get its answer."
            }
            Self::OutcomeUnknown => {
                "An earlier copy of this request may or may not have had its effect. The request is not run again \
                 until the outcome is known."
            }
            Self::NotReplayable => {
                "An earlier copy of this request was answered, and that answer was not stored. The request is not run \
                 again."
            }
            Self::UpstreamCut => {
                "The connection to the service behind this server broke. Whether the request had its effect is unknown."
            }
            Self::UpstreamUnreachable => {
                "The service behind this server cannot be reached. It did not receive the request."
            }
            Self::UpstreamTimeout => {
                "The service behind this server did not answer in time. Whether the request had its effect is unknown."
            }
            Self::StoreUnavailable => "The record store cannot be used. The request was not run.",
            Self::Overloaded => "Too many requests are running, in total or for this caller. The request was not run.",
            Self::RecordDamaged => {
                "The record of this request cannot be read. The request is not run until an operator has repaired the \
                 record."
            }
            Self::OutcomeUnrecorded => "The request was run, but its answer could not be recorded.",
            Self::BodyCut => "The body did not arrive completely. Nothing was recorded.",
            Self::BodyTimeout => "The body did not arrive completely in time. Nothing was recorded.",
        };
        detail.into()
    }

    /// The `Retry-After` of the response, in seconds. `None` if waiting does not help or the time is not known.
    pub fn retry_after(&self, rk: Option<&RecordKey>) -> Option<u64> {
        match self {
            Self::InProgress { retry_after } => {
                let remaining = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
                // One second for half of the keys and two for the others, so that retries do not arrive all at once.
                let spread = rk.map_or(1, |rk| 1 + u64::from(rk.as_bytes()[0] & 1));
                Some(remaining.clamp(1, spread))
            }
            Self::StoreUnavailable | Self::Overloaded | Self::UpstreamUnreachable => Some(1),
            Self::OutcomeUnknown => Some(UNKNOWN_RETRY_AFTER),
            Self::KeyMissing(_)
            | Self::KeyMalformed(_)
            | Self::CallerUnknown(_)
            | Self::KeyReused
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
        let problem_type = problem.problem_type();
        let mut document = json!({
            "type": format!("{}#{}", self.page, problem_type.name),
            "title": problem_type.title,
            "status": problem_type.status,
            "detail": problem.detail(),
            "retry": problem_type.retry,
        });
        if let Some(rk) = rk {
            document["instance"] = format!("urn:hapax:record:{rk}").into();
            document["operation"] = rk.operation().to_string().into();
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
        response.extensions_mut().insert(problem.clone());
        response
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
        ];
        assert_eq!(problems.len(), PROBLEM_TYPES.len());
        for (index, problem) in problems.iter().enumerate() {
            assert_eq!(problem.index(), index);
            let response = ProblemDetails::default().show(problem, None);
            assert_eq!(
                (response.status(), problem.problem_type().status),
                (problem.status(), problem.status().as_u16())
            );
            assert!(
                !response.headers().contains_key(RETRY_AFTER) || problem.problem_type().retry == SAME_KEY,
                "{}",
                problem.name()
            );
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
