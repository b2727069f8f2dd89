use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use hapax::telemetry::names;
use http::Request;
use http_body_util::Full;

use crate::harness::{Api, Gateway, until};

const NAMES: [&str; 17] = [
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
    names::UNRECORDED,
    names::HEARTBEAT_LATE_SECONDS,
    names::BREAKER_OPEN,
];

/// Returns the value of a series on the metrics page.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_exists_from_the_start_and_counts() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let page = gateway.get(gateway.admin, "/metrics").await.unwrap();
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let source = include_str!("../../../core/src/telemetry.rs");
    assert_eq!(source.matches("pub const ").count(), NAMES.len(), "the core has a metric that NAMES lacks: add it");
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
