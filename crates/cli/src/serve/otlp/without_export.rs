//! A build without the export. The fields of a trace pass as they came.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use hapax::broker::Headers;
use hapax::outbox::Sink;
use http::HeaderMap;
use metrics_exporter_prometheus::PrometheusHandle;
use tracing::Span;

use crate::serve::otlp::{CollectorUrl, SpanLayer};

pub(crate) fn start(collector: Option<&CollectorUrl>) -> Result<SpanLayer, anyhow::Error> {
    match collector {
        None => Ok(None),
        Some(CollectorUrl(url)) => bail!("--otlp {url}: this binary is built without the feature otlp"),
    }
}

pub(crate) fn push_metrics(_: &PrometheusHandle) {}

pub(crate) async fn end_within(_: Duration) {}

pub(crate) fn traced(sink: Arc<dyn Sink>) -> Arc<dyn Sink> {
    sink
}

pub(crate) fn join_fields(_: &Span, _: &HeaderMap) {}

pub(crate) fn join_message(_: &Span, _: &Headers) {}

pub(crate) fn inject(_: &Span, _: &mut HeaderMap) {}
