//! Malformed requests and malformed responses. Each request has one response and at most one effect, and the gateway
//! keeps working.

use crate::harness::{Api, Gateway};
use crate::raw_http::{RawConnection, ScriptedApi};

/// The number of times that the API runs a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effects {
    None,
    One,
}
use Effects::{None as NoEffect, One};

/// Writes a POST with this key, `more` fields and this body.
fn post(key: &str, more: &str, body: &str) -> String {
    format!("POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\n{more}\r\n{body}")
}

async fn api_and_gateway() -> (Api, Gateway) {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    (api, gateway)
}

/// Sends each request on its own connection and checks the status of the first response (0 if there is none) and the
/// effects.
async fn assert_responses(cases: &[(&str, String, &[u16], Effects)]) {
    let (api, gateway) = api_and_gateway().await;
    for (name, bytes, statuses, effects) in cases {
        let before = api.seen().len();
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(bytes.as_bytes()).await;
        let status = wire.read_response().await.map_or(0, |answer| answer.status);
        assert!(statuses.contains(&status), "{name}: {status}");
        let runs = api.seen().len() - before;
        assert_eq!(runs, usize::from(*effects == One), "{name}: {status}");
    }
    assert_eq!(gateway.post("/charges", "the-last", "{}").await.unwrap().status, 201, "the gateway must keep working");
}

