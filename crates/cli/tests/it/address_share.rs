//! One address holds at most its share of what all clients need.

use std::net::SocketAddr;

use crate::harness::{Api, Gateway, until};
use crate::raw_http::{RawConnection, RawResponse};

const ONE: [u8; 4] = [127, 0, 0, 1];
const OTHER: [u8; 4] = [127, 0, 0, 2];

fn post(path: &str, caller: &str, key: &str, more: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: {caller}\r\nidempotency-key: {key}\r\n{more}\
         content-length: {length}\r\n\r\n"
    )
}

/// Sends a request from this address and reads its response.
async fn send_from(source: [u8; 4], target: SocketAddr, request: &str) -> RawResponse {
    let mut wire = RawConnection::from(source, target).await;
    wire.send_bytes(request.as_bytes()).await;
    wire.read_response().await.unwrap()
}

fn assert_overloaded(got: &RawResponse) {
    assert!(got.status == 503 && got.text().contains("#overloaded"), "{} {}", got.status, got.text());
    assert!(got.field("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_whose_client_has_gone_count_against_its_address_h29() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--max-in-flight", "4"]).await;
    let mut held = Vec::new();
    for number in 0..2 {
        let mut wire = RawConnection::from(ONE, gateway.public).await;
        wire.send_bytes(post("/slow", &format!("invented-{number}"), "the-key", "", 0).as_bytes()).await;
        api.wait_for_requests(number + 1).await;
        held.push(wire);
    }
    held.into_iter().for_each(RawConnection::reset);
    for number in 0..4 {
        let caller = format!("more-{number}");
        assert_overloaded(&send_from(ONE, gateway.public, &post("/charges", &caller, "the-key", "", 0)).await);
    }
    let got = send_from(OTHER, gateway.public, &post("/charges", "other", "the-key", "", 0)).await;
    assert_eq!(got.status, 201, "{}", got.text());
    (0..2).for_each(|_| api.release_slow());
    until("the address has its share again", async || {
        send_from(ONE, gateway.public, &post("/charges", "later", "the-key", "", 0)).await.status == 201
    })
    .await;
    gateway.terminate();
    let logs = gateway.wait_for_exit().1;
    let warnings: Vec<_> = logs.lines().filter(|line| line.contains("--trusted-proxy")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("running requests") && warnings[0].contains("127.0.0.1"), "{warnings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_trusted_proxy_the_forwarded_address_counts_h29() {
    let api = Api::start().await;
    let flags = ["--max-in-flight", "4", "--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/8"];
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    let forwarded = |client: &str| format!("x-forwarded-for: 192.0.2.9, {client}, 10.1.1.1\r\n");
    let mut held = Vec::new();
    for number in 0..2 {
        let mut wire = RawConnection::from(ONE, gateway.public).await;
        let caller = format!("invented-{number}");
        wire.send_bytes(post("/slow", &caller, "the-key", &forwarded("203.0.113.1"), 0).as_bytes()).await;
        api.wait_for_requests(number + 1).await;
        held.push(wire);
    }
    for (source, client, status) in [(ONE, "203.0.113.1", 503), (ONE, "203.0.113.2", 201), (OTHER, "203.0.113.1", 201)]
    {
        let key = format!("the-key-{client}-{}", source[3]);
        let got = send_from(source, gateway.public, &post("/charges", "more", &key, &forwarded(client), 0)).await;
        assert_eq!(got.status, status, "{source:?} {client}: {}", got.text());
    }
    (0..2).for_each(|_| api.release_slow());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_of_one_address_leave_memory_for_others_h29() {
    const BODY: usize = 1 << 20;
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let mut held = Vec::new();
    // All but the last byte of a body.
    let mut hold = async |number: usize| {
        let mut wire = RawConnection::from(ONE, gateway.public).await;
        wire.send_bytes(post("/charges", "one", &format!("key-{number}"), "", BODY).as_bytes()).await;
        wire.send_bytes(&vec![b'b'; BODY - 1]).await;
        held.push(wire);
    };
    // More than the memory of all bodies together.
    for number in 0..20 {
        hold(number).await;
    }
    let base = post("/charges", "one", "key-small", "", 2) + "{}";
    assert_eq!(send_from(ONE, gateway.public, &base).await.status, 201, "a small body is always admitted");
    let large = post("/charges", "other", "key-large", "", BODY) + &"b".repeat(BODY);
    let got = send_from(OTHER, gateway.public, &large).await;
    assert_eq!(got.status, 201, "{}", got.text());
    let large = post("/charges", "one", "key-large", "", BODY) + &"b".repeat(BODY);
    let mut number = 20;
    until("the address holds its share", async || {
        // Bodies that grow at the same time are refused together, which leaves room for more of them.
        hold(number).await;
        number += 1;
        let got = send_from(ONE, gateway.public, &large).await;
        got.status == 503 && got.text().contains("#overloaded")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_drips_is_408_h11() {
    let api = Api::start().await;
    // A second of grace, and then a rate that no drip reaches.
    let flags = ["--upload-rate", "1MiB", "--stall-timeout", "1s"];
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes((post("/charges", "one", "the-key", "", 100) + "{").as_bytes()).await;
    let got = wire.read_response().await.unwrap();
    assert!(got.status == 408 && got.text().contains("#body-timeout"), "{} {}", got.status, got.text());
    assert_eq!(api.count(), 0);
}

/// The memory of the address has room for the body up to its limit, but not for the rest that is discarded.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_body_that_is_too_long_occupies_no_memory_h11() {
    const HELD: usize = 6;
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "10m"]).await;
    let mut held = Vec::new();
    for number in 0..HELD {
        let mut wire = RawConnection::from(ONE, gateway.public).await;
        let request = post("/slow", "one", &format!("key-{number}"), "", 1 << 20) + &"b".repeat(1 << 20);
        wire.send_bytes(request.as_bytes()).await;
        held.push(wire);
    }
    api.wait_for_requests(HELD).await;
    let chunk = format!("10000\r\n{}\r\n", "b".repeat(1 << 16));
    let head = post("/charges", "one", "key-long", "", 0).replace("content-length: 0", "transfer-encoding: chunked");
    // The rest is read for a second only, which is short on a slow machine.
    until("the gateway reads a whole body that is too long", async || {
        let mut wire = RawConnection::from(ONE, gateway.public).await;
        wire.send_bytes((head.clone() + &chunk.repeat(48) + "0\r\n\r\n").as_bytes()).await;
        let got = wire.read_response().await;
        got.is_some_and(|got| {
            assert_eq!(got.status, 413, "{}", got.text());
            // The gateway closes a connection on which it has not read the whole body.
            got.field("connection").is_none()
        })
    })
    .await;
}
