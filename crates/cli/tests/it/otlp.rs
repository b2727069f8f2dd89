//! Traces and metrics over OTLP, as a collector receives them.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::ledger::Event;
use hapax::stores::{SqliteLedger, SqliteOutbox, SqliteQueue};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use rusqlite::Connection;

use crate::harness::{Api, Gateway, HOST, free_address, hapax, sqlite, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";
const KEY: &str = "key-of-the-client";
const BODY: &str = "{\"card\":\"4242-4242\"}";

/// An export as it arrived.
struct Export {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A collector that keeps every export.
#[derive(Clone)]
struct Collector {
    address: SocketAddr,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Self { address: listener.local_addr().unwrap(), exports: Arc::default() };
        let serving = collector.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let collector = serving.clone();
                let service = service_fn(move |request| collector.clone().take(request));
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        collector
    }

    async fn take(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.exports.lock().unwrap().push(Export { path: head.uri.path().to_owned(), headers: head.headers, body });
        Ok(Response::new(Full::default()))
    }

    /// A process that exports to this collector, at once.
    fn command(&self) -> Command {
        let mut command = hapax();
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", self.address));
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=pay%20ments").env("OTEL_SERVICE_NAME", "payments");
        command.env("OTEL_BSP_SCHEDULE_DELAY", "20").env("OTEL_METRIC_EXPORT_INTERVAL", "50");
        command
    }

    fn traces(&self) -> Vec<ExportTraceServiceRequest> {
        let exports = self.exports.lock().unwrap();
        let traces = exports.iter().filter(|export| export.path == "/v1/traces");
        traces.map(|export| ExportTraceServiceRequest::decode(export.body.clone()).unwrap()).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.traces().into_iter().flat_map(|export| export.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    fn named(&self, name: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    async fn wait_for(&self, name: &str, count: usize) -> Vec<Span> {
        until(name, async || self.named(name).len() >= count).await;
        let spans = self.named(name);
        assert_eq!(spans.len(), count, "{name}");
        spans
    }

    /// The newest value of this series.
    fn metric(&self, name: &str, label: (&str, &str)) -> Option<f64> {
        let exports = self.exports.lock().unwrap();
        let newest = exports.iter().rfind(|export| export.path == "/v1/metrics")?;
        let export = ExportMetricsServiceRequest::decode(newest.body.clone()).unwrap();
        let mut metrics = export.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let metrics = metrics.next()?.metrics;
        let Some(Data::Sum(sum)) = metrics.into_iter().find(|metric| metric.name == name)?.data else { return None };
        let is_wanted = |attributes: &[KeyValue]| attribute(attributes, label.0).as_deref() == Some(label.1);
        let point = sum.data_points.into_iter().find(|point| is_wanted(&point.attributes))?;
        match point.value? {
            Number::AsDouble(value) => Some(value),
            Number::AsInt(_) => None,
        }
    }
}

/// The text of an attribute.
fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    let value = found.value.as_ref()?.value.as_ref()?;
    if let Value::IntValue(number) = value {
        return Some(number.to_string());
    }
    let Value::StringValue(text) = value else { panic!("{name}: {value:?}") };
    Some(text.clone())
}

fn text(span: &Span, name: &str) -> Option<String> {
    attribute(&span.attributes, name)
}

fn names(span: &Span) -> Vec<&str> {
    let mut names: Vec<_> = span.attributes.iter().map(|attribute| &*attribute.key).collect();
    names.sort_unstable();
    names
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn payment(gateway: &Gateway) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://{}/charges/secret-path", gateway.public)).header("host", HOST);
    let request = request.header("idempotency-key", KEY).header("authorization", "Bearer tenant-secret");
    let request = request.header("traceparent", format!("00-{TRACE}-{CLIENT}-01"));
    request.body(Full::from(BODY)).unwrap()
}

#[tokio::test]
async fn a_trace_goes_from_the_client_through_the_gateway_to_the_api() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    let upstream = format!("http://{}", api.address);
    let gateway = Gateway::run(collector.command(), "memory:", &["--upstream", &upstream], free_address()).await;
    for _ in 0..2 {
        assert_eq!(gateway.send(payment(&gateway)).await.unwrap().status, 201);
    }
    let requests = collector.wait_for("hapax.request", 2).await;
    let begins = collector.wait_for("hapax.begin", 2).await;
    let only = async |name| collector.wait_for(name, 1).await.remove(0);
    let (handler, complete) = (only("hapax.handler").await, only("hapax.complete").await);
    let upstream = only("hapax.upstream").await;

    for span in collector.spans() {
        assert_eq!(hex(&span.trace_id), TRACE, "{}", span.name);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.events.is_empty(), "{span:?}");
    }
    assert!(requests.iter().all(|span| hex(&span.parent_span_id) == CLIENT && span.kind() == SpanKind::Server));
    let outcome = |wanted: &str| requests.iter().find(|span| text(span, "hapax.outcome").as_deref() == Some(wanted));
    let (fresh, replayed) = (outcome("fresh").unwrap(), outcome("replayed").unwrap());
    for span in begins {
        assert!([&fresh.span_id, &replayed.span_id].contains(&&span.parent_span_id));
    }
    assert_eq!((&handler.parent_span_id, &complete.parent_span_id), (&fresh.span_id, &fresh.span_id));
    assert_eq!((&upstream.parent_span_id, upstream.kind()), (&handler.span_id, SpanKind::Client));
    let seen = &api.seen()[0].headers;
    assert_eq!(seen["traceparent"], format!("00-{TRACE}-{}-01", hex(&upstream.span_id)));
    assert!(!seen.contains_key("tracestate"));

    let expected = ["hapax.operation", "hapax.outcome", "hapax.rk", "http.request.method", "http.response.status_code"];
    assert_eq!(names(fresh), expected);
    assert_eq!(text(fresh, "hapax.operation").unwrap(), seen["hapax-operation"].to_str().unwrap());
    assert_eq!(text(fresh, "http.response.status_code").as_deref(), Some("201"));
    assert_eq!(text(fresh, "hapax.rk").map(|rk| rk.len() < 12), Some(true));
    assert_eq!(names(&handler), ["hapax.attempt", "hapax.token"]);
    assert_eq!(names(&upstream), ["http.request.method", "http.response.status_code"]);

    let resource = collector.traces()[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("payments"));
    until("the metrics arrive", async || {
        collector.metric("hapax_calls_total", ("outcome", "fresh")) == Some(1.0)
            && collector.metric("hapax_otlp_exports_total", ("result", "failed")) == Some(0.0)
    })
    .await;
    for export in collector.exports.lock().unwrap().iter() {
        assert_eq!(export.headers["x-team"], "pay ments", "{}", export.path);
        let exported = String::from_utf8_lossy(&export.body).into_owned();
        for secret in [KEY, "4242", "tenant-secret", "secret-path", "Bearer", "answer 1"] {
            assert!(!exported.contains(secret), "{} has {secret}", export.path);
        }
    }
}

#[tokio::test]
async fn a_failed_api_is_an_error_of_the_span() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    let upstream = format!("http://{}", api.address);
    let gateway = Gateway::run(collector.command(), "memory:", &["--upstream", &upstream], free_address()).await;
    gateway.get(gateway.public, "/status/503").await.unwrap();
    let request = collector.wait_for("hapax.request", 1).await.remove(0);
    let upstream = collector.wait_for("hapax.upstream", 1).await.remove(0);
    for span in [&request, &upstream] {
        assert_eq!(text(span, "http.response.status_code").as_deref(), Some("503"));
        assert_eq!(span.status.clone().unwrap().code, 2, "{span:?}");
    }
    assert!(request.parent_span_id.is_empty());
    assert_eq!(upstream.parent_span_id, request.span_id);
}

