//! Clients that break or stall the upload of an unprotected request, which the API gets while it arrives.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::harness::{Api, DEADLINE, Gateway};
use crate::http2::serve_api;
use crate::http2_clients::{FrameClient, connect};
use crate::metrics::upstream_errors;
use crate::raw_http::{RawConnection, RawResponse};
use crate::tls::{Pki, client_config, secure_gateway};

const CHUNKED: &str = "transfer-encoding: chunked\r\n\r\n";

/// Sends the beginning of a request that is not protected.
async fn begin(gateway: &Gateway, method: &str, rest: &str) -> RawConnection {
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(format!("{method} /charges HTTP/1.1\r\nhost: a\r\n{rest}").as_bytes()).await;
    wire
}

fn assert_problem(got: &RawResponse, status: u16, name: &str) {
    assert!(got.status == status && got.text().contains(&format!("#{name}\"")), "{} {}", got.status, got.text());
}

/// Nothing listens at the address of the API, so a connection to it would be `upstream-unreachable`.
#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_the_first_bytes_of_a_body_is_not_a_timeout_of_the_api_h11() {
    let flags = ["--upstream", "http://127.0.0.1:9", "--upstream-timeout", "300ms", "--stall-timeout", "1s"];
    let gateway = Gateway::start_with("memory:", &flags).await;
    for (chunk, status, name) in [("", 408, "body-timeout"), ("zz\r\n", 400, "body-cut")] {
        let mut wire = begin(&gateway, "GET", &format!("{CHUNKED}{chunk}")).await;
        assert_problem(&wire.read_response().await.unwrap(), status, name);
    }
    assert_eq!(upstream_errors(&gateway).await, [0.0; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_its_client_breaks_is_no_failure_of_the_api_h11() {
    let api = Api::start().await;
    let h2c = serve_api(&api, None).await;
    for upstream in [format!("http://{}", api.address), format!("h2c://{h2c}")] {
        let flags = ["--upstream", &upstream, "--stall-timeout", "1s"];
        let gateway = Gateway::start_with("memory:", &flags).await;
        for (rest, status, name) in [("zz\r\n", 400, "body-cut"), ("", 408, "body-timeout")] {
            let mut wire = begin(&gateway, "PUT", &format!("{CHUNKED}1\r\n{{\r\n{rest}")).await;
            assert_problem(&wire.read_response().await.unwrap(), status, name);
        }
        let mut half_closed = begin(&gateway, "PUT", "content-length: 1000\r\n\r\nabc").await;
        half_closed.close_sending().await;
        assert_problem(&half_closed.read_response().await.unwrap(), 400, "body-cut");
        drop(begin(&gateway, "PUT", "content-length: 1000\r\n\r\nabc").await);
        begin(&gateway, "PUT", "content-length: 1000\r\n\r\nabc").await.reset();
        assert_no_upstream_error(gateway, &upstream).await;
    }
    assert_eq!(api.count(), 0);
}

/// The API answers before it has read the body of the request, and does not end its answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stalls_after_the_answer_has_begun_is_no_failure_of_the_api_h11() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 10]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await.unwrap();
        drop(stream.read_to_end(&mut Vec::new()).await);
    });
    let gateway = Gateway::start(address, "memory:", &["--stall-timeout", "1s"]).await;
    let mut wire = begin(&gateway, "PUT", &format!("{CHUNKED}1\r\n{{\r\n")).await;
    assert!(wire.read_until("abc").await);
    assert!(!wire.read_until("no more").await, "the connection is closed");
    timeout(DEADLINE, api).await.unwrap().unwrap();
    assert_no_upstream_error(gateway, "http").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_stream_the_client_resets_is_no_failure_of_the_api_h11() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    let mut client = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, 1 << 16).await.unwrap();
    for _ in 0..10 {
        let stream = client.open("PUT", "/charges", "key-none").await;
        client.send_data(stream, b"abc", 0).await;
        client.send_ping().await.unwrap();
        client.reset(stream).await.unwrap();
    }
    drop(client);
    assert_no_upstream_error(gateway, "http").await;
}

/// Stops the gateway, so that its requests have ended, and checks its metrics and logs.
async fn assert_no_upstream_error(gateway: Gateway, upstream: &str) {
    assert_eq!(upstream_errors(&gateway).await, [0.0; 3], "{upstream}");
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    assert_eq!(code, Some(0), "{upstream}");
    let warning = logs.lines().find(|line| line.contains("the API failed during the request"));
    assert_eq!(warning, None, "{upstream}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_declared_too_long_is_refused_without_a_go_ahead_h11() {
    let api = Api::start().await;
    let gateway = Gateway::start_with("memory:", &["--upstream", &format!("http://{}", api.address)]).await;
    let expecting = "authorization: Bearer me\r\nidempotency-key: k\r\nexpect: 100-continue\r\n";
    let mut wire = begin(&gateway, "POST", &format!("{expecting}content-length: 2000000\r\n\r\n")).await;
    assert_problem(&wire.read_response().await.unwrap(), 413, "body-too-large");
    let mut wire = begin(&gateway, "POST", &format!("{expecting}content-length: 1\r\n\r\n")).await;
    assert_eq!(wire.read_response().await.unwrap().status, 100);
    wire.send_bytes(b"x").await;
    assert_eq!(wire.read_response().await.unwrap().status, 201);
    assert!(!api.seen()[0].headers.contains_key("expect"), "the gateway has answered it");
}

/// Longer than what the gateway discards before it answers, and than the buffers of both sides.
const LONG: usize = 24 << 20;

/// Sends a body to its end before it reads the response.
async fn upload(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str) -> String {
    let mut received = Vec::new();
    let exchange = async {
        stream.write_all(format!("POST /charges HTTP/1.1\r\nhost: a\r\n{head}").as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; LONG]).await.expect("the gateway takes the whole body");
        stream.flush().await.unwrap();
        stream.read_to_end(&mut received).await.expect("the end of the response");
    };
    timeout(DEADLINE, exchange).await.unwrap();
    String::from_utf8(received).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_its_whole_body_reads_why_it_is_refused_h11() {
    let (api, pki) = (Api::start().await, Pki::new());
    let secure = secure_gateway(api.address, &pki).await;
    let plain = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let length = format!("content-length: {LONG}\r\n\r\n");
    let key = format!("idempotency-key: key-1\r\n{length}");
    // hyper would leave the end of such a connection to whoever takes the other protocol.
    let upgrading = format!("connection: upgrade\r\nupgrade: h2c\r\n{length}");
    let chunks = format!("idempotency-key: key-2\r\ntransfer-encoding: chunked\r\n\r\n{LONG:x}\r\n");
    for (head, status, problem) in
        [(&key, "413", "#body-too-large"), (&chunks, "413", "#body-too-large"), (&upgrading, "400", "#key-missing")]
    {
        let stream = connect([127, 0, 0, 1], secure.public, client_config(&pki)).await.unwrap();
        let tls = upload(stream, head).await;
        let tcp = upload(TcpStream::connect(plain.public).await.unwrap(), head).await;
        for response in [tls, tcp] {
            assert!(response.starts_with(&format!("HTTP/1.1 {status}")) && response.contains(problem), "{response}");
        }
    }
    assert_eq!(api.count(), 0);
}
