//! Where a message ends: an answer of the API, and a request on a connection that carries several.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Api, Gateway};
use crate::raw_http::{RawConnection, RawResponse, ScriptedApi};

/// A response that a client of a shared connection must never take for an answer.
const FORGED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// The scripted API closes its connections. Without this field the gateway could send the next request into one that
/// is being closed.
const CLOSES: &str = "connection: close\r\n";

/// An answer with these fields and a chunked body that contains a forged response.
fn chunked_answer(fields: &str) -> Vec<u8> {
    let body = format!("hello{FORGED}");
    format!("HTTP/1.1 200 OK\r\n{CLOSES}{fields}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into_bytes()
}

fn answer(fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{CLOSES}{fields}\r\n{body}").into_bytes()
}

/// Writes a protected or an unprotected request without a body.
fn request(method: &str, path: &str) -> String {
    let key = path.trim_start_matches('/');
    format!("{method} {path} HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\n\r\n")
}

async fn gateway_before(api: SocketAddr) -> Gateway {
    Gateway::start(api, "memory:", &["--tenant", "none"]).await
}

/// Sends these bytes on a new connection and returns the first two responses, None where the connection has ended.
async fn two_responses(gateway: &Gateway, bytes: &str) -> (Option<RawResponse>, Option<RawResponse>) {
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(bytes.as_bytes()).await;
    let first = wire.read_response().await;
    let second = if first.is_some() { wire.read_response().await } else { None };
    (first, second)
}

fn text(answer: Option<&RawResponse>) -> Option<String> {
    answer.map(RawResponse::text)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_the_api_forges_another_one_h42() {
    let whole = format!("hello{FORGED}");
    let answers = [
        ("/length-first", chunked_answer(&format!("content-length: 5\r\n{CHUNKED}")), whole.as_str()),
        ("/coding-first", chunked_answer(&format!("{CHUNKED}content-length: 5\r\n")), &whole),
        ("/long", chunked_answer(&format!("{CHUNKED}content-length: 500\r\n")), &whole),
        ("/list", chunked_answer(&format!("{CHUNKED}content-length: 5, 5\r\n")), &whole),
        ("/no-number", chunked_answer(&format!("{CHUNKED}content-length: five\r\n")), &whole),
        ("/twice", answer("content-length: 5\r\ncontent-length: 5\r\n", "hello"), "hello"),
        // Not said to be the last one of its connection: the gateway must see the surplus itself.
        ("/surplus", format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{whole}").into_bytes(), "hello"),
        ("/next", answer("content-length: 4\r\n", "next"), "next"),
    ];
    let api = ScriptedApi::start(&answers.clone().map(|(path, bytes, _)| (path, bytes))).await;
    let gateway = gateway_before(api.address).await;
    for method in ["POST", "GET"] {
        for (path, _, body) in &answers {
            let pipelined = request(method, path) + &request("GET", "/next");
            let (first, second) = two_responses(&gateway, &pipelined).await;
            assert_eq!(text(first.as_ref()).as_deref(), Some(*body), "{method} {path}");
            assert_eq!(text(second.as_ref()).as_deref(), Some("next"), "{method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_end_is_uncertain_is_bad_h42() {
    let answers = [
        ("/list", answer("content-length: 2, 2\r\n", "ok")),
        ("/differing", answer("content-length: 2\r\ncontent-length: 3\r\n", "okk")),
        ("/signed", answer("content-length: +2\r\n", "ok")),
        ("/empty", answer("content-length: \r\n", "ok")),
        ("/gzip", chunked_answer("transfer-encoding: gzip, chunked\r\n")),
        ("/gzip-only", answer("transfer-encoding: gzip\r\n", "ok")),
        ("/two-codings", chunked_answer("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n")),
    ];
    let api = ScriptedApi::start(&answers).await;
    let gateway = gateway_before(api.address).await;
    for (path, _) in &answers {
        let (first, copy) = two_responses(&gateway, &request("POST", path).repeat(2)).await;
        let (first, copy) = (first.unwrap(), copy.unwrap());
        assert!(first.status == 502 && first.text().contains("#upstream-cut"), "{path}: {}", first.text());
        assert!(copy.status == 409 && copy.text().contains("#outcome-unknown"), "{path}: {}", copy.text());
        assert_eq!(api.count(path), 1, "{path}");
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(request("GET", path).as_bytes()).await;
        assert_eq!(wire.read_response().await.unwrap().status, 502, "{path}");
    }
}

/// A chunked request to this path, with these bytes after its only chunk, and a second request after it.
fn chunked_request_and_another(method: &str, path: &str, key: &str, ending: &str) -> String {
    let fields = format!("host: a\r\nidempotency-key: {key}\r\n{CHUNKED}");
    format!("{method} {path} HTTP/1.1\r\n{fields}\r\n2\r\n{{}}\r\n{ending}{}", request("GET", "/second"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_after_a_bare_line_feed_is_not_swallowed_h43() {
    let api = Api::start().await;
    let gateway = gateway_before(api.address).await;
    let endings = [
        "0\r\n\n",
        "0\n\r\n",
        "0\n\n",
        "0\r\n\n\r\n",
        "0\r\nx: 1\n\n",
        "0\r\nx: 1\n\r\n",
        "0\r\nx: 1\r\n\n",
        "0\r\nx: 1\r\n\r\n",
    ];
    for method in ["POST", "PUT"] {
        for (number, ending) in endings.iter().enumerate() {
            let before = api.count();
            let bytes = chunked_request_and_another(method, "/first", &format!("{method}-{number}"), ending);
            let (first, second) = two_responses(&gateway, &bytes).await;
            let seen: Vec<_> = api.seen()[before..].iter().map(|seen| seen.path.clone()).collect();
            // The client must learn from the closed connection that the second request was not processed.
            assert!(second.is_none() && !seen.contains(&"/second".to_owned()), "{method} {ending:?}: {seen:?}");
            let status = first.map(|first| first.status);
            assert!(matches!(status, None | Some(201 | 400 | 502)), "{method} {ending:?}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_stays_open_after_a_chunked_request_that_ends_cleanly_h43() {
    let api = Api::start().await;
    let gateway = gateway_before(api.address).await;
    for method in ["POST", "PUT"] {
        let bytes = chunked_request_and_another(method, "/first", method, "0\r\n\r\n");
        let (first, second) = two_responses(&gateway, &bytes).await;
        assert_eq!(first.unwrap().status, 201, "{method}");
        assert_eq!(second.expect("the connection stays open").status, 201, "{method}");
    }
    // Nobody reads the body of a request without a key, so its end is not known.
    let bytes = chunked_request_and_another("POST", "/first", "", "0\r\n\r\n");
    let (first, second) = two_responses(&gateway, &bytes).await;
    let first = first.unwrap();
    assert_eq!((first.status, first.field("connection")), (400, Some("close")));
    assert!(second.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_transfer_coding_is_not_implemented_h44() {
    let api = Api::start().await;
    let gateway = gateway_before(api.address).await;
    for (number, coding) in
        ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked", "chunked, chunked"].iter().enumerate()
    {
        for method in ["POST", "PUT"] {
            let fields = format!("host: a\r\nidempotency-key: {method}{number}\r\ntransfer-encoding: {coding}\r\n");
            let bytes = format!("{method} /first HTTP/1.1\r\n{fields}\r\n2\r\n{{}}\r\n0\r\n\r\n");
            let (first, second) = two_responses(&gateway, &(bytes + &request("GET", "/second"))).await;
            assert_eq!(first.unwrap().status, 501, "{method} {coding}");
            assert!(second.is_none(), "{method} {coding}");
        }
    }
    assert_eq!(api.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_get_reaches_the_api_h36() {
    let api = Api::start().await;
    let gateway = gateway_before(api.address).await;
    for (method, framing, body) in [
        ("GET", "content-length: 5\r\n", "hello"),
        ("GET", CHUNKED, "5\r\nhello\r\n0\r\n\r\n"),
        ("HEAD", CHUNKED, "5\r\nhello\r\n0\r\n\r\n"),
        ("OPTIONS", CHUNKED, "5\r\nhello\r\n0\r\n\r\n"),
        ("DELETE", CHUNKED, "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let before = api.count();
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(format!("{method} /search HTTP/1.1\r\nhost: a\r\n{framing}\r\n{body}").as_bytes()).await;
        assert_eq!(wire.read_response_to(method).await.unwrap().status, 201, "{method} {framing}");
        assert_eq!(api.seen()[before].body, "hello", "{method} {framing}");
    }
}

/// Sends a request of HTTP/1.0, and the API's answer up to its first chunk. Returns both connections.
async fn begin_over_http10(gateway: &Gateway, api: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(gateway.public).await.unwrap();
    client.write_all(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n").await.unwrap();
    let mut api = api.accept().await.unwrap().0;
    assert!(api.read(&mut [0; 1 << 10]).await.unwrap() > 0);
    let start = format!("HTTP/1.1 200 OK\r\n{CLOSES}{CHUNKED}\r\n5\r\nhello\r\n");
    api.write_all(start.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"hello") {
        received.push(client.read_u8().await.unwrap());
    }
    (client, api)
}

/// In HTTP/1.0 the end of the connection is the end of a body without a length.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http10_sees_that_an_answer_was_cut_h42() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gateway = gateway_before(listener.local_addr().unwrap()).await;
    for (end, is_whole) in [("0\r\n\r\n", true), ("", false), ("5\r\nwor", false), ("0\r\n\r\n", true)] {
        let (mut client, mut api) = begin_over_http10(&gateway, &listener).await;
        api.write_all(end.as_bytes()).await.unwrap();
        drop(api);
        let ended = client.read_to_end(&mut Vec::new()).await;
        assert_eq!(ended.is_ok(), is_whole, "{end:?}: {ended:?}");
    }
    let (mut client, _api) = begin_over_http10(&gateway, &listener).await;
    gateway.kill();
    let ended = client.read_to_end(&mut Vec::new()).await;
    assert!(ended.is_err(), "the gateway was killed: {ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_more_than_100_fields_is_passed_on_and_replayed_h16() {
    let fields: String = (0..250).map(|n| format!("x-field-{n}: {n}\r\n")).collect();
    let api = ScriptedApi::start(&[("/wide", answer(&format!("{fields}content-length: 4\r\n"), "wide"))]).await;
    let gateway = gateway_before(api.address).await;
    for replayed in [None, Some("true")] {
        let mut wire = RawConnection::to(gateway.public).await;
        wire.send_bytes(request("POST", "/wide").as_bytes()).await;
        let answer = wire.read_response().await.unwrap();
        assert_eq!((answer.status, answer.text()), (200, "wide".into()));
        assert_eq!(answer.field("idempotent-replayed"), replayed);
        assert_eq!(answer.field("x-field-249"), replayed.is_none().then_some("249"), "it is not recorded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http1_that_takes_trailers_gets_those_that_are_declared_h45() {
    let trailers = "x-checksum: 1\r\nx-undeclared: 2\r\nhapax-token: 7\r\nconnection: x\r\n";
    let declared = "trailer: X-Checksum, hapax-token, connection\r\n";
    let sent = format!("HTTP/1.1 200 OK\r\n{CLOSES}{CHUNKED}{declared}\r\n2\r\nok\r\n0\r\n{trailers}\r\n");
    let api = ScriptedApi::start(&[("/sum", sent.into_bytes())]).await;
    let gateway = gateway_before(api.address).await;
    for (method, fields, end) in [
        ("GET", "connection: close, te\r\nte: trailers\r\n", "0\r\nx-checksum: 1\r\n\r\n"),
        ("GET", "connection: close\r\n", "0\r\n\r\n"),
        ("POST", "connection: close, te\r\nte: trailers\r\nidempotency-key: key-1\r\n", "\r\n\r\nok"),
    ] {
        let mut stream = TcpStream::connect(gateway.public).await.unwrap();
        let request = format!("{method} /sum HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).await.unwrap();
        assert!(received.ends_with(end), "{method} {fields}: {received}");
        assert_eq!(received.contains("trailer: x-checksum\r\n"), end.contains("x-checksum"), "{received}");
    }
}
