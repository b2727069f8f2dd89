//! Large bodies and many followers do not fill the memory of the gateway.
//!
//! The recorded runs set HAPAX_BODY_BYTES=10737418240, HAPAX_ANSWER_BYTES=524288000 and HAPAX_TWINS=10000; the tests
//! use less.

use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join;
use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Api, Gateway, until};
use crate::http2_clients::{FrameClient, LARGE, start_large_api};
use crate::raw_http::{RawConnection, ScriptedApi};
use crate::tls::{Pki, secure_gateway_with};

/// The memory in bytes by which a process may grow.
const GROWTH: u64 = 64 << 20;

/// Returns the size in this variable, or the default size.
fn size_from(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |size| size.parse().unwrap())
}

/// An API that discards request bodies and closes the connection after half of its response.
#[derive(Clone, Default)]
struct DiscardingApi {
    requests: Arc<AtomicU64>,
    /// The received bytes of bodies.
    taken: Arc<AtomicU64>,
    /// The Content-Length of the response; half of it is sent.
    answer: u64,
}

impl DiscardingApi {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (api, address) = (self.clone(), listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(api.clone().serve(stream));
            }
        });
        address
    }

    async fn serve(self, stream: TcpStream) -> Option<()> {
        let mut wire = BufReader::with_capacity(1 << 16, stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if wire.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        if head.contains("transfer-encoding: chunked") {
            self.take(&mut wire).await?;
        }
        wire.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", self.answer).as_bytes()).await.ok()?;
        let mut left = self.answer / 2;
        while left > 0 {
            let piece = usize::try_from(left.min(1 << 16)).unwrap();
            wire.write_all(&vec![b'x'; piece]).await.ok()?;
            left -= u64::try_from(piece).unwrap();
        }
        Some(())
    }

    async fn take(&self, wire: &mut BufReader<TcpStream>) -> Option<()> {
        let mut piece = vec![0; 1 << 20];
        loop {
            let mut size = String::new();
            wire.read_line(&mut size).await.ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            piece.resize(size + 2, 0);
            wire.read_exact(&mut piece).await.ok()?;
            self.taken.fetch_add(u64::try_from(size).unwrap(), Ordering::SeqCst);
            if size == 0 {
                return Some(());
            }
        }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Runs `work` and returns its result and the largest growth of the process.
async fn measure_growth<T>(gateway: &Gateway, work: impl Future<Output = T>) -> (T, u64) {
    let base = gateway.resident();
    let mut most = base;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = work.as_mut() => return (done, most.max(gateway.resident()) - base),
            () = tokio::task::yield_now() => most = most.max(gateway.resident()),
        }
    }
}