#[tokio::test]
async fn what_is_left_is_exported_at_the_stop() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    let upstream = format!("http://{}", api.address);
    let mut command = hapax();
    // Neither spans nor metrics are due for minutes.
    command.env("OTEL_BSP_SCHEDULE_DELAY", "600000");
    let flags = ["--upstream", &upstream, "--otlp", &format!("http://{}/", collector.address)];
    let gateway = Gateway::run(command, "memory:", &flags, free_address()).await;
    gateway.send(payment(&gateway)).await.unwrap();
    assert_eq!(collector.spans().len(), 0);
    gateway.terminate();
    let (code, logs) = tokio::task::spawn_blocking(|| gateway.wait_for_exit()).await.unwrap();
    assert_eq!(code, Some(0), "{logs}");
    assert_eq!(collector.named("hapax.request").len(), 1);
    assert_eq!(collector.metric("hapax_calls_total", ("outcome", "fresh")), Some(1.0));
}

#[tokio::test]
async fn a_dead_collector_does_no_harm() {
    let api = Api::start().await;
    let upstream = format!("http://{}", api.address);
    // It accepts connections and never answers; the other address is closed.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (collector, fails_at_once) in [(silent.local_addr().unwrap(), false), (free_address(), true)] {
        let mut command = hapax();
        command.env("OTEL_BSP_SCHEDULE_DELAY", "10").env("OTEL_METRIC_EXPORT_INTERVAL", "10");
        let url = format!("http://{collector}");
        let flags = ["--upstream", &upstream, "--otlp", &url, "--drain", "4s"];
        let gateway = Gateway::run(command, "memory:", &flags, free_address()).await;
        for number in 0..100 {
            let answer = gateway.post("/charges", &format!("payment-{number}"), "{}").await.unwrap();
            assert_eq!(answer.status, 201);
        }
        let failed = "hapax_otlp_exports_total{signal=\"traces\",result=\"failed\"} ";
        until("a failed export is counted", async || {
            let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
            !fails_at_once || page.lines().any(|line| line.strip_prefix(failed).is_some_and(|count| count != "0"))
        })
        .await;
        let begun = Instant::now();
        gateway.terminate();
        let (code, logs) = tokio::task::spawn_blocking(|| gateway.wait_for_exit()).await.unwrap();
        assert_eq!(code, Some(0), "{logs}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(logs.contains("the OTLP collector did not take an export"), fails_at_once, "{logs}");
    }
}

