//! Responses to requests that are refused before their key is read.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    detail: Cow<'static, str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The request is malformed.
    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn response(&self) -> Response<Bytes> {
        let document = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": format!("Nothing was done: {}.", self.detail),
        });
        problem_details(self.status, &document)
    }
}

/// The response to a path that has two readings of which at least one matches a route. The `retry` member means the
/// same as in the problems of the contract.
pub(crate) fn ambiguous_path() -> Response<Bytes> {
    let status = StatusCode::BAD_REQUEST;
    let document = json!({
        "type": "about:blank",
        "title": "The path is ambiguous",
        "status": status.as_u16(),
        "detail": "The path has an encoded slash, a dot segment, a doubled slash or a path parameter (`;`), and \
            matches another route without it. Nothing was done; write it plainly.",
        "retry": "new-key",
    });
    problem_details(status, &document)
}

/// Problem details (RFC 9457).
fn problem_details(status: StatusCode, document: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
