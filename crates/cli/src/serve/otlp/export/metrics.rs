//! Sends the metrics of `/metrics` to the collector: the same names, labels and values.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource as ResourceMessage;
use opentelemetry_sdk::Resource;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use prost::Message;

use super::client::CollectorClient;
use super::points::{Period, metrics_of};
use super::{milliseconds, variable};
use crate::version::VERSION;

/// How often the metrics are sent, unless a variable says so.
const EVERY: Duration = Duration::from_secs(60);

/// The export of the metrics.
pub(super) struct MetricsExport {
    client: CollectorClient,
    url: Uri,
    headers: HeaderMap,
    resource: ResourceMessage,
    every: Duration,
    started_at: SystemTime,
    /// What renders the metrics, as soon as they are recorded.
    page: Mutex<Option<PrometheusHandle>>,
}

impl MetricsExport {
    pub(super) fn new(url: &str, timeout: Duration, resource: &Resource) -> Result<Self, anyhow::Error> {
        const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";
        let attributes = resource.iter().map(Into::into).collect();
        Ok(Self {
            client: CollectorClient::new(url, "metrics", timeout)?,
            url: url.parse()?,
            headers: headers()?,
            resource: ResourceMessage { attributes, ..ResourceMessage::default() },
            every: variable(INTERVAL).map_or(Ok(EVERY), |text| milliseconds(INTERVAL, &text))?,
            started_at: SystemTime::now(),
            page: Mutex::new(None),
        })
    }

    pub(super) fn push_regularly(&'static self, page: PrometheusHandle) {
        *self.page.lock() = Some(page);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(self.every).await;
                self.push_last().await;
            }
        });
    }

    /// Sends the metrics as they are now.
    pub(super) async fn push_last(&self) {
        let page = self.page.lock().as_ref().map(PrometheusHandle::render);
        if let Some(page) = page {
            // The client logs and counts a failure. The next export has the same counters, so nothing is lost.
            let _ = self.client.send(self.request(&page)).await;
        }
    }

    fn request(&self, page: &str) -> Request<Bytes> {
        let period = Period { start: self.started_at, end: SystemTime::now() };
        let scope = InstrumentationScope { name: "hapax".into(), version: VERSION.into(), ..Default::default() };
        let metrics = ScopeMetrics { scope: Some(scope), metrics: metrics_of(page, &period), ..Default::default() };
        let export = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![metrics],
                ..Default::default()
            }],
        };
        let mut request = Request::new(Bytes::from(export.encode_to_vec()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        request
    }
}

/// The header fields that the collector requires, for instance a credential. An error names the variable only.
fn headers() -> Result<HeaderMap, anyhow::Error> {
    let mut headers = HeaderMap::new();
    for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"] {
        let wrong = || format!("{name}: write NAME=VALUE,NAME=VALUE");
        let list = variable(name).unwrap_or_default();
        for field in list.split(',').filter(|field| !field.trim().is_empty()) {
            let (field, value) = field.split_once('=').with_context(wrong)?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok().with_context(wrong)?;
            let field = HeaderName::try_from(field.trim()).ok().with_context(wrong)?;
            headers.insert(field, HeaderValue::try_from(&*value).ok().with_context(wrong)?);
        }
    }
    Ok(headers)
}
