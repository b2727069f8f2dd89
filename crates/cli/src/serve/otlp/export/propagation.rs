//! Trace context (W3C): a span joins the trace of the caller, and the API gets the span as its parent.

use hapax::broker::Headers;
use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const STATE: &str = "tracestate";

pub(crate) fn join_fields(span: &Span, fields: &HeaderMap) {
    join(span, &HeaderExtractor(fields));
}

pub(crate) fn join_message(span: &Span, headers: &Headers) {
    join(span, &MessageHeaders(headers));
}

/// Returns the context in the headers of an event. It is empty if they name no trace.
pub(super) fn context_of(headers: &Headers) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &MessageHeaders(headers))
}

fn join(span: &Span, carrier: &dyn Extractor) {
    if span.is_disabled() {
        return;
    }
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), carrier);
    if parent.span().span_context().is_valid() {
        // Fails only for a span that has begun to be exported, and this one is new.
        let _ = span.set_parent(parent);
    }
}

/// Makes the span the parent of what the receiver of these fields reports.
pub(crate) fn inject(span: &Span, fields: &mut HeaderMap) {
    if span.is_disabled() {
        return;
    }
    TraceContextPropagator::new().inject_context(&span.context(), &mut HeaderInjector(fields));
    if fields.get(STATE).is_some_and(http::HeaderValue::is_empty) {
        fields.remove(STATE);
    }
}

/// The headers of a message that are text.
struct MessageHeaders<'a>(&'a Headers);

impl Extractor for MessageHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let named = self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
        std::str::from_utf8(named?.1).ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name).collect()
    }
}
