//! The metrics for Prometheus: those of the core, and those of the listener. No label value comes from a request.

use std::sync::Arc;
use std::time::Duration;

use hapax::http::Problem;
use hapax::store::{Finding, Severity};
use hapax::telemetry::{self, names as core};
use http::StatusCode;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::serve::logs;
use crate::serve::otlp;
use crate::serve::process;
use crate::version::{VERSION, features};

/// Open client connections.
const CONNECTIONS: &str = "hapax_gateway_connections";
/// Requests by the class of their status (label `status`).
const REQUESTS: &str = "hapax_gateway_requests_total";
/// Seconds from the head of a request to the end of its response.
pub(super) const REQUEST_SECONDS: &str = "hapax_gateway_request_seconds";

/// Problems that clients got (label `problem`: the name, or `other` for a refusal without one).
const PROBLEMS: &str = "hapax_gateway_problems_total";
/// Requests that the API did not answer properly (label `kind`).
const UPSTREAM_ERRORS: &str = "hapax_gateway_upstream_errors_total";
/// Records whose outcome is unknown: the attempt said so, or a copy came after the lease. Missing for a store
/// that cannot count them.
const RECORDS_UNKNOWN: &str = "hapax_records_unknown";
/// Always 1 (labels `version` and `features`).
const BUILD_INFO: &str = "hapax_build_info";

/// Findings of the last check of the store (label `severity`: `refuse` or `warn`).
const FINDINGS: &str = "hapax_store_findings";

/// Exports to a collector of OpenTelemetry (labels `signal`, and `result`: `yes` or `failed`).
pub(crate) const OTLP_EXPORTS: &str = "hapax_otlp_exports_total";

/// Lines of the log that were lost.
const LOG_LINES_LOST: &str = "hapax_log_lines_lost_total";

/// Bucket bounds, from a replay out of memory to a slow API.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// How often samples are sorted into their buckets. Until then each sample occupies memory of its own.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// Installs the recorder. It must run before anything that registers a metric.
pub(crate) fn install() -> Result<PrometheusHandle, BuildError> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    let handle = builder.install_recorder()?;
    describe();
    register_with_zero();
    process::describe();
    process::collect();
    otlp::push_metrics(&handle);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            upkeep.run_upkeep();
            process::collect();
            counter!(LOG_LINES_LOST).absolute(logs::lost_lines());
        }
    });
    Ok(handle)
}

#[rustfmt::skip]
fn describe() {
    describe_counter!(core::CALLS, "Calls of the gate, by outcome");
    describe_counter!(core::CAUGHT, "Copies that had no second effect, by the layer that caught them");
    describe_histogram!(core::BEGIN_SECONDS, Unit::Seconds, "Duration of begins in the store");
    describe_histogram!(core::HANDLER_SECONDS, Unit::Seconds, "Duration of protected requests in the API");
    describe_histogram!(core::COMPLETE_SECONDS, Unit::Seconds, "Duration of completions in the store");
    describe_gauge!(core::IN_FLIGHT, "Attempts that run now");
    describe_gauge!(core::FOLLOWERS, "Followers: copies that wait for an attempt of this process");
    describe_counter!(core::TAKEOVERS, "Grants after a lapse");
    describe_counter!(core::GRANTS_LOST, "Grants that were lost while their handler ran");
    describe_counter!(core::DIVERGENT, "Attempts that had an effect although another answer is or may be recorded");
    describe_counter!(core::AMNESIA, "Losses of records by the store, detected by attempts or by its checks");
    describe_counter!(core::RECREATED, "Answers recorded although the store had lost their record");
    describe_counter!(core::UNPROTECTED, "Requests that ran without a record while the store was down");
    describe_gauge!(core::JOURNAL_FOREIGN, "Answers for other stores in the directory of the journal, left alone");
    describe_gauge!(core::SPILL_DEPTH, "Answers in the journal that the store has not confirmed");
    describe_counter!(core::UNRECORDED, "Answers that could be written neither to the store nor to the journal");
    describe_gauge!(core::SPILL_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest answer in the journal, or 0");
    describe_counter!(core::DAMAGED, "Requests whose record is damaged; an operator must repair it");
    describe_gauge!(core::HEARTBEAT_LATE_SECONDS, Unit::Seconds, "Delay of the heartbeat's last round");
    describe_gauge!(core::BREAKER_OPEN, "1 while begins are refused because the store does not reply");
    describe_gauge!(CONNECTIONS, "Open client connections");
    describe_counter!(REQUESTS, "Requests by class of status; none if the client disconnected first");
    describe_counter!(PROBLEMS, "Problems that clients got, by name; other is a refusal without a name");
    describe_counter!(UPSTREAM_ERRORS, "Requests that the API did not answer properly, by kind");
    describe_gauge!(
        RECORDS_UNKNOWN,
        "Records whose outcome is unknown: the attempt said so, or a copy came after its lease. Counted every minute"
    );
    describe_gauge!(core::LEDGER_CLAIMS_BYTES, "Bytes of the tables of open claims in PostgreSQL, at the last check");
    describe_gauge!(BUILD_INFO, "Always 1; the labels describe the build");
    describe_gauge!(FINDINGS, "Findings of the last check of the store, by severity; the log contains their messages");
    describe_counter!(LOG_LINES_LOST, "Lines of the log that were lost: nobody read it, or it could not be written");
    describe_counter!(OTLP_EXPORTS, "Exports to the collector of OpenTelemetry, by signal and result");
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "From the head of a request to the end of its response");
}

