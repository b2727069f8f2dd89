//! Clients of HTTP/2 that hold connections, streams and memory without taking anything.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{Api, DEADLINE, until};
use crate::http2_frames::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, REFUSED_STREAM, RST_STREAM,
    WINDOW_UPDATE, field,
};
use crate::raw_http::ScriptedApi;
use crate::tls::{Pki, client_config, secure_gateway_with};

/// The bytes of the answer to `/large`.
pub(crate) const LARGE: usize = 1_000_000;

/// Starts an API with a large answer, a short one, and one that never comes.
pub(crate) async fn start_large_api() -> ScriptedApi {
    let head =
        |length| format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n").into_bytes();
    let large = [head(LARGE), vec![b'x'; LARGE]].concat();
    ScriptedApi::start(&[("/large", large), ("/short", head(0))]).await
}

/// Connects from this address, with TLS. None if the connection is closed before.
pub(crate) async fn connect(
    source: [u8; 4],
    target: SocketAddr,
    config: ClientConfig,
) -> Option<TlsStream<tokio::net::TcpStream>> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let plain = socket.connect(target).await.ok()?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, plain).await.ok()
}

/// A client that sends frames by hand.
pub(crate) struct FrameClient {
    wire: TlsStream<tokio::net::TcpStream>,
    last_stream: u32,
}

impl FrameClient {
    /// Finishes the TLS handshake, with HTTP/2, and sends nothing more. None if the connection is closed before.
    pub(crate) async fn silent(source: [u8; 4], target: SocketAddr, pki: &Pki) -> Option<Self> {
        let mut config = client_config(pki);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Some(Self { wire: connect(source, target, config).await?, last_stream: 0 })
    }

    /// Starts HTTP/2 with a window of this many bytes for each response.
    pub(crate) async fn start(source: [u8; 4], target: SocketAddr, pki: &Pki, window: u32) -> Option<Self> {
        let mut client = Self::silent(source, target, pki).await?;
        client.wire.write_all(PREFACE).await.ok()?;
        client.write(&Frame::window(window)).await?;
        Some(client)
    }

    async fn write(&mut self, frame: &Frame) -> Option<()> {
        frame.write(&mut self.wire).await
    }

    /// Sends a request without a body.
    pub(crate) async fn request(&mut self, method: &str, path: &str, key: &str) {
        self.try_request(method, path, key, &[]).await.unwrap();
    }

    /// Sends a request without a body, with these fields. None if the connection is closed.
    pub(crate) async fn try_request(
        &mut self,
        method: &str,
        path: &str,
        key: &str,
        more: &[(&str, &str)],
    ) -> Option<()> {
        let head = [&[(":method", method), (":path", path), ("idempotency-key", key)], more].concat();
        self.send_head(&head, END_STREAM).await
    }

    /// Sends the head of a request whose body follows, and returns its stream.
    pub(crate) async fn open(&mut self, method: &str, path: &str, key: &str) -> u32 {
        let head = [(":method", method), (":path", path), ("idempotency-key", key)];
        self.send_head(&head, 0).await.unwrap();
        self.last_stream
    }

    async fn send_head(&mut self, head: &[(&str, &str)], flags: u8) -> Option<()> {
        self.last_stream = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        let head = [&[(":scheme", "https"), (":authority", "a")], head].concat();
        let block: Vec<u8> = head.into_iter().flat_map(|(name, value)| field(name, value)).collect();
        self.write(&Frame::new(HEADERS, END_HEADERS | flags, self.last_stream, &block)).await
    }

    /// Sends a piece of a body, the last one with [`END_STREAM`].
    pub(crate) async fn send_data(&mut self, stream: u32, data: &[u8], flags: u8) {
        self.write(&Frame::new(DATA, flags, stream, data)).await.unwrap();
    }

    /// Resets the stream of the last request.
    pub(crate) async fn reset_last(&mut self) -> Option<()> {
        self.reset(self.last_stream).await
    }

    pub(crate) async fn reset(&mut self, stream: u32) -> Option<()> {
        self.write(&Frame::reset(stream, CANCEL)).await
    }

    pub(crate) async fn send_ping(&mut self) -> Option<()> {
        self.write(&Frame::new(PING, 0, 0, &[7; 8])).await
    }

