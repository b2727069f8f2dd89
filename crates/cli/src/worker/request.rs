//! The request that hands a message to a service.

use std::borrow::Cow;
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
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::upstream::fields::add_attempt_fields;
use crate::upstream::forward::{StreamProgress, StreamedBody};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What is percent-encoded in a value over HTTP, beside what is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// The trace that a message belongs to (W3C Trace Context).
const TRACE: [&str; 2] = ["traceparent", "tracestate"];
/// The attributes of a CloudEvent have this prefix in HTTP. Their values are percent-encoded there.
const CLOUD_EVENT: &str = "ce-";
/// The prefixes of Kafka and AMQP, where the values are plain UTF-8.
const PLAIN_PREFIXES: [&str; 3] = ["ce_", "cloudevents:", "cloudevents_"];

/// The most headers of a message that a service gets, and their names and values in bytes. HTTP servers take fewer, and
/// a map of fields cannot have more than 24,576.
const MOST_FIELDS: usize = 1_000;
const MOST_BYTES: usize = 64 << 10;

/// Builds the POST of one attempt. `message_fields` are the headers of the message that the service gets.
///
/// The key is the id of the operation: unlike the message's own key, it differs between tenants, and each one is a
/// valid field value.
pub(crate) fn request(
    job: &Job,
    message_fields: HeaderMap,
    attempt: &Attempt,
    path: &PathAndQuery,
) -> Request<RequestBody<NoStream>> {
    let mut request = Request::new(RequestBody::Whole(job.message.payload.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.clone().into();
    *request.headers_mut() = message_fields;
    let fields = request.headers_mut();
    add_attempt_fields(fields, attempt);
    let operation = HeaderValue::try_from(job.call.operation().to_string()).expect("a UUID is a valid field value");
    fields.insert(HAPAX_OPERATION, operation.clone());
    fields.insert(IDEMPOTENCY_KEY, operation);
    fields.insert(CONTENT_LENGTH, job.message.payload.len().into());
    request
}

/// The headers of a message that a service gets. `forwarded` are further ones than those of a CloudEvent and a trace.
/// Another value that HTTP cannot carry is left out.
///
/// # Errors
/// Why the message cannot be sent: it has too many of these headers, or too large ones, or HTTP cannot carry an
/// attribute of its event.
pub(crate) fn message_fields(headers: &Headers, forwarded: &[HeaderName]) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in headers.iter() {
        let (name, value) = over_http(name, value);
        let is_attribute = name.starts_with(CLOUD_EVENT);
        let is_known = is_attribute || name == CONTENT_TYPE.as_str() || TRACE.contains(&&*name);
        match (HeaderName::try_from(&name), HeaderValue::from_bytes(&value)) {
            (Ok(name), Ok(value)) if is_known || forwarded.contains(&name) => {
                bytes += name.as_str().len() + value.len();
                fields.insert(name, value);
            }
            (Ok(_), Ok(_)) => {}
            (Err(_), _) | (_, Err(_)) if is_attribute => {
                return Err(format!("nothing was sent: HTTP cannot carry the attribute {name:?} of the event"));
            }
            (Err(_), _) | (_, Err(_)) => {}
        }
        if fields.len() > MOST_FIELDS || bytes > MOST_BYTES {
            return Err(format!(
                "nothing was sent: the message has more than {MOST_FIELDS} headers for the target, or more than \
                 {MOST_BYTES} bytes of them"
            ));
        }
    }
    Ok(fields)
}

/// A header of a message as HTTP has it: its name in lower case, and an attribute with the prefix and the encoding of
/// HTTP.
fn over_http<'h>(name: &str, value: &'h [u8]) -> (String, Cow<'h, [u8]>) {
    let name = name.to_ascii_lowercase();
    match PLAIN_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        Some(attribute) => (
            format!("{CLOUD_EVENT}{attribute}"),
            percent_encode(value, ENCODED).collect::<String>().into_bytes().into(),
        ),
        None => (name, value.into()),
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
            ("ce_subject", "50%25 off, Zo\u{eb}"),
            ("cloudEvents:type", "paid \"cash\""),
            ("X-Line", "a\nb"),
            ("Content-Type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("X-Region", "north"),
            ("authorization", "Bearer secret"),
            ("host", "elsewhere"),
            ("hapax-token", "1"),
        ]
        .into_iter()
        .collect();
        let fields = message_fields(&headers, &["x-line", "x-region"].map(HeaderName::from_static)).unwrap();
        let mut copied: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        copied.sort_unstable();
        let expected = [
            ("ce-id", "7"),
            ("ce-source", "/shop"),
            ("ce-subject", "50%2525%20off,%20Zo%C3%AB"),
            ("ce-type", "paid%20%22cash%22"),
            ("content-type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("x-region", "north"),
        ];
        assert_eq!(copied, expected);
    }

    #[test]
    fn an_attribute_that_http_cannot_carry_is_refused_and_not_left_out() {
        for name in ["ce-line", "ce-a b"] {
            let value = if name == "ce-line" { "a\nb" } else { "a" };
            let refused = message_fields(&[(name, value)].into_iter().collect(), &[]).unwrap_err();
            assert!(refused.contains("nothing was sent") && refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn more_headers_than_a_service_takes_are_refused_before_anything_is_sent() {
        let many = |count: usize| (0..count).map(|n| (format!("ce-x{n}"), "1")).collect::<Headers>();
        assert_eq!(message_fields(&many(MOST_FIELDS), &[]).unwrap().len(), MOST_FIELDS);
        for headers in [many(MOST_FIELDS + 1), many(25_000), [("ce-x", "x".repeat(MOST_BYTES))].into_iter().collect()] {
            assert!(message_fields(&headers, &[]).unwrap_err().contains("nothing was sent"));
        }
        let not_for_the_target: Headers = (0..2_000).map(|n| (format!("x-{n}"), "1")).collect();
        assert!(message_fields(&not_for_the_target, &[]).unwrap().is_empty());
    }
}