/// Describes what only a worker measures.
#[rustfmt::skip]
pub(crate) fn describe_worker() {
    describe_gauge!(core::WORKER_LAG, "Messages that are not acknowledged, delivered or not, if the broker tells");
    describe_gauge!(core::WORKER_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest message without an end, or 0");
    describe_gauge!(core::WORKER_IN_FLIGHT, "Messages that are processed now");
    describe_gauge!(core::WORKER_RUNNING_SECONDS, Unit::Seconds, "How long the longest batch has been running, or 0");
    describe_counter!(core::WORKER_ATTEMPTS, "Ends of attempts, by verdict");
    describe_counter!(core::WORKER_DEAD, "Dead letters, by reason");
    describe_counter!(core::WORKER_DEAD_SHORTENED, "Dead letters without headers or payload, because of a limit");
    describe_gauge!(core::WORKER_PARKED, "Ordering keys whose messages wait for the end of a dead letter");
}

/// Describes what only a relay measures.
#[rustfmt::skip]
pub(crate) fn describe_relay() {
    describe_counter!(core::RELAY_EVENTS, "Events that the relay tried to publish, by sink and result");
    describe_counter!(core::RELAY_ENDPOINT_EVENTS, "The same for each endpoint of webhooks, by endpoint and result");
    describe_counter!(core::RELAY_BEYOND_WINDOW, "Events published later than their sink recognizes a repetition");
    describe_gauge!(core::RELAY_BUCKETS, "Buckets of the outbox that this relay has, of 64");
    describe_gauge!(core::OUTBOX_OPEN, "Rows that are not published, up to 100000");
    describe_gauge!(core::OUTBOX_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest row to be published, or 0");
    describe_gauge!(core::OUTBOX_PARKED_KEYS, "Ordering keys that wait for an operator");
}

/// Registers the metrics of a relay with zero, because an alert on an increase needs a sample before it.
pub(crate) fn register_relay<'e>(sink: &str, endpoints: impl Iterator<Item = &'e str> + Clone) {
    telemetry::register_relay(sink, endpoints);
    for name in [core::RELAY_BUCKETS, core::OUTBOX_OPEN, core::OUTBOX_OLDEST_SECONDS, core::OUTBOX_PARKED_KEYS] {
        gauge!(name).set(0.0);
    }
}

const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Registers all metrics with zero, because an alert on an increase needs a sample before it.
fn register_with_zero() {
    telemetry::register_gate();
    for name in [core::BEGIN_SECONDS, core::HANDLER_SECONDS, core::COMPLETE_SECONDS, REQUEST_SECONDS] {
        drop(histogram!(name));
    }
    for class in CLASSES {
        counter!(REQUESTS, "status" => class).absolute(0);
    }
    let gauges =
        [core::IN_FLIGHT, core::FOLLOWERS, core::SPILL_DEPTH, core::HEARTBEAT_LATE_SECONDS, core::BREAKER_OPEN];
    for name in gauges.into_iter().chain([core::SPILL_OLDEST_SECONDS, core::JOURNAL_FOREIGN, CONNECTIONS]) {
        gauge!(name).set(0.0);
    }
    for name in Problem::names().chain([OTHER_PROBLEM]) {
        counter!(PROBLEMS, "problem" => name).absolute(0);
    }
    for kind in UpstreamErrorKind::ALL {
        counter!(UPSTREAM_ERRORS, "kind" => kind.as_str()).absolute(0);
    }
    counter!(LOG_LINES_LOST).absolute(0);
    for signal in ["traces", "metrics"] {
        for result in ["yes", "failed"] {
            counter!(OTLP_EXPORTS, "signal" => signal, "result" => result).absolute(0);
        }
    }
    gauge!(BUILD_INFO, "version" => VERSION, "features" => features()).set(1.0);
    set_findings(&[]);
}

/// The label of a refusal that has no name.
const OTHER_PROBLEM: &str = "other";

/// Counts a problem by its name. A refusal without one has none.
pub(crate) fn count_problem(name: Option<&'static str>) {
    counter!(PROBLEMS, "problem" => name.unwrap_or(OTHER_PROBLEM)).increment(1);
}

/// What went wrong between the gateway and the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamErrorKind {
    /// The API did not receive the request.
    Unreachable,
    /// The connection broke during the request or the response.
    Cut,
    /// The API did not answer in time.
    Timeout,
}

