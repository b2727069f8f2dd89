use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Api, Gateway, free_address, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_reaches_the_api_once_and_gets_the_same_answer_h15() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let first = gateway.post("/charges", "key-1", "{}").await.unwrap();
    let retry = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert_eq!((first.status.as_u16(), first.body.as_str()), (201, "answer 1"));
    assert_eq!((retry.status, &retry.body), (first.status, &first.body));
    assert!(!first.is_replayed() && retry.is_replayed());
    assert!(first.headers.contains_key("set-cookie") && !retry.headers.contains_key("set-cookie"));
    assert_eq!(api.seen().len(), 1);
    let reused = gateway.post("/charges", "key-1", "{\"amount\":6}").await.unwrap();
    assert_eq!((reused.status.as_u16(), reused.problem()), (422, "key-reused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_gets_the_attempt_fields_and_clients_cannot_forge_them_h37() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let request = Request::post(format!("http://{}/charges", gateway.public))
        .header("idempotency-key", "\"quoted\"")
        .header("hapax-token", "1")
        .header("hapax-forged", "1")
        .header("accept-encoding", "br");
    gateway.send(request.body(Full::from("pay")).unwrap()).await.unwrap();
    let seen = &api.seen()[0];
    assert_eq!(seen.body, Bytes::from("pay"));
    assert_eq!(
        (&seen.headers["idempotency-key"], &seen.headers["hapax-attempt"]),
        (&"\"quoted\"".parse().unwrap(), &"1".parse().unwrap())
    );
    assert!(seen.headers["hapax-token"].to_str().unwrap().parse::<u64>().unwrap() > 1);
    assert_eq!(seen.headers["hapax-operation"].len(), 36);
    let fingerprint: hapax::Fingerprint = seen.headers["hapax-fingerprint"].to_str().unwrap().parse().unwrap();
    assert_ne!(fingerprint.rule(), hapax::Rule::NONE);
    assert_eq!(seen.headers["accept-encoding"], "identity");
    assert_eq!(seen.headers["host"], gateway.public.to_string());
    assert!(!seen.headers.contains_key("hapax-forged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_during_the_first_attempt_gets_in_progress() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (first, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let copy = gateway.post("/slow", "key-1", "{}").await.unwrap();
        assert_eq!((copy.status.as_u16(), copy.problem()), (409, "in-progress"));
        assert!(copy.headers.contains_key("retry-after"));
        api.release_slow();
    });
    assert_eq!(first.unwrap().status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn unprotected_requests_stream_through_h36() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for number in 1..=2 {
        let got = gateway.get(gateway.public, "/charges").await.unwrap();
        assert_eq!((got.status.as_u16(), got.body), (201, format!("answer {number}")));
    }
    let large = Request::put(format!("http://{}/upload", gateway.public)).body(Full::from(vec![7; 3 << 20])).unwrap();
    assert_eq!(gateway.send(large).await.unwrap().status, 201);
    assert_eq!(api.seen()[2].body.len(), 3 << 20, "unprotected bodies have no limit");
    assert!(!api.seen()[2].headers.contains_key("hapax-operation"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_api_leaves_the_key_free_h32() {
    let address = free_address();
    let gateway = Gateway::start(address, "memory:", &[]).await;
    let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), got.problem()), (502, "upstream-unreachable"));
    let api = Api::start_at(address).await;
    assert_eq!(gateway.post("/charges", "key-1", "{}").await.unwrap().status, 201, "the key must be free again");
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timed_out_request_has_an_unknown_outcome_h32() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "300ms"]).await;
    let first = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert_eq!((first.status.as_u16(), first.problem()), (504, "upstream-timeout"));
    let retry = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert_eq!((retry.status.as_u16(), retry.problem()), (409, "outcome-unknown"));
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_response_has_an_unknown_outcome_h27() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "300ms"]).await;
    let first = gateway.post("/stalls", "key-1", "{}").await.unwrap();
    assert_eq!((first.status.as_u16(), first.problem()), (504, "upstream-timeout"));
    let retry = gateway.post("/stalls", "key-1", "{}").await.unwrap();
    assert_eq!((retry.status.as_u16(), retry.problem()), (409, "outcome-unknown"));
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_timeout_starts_after_the_last_piece_of_an_upload_h32() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "1s"]).await;
    let (reader, mut writer) = TcpStream::connect(gateway.public).await.unwrap().into_split();
    let mut reader = Some(tokio::spawn(read_response(reader)));
    writer.write_all(b"PUT /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let (began, mut pieces) = (Instant::now(), 0);
    // The upload takes twice the timeout, but no pause in it is as long as the timeout.
    while began.elapsed() < 2 * TIMEOUT {
        writer.write_all(b"1\r\nx\r\n").await.unwrap();
        pieces += 1;
        until("it is time for the next piece", async || began.elapsed() > pieces * TIMEOUT / 10).await;
    }
    assert!(!reader.as_ref().unwrap().is_finished(), "a slow upload must not be cut off");
    let stopped = Instant::now();
    // The upload stops and the API waits for the rest, so the outcome of the first part is unknown.
    let answer = reader.take().unwrap().await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("#upstream-timeout"), "{answer}");
    assert!(stopped.elapsed() >= TIMEOUT / 2, "the timeout fired too early");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_finish_its_upload_before_it_reads_the_response() {
    const LONG: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(listener.local_addr().unwrap(), "memory:", &[]).await;
    // The API reads and writes at the same time and ends its response after the whole upload.
    let api = tokio::spawn(async move {
        let (mut reader, mut writer) = listener.accept().await.unwrap().0.into_split();
        let (mut read, mut buffer) = (reader.read(&mut [0; 1 << 10]).await.unwrap(), vec![0; 1 << 16]);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n");
        let answering = tokio::spawn(async move {
            writer.write_all(head.as_bytes()).await.unwrap();
            writer.write_all(&vec![b'y'; LONG - 1]).await.unwrap();
            writer
        });
        while read <= LONG {
            let more = reader.read(&mut buffer).await.unwrap();
            assert!(more > 0, "the upload was cut off after {read} bytes");
            read += more;
        }
        answering.await.unwrap().write_all(b"y").await.unwrap();
    });
    let mut client = TcpStream::connect(gateway.public).await.unwrap();
    let head = format!("PUT /both HTTP/1.1\r\nhost: a\r\ncontent-length: {LONG}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let both = async {
        client.write_all(&vec![b'x'; LONG]).await.unwrap();
        let mut answer = vec![0; LONG];
        client.read_exact(&mut answer).await.unwrap();
        api.await.unwrap();
        answer
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), both).await.expect("client and API wait for each other");
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