const TWO: &str = "content-length: 2\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_framing_has_no_effect() {
    assert_responses(&[
        ("two lengths", post("f1", "content-length: 2\r\ncontent-length: 3\r\n", "{}x"), &[400], NoEffect),
        ("a list of lengths", post("f2", "content-length: 2, 3\r\n", "{}x"), &[400], NoEffect),
        ("a length with a sign", post("f3", "content-length: +2\r\n", "{}"), &[400], NoEffect),
        ("a negative length", post("f4", "content-length: -2\r\n", "{}"), &[400], NoEffect),
        ("a length beyond 64 bits", post("f5", "content-length: 18446744073709551618\r\n", "{}"), &[400], NoEffect),
        ("another coding last", post("f6", "transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n"), &[400], NoEffect),
        ("an unknown coding", post("f7", "transfer-encoding: xchunked\r\n", "0\r\n\r\n"), &[400], NoEffect),
        ("a coding in 1.0", post("f8", CHUNKED, "0\r\n\r\n").replace("1.1", "1.0"), &[400], NoEffect),
        ("a folded field", post("f9", "x-a: 1\r\n  2\r\ncontent-length: 2\r\n", "{}"), &[400], NoEffect),
        ("a blank before the colon", post("f10", "content-length : 2\r\n", "{}"), &[400], NoEffect),
        ("a field without a name", post("f11", ": 2\r\ncontent-length: 2\r\n", "{}"), &[400], NoEffect),
        ("a chunk size that is no number", post("f12", CHUNKED, "zz\r\n{}\r\n0\r\n\r\n"), &[400], NoEffect),
        ("a chunk size beyond 64 bits", post("f13", CHUNKED, "fffffffffffffffff\r\n{}\r\n"), &[400], NoEffect),
        ("a chunk longer than its size", post("f14", CHUNKED, "1\r\n{}\r\n0\r\n\r\n"), &[400], NoEffect),
        ("64 KiB of chunk extensions", post("f15", CHUNKED, &format!("2;{}", "e".repeat(65_536))), &[400], NoEffect),
        ("64 KiB of trailers", post("f16", CHUNKED, &format!("0\r\nx: {}", "t".repeat(65_536))), &[400], NoEffect),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unambiguous_framing_is_accepted() {
    assert_responses(&[
        ("one length twice", post("t1", "content-length: 2\r\ncontent-length: 2\r\n", "{}"), &[201], One),
        ("chunk extensions", post("t2", CHUNKED, "2;name=value\r\n{}\r\n0\r\n\r\n"), &[201], One),
        ("trailers", post("t3", CHUNKED, "2\r\n{}\r\n0\r\nidempotency-key: other\r\n\r\n"), &[201], One),
        ("no body", post("t4", "", ""), &[201], One),
        ("a body of 0 bytes", post("t5", "content-length: 0\r\n", ""), &[201], One),
        ("a chunked body of 0 bytes", post("t6", CHUNKED, "0\r\n\r\n"), &[201], One),
        ("bare line feeds", post("t7", TWO, "{}").replace("\r\n", "\n"), &[201], One),
        ("HTTP/1.0", post("t8", TWO, "{}").replace("1.1", "1.0"), &[201], One),
        ("any case", post("t9", TWO, "{}").replace("idempotency-key", "IDEMPOTENCY-KEY"), &[201], One),
        ("an absolute target", post("t10", TWO, "{}").replace("/charges", "http://b/charges"), &[201], One),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_or_oversized_head_is_refused() {
    let many: String = (0..100).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = "k".repeat(40_000);
    assert_responses(&[
        ("a NUL in the key", post("a\0b", TWO, "{}"), &[400], NoEffect),
        ("a CR in the key", post("a\rb", TWO, "{}"), &[400], NoEffect),
        ("a key of blanks", post("   ", TWO, "{}"), &[400], NoEffect),
        ("a key that is not ASCII", post("schlüssel", TWO, "{}"), &[400], NoEffect),
        ("an unbalanced quote", post("\"a", TWO, "{}"), &[400], NoEffect),
        ("a list of keys", post("a, b", TWO, "{}"), &[400], NoEffect),
        ("two keys", post("a", "content-length: 2\r\nidempotency-key: b\r\n", "{}"), &[400], NoEffect),
        ("a key of 256 bytes", post(&"k".repeat(256), TWO, "{}"), &[400], NoEffect),
        ("a key of 40 kB", post(&long, TWO, "{}"), &[431], NoEffect),
        ("more than 100 fields", post("h1", &many, ""), &[431], NoEffect),
        ("a target of 40 kB", post("h2", TWO, "{}").replace("charges", &long), &[414, 431], NoEffect),
        ("no Host", post("h3", TWO, "{}").replace("host: a\r\n", ""), &[400], NoEffect),
        ("two Hosts", post("h4", "host: a\r\n", ""), &[400], NoEffect),
        ("a Host with credentials", post("h5", TWO, "{}").replace("host: a", "host: u@a"), &[400], NoEffect),
        ("Connection names the key", post("h6", "connection: idempotency-key\r\n", ""), &[400], NoEffect),
        (
            "Connection names the caller's field",
            post("h7", "connection: close, Authorization\r\n", ""),
            &[400],
            NoEffect,
        ),
        ("a tunnel", "CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n".into(), &[405], NoEffect),
        ("HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[0, 400], NoEffect),
        ("HTTP/9.9", post("h8", TWO, "{}").replace("1.1", "9.9"), &[0, 400], NoEffect),
        ("bytes that are not HTTP", "\u{16}\u{3}\u{1}\0\0\r\n\r\n".into(), &[0, 400], NoEffect),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_hidden_in_the_body_of_another_is_never_run() {
    let (api, gateway) = api_and_gateway().await;
    let hidden = post("hidden", TWO, "{}");
    for (key, fields) in [
        ("s1", "content-length: 5\r\ntransfer-encoding: chunked\r\n"),
        ("s2", "transfer-encoding: chunked\r\ncontent-length: 5\r\n"),
    ] {
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(post(key, fields, &format!("0\r\n\r\n{hidden}")).as_bytes()).await;
        assert_eq!(wire.read_response().await.unwrap().status, 201);
        assert!(wire.read_response().await.is_none(), "the connection must be closed after a request with two lengths");
    }
    let keys: Vec<_> = api.seen().iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys, ["s1", "s2"]);
    assert!(
        api.seen().iter().all(|seen| seen.headers["content-length"] == "0"),
        "the gateway must frame the body itself"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_copies_get_their_responses_in_order_with_one_effect() {
    let (api, gateway) = api_and_gateway().await;
    let copies = post("p", TWO, "{}").repeat(3);
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(copies.as_bytes()).await;
    for replayed in [None, Some("true"), Some("true")] {
        let answer = wire.read_response().await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (201, "answer 1"));
        assert_eq!(answer.field("idempotent-replayed"), replayed);
    }
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_stays_usable_after_a_refusal() {
    let (api, gateway) = api_and_gateway().await;
    let slow = post("slow", TWO, "{}").replace("/charges", "/slow");
    let (mut first, mut second) = (RawConnection::to(gateway.public).await, RawConnection::to(gateway.public).await);
    first.send_bytes(slow.as_bytes()).await;
    api.wait_for_requests(1).await;
    for (request, status) in [(slow.clone(), 409), (slow.replace("{}", "[]"), 422), (post("next", TWO, "{}"), 201)] {
        second.send_bytes(request.as_bytes()).await;
        assert_eq!(second.read_response().await.unwrap().status, status);
    }
    api.release_slow();
    assert_eq!(first.read_response().await.unwrap().status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_valid_head_gets_100_continue() {
    let (api, gateway) = api_and_gateway().await;
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(post("e", "expect: 100-continue\r\ncontent-length: 2\r\n", "").as_bytes()).await;
    assert_eq!(wire.read_response().await.unwrap().status, 100);
    wire.send_bytes(b"{}").await;
    assert_eq!(wire.read_response().await.unwrap().status, 201);
    assert!(!api.seen()[0].headers.contains_key("expect"));
    wire.send_bytes(post("a, b", "expect: 100-continue\r\ncontent-length: 2\r\n", "").as_bytes()).await;
    assert_eq!(wire.read_response().await.unwrap().status, 400);
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_an_incomplete_body_leaves_no_record_h11() {
    let (api, gateway) = api_and_gateway().await;
    for (key, fields, part) in
        [("b1", "content-length: 9\r\n", "{"), ("b2", CHUNKED, "9\r\n{"), ("b3", CHUNKED, "1\r\n{\r\n")]
    {
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(post(key, fields, part).as_bytes()).await;
        wire.reset();
        let whole = gateway.retry_until_settled("/charges", key, "{}").await;
        assert!(whole.status == 201 && !whole.is_replayed(), "{key}: {}", whole.body);
    }
    assert_eq!(api.seen().len(), 3);
}

/// The path and the bytes of each response of the API.
fn answers() -> Vec<(&'static str, Vec<u8>)> {
    let text = |answer: &str| answer.as_bytes().to_vec();
    let large =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5242880\r\n\r\n".iter().copied().chain(vec![b'x'; 5 << 20]).collect();
    vec![
        ("/204", text("HTTP/1.1 204 No Content\r\n\r\n")),
        ("/304", text("HTTP/1.1 304 Not Modified\r\netag: \"e\"\r\n\r\n")),
        ("/head", text("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")),
        (
            "/hops",
            text(
                "HTTP/1.1 200 OK\r\nconnection: close, X-Foo\r\nx-foo: 1\r\nkeep-alive: 9\r\nproxy-authenticate: b\r\n\
                 set-cookie: s=1\r\nx-bar: 2\r\ncontent-length: 2\r\n\r\nok",
            ),
        ),
        ("/events", text("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")),
        ("/large", large),
        ("/half", text("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf")),
        ("/half-chunked", text("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf")),
        ("/half-head", text("HTTP/1.1 200 OK\r\ncontent-le")),
        ("/silent", Vec::new()),
        ("/nonsense", text("\0\0\0\r\n\r\n")),
        ("/folded", text("HTTP/1.1 200 OK\r\nx-a: 1\r\n 2\r\ncontent-length: 2\r\n\r\nok")),
        ("/lengths", text("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk")),
        ("/switch", text("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")),
        (
            "/early",
            text("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_any_api_response_agree_and_nothing_runs_twice() {
    let api = ScriptedApi::start(&answers()).await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    for (path, first, copy) in [
        ("/204", 204, 204),
        ("/304", 304, 304),
        ("/hops", 200, 200),
        ("/events", 200, 409),
        ("/large", 200, 409),
        ("/half", 502, 409),
        ("/half-chunked", 502, 409),
        ("/half-head", 502, 409),
        ("/silent", 502, 409),
        ("/nonsense", 502, 409),
        ("/lengths", 502, 409),
        ("/switch", 502, 409),
        ("/early", 200, 200),
    ] {
        let mut wire = RawConnection::to(gateway.public).await;
        let request = post(&path[1..], TWO, "{}").replace("/charges", path);
        for status in [first, copy, copy] {
            wire.send_bytes(request.as_bytes()).await;
            let answer = wire.read_response().await.unwrap_or_else(|| panic!("{path}: no answer"));
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            for name in ["x-foo", "keep-alive", "proxy-authenticate"] {
                assert_eq!(answer.field(name), None, "{path}");
            }
        }
        assert_eq!(api.count(path), 1, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unprotected_response_streams_unchanged_h36() {
    let api = ScriptedApi::start(&answers()).await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    for (method, path, status, length) in [
        ("HEAD", "/head", 200, 0),
        ("GET", "/large", 200, 5 << 20),
        ("GET", "/304", 304, 0),
        ("DELETE", "/204", 204, 0),
    ] {
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await;
        let answer = wire.read_response_to(method).await.unwrap();
        assert_eq!((answer.status, answer.body.len()), (status, length), "{method} {path}");
        if method == "HEAD" {
            assert_eq!(answer.field("content-length"), Some("1000"));
        }
    }
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"GET /half HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(wire.read_response().await.is_none(), "a cut response must be cut for the client as well");
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(
        wire.read_response().await.unwrap().status,
        502,
        "the API closes without a response; the gateway must keep working"
    );
}
