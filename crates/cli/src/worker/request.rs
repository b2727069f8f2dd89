//! The request that hands a message to a service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::BoxError;
use hapax::broker::{Headers, Job};
use hapax::gate::Attempt;
use hapax::http::RequestBody;
use hapax::http::headers::HAPAX_OPERATION;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use hyper::body::{Body, Frame};

use crate::upstream::fields::add_attempt_fields;
use crate::upstream::forward::{StreamProgress, StreamedBody};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The trace that a message belongs to (W3C Trace Context).
const TRACE: [&str; 2] = ["traceparent", "tracestate"];
/// The attributes of a CloudEvent have this prefix in HTTP, and the other one in Kafka.
const CLOUD_EVENT: &str = "ce-";
const CLOUD_EVENT_IN_KAFKA: &str = "ce_";

/// Builds the POST of one attempt. `forwarded` are further headers of the message that the service gets.
///
/// The key is the id of the operation: unlike the message's own key, it differs between tenants, and each one is a
/// valid field value.
pub(crate) fn request(
    job: &Job,
    attempt: &Attempt,
    path: &PathAndQuery,
    forwarded: &[HeaderName],
) -> Request<RequestBody<NoStream>> {
    let mut request = Request::new(RequestBody::Whole(job.message.payload.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.clone().into();
    let fields = request.headers_mut();
    copy_headers(&job.message.headers, forwarded, fields);
    add_attempt_fields(fields, attempt);
    let operation = HeaderValue::try_from(job.call.operation().to_string()).expect("a UUID is a valid field value");
    fields.insert(HAPAX_OPERATION, operation.clone());
    fields.insert(IDEMPOTENCY_KEY, operation);
    fields.insert(CONTENT_LENGTH, job.message.payload.len().into());
    request
}

/// Copies the headers of a message that a service gets. A value that HTTP cannot carry is left out.
fn copy_headers(headers: &Headers, forwarded: &[HeaderName], fields: &mut HeaderMap) {
    for (name, value) in headers.iter() {
        let name = name.to_ascii_lowercase();
        let name = match name.strip_prefix(CLOUD_EVENT_IN_KAFKA) {
            Some(attribute) => format!("{CLOUD_EVENT}{attribute}"),
            None => name,
        };
        let is_known = name.starts_with(CLOUD_EVENT) || name == CONTENT_TYPE.as_str() || TRACE.contains(&&*name);
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value))
            && (is_known || forwarded.contains(&name))
        {
            fields.insert(name, value);
        }
    }
}

/// The streamed body of requests that have none: a message is in memory.
#[derive(Debug)]
pub(crate) enum NoStream {}

impl Body for NoStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match *self {}
    }
}

impl StreamedBody for NoStream {
    fn start_streaming(&mut self) -> Arc<StreamProgress> {
        match *self {}
    }

    fn poll_is_empty(&mut self, _: &mut Context<'_>) -> Poll<bool> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_gets_the_event_the_trace_and_the_listed_headers_only() {
        let headers: Headers = [
            ("ce_id", "7"),
            ("CE-Source", "/shop"),
            ("Content-Type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("X-Region", "north"),
            ("authorization", "Bearer secret"),
            ("host", "elsewhere"),
            ("hapax-token", "1"),
            ("ce-line", "a\nb"),
        ]
        .into_iter()
        .collect();
        let mut fields = HeaderMap::new();
        copy_headers(&headers, &[HeaderName::from_static("x-region")], &mut fields);
        let mut copied: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        copied.sort_unstable();
        let expected = [
            ("ce-id", "7"),
            ("ce-source", "/shop"),
            ("content-type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("x-region", "north"),
        ];
        assert_eq!(copied, expected);
    }
}