/// Reads until the gateway closes the connection or has responded.
async fn read_response(mut reader: OwnedReadHalf) -> String {
    let mut text = String::new();
    while !text.contains("upstream-timeout") {
        match reader.read_u8().await {
            Ok(byte) => text.push(char::from(byte)),
            Err(_) => break,
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_half_closes_gets_its_response_h13() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let answer =
        raw(gateway.public, b"POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 2\r\n\r\n{}")
            .await;
    assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with("answer 1"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_is_refused() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let answer = raw(gateway.public, b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert_eq!(api.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_cannot_forge_the_fields_of_the_gateway_h37() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for method in ["POST", "PUT"] {
        let request = Request::builder().method(method).uri(format!("http://{}/forges", gateway.public));
        let request = request.header("authorization", "Bearer a").header("idempotency-key", "k");
        let got = gateway.send(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!((got.status.as_u16(), got.is_replayed()), (201, false), "{method}");
        assert!(!got.headers.contains_key("hapax-recorded"), "{method}");
        assert_ne!(got.headers.get("idempotency-key-expires"), Some(&HeaderValue::from_static("forged")), "{method}");
    }
}

/// `in-progress` is not a final response, so the front gateway must not store it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_does_not_store_the_in_progress_of_another_gateway_h22() {
    let api = Api::start().await;
    let back = Gateway::start(api.address, "memory:", &[]).await;
    let front = Gateway::start(back.public, "memory:", &[]).await;
    let (first, early) = tokio::join!(back.post("/slow", "k", "{}"), async {
        api.wait_for_requests(1).await;
        let early = front.post("/slow", "k", "{}").await.unwrap();
        api.release_slow();
        early
    });
    assert_eq!((early.status.as_u16(), early.problem()), (409, "in-progress"));
    let late = front.post("/slow", "k", "{}").await.unwrap();
    assert_eq!((late.status, &late.body), (StatusCode::CREATED, &first.unwrap().body));
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_of_the_contract_has_a_flag() {
    let api = Api::start().await;
    let flags = ["--wait", "60s", "--key", "optional", "--key-grammar", "strict", "--store-header", "x-cost,x-other"];
    let limits = ["--max-request-body", "8", "--max-stored-body", "8", "--retention", "2days"];
    let gateway = Gateway::start(api.address, "memory:", &[&flags[..], &limits].concat()).await;
    assert_eq!(gateway.post("/charges", "bare", "{}").await.unwrap().problem(), "key-malformed");
    assert_eq!(gateway.post("/charges", "\"long\"", "123456789").await.unwrap().problem(), "body-too-large");
    let first = gateway.post("/charges", "\"k\"", "{}").await.unwrap();
    let retry = gateway.post("/charges", "\"k\"", "{}").await.unwrap();
    assert_eq!((first.body.as_str(), retry.body.as_str()), ("answer 1", "answer 1"));
    assert_eq!((retry.is_replayed(), &retry.headers["x-cost"]), (true, &HeaderValue::from_static("7")));
    let without = Request::post(format!("http://{}/charges", gateway.public)).body(Full::from("{}")).unwrap();
    assert_eq!(gateway.send(without).await.unwrap().status, 201);
    let (first, copy) = tokio::join!(gateway.post("/slow", "\"s\"", "{}"), async {
        api.wait_for_requests(3).await;
        let copy = gateway.post("/slow", "\"s\"", "{}");
        api.release_slow();
        copy.await
    });
    assert_eq!((first.unwrap().body, copy.unwrap().body), ("answer 3".into(), "answer 3".into()));
    let large = gateway.post("/large", "\"l\"", "{}").await.unwrap();
    assert_eq!(large.body.len(), 64);
    assert_eq!(gateway.post("/large", "\"l\"", "{}").await.unwrap().problem(), "not-replayable");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_publishes_the_contract_h35() {
    let api = Api::start().await;
    let gateway =
        Gateway::start(api.address, "memory:", &["--tenant", "header:x-account", "--retention", "2days"]).await;
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let policy: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!((&policy["caller"], &policy["retention"]["duration"]), (&"header:x-account".into(), &"P2D".into()));
    assert_eq!(api.seen().len(), 0);
}

/// Sends bytes, closes the sending side, and reads to the end.
async fn raw(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