impl UpstreamErrorKind {
    const ALL: [Self; 3] = [Self::Unreachable, Self::Cut, Self::Timeout];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Cut => "cut",
            Self::Timeout => "timeout",
        }
    }

    pub(crate) fn count(self) {
        counter!(UPSTREAM_ERRORS, "kind" => self.as_str()).increment(1);
    }
}

/// Sets the number of records whose outcome is unknown.
pub(crate) fn set_records_unknown(count: u64) {
    // Exact up to 2^52 records.
    #[expect(clippy::cast_precision_loss, reason = "a store holds fewer than 2^52 records")]
    gauge!(RECORDS_UNKNOWN).set(count as f64);
}

/// Sets the gauges of the store's findings.
pub(crate) fn set_findings(findings: &[Finding]) {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (refuse, warn) = (count(Severity::Refuse), count(Severity::Warn));
    for (severity, count) in [("refuse", refuse), ("warn", warn)] {
        gauge!(FINDINGS, "severity" => severity).set(u32::try_from(count).unwrap_or(u32::MAX));
    }
}

/// The metrics of connections and requests, looked up once in the installed recorder.
#[derive(Debug)]
pub(crate) struct ListenerMetrics {
    connections: Gauge,
    requests: [Counter; CLASSES.len()],
    seconds: Histogram,
}

impl ListenerMetrics {
    pub(crate) fn new() -> Arc<Self> {
        let requests = CLASSES.map(|class| counter!(REQUESTS, "status" => class));
        Arc::new(Self { connections: gauge!(CONNECTIONS), requests, seconds: histogram!(REQUEST_SECONDS) })
    }

    /// `status` is none if the client disconnected before the response.
    pub(crate) fn record_request(&self, status: Option<StatusCode>, duration: Duration) {
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100));
        self.requests[class.min(CLASSES.len() - 1)].increment(1);
        self.seconds.record(duration);
    }
}

/// Counts an open client connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGauge(Arc<ListenerMetrics>);

impl ConnectionGauge {
    pub(crate) fn new(meters: Arc<ListenerMetrics>) -> Self {
        meters.connections.increment(1);
        Self(meters)
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        self.0.connections.decrement(1);
    }
}