    /// Sends a ping and waits for its answer.
    pub(crate) async fn ping(&mut self) -> Option<()> {
        self.send_ping().await?;
        loop {
            let frame = self.read().await?;
            if frame.kind == PING && frame.flags & ACK != 0 {
                return Some(());
            }
        }
    }

    /// Returns the next frame, and answers pings. None if the connection is closed.
    pub(crate) async fn read(&mut self) -> Option<Frame> {
        let frame = timeout(DEADLINE, Frame::read(&mut self.wire)).await.expect("a frame, or the end, in time")?;
        if frame.kind == PING && frame.flags & ACK == 0 {
            Frame::new(PING, ACK, 0, &frame.payload).write(&mut self.wire).await?;
        }
        Some(frame)
    }

    /// Reads until each of these streams has got the head of its response; panics if one is refused. Returns the heads
    /// and the streams that were reset meanwhile.
    pub(crate) async fn read_heads(&mut self, count: usize) -> (Vec<Frame>, usize) {
        let (mut heads, mut resets) = (Vec::new(), 0);
        while heads.len() < count {
            let frame = self.read().await.expect("the connection must stay open");
            match frame.kind {
                HEADERS => heads.push(frame),
                RST_STREAM => {
                    assert_ne!(frame.payload, REFUSED_STREAM.to_be_bytes(), "the stream has no slot");
                    resets += 1;
                }
                _ => {}
            }
        }
        (heads, resets)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_begin_http2_is_disconnected() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway_with(api.address, &pki, &["--handshake-timeout", "3s"]).await;
    for start in [&b""[..], &PREFACE[..10], PREFACE] {
        let mut client = FrameClient::silent([127, 0, 0, 1], gateway.public, &pki).await.unwrap();
        client.wire.write_all(start).await.unwrap();
        let mut received = Vec::new();
        let ended = timeout(DEADLINE, client.wire.read_to_end(&mut received)).await;
        assert!(ended.is_ok(), "{} bytes of the preface hold the connection", start.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_nobody_reads_leaves_window_for_other_streams() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway_with(api.address, &pki, &[]).await;
    let mut client = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, 0).await.unwrap();
    let more = loop {
        let frame = client.read().await.unwrap();
        if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
            break u32::from_be_bytes(frame.payload.try_into().unwrap());
        }
    };
    // A stream has the initial window of 64 KiB, and so has the connection before this frame.
    assert!(more >= 3 << 16, "{more} more bytes than one stream may send");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ignores_goaway_is_disconnected() {
    let (api, pki) = (Api::start().await, Pki::new());
    let flags = ["--idle-timeout", "3s", "--handshake-timeout", "3s"];
    let gateway = secure_gateway_with(api.address, &pki, &flags).await;
    let mut client = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, 0).await.unwrap();
    let read = async {
        let mut has_goaway = false;
        while let Some(frame) = Frame::read(&mut client.wire).await {
            has_goaway |= frame.kind == GOAWAY;
            // h2 ends a connection only after the ping that follows its GOAWAY is answered. Earlier pings must be.
            if frame.kind == PING && !has_goaway {
                client.write(&Frame::new(PING, ACK, 0, &frame.payload)).await;
            }
        }
        has_goaway
    };
    assert!(timeout(DEADLINE, read).await.expect("the end must come in time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_client_takes_nothing_is_reset_and_its_slot_is_free() {
    let (api, pki) = (start_large_api().await, Pki::new());
    let gateway = secure_gateway_with(api.address, &pki, &["--stall-timeout", "2s"]).await;
    // With one byte, a part of the response waits in the connection; without any, all of it waits before.
    for (method, window) in [("GET", 0), ("GET", 1), ("POST", 0), ("POST", 1)] {
        let mut client = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, window).await.unwrap();
        for _ in 0..10 {
            client.request(method, "/large", "key-large").await;
        }
        let (_, mut resets) = client.read_heads(10).await;
        while resets < 10 {
            let frame = client.read().await.expect("the connection must stay open");
            resets += usize::from(frame.kind == RST_STREAM);
        }
        for _ in 0..100 {
            client.request("GET", "/unknown", "key-none").await;
        }
        client.read_heads(100).await;
    }
    until("the gateway has freed its memory", async || {
        let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
        page.contains("hapax_gateway_connections 0")
    })
    .await;
}
