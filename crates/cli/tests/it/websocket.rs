//! WebSocket through the gateway, and every other switch of protocols, which it does not pass on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::harness::{DEADLINE, Gateway, until};
use crate::http2_clients::connect;
use crate::tls::{Pki, client_config, secure_gateway, secure_gateway_with, tls_acceptor};

/// An API that switches to WebSocket where it is asked to, and then returns each byte. It refuses `/no`, switches to
/// another protocol at `/other`, and at `/forged` without a look at the key of its client.
#[derive(Clone)]
struct EchoApi {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl EchoApi {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Self { address: listener.local_addr().unwrap(), heads: Arc::default() };
        let serving = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (api, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => api.serve(stream).await,
                        Some(tls) => api.serve(tls.accept(stream).await.ok()?).await,
                    }
                });
            }
        });
        api
    }

    async fn serve(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
        let head = read_head(&mut stream).await?;
        let protocol = if head.contains(" /other ") { "chat" } else { "websocket" };
        let switch = format!("HTTP/1.1 101 Switching Protocols\r\nupgrade: {protocol}\r\nconnection: Upgrade\r\n");
        let is_switched = head.contains("upgrade: websocket\r\n") && !head.contains(" /no ");
        let accept = if head.contains(" /forged ") { "AAAAAAAAAAAAAAAAAAAAAAAAAAA=" } else { ACCEPT };
        self.heads.lock().unwrap().push(head);
        if !is_switched {
            let answer = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
            return stream.write_all(answer.as_bytes()).await.ok();
        }
        // The first byte behind the head is of the other protocol.
        let accepted = format!("sec-websocket-accept: {accept}\r\nset-cookie: s=1\r\n\r\n!");
        stream.write_all(format!("{switch}{accepted}").as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        let (mut reader, mut writer) = tokio::io::split(stream);
        tokio::io::copy(&mut reader, &mut writer).await.ok()?;
        writer.shutdown().await.ok()
    }

    fn last_head(&self) -> String {
        self.heads.lock().unwrap().last().unwrap().clone()
    }
}

/// The field value that accepts the key of [`request`] (RFC 6455, 1.3).
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

fn request(path: &str, protocol: &str) -> String {
    request_for(path, protocol, "10.0.0.1")
}

/// The request of a client whose address a proxy names.
fn request_for(path: &str, protocol: &str, client: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: {protocol}\r\n\
         x-forwarded-for: {client}\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\nidempotency-key: key-1\r\n\r\n"
    )
}

/// Opens a WebSocket, and checks that bytes pass in both directions.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> S {
    stream.write_all(request("/socket", "websocket").as_bytes()).await.unwrap();
    let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap().unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for field in ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: s3pP", "set-cookie: s=1"] {
        assert!(head.contains(field), "{field}: {head}");
    }
    assert_eq!(stream.read_u8().await.unwrap(), b'!');
    for byte in 0..3 {
        stream.write_all(&[byte]).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(timeout(DEADLINE, stream.read_u8()).await.unwrap().unwrap(), byte);
    }
    stream
}

/// The head and the rest of the response to a request for a switch that does not happen.
async fn ask(gateway: &Gateway, path: &str, protocol: &str) -> String {
    let mut stream = TcpStream::connect(gateway.public).await.unwrap();
    stream.write_all(request(path, protocol).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut received)).await.unwrap().unwrap();
    received
}