#[tokio::test]
async fn an_event_keeps_its_trace_through_relay_and_worker() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    let directory = tempfile::tempdir().unwrap();
    emit(&directory.path().join("shop.db"));
    let file = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    SqliteQueue::migrate(&mut Connection::open(directory.path().join("queue.db")).unwrap()).unwrap();
    let queue = format!("{}?queue=orders", file("queue.db"));
    let mut relay = collector.command();
    relay.args(["relay", "--database", &file("shop.db"), "--sink", &queue]);
    let mut worker = collector.command();
    worker.args(["worker", "--source", &queue, "--target", &format!("http://{}/orders", api.address)]);
    worker.args(["--store", &sqlite(directory.path())]);
    let _running = [relay, worker].map(Running::start);

    let publish = collector.wait_for("hapax.publish", 1).await.remove(0);
    let message = collector.wait_for("hapax.message", 1).await.remove(0);
    let upstream = collector.wait_for("hapax.upstream", 1).await.remove(0);
    for span in [&publish, &message] {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), CLIENT.to_owned()));
    }
    assert_eq!((publish.kind(), message.kind()), (SpanKind::Producer, SpanKind::Consumer));
    assert_eq!(names(&publish), ["hapax.event", "hapax.result", "hapax.sink"]);
    assert_eq!(text(&publish, "hapax.result").as_deref(), Some("yes"));
    assert_eq!(text(&message, "hapax.verdict").as_deref(), Some("done"));
    let sent = format!("00-{TRACE}-{}-01", hex(&upstream.span_id));
    assert_eq!(api.seen()[0].headers["traceparent"], sent);
    assert_eq!(text(&message, "hapax.operation").unwrap(), api.seen()[0].headers["hapax-operation"].to_str().unwrap());
}

/// Creates an outbox with one event of a trace.
fn emit(file: &Path) {
    let mut connection = Connection::open(file).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    SqliteOutbox::migrate(&mut connection).unwrap();
    let transaction = connection.transaction().unwrap();
    let event = Event::new("orders", BODY).header("traceparent", format!("00-{TRACE}-{CLIENT}-01"));
    SqliteOutbox::emit(&transaction, "accounts", None, event).unwrap();
    transaction.commit().unwrap();
}

/// A process, killed when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        command.args(["--admin", &free_address().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
