use std::time::Duration;

use bytes::Bytes;
use hapax_core::RecordKey;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

/// Where the types of problems are explained.
const TYPES: &str = "/.well-known/idempotency#";

/// Every refusal of the contract, made without or instead of an answer of the service behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// 400: a protected request without a key.
    KeyMissing,
    /// 400: a key that cannot be read, and why.
    KeyMalformed(&'static str),
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
    /// 409: the effect happened and the answer was not kept.
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
}

/// What a client should do next.
#[derive(Clone, Copy)]
enum Retry {
    SameKey,
    NewKey,
    Never,
}

impl Retry {
    fn as_str(self) -> &'static str {
        match self {
            Self::SameKey => "same-key",
            Self::NewKey => "new-key",
            Self::Never => "never",
        }
    }
}

impl Problem {
    /// Status, type, title and advice: the table of the contract.
    fn row(&self) -> (StatusCode, &'static str, &'static str, Retry) {
        use Retry::{Never, NewKey, SameKey};
        match self {
            Self::KeyMissing => (StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing", NewKey),
            Self::KeyMalformed(_) => (StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed", NewKey),
            Self::CallerUnknown(_) => (StatusCode::BAD_REQUEST, "caller-unknown", "The caller cannot be told", SameKey),
            Self::KeyReused => {
                (StatusCode::UNPROCESSABLE_ENTITY, "key-reused", "Idempotency-Key is already used", NewKey)
            }
            Self::InProgress { .. } => {
                (StatusCode::CONFLICT, "in-progress", "A request is outstanding for this Idempotency-Key", SameKey)
            }
            Self::OutcomeUnknown => {
                (StatusCode::CONFLICT, "outcome-unknown", "The outcome of this request is unknown", SameKey)
            }
            Self::NotReplayable => {
                (StatusCode::CONFLICT, "not-replayable", "The answer was too large to be kept", Never)
            }
            Self::UpstreamCut => (StatusCode::BAD_GATEWAY, "upstream-cut", "The answer was cut off", SameKey),
            Self::UpstreamUnreachable => {
                (StatusCode::BAD_GATEWAY, "upstream-unreachable", "The service cannot be reached", SameKey)
            }
            Self::UpstreamTimeout => {
                (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", "The service did not answer in time", SameKey)
            }
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "Requests cannot be protected at the moment",
                SameKey,
            ),
            Self::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many requests are running", SameKey)
            }
            Self::RecordDamaged => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "record-damaged",
                "The record of this request cannot be read",
                SameKey,
            ),
            Self::OutcomeUnrecorded => {
                (StatusCode::INTERNAL_SERVER_ERROR, "outcome-unrecorded", "The outcome could not be recorded", SameKey)
            }
            Self::BodyTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large", Never)
            }
            Self::BodyCut => (StatusCode::BAD_REQUEST, "body-cut", "The body was cut off", SameKey),
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::KeyMissing => "This operation needs an Idempotency-Key field; send a new random one, a UUID for instance.".into(),
            Self::KeyMalformed(why) => format!("The Idempotency-Key cannot be read: {why}."),
            Self::CallerUnknown(remedy) => format!("Nothing was done: {remedy}."),
            Self::KeyReused => "The key was used for a request with another method, path, query, content type or body. Nothing was done.".into(),
            Self::InProgress { .. } => "An earlier copy of this request is still running; ask again for its answer.".into(),
            Self::OutcomeUnknown => {
                "An earlier copy of this request may or may not have had its effect. It is not run again until that is known.".into()
            }
            Self::NotReplayable => "The request had its effect, but its answer was not kept. It is not run again.".into(),
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
        }
    }

    fn retry_after(&self, rk: Option<&RecordKey>) -> Option<u64> {
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
            | Self::OutcomeUnknown => None,
            Self::NotReplayable
            | Self::UpstreamCut
            | Self::UpstreamTimeout
            | Self::OutcomeUnrecorded
            | Self::RecordDamaged
            | Self::BodyTooLarge { .. }
            | Self::BodyCut => None,
        }
    }

    /// The response, as problem details (RFC 9457), with the record as `instance` where there is one.
    pub fn response(&self, rk: Option<&RecordKey>) -> Response<Bytes> {
        let (status, name, title, retry) = self.row();
        let mut document = json!({
            "type": format!("{TYPES}{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail(),
            "retry": retry.as_str(),
        });
        if let Some(rk) = rk {
            document["instance"] = format!("urn:hapax:record:{rk}").into();
        }
        let mut response = Response::new(Bytes::from(document.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after(rk) {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
