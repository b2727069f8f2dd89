//! The spans of the binary. Those of an attempt come from the core. A span has no path, query, header field, key or
//! body, because these may contain secrets.

use hapax::broker::{Job, Verdict};
use hapax::telemetry::SPANS;
use hapax::{OperationId, RecordKey};
use http::{Method, Request, StatusCode};
use tracing::Span;
use tracing::field::Empty;

use crate::serve::otlp::{join_fields, join_message};

/// The span of a request of a client. It belongs to the trace of its `traceparent`.
pub(crate) fn request<B>(request: &Request<B>) -> Span {
    let span = tracing::debug_span!(
        target: SPANS,
        "hapax.request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method_name(request.method()),
        http.response.status_code = Empty,
        hapax.outcome = Empty,
        hapax.operation = Empty,
        hapax.rk = Empty,
    );
    join_fields(&span, request.headers());
    span
}

/// Notes how a request has ended. Without a status, the client did not get the response.
pub(crate) fn end_request(span: &Span, status: Option<StatusCode>, outcome: &'static str, rk: Option<RecordKey>) {
    if span.is_disabled() {
        return;
    }
    record_status(span, status, StatusCode::is_server_error);
    span.record("hapax.outcome", outcome);
    if let Some(rk) = rk {
        span.record("hapax.rk", tracing::field::debug(rk));
        span.record("hapax.operation", tracing::field::display(rk.operation()));
    }
}

/// The span of a request to the API or to the target of a worker.
pub(crate) fn upstream(method: &Method) -> Span {
    tracing::debug_span!(
        target: SPANS,
        "hapax.upstream",
        otel.kind = "client",
        otel.status_code = Empty,
        http.request.method = method_name(method),
        http.response.status_code = Empty,
    )
}

/// Notes the response of the API. None: it gave none.
pub(crate) fn end_upstream(span: &Span, status: Option<StatusCode>) {
    record_status(span, status, |status| status.is_client_error() || status.is_server_error());
}

/// The span of a message that a worker processes. It belongs to the trace of its header `traceparent`.
pub(crate) fn message(job: &Job) -> Span {
    let span = tracing::debug_span!(
        target: SPANS,
        "hapax.message",
        otel.kind = "consumer",
        hapax.operation = Empty,
        hapax.verdict = Empty,
    );
    if !span.is_disabled() {
        let operation: OperationId = job.call.operation();
        span.record("hapax.operation", tracing::field::display(operation));
        join_message(&span, &job.message.headers);
    }
    span
}

/// Notes how an attempt to process a message has ended.
pub(crate) fn end_message(span: &Span, verdict: &Verdict) {
    let name = match verdict {
        Verdict::Done { caught: false } => "done",
        Verdict::Done { caught: true } => "caught",
        Verdict::Retry { .. } => "retry",
        Verdict::Busy { .. } => "busy",
        Verdict::DeadLetter { .. } => "dead",
        Verdict::Pause { .. } => "pause",
    };
    span.record("hapax.verdict", name);
}

fn record_status(span: &Span, status: Option<StatusCode>, is_error: impl Fn(&StatusCode) -> bool) {
    if let Some(status) = status {
        span.record("http.response.status_code", i64::from(status.as_u16()));
    }
    if status.as_ref().is_none_or(is_error) {
        span.record("otel.status_code", "ERROR");
    }
}

/// The name of a known method. The client may have written anything else.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}