async fn connections(gateway: &Gateway) -> f64 {
    let metrics = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
    let value = metrics.lines().find_map(|line| line.strip_prefix("hapax_gateway_connections "));
    value.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_and_counts_as_a_connection_until_it_ends_h61() {
    let (api, pki) = (EchoApi::start().await, Pki::new());
    let plain = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let mut socket = open(TcpStream::connect(plain.public).await.unwrap()).await;
    let head = api.last_head();
    for field in ["GET /socket ", "upgrade: websocket", "connection: upgrade", "sec-websocket-key: dGhl"] {
        assert!(head.contains(field), "{field}: {head}");
    }
    assert!((connections(&plain).await - 1.0).abs() < f64::EPSILON);
    socket.shutdown().await.unwrap();
    assert_eq!(socket.read(&mut [0]).await.unwrap(), 0, "the API has closed its side, too");
    until("the connection is free", async || connections(&plain).await < 1.0).await;
    let secure = secure_gateway(api.address, &pki).await;
    open(connect([127, 0, 0, 1], secure.public, client_config(&pki)).await.unwrap()).await;
    let secure_api = EchoApi::start_with(Some(tls_acceptor(&pki, &["h2", "http/1.1"]))).await;
    let upstream = format!("https://{}", secure_api.address);
    let flags = ["--upstream", &upstream, "--upstream-ca", &pki.path("ca"), "--tenant", "none"];
    let gateway = Gateway::start_with("memory:", &flags).await;
    open(TcpStream::connect(gateway.public).await.unwrap()).await;
}

/// One percent of 4096 connections are 40. The connections of the proxy count for no client.
#[tokio::test(flavor = "multi_thread")]
async fn the_websockets_behind_a_proxy_count_for_their_clients_h61() {
    let api = EchoApi::start().await;
    let flags = ["--tenant", "none", "--trusted-proxy", "127.0.0.1/32", "--address-share", "1"];
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    let ask = async |client: &str| {
        let mut stream = TcpStream::connect(gateway.public).await.unwrap();
        stream.write_all(request_for("/socket", "websocket", client).as_bytes()).await.unwrap();
        let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap().unwrap();
        (stream, head.split(' ').nth(1).unwrap().to_owned())
    };
    let mut open = Vec::new();
    for _ in 0..40 {
        let (stream, status) = ask("10.0.0.1").await;
        assert_eq!(status, "101");
        open.push(stream);
    }
    assert_eq!(ask("10.0.0.1").await.1, "503");
    assert_eq!(ask("10.0.0.2").await.1, "101", "another client has its share");
    drop(open.pop());
    until("the client has room again", async || ask("10.0.0.1").await.1 == "101").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_ends_after_the_idle_time_and_when_the_gateway_stops_h61() {
    let (api, pki) = (EchoApi::start().await, Pki::new());
    let gateway = secure_gateway_with(api.address, &pki, &["--idle-timeout", "1s"]).await;
    let mut idle = open(connect([127, 0, 0, 1], gateway.public, client_config(&pki)).await.unwrap()).await;
    let read = timeout(DEADLINE, idle.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "it is closed: {read:?}");
    gateway.wait_for_log("no byte has passed in time").await;
    let gateway = Gateway::start(api.address, "memory:", &["--drain", "10m"]).await;
    let mut socket = open(TcpStream::connect(gateway.public).await.unwrap()).await;
    gateway.terminate();
    let read = timeout(DEADLINE, socket.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "it is closed: {read:?}");
    let (code, logs) = gateway.wait_for_exit();
    assert!(code == Some(0) && logs.contains("stopped; no requests were running"), "{code:?} {logs}");
    assert!(logs.contains("a WebSocket has ended") && logs.contains("the gateway stops"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_switch_is_passed_on_h61() {
    let api = EchoApi::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    for (path, protocol, reaches_api) in
        [("/no", "websocket", true), ("/socket", "h2c", false), ("/socket", "foo", false)]
    {
        let response = ask(&gateway, path, protocol).await;
        assert!(response.starts_with("HTTP/1.1 403 ") && response.ends_with("\r\n\r\nno"), "{path}: {response}");
        assert_eq!(api.last_head().contains("upgrade"), reaches_api, "{path} {protocol}");
    }
    for path in ["/other", "/forged"] {
        let response = ask(&gateway, path, "websocket").await;
        assert!(response.starts_with("HTTP/1.1 502 ") && response.contains("#upstream-cut"), "{response}");
    }
}
