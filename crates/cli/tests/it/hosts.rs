//! The host of a request: one of the parts that two copies have in common.

use bytes::Bytes;
use http::{HeaderMap, Request, Version};
use http_body_util::{BodyExt, Full};

use crate::config::directory_with;
use crate::harness::{Api, Gateway};
use crate::raw_http::RawConnection;
use crate::tls::{Pki, client, secure_gateway};

/// Posts to this target with this `Host` field over HTTP/1, and returns the status and whether it is a replay.
async fn post_to(gateway: &Gateway, target: &str, host: &str) -> (u16, bool) {
    let mut wire = RawConnection::to(gateway.public).await;
    let fields = format!("host: {host}\r\nidempotency-key: k\r\ncontent-length: 2\r\n");
    wire.send_bytes(format!("POST {target} HTTP/1.1\r\n{fields}\r\n{{}}").as_bytes()).await;
    let answer = wire.read_response().await.unwrap();
    (answer.status, answer.field("idempotent-replayed").is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_is_another_request_h8() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    assert_eq!(post_to(&gateway, "/charges", "api.example").await, (201, false));
    for host in ["api.example", "API.Example", "api.example:80", "Api.Example:80", "api.example:"] {
        assert_eq!(post_to(&gateway, "/charges", host).await, (201, true), "{host}");
    }
    assert_eq!(post_to(&gateway, "http://API.example:80/charges", "ignored").await, (201, true));
    for host in ["other.example", "api.example:8080", "api.example:443", "example", "api.example.", ""] {
        assert_eq!(post_to(&gateway, "/charges", host).await, (422, false), "{host}");
    }
    assert_eq!(post_to(&gateway, "http://other.example/charges", "api.example").await, (422, false));
    assert_eq!(api.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_may_change_between_http1_and_http2_h8() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    for (number, version) in [Version::HTTP_11, Version::HTTP_2, Version::HTTP_11].into_iter().enumerate() {
        let request = Request::post(format!("https://{}/charges", gateway.public)).header("idempotency-key", "k");
        let got = client(&pki, version).request(request.body(Full::from("{}")).unwrap()).await.unwrap();
        let is_replayed = |headers: &HeaderMap| headers.contains_key("idempotent-replayed");
        assert_eq!((got.status().as_u16(), is_replayed(got.headers())), (201, number > 0), "{version:?}");
        assert_eq!(got.into_body().collect().await.unwrap().to_bytes(), Bytes::from("answer 1"));
    }
    let mut copy = Request::post(format!("https://{}/charges", gateway.public)).header("idempotency-key", "h");
    copy = copy.header("host", "api.example:443");
    let request = copy.body(Full::from("{}")).unwrap();
    for (host, status) in [("api.example:443", 201), ("api.example", 201), ("api.example:80", 422)] {
        let mut request = request.clone();
        request.headers_mut().insert("host", host.parse().unwrap());
        assert_eq!(client(&pki, Version::HTTP_11).request(request).await.unwrap().status(), status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_may_leave_the_host_out_of_the_comparison_h8() {
    let api = Api::start().await;
    let directory = directory_with("[[route]]\npath = '/any-host'\nfingerprint-host = 'off'\n");
    let config = directory.path().join("hapax.toml").display().to_string();
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none", "--config", &config]).await;
    for (number, host) in ["a", "b", "c:8080"].iter().enumerate() {
        assert_eq!(post_to(&gateway, "/any-host", host).await, (201, number > 0), "{host}");
    }
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none", "--fingerprint-host", "off"]).await;
    for (number, host) in ["a", "b"].iter().enumerate() {
        assert_eq!(post_to(&gateway, "/charges", host).await, (201, number > 0), "{host}");
    }
}

/// A page of a browser could reach the listener under a name of its own, with a Host field that a proxy has replaced.
#[tokio::test(flavor = "multi_thread")]
async fn the_authority_of_a_target_counts_on_the_admin_listener() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for (target, status) in [
        ("/metrics", 200),
        ("http://localhost/metrics", 200),
        ("http://evil.example/metrics", 421),
        ("http://localhost@evil.example/metrics", 421),
        ("http://evil.example/api/v1/policy", 421),
    ] {
        let mut wire = RawConnection::to(gateway.admin).await;
        wire.send_bytes(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await;
        let answer = wire.read_response().await.unwrap();
        assert_eq!(answer.status, status, "{target}");
        if status == 200 {
            assert_eq!(answer.field("cache-control"), Some("no-store"), "{target}");
            assert_eq!(answer.field("x-content-type-options"), Some("nosniff"), "{target}");
        }
    }
}
