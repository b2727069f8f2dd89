//! The spans of an attempt: where its time went. Their names are those of the metrics.

use tracing::Span;

/// The target of all spans. They have the level `debug`, so that a log does not get them unasked. Their names are
/// `hapax.begin`, `hapax.handler` and `hapax.complete`; they are children of the span in which a gate was called.
pub const SPANS: &str = "hapax::spans";

/// The time in the store before a handler.
pub(crate) fn begin_span() -> Span {
    tracing::debug_span!(target: SPANS, "hapax.begin")
}

/// The time of the handler of this attempt.
pub(crate) fn handler_span(token: u64, attempt: u16) -> Span {
    tracing::debug_span!(target: SPANS, "hapax.handler", hapax.token = token, hapax.attempt = attempt)
}

/// The time in the store after a handler.
pub(crate) fn complete_span() -> Span {
    tracing::debug_span!(target: SPANS, "hapax.complete")
}