/// Sends a chunked body of this length and returns the status, which may arrive before the end of the body.
async fn upload(gateway: &Gateway, method: &str, bytes: u64) -> Option<u16> {
    let (mut reader, mut writer) = TcpStream::connect(gateway.public).await.unwrap().into_split();
    let head =
        format!("{method} /upload HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n");
    writer.write_all(head.as_bytes()).await.unwrap();
    let sending = async {
        let chunk = [b"10000\r\n".as_slice(), &vec![b'c'; 1 << 16], b"\r\n"].concat();
        for _ in 0..bytes >> 16 {
            if writer.write_all(&chunk).await.is_err() {
                return;
            }
        }
        drop(writer.write_all(b"0\r\n\r\n").await);
    };
    let answered = async {
        let mut status = [0; 12];
        reader.read_exact(&mut status).await.ok()?;
        std::str::from_utf8(&status[9..]).unwrap().parse().ok()
    };
    join(sending, answered).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_request_body_streams_through_or_is_refused_h11() {
    let bytes = size_from("HAPAX_BODY_BYTES", 256 << 20);
    let api = DiscardingApi::default();
    let gateway = Gateway::start(api.start().await, "memory:", &["--tenant", "none"]).await;
    let (answered, growth) = measure_growth(&gateway, upload(&gateway, "PUT", bytes)).await;
    assert_eq!((answered, api.taken.load(Ordering::SeqCst)), (Some(200), bytes));
    println!("{bytes} bytes passed, grown by {} KiB", growth >> 10);
    assert!(growth <= GROWTH, "grown by {} MiB", growth >> 20);
    let (answered, growth) = measure_growth(&gateway, upload(&gateway, "POST", bytes)).await;
    assert_eq!(answered, Some(413));
    assert!(growth <= GROWTH, "grown by {} MiB", growth >> 20);
    assert_eq!(api.requests(), 1, "a refused request reached the API");
    assert_eq!(gateway.get(gateway.public, "/").await.unwrap().status, 200, "the gateway must keep working");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_cut_response_does_not_run_again_h27() {
    let bytes = size_from("HAPAX_ANSWER_BYTES", 64 << 20);
    let api = DiscardingApi { answer: bytes, ..DiscardingApi::default() };
    let gateway = Gateway::start(api.start().await, "memory:", &["--tenant", "none"]).await;
    for (method, copy) in [("GET", None), ("POST", Some(409))] {
        let before = api.requests();
        let mut stream = TcpStream::connect(gateway.public).await.unwrap();
        let request = format!("{method} /report HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (taken, growth) = measure_growth(&gateway, async {
            let (mut taken, mut piece) = (0, vec![0; 1 << 16]);
            while let Ok(count @ 1..) = stream.read(&mut piece).await {
                taken += u64::try_from(count).unwrap();
            }
            taken
        })
        .await;
        // A closed connection may lose bytes in flight.
        assert!((bytes / 4..bytes).contains(&taken), "{method}: the client received {taken} of {bytes} bytes");
        println!("{method}: {taken} bytes passed, grown by {} KiB", growth >> 10);
        assert!(growth <= GROWTH, "grown by {} MiB", growth >> 20);
        if let Some(status) = copy {
            let mut wire = RawConnection::to(gateway.public).await;
            wire.send_bytes(request.as_bytes()).await;
            let answer = wire.read_response().await.unwrap();
            assert!(answer.status == status && answer.text().contains("#not-replayable"), "{}", answer.text());
        }
        assert_eq!(api.requests(), before + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_concurrent_copies_runs_h18() {
    let copies = usize::try_from(size_from("HAPAX_TWINS", 1_000)).unwrap();
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = crate::harness::sqlite(directory.path());
    for wait in ["0s", "60s"] {
        let gateway = Gateway::start(api.address, &store, &["--wait", wait]).await;
        let before = api.seen().len();
        let key = format!("copies-{wait}");
        let clients = stream::iter(0..copies).map(|_| gateway.post("/slow", &key, "{}"));
        let (got, ()) = tokio::join!(clients.buffer_unordered(1_500).collect::<Vec<_>>(), async {
            api.wait_for_requests(before + 1).await;
            // Half of the copies wait or got 409 before the first attempt ends.
            until("half of the copies have arrived", async || {
                let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
                let value = |series| page.lines().find_map(|line: &str| line.strip_prefix(series)?.trim().parse().ok());
                let busy: f64 = value("hapax_calls_total{outcome=\"busy\"}").unwrap();
                busy + value("hapax_followers ").unwrap() >= f64::from(u32::try_from(copies / 2).unwrap())
            })
            .await;
            api.release_slow();
        });
        let (mut answers, mut busy) = (0, 0);
        for got in got.into_iter().map(Option::unwrap) {
            match got.status.as_u16() {
                201 => answers += usize::from(got.body == format!("answer {}", before + 1)),
                _ => busy += usize::from(got.problem() == "in-progress" && got.headers.contains_key("retry-after")),
            }
        }
        println!("--wait {wait}: {answers} got the answer, {busy} got in-progress");
        assert_eq!(answers + busy, copies);
        assert_eq!(api.seen().len(), before + 1, "the request had two effects");
        let retry = gateway.post("/slow", &key, "{}").await.unwrap();
        assert!(retry.is_replayed());
    }
}

/// Half of the memory for answers belongs to one address; further ones are withheld with 503.
#[tokio::test(flavor = "multi_thread")]
async fn replays_that_nobody_reads_stay_within_their_memory_h29() {
    const ONE: [u8; 4] = [127, 0, 0, 1];
    let (api, pki) = (start_large_api().await, Pki::new());
    let (directory, cert, key) = (tempfile::tempdir().unwrap(), pki.path("cert"), pki.path("key"));
    // Each replay from a file is a copy of its own.
    let store = crate::harness::sqlite(directory.path());
    let flags = ["--tenant", "none", "--tls-cert", &cert, "--tls-key", &key, "--answer-memory", "32MiB"];
    let gateway = Gateway::start(api.address, &store, &flags).await;
    let mut client = FrameClient::start(ONE, gateway.public, &pki, 1 << 21).await.unwrap();
    client.request("POST", "/large", "key-1").await;
    assert_eq!(client.read_heads(1).await.0[0].payload[0], 0x88, "200");
    let (clients, streams) = (size_from("HAPAX_UNREAD", 4), 100);
    let (held, growth) = measure_growth(&gateway, async {
        let (mut held, mut withheld) = (Vec::new(), 0);
        for _ in 0..clients {
            let mut client = FrameClient::start(ONE, gateway.public, &pki, 0).await.unwrap();
            for _ in 0..streams {
                client.request("POST", "/large", "key-1").await;
            }
            let heads = client.read_heads(streams).await.0;
            withheld += heads.iter().filter(|head| head.payload[0] != 0x88).count();
            held.push(client);
        }
        let all = usize::try_from(clients).unwrap() * streams;
        let admitted = (16 << 20) / LARGE;
        println!("{withheld} of {all} replays withheld");
        assert!((all - admitted - 1..all).contains(&withheld), "{withheld} of {all} replays were withheld");
        held
    })
    .await;
    println!("grown by {} KiB", growth >> 10);
    assert!(growth <= GROWTH, "grown by {} MiB", growth >> 20);
    let mut other = FrameClient::start([127, 0, 0, 2], gateway.public, &pki, 1 << 21).await.unwrap();
    other.request("POST", "/large", "key-1").await;
    assert_eq!(other.read_heads(1).await.0[0].payload[0], 0x88, "another address has its share");
    drop(held);
}

/// The API answers `/long` with more than may be stored, so a copy gets 409.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_no_copy_can_get_is_sent_without_room_h29() {
    let pki = Pki::new();
    let large = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {LARGE}\r\n\r\n");
    let long = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 1 << 16], b"\r\n"].concat();
    let long = [long.as_bytes(), &chunk.repeat(32), b"0\r\n\r\n"].concat();
    let api = ScriptedApi::start(&[("/large", [large.as_bytes(), &[b'x'; LARGE]].concat()), ("/long", long)]).await;
    // One address has half of the memory: room for one of the two answers.
    let gateway = secure_gateway_with(api.address, &pki, &["--answer-memory", "3MiB"]).await;
    let mut unread = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, 0).await.unwrap();
    unread.request("POST", "/large", "key-1").await;
    assert_eq!(unread.read_heads(1).await.0[0].payload[0], 0x88, "200");
    let mut client = FrameClient::start([127, 0, 0, 1], gateway.public, &pki, 1 << 21).await.unwrap();
    client.request("POST", "/long", "key-2").await;
    assert_eq!(client.read_heads(1).await.0[0].payload[0], 0x88, "200");
    assert_eq!(api.count("/long"), 1);
}
