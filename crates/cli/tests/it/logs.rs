//! The logs of the process. The harness checks every gateway of the suite for keys, bodies and credentials in its logs.

use http::Request;
use http_body_util::Full;
use serde_json::Value;

use crate::harness::{Api, Gateway};
use crate::raw_http::RawConnection;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Returns the lines of the access log, in the order in which requests ended.
fn access(logs: &str) -> Vec<Value> {
    let lines =
        logs.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}")));
    lines.filter(|line| line["target"] == "hapax::access").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_one_line_with_its_outcome() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for body in ["{}", "{}", "[]"] {
        gateway.post("/charges?card=4242", "key-1", body).await.unwrap();
    }
    gateway.get(gateway.public, "/charges?card=4242").await.unwrap();
    gateway.post("/charges", "a, b", "{}").await.unwrap();
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"GET /refused HTTP/1.1\r\nhost: a\r\nconnection: authorization\r\n\r\n").await;
    assert_eq!(wire.read_response().await.unwrap().status, 400);
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    let lines = access(&logs);
    let requests: Vec<_> = lines
        .iter()
        .map(|line| {
            (line["method"].as_str().unwrap(), line["path"].as_str().unwrap(), line["status"].as_u64().unwrap())
        })
        .zip(lines.iter().map(|line| line["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(
        requests,
        [
            (("POST", "/charges", 201), "fresh"),
            (("POST", "/charges", 201), "replayed"),
            (("POST", "/charges", 422), "key-reused"),
            (("GET", "/charges", 201), "passed"),
            (("POST", "/charges", 400), "key-malformed"),
            (("GET", "/refused", 400), "refused"),
        ]
    );
    let rk = lines[0]["rk"].as_str().unwrap();
    assert!(rk.len() == 8 && rk.bytes().all(|byte| byte.is_ascii_hexdigit()), "{rk}");
    assert!(lines[1]["rk"] == rk && lines[2]["rk"] == rk && lines[3]["rk"].is_null() && lines[0]["ms"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_of_a_trace_is_passed_on_and_appears_in_the_log() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let request = Request::post(format!("http://{}/charges", gateway.public)).header("idempotency-key", "key-1");
    let request = request.header("traceparent", &parent).header("tracestate", "vendor=1").body(Full::from("{}"));
    gateway.send(request.unwrap()).await.unwrap();
    let seen = &api.seen()[0].headers;
    assert_eq!((&seen["traceparent"], &seen["tracestate"]), (&parent.parse().unwrap(), &"vendor=1".parse().unwrap()));
    gateway.terminate();
    assert_eq!(access(&gateway.wait_for_exit().1)[0]["trace"], TRACE);
}

/// The store is down from the start, so every request is refused.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_store_does_not_log_a_line_for_each_request() {
    use crate::harness::{free_address, hapax, until};
    const REQUESTS: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--upstream", "http://127.0.0.1:9", "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), "redis://127.0.0.1:1", &flags, free_address());
    until("the admin listener responds", async || gateway.get(gateway.admin, "/readyz").await.is_some()).await;
    let began = std::time::Instant::now();
    for number in 0..REQUESTS {
        let got = gateway.post("/charges", &format!("outage-{number}"), "{}").await.unwrap();
        assert_eq!(got.problem(), "store-unavailable");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert_eq!(access(&logs).len(), REQUESTS);
    let lines = logs.lines().filter(|line| line.contains("\"the store cannot be used")).count();
    // At most two lines a second: one with the cause and one with the count. The first and last second are partial.
    assert!((1..=2 * (seconds + 2)).contains(&lines) && lines < REQUESTS, "{lines} lines in {seconds} s");
}
