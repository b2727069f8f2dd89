//! WebSocket through the gateway, and every other switch of protocols, which it does not pass on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::harness::{DEADLINE, Gateway, until};
use crate::http2_clients::connect;
use crate::tls::{Pki, client_config, secure_gateway, secure_gateway_with};

/// An API that switches to WebSocket where it is asked to, and then returns each byte. It refuses `/no`, and switches
/// to another protocol at `/other`.
#[derive(Clone)]
struct EchoApi {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl EchoApi {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Self { address: listener.local_addr().unwrap(), heads: Arc::default() };
        let serving = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        api
    }

    async fn serve(self, mut stream: TcpStream) -> Option<()> {
        let head = read_head(&mut stream).await?;
        let protocol = if head.contains(" /other ") { "chat" } else { "websocket" };
        let switch = format!("HTTP/1.1 101 Switching Protocols\r\nupgrade: {protocol}\r\nconnection: Upgrade\r\n");
        let is_switched = head.contains("upgrade: websocket\r\n") && !head.contains(" /no ");
        self.heads.lock().unwrap().push(head);
        if !is_switched {
            let answer = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
            return stream.write_all(answer.as_bytes()).await.ok();
        }
        // The first byte behind the head is of the other protocol.
        let accepted = "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nset-cookie: s=1\r\n\r\n!";
        stream.write_all(format!("{switch}{accepted}").as_bytes()).await.ok()?;
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.ok()?;
        writer.shutdown().await.ok()
    }

    fn last_head(&self) -> String {
        self.heads.lock().unwrap().last().unwrap().clone()
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

fn request(path: &str, protocol: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: {protocol}\r\n\
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
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_ends_after_the_idle_time_and_when_the_gateway_stops_h61() {
    let (api, pki) = (EchoApi::start().await, Pki::new());
    let gateway = secure_gateway_with(api.address, &pki, &["--idle-timeout", "1s"]).await;
    let mut idle = open(connect([127, 0, 0, 1], gateway.public, client_config(&pki)).await.unwrap()).await;
    let read = timeout(DEADLINE, idle.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "it is closed: {read:?}");
    let gateway = Gateway::start(api.address, "memory:", &["--drain", "10m"]).await;
    let mut socket = open(TcpStream::connect(gateway.public).await.unwrap()).await;
    gateway.terminate();
    let read = timeout(DEADLINE, socket.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "it is closed: {read:?}");
    let (code, logs) = gateway.wait_for_exit();
    assert!(code == Some(0) && logs.contains("stopped; no requests were running"), "{code:?} {logs}");
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
    let response = ask(&gateway, "/other", "websocket").await;
    assert!(response.starts_with("HTTP/1.1 502 ") && response.contains("#upstream-cut"), "{response}");
}
