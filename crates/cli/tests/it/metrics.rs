use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use hapax::telemetry::names;
use http::Request;
use http_body_util::Full;

use crate::harness::{Api, Gateway, sqlite, until};
use crate::lifecycle::{kill_during_request, lock_database};
use crate::raw_http::RawConnection;

const NAMES: [&str; 20] = [
    names::CALLS,
    names::CAUGHT,
    names::BEGIN_SECONDS,
    names::HANDLER_SECONDS,
    names::COMPLETE_SECONDS,
    names::IN_FLIGHT,
    names::FOLLOWERS,
    names::TAKEOVERS,
    names::GRANTS_LOST,
    names::DIVERGENT,
    names::AMNESIA,
    names::RECREATED,
    names::UNPROTECTED,
    names::SPILL_DEPTH,
    names::SPILL_OLDEST_SECONDS,
    names::JOURNAL_FOREIGN,
    names::DAMAGED,
    names::UNRECORDED,
    names::HEARTBEAT_LATE_SECONDS,
    names::BREAKER_OPEN,
];

/// Returns the value of a series on the metrics page.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
}

/// The errors of the API that the gateway has counted, by kind.
pub(crate) async fn upstream_errors(gateway: &Gateway) -> [f64; 3] {
    let page = page(gateway).await;
    ["unreachable", "cut", "timeout"]
        .map(|kind| value(&page, &format!("hapax_gateway_upstream_errors_total{{kind=\"{kind}\"}}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_exists_from_the_start_and_counts() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let page = gateway.get(gateway.admin, "/metrics").await.unwrap();
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let source = include_str!("../../../core/src/telemetry/names.rs");
    // A gateway has no ledger, worker, relay or outbox.
    let of_others = ["ledger", "worker", "relay", "outbox"]
        .map(|part| source.matches(&format!(": &str = \"hapax_{part}_")).count());
    assert_eq!(
        source.matches(": &str = \"hapax_").count() - of_others.iter().sum::<usize>(),
        NAMES.len(),
        "the core has a metric that NAMES lacks: add it"
    );
    for name in NAMES {
        assert!(page.body.contains(&format!("# HELP {name} ")), "{name} has no help text");
        assert!(page.body.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    assert!(
        !page.body.contains("quantile="),
        "metrics must be histograms: quantiles cannot be added up over processes"
    );

    for body in ["{}", "{}", "[]"] {
        gateway.post("/charges", "key-1", body).await.unwrap();
    }
    for (series, count) in [
        ("hapax_calls_total{outcome=\"fresh\"}", 1.0),
        ("hapax_calls_total{outcome=\"replayed\"}", 1.0),
        ("hapax_calls_total{outcome=\"mismatch\"}", 1.0),
        ("hapax_caught_total{layer=\"gate\"}", 1.0),
        ("hapax_handler_seconds_count", 1.0),
        ("hapax_in_flight", 0.0),
        ("hapax_gateway_requests_total{status=\"2xx\"}", 2.0),
        ("hapax_gateway_requests_total{status=\"4xx\"}", 1.0),
    ] {
        // A request is counted after its response is sent, so the client may see the response first.
        until(series, async || {
            let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
            (value(&page, series) - count).abs() < f64::EPSILON
        })
        .await;
    }
    // The client may have opened another connection before the last one was back in its pool.
    let connections = value(&gateway.get(gateway.admin, "/metrics").await.unwrap().body, "hapax_gateway_connections");
    assert!((1.0..=3.0).contains(&connections), "{connections}");
}

#[test]
fn every_metric_is_explained() {
    let page = include_str!("../../../../docs/metrics.md");
    let sources = [include_str!("../../../core/src/telemetry/names.rs"), include_str!("../../src/serve/metrics.rs")];
    let names = sources.iter().flat_map(|source| source.split(": &str = \"").skip(1));
    let names = names.filter_map(|rest| rest.split('"').next());
    let names: Vec<_> = names.filter(|name| name.starts_with("hapax_")).collect();
    assert!(names.len() > 40, "the sources have {} names", names.len());
    for name in &names {
        assert!(page.contains(&format!("`{name}")), "docs/metrics.md does not explain {name}");
    }
    let explained = page.split("`hapax_").skip(1).filter_map(|rest| rest.split(['`', '{']).next());
    for name in explained.map(|rest| format!("hapax_{rest}")) {
        assert!(names.contains(&name.as_str()), "docs/metrics.md explains {name}, which no binary has");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_cannot_create_series() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let series = async || gateway.get(gateway.admin, "/metrics").await.unwrap().body.lines().count();
    gateway.post("/charges", "key", "{}").await.unwrap();
    let before = series().await;
    for number in 0..50 {
        gateway.post(&format!("/path-{number}?q={number}"), &format!("key-{number}"), "{}").await.unwrap();
    }
    assert_eq!(series().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_token_protects_metrics_but_not_health() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let file = directory.path().join("token");
    std::fs::write(&file, "an-admin-token-of-some-length\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let gateway = Gateway::start(api.address, "memory:", &["--admin-token-file", file.to_str().unwrap()]).await;
    let ask = async |path: &str, credential: Option<&str>| {
        let request = Request::get(format!("http://{}{path}", gateway.admin));
        let request = credential.into_iter().fold(request, |request, value| request.header("authorization", value));
        gateway.send(request.body(Full::default()).unwrap()).await.unwrap()
    };
    for (path, open) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/other", 401)] {
        assert_eq!(ask(path, None).await.status, open, "{path}");
        assert_eq!(ask(path, Some("Bearer an-admin-token-of-some-lengtH")).await.status, open, "{path}");
    }
    let refused = ask("/metrics", None).await;
    assert!(refused.headers["www-authenticate"] == "Bearer" && !refused.body.contains("hapax_"), "{}", refused.body);
    let accepted = ask("/metrics", Some("Bearer an-admin-token-of-some-length")).await;
    assert!(accepted.status == 200 && accepted.body.contains("hapax_calls_total"), "{}", accepted.body);
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert!(!logs.contains("an-admin-token"), "{logs}");
}

async fn page(gateway: &Gateway) -> String {
    gateway.get(gateway.admin, "/metrics").await.unwrap().body
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_describe_the_build_and_the_process() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let page = page(&gateway).await;
    let build = page.lines().find(|line| line.starts_with("hapax_build_info{")).expect("build info");
    // A build with the feature `chaos` says so in its version.
    let version =
        format!("version=\"{}{}\"", env!("CARGO_PKG_VERSION"), if cfg!(feature = "chaos") { "+chaos" } else { "" });
    assert!(build.contains(&version) && build.ends_with(" 1"), "{build}");
    for name in ["cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds"] {
        assert!(value(&page, &format!("process_{name}")) >= 0.0, "{name}");
    }
    assert!(value(&page, "process_resident_memory_bytes") > 1e6 && value(&page, "process_open_fds") > 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_are_counted_by_name_and_errors_of_the_api_by_kind() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "300ms"]).await;
    for (name, count) in [("key-reused", 0.0), ("upstream-timeout", 0.0), ("other", 0.0)] {
        let series = format!("hapax_gateway_problems_total{{problem=\"{name}\"}}");
        assert!((value(&page(&gateway).await, &series) - count).abs() < f64::EPSILON, "{name}");
    }
    for (path, key, body) in [("/charges", "a", "{}"), ("/charges", "a", "[]"), ("/slow", "b", "{}")] {
        gateway.post(path, key, body).await.unwrap();
    }
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: authorization\r\n\r\n").await;
    assert_eq!(wire.read_response().await.unwrap().status, 400);
    let closed = Gateway::start_with("memory:", &["--upstream", "http://127.0.0.1:9"]).await;
    // Not protected, and counted all the same.
    assert_eq!(closed.get(closed.public, "/charges").await.unwrap().status, 502);
    for (gateway, series) in [
        (&gateway, "hapax_gateway_problems_total{problem=\"key-reused\"}"),
        (&gateway, "hapax_gateway_problems_total{problem=\"upstream-timeout\"}"),
        (&gateway, "hapax_gateway_problems_total{problem=\"other\"}"),
        (&gateway, "hapax_gateway_upstream_errors_total{kind=\"timeout\"}"),
        (&closed, "hapax_gateway_problems_total{problem=\"upstream-unreachable\"}"),
        (&closed, "hapax_gateway_upstream_errors_total{kind=\"unreachable\"}"),
    ] {
        until(series, async || (value(&page(gateway).await, series) - 1.0).abs() < f64::EPSILON).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_the_oldest_answer_in_the_journal_is_known() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--lease", "1s"]).await;
    let (first, lock) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let lock = lock_database(directory.path());
        api.release_slow();
        lock
    });
    assert_eq!(first.unwrap().headers["hapax-recorded"], "pending");
    until("the age grows", async || value(&page(&gateway).await, "hapax_spill_oldest_seconds") > 1.0).await;
    assert!((value(&page(&gateway).await, "hapax_spill_depth") - 1.0).abs() < f64::EPSILON);
    drop(lock);
    until("the journal is empty", async || value(&page(&gateway).await, "hapax_spill_oldest_seconds") == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_damaged_or_held_as_unknown_are_counted() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let mut gateway = kill_during_request(&api, &sqlite(directory.path()), "hold").await;
    // An attempt that died does not count before a copy has come after its lease.
    until("records are counted", async || page(&gateway).await.contains("\nhapax_records_unknown ")).await;
    assert!(value(&page(&gateway).await, "hapax_records_unknown") < 1.0);
    let got = gateway.retry_until_settled("/slow", "key-1", "{}").await;
    assert_eq!(got.problem(), "outcome-unknown");
    gateway.kill();
    // They are counted at the start, and then every minute.
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    until("the record is counted", async || value(&page(&gateway).await, "hapax_records_unknown") == 1.0).await;
    gateway.post("/charges", "key-2", "{}").await.unwrap();
    let database = rusqlite::Connection::open(directory.path().join("hapax.db")).unwrap();
    let changed = database.execute("update hapax_record set answer = null where answer is not null", []).unwrap();
    assert!(changed >= 1);
    let got = gateway.post("/charges", "key-2", "{}").await.unwrap();
    assert_eq!(got.problem(), "record-damaged");
    assert!((value(&page(&gateway).await, "hapax_damaged_total") - 1.0).abs() < f64::EPSILON);
}
