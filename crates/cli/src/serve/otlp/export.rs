//! Starts and ends the export. It has a thread and a bounded queue of its own: what does not fit is dropped, and
//! nothing else waits for it.

mod client;
mod metrics;
mod points;
mod propagation;
mod sink;

use std::env;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, bail};
use hapax::telemetry::SPANS;
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::task::spawn_blocking;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;

use self::client::CollectorClient;
use self::metrics::MetricsExport;
pub(crate) use self::propagation::{inject, join_fields, join_message};
pub(crate) use self::sink::traced;
use crate::serve::otlp::{CollectorUrl, SpanLayer};
use crate::version::VERSION;

/// How long one export may take, unless a variable says so.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The export of this process.
static EXPORT: OnceLock<Export> = OnceLock::new();

struct Export {
    traces: Option<SdkTracerProvider>,
    metrics: Option<MetricsExport>,
}

/// Starts the export to this collector, or to the one that the variables of OpenTelemetry name. Must be called inside a
/// tokio runtime, once.
///
/// # Errors
/// If a variable has a value that cannot be used.
pub(crate) fn start(collector: Option<&CollectorUrl>) -> Result<SpanLayer, anyhow::Error> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let (traces, metrics) = (address(collector, "traces")?, address(collector, "metrics")?);
    if traces.is_none() && metrics.is_none() {
        return Ok(None);
    }
    if let Some(protocol) = variable("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
        bail!("OTEL_EXPORTER_OTLP_PROTOCOL: hapax exports over http/protobuf only, not over {protocol:?}");
    }
    let timeout = timeout()?;
    let resource = resource();
    let metrics = metrics.map(|url| MetricsExport::new(&url, timeout, &resource)).transpose()?;
    let traces = traces.map(|url| provider(&url, timeout, resource)).transpose()?;
    let spans = traces.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("hapax"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            // Events are for the log.
            .with_filter(Targets::new().with_target(SPANS, LevelFilter::DEBUG))
            .boxed()
    });
    let _ = EXPORT.set(Export { traces, metrics });
    Ok(spans)
}

/// Sends the metrics at regular times, if they are exported.
pub(crate) fn push_metrics(page: &PrometheusHandle) {
    if let Some(metrics) = EXPORT.get().and_then(|export| export.metrics.as_ref()) {
        metrics.push_regularly(page.clone());
    }
}

/// What makes spans, if traces are exported.
fn tracer() -> Option<SdkTracer> {
    Some(EXPORT.get()?.traces.as_ref()?.tracer("hapax"))
}

/// Sends what is left, at most for this long.
pub(crate) async fn end_within(limit: Duration) {
    let Some(export) = EXPORT.get() else { return };
    let traces = async {
        if let Some(provider) = &export.traces {
            let provider = provider.clone();
            let _ = spawn_blocking(move || provider.shutdown_with_timeout(limit)).await;
        }
    };
    let metrics = async {
        if let Some(metrics) = &export.metrics {
            metrics.push_last().await;
        }
    };
    // An export that is late is dropped, and its failure is logged by the client.
    let _ = tokio::time::timeout(limit, async { tokio::join!(traces, metrics) }).await;
}

fn provider(url: &str, timeout: Duration, resource: Resource) -> Result<SdkTracerProvider, anyhow::Error> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(CollectorClient::new(url, "traces", timeout)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url)
        .build()
        .context("cannot export traces")?;
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The process, with the attributes that `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` add.
fn resource() -> Resource {
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", VERSION));
    match variable("OTEL_SERVICE_NAME") {
        Some(_) => resource.build(),
        None => resource.with_service_name("hapax").build(),
    }
}

/// Where one kind of data goes. The setting wins over the variables. None: nowhere.
fn address(collector: Option<&CollectorUrl>, signal: &str) -> Result<Option<String>, anyhow::Error> {
    let name = signal.to_uppercase();
    if variable(&format!("OTEL_{name}_EXPORTER")).is_some_and(|exporter| exporter == "none") {
        return Ok(None);
    }
    if let Some(collector) = collector {
        return Ok(Some(collector.of(signal)));
    }
    let own = format!("OTEL_EXPORTER_OTLP_{name}_ENDPOINT");
    if let Some(url) = variable(&own) {
        return CollectorUrl::parse(&url).map(|url| Some(url.0)).context(own);
    }
    let common = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    let common = common.map(|url| CollectorUrl::parse(&url)).transpose().context("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    Ok(common.map(|url| url.of(signal)))
}

impl CollectorUrl {
    /// Returns the address for one kind of data.
    fn of(&self, signal: &str) -> String {
        format!("{}/v1/{signal}", self.0)
    }
}

fn timeout() -> Result<Duration, anyhow::Error> {
    const NAME: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
    variable(NAME).map_or(Ok(TIMEOUT), |text| milliseconds(NAME, &text))
}

fn milliseconds(name: &str, text: &str) -> Result<Duration, anyhow::Error> {
    let number: u64 = text.parse().with_context(|| format!("{name}: write a number of milliseconds"))?;
    Ok(Duration::from_millis(number.max(1)))
}

/// The value of a variable. An empty one counts as none, as OpenTelemetry demands.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
