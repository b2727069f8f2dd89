//! APIs with HTTP/2, with and without protocol errors.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use hapax::BoxError;
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame as Piece, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::harness::{Api, Gateway, HOST, free_address, until};
use crate::http2_frames::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, INTERNAL_ERROR, NO_ERROR, PREFACE, REFUSED_STREAM,
    SETTINGS, field,
};
use crate::logs::access;
use crate::raw_http::RawConnection;
use crate::tls::{Pki, client_config, secure_gateway, tls_acceptor};

/// Serves the API in HTTP/2 only, over TLS with this certificate or in plain text.
pub(crate) async fn serve_api(api: &Api, pki: Option<&Pki>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (api, address) = (api.clone(), listener.local_addr().unwrap());
    let acceptor = pki.map(|pki| tls_acceptor(pki, &["h2"]));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (api, acceptor) = (api.clone(), acceptor.clone());
            tokio::spawn(async move {
                match acceptor {
                    Some(acceptor) => api.serve_h2(acceptor.accept(stream).await.ok()?).await,
                    None => api.serve_h2(stream).await,
                }
                Some(())
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_is_used_if_the_api_offers_it_over_tls_h15() {
    let (api, pki) = (Api::start().await, Pki::new());
    let secure = format!("https://{}", serve_api(&api, Some(&pki)).await);
    let flags = ["--upstream", &secure, "--upstream-ca", &pki.path("ca")];
    let gateway = Gateway::start_with("memory:", &flags).await;
    for replayed in [false, true] {
        let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
        assert_eq!((got.status.as_u16(), got.body.as_str(), got.is_replayed()), (201, "answer 1", replayed));
    }
    assert_eq!(gateway.get(gateway.public, "/charges").await.unwrap().body, "answer 2");
    let public = gateway.public.to_string();
    for (seen, host) in api.seen().iter().zip([HOST, &public]) {
        assert_eq!(seen.version, Version::HTTP_2);
        assert_eq!(seen.authority.as_deref(), Some(host), "the authority must be the host of the client");
        assert!(!seen.headers.contains_key("host"), "the host must be sent once");
    }
    assert_eq!(&api.seen()[0].headers["hapax-attempt"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn h2c_uses_http2_without_tls() {
    let api = Api::start().await;
    let plain = format!("h2c://{}", serve_api(&api, None).await);
    let gateway = Gateway::start_with("memory:", &["--upstream", &plain]).await;
    assert_eq!(gateway.post("/charges", "key-1", "{}").await.unwrap().status, 201);
    assert_eq!(api.seen()[0].version, Version::HTTP_2);
}

/// The gateway opens further connections when one has no free stream.
#[tokio::test(flavor = "multi_thread")]
async fn further_requests_open_further_connections() {
    let api = Api::start().await;
    let plain = format!("h2c://{}", serve_api(&api, None).await);
    let gateway = Gateway::start_with("memory:", &["--upstream", &plain]).await;
    // More requests at once than one connection has streams.
    let keys: Vec<_> = (0..250).map(|number| format!("key-{number}")).collect();
    let (got, ()) = tokio::join!(join_all(keys.iter().map(|key| gateway.post("/slow", key, "{}"))), async {
        api.wait_for_requests(keys.len()).await;
        keys.iter().for_each(|_| api.release_slow());
    });
    assert!(got.iter().all(|got| got.as_ref().unwrap().status == 201));
    assert_eq!(api.seen().len(), keys.len());
}

/// Starts an HTTP/2 API that responds with this function.
async fn serve_with<B>(answer: impl Fn(Request<Incoming>) -> Response<B> + Clone + Send + Sync + 'static) -> SocketAddr
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(request))));
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn unprotected_requests_stream_both_ways_over_http2_h36() {
    let plain = format!("h2c://{}", serve_with(|request| Response::new(request.into_body())).await);
    let gateway = Gateway::start_with("memory:", &["--upstream", &plain]).await;
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for piece in ["one", "two"] {
        wire.send_bytes(format!("3\r\n{piece}\r\n").as_bytes()).await;
        assert!(wire.read_until(piece).await, "{piece} must come back before the rest of the body is sent");
    }
    wire.send_bytes(b"0\r\n\r\n").await;
    assert!(wire.read_until("0\r\n\r\n").await, "the end of the body is missing");
}

/// An endless body that counts the bytes taken from it.
struct Endless(Arc<AtomicUsize>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Piece<Bytes>, Infallible>>> {
        const PIECE: &[u8] = &[b'x'; 16_384];
        self.0.fetch_add(PIECE.len(), Ordering::SeqCst);
        Poll::Ready(Some(Ok(Piece::data(Bytes::from_static(PIECE)))))
    }
}

/// Starts an API with an endless response to GET and a short one to everything else.
async fn start_endless_api(taken: &Arc<AtomicUsize>) -> SocketAddr {
    let taken = Arc::clone(taken);
    serve_with(move |request| {
        let is_get = request.method() == Method::GET;
        let short = Full::from("short");
        Response::new(if is_get { Either::Left(Endless(Arc::clone(&taken))) } else { Either::Right(short) })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_do_not_block_others() {
    let taken = Arc::<AtomicUsize>::default();
    let plain = format!("h2c://{}", start_endless_api(&taken).await);
    let gateway = Gateway::start_with("memory:", &["--upstream", &plain, "--upstream-timeout", "10s"]).await;
    let mut held = Vec::new();
    for _ in 0..30 {
        let mut wire = RawConnection::with_small_buffer(gateway.public).await;
        wire.send_bytes(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        held.push(wire);
    }
    // Wait until no window has room: for a second the API could not send a byte.
    let (mut before, mut since) = (0, Instant::now());
    until("every response is blocked", async || {
        let now = taken.load(Ordering::SeqCst);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        before > 0 && since.elapsed() > Duration::from_secs(1)
    })
    .await;
    let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), got.body.as_str()), (200, "short"));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_http2_api_leaves_the_key_free_h32() {
    let address = free_address();
    let gateway = Gateway::start_with("memory:", &["--upstream", &format!("h2c://{address}")]).await;
    for _ in 0..2 {
        let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
        assert_eq!((got.status.as_u16(), got.problem()), (502, "upstream-unreachable"));
    }
}

/// Creates the frames with which an API ends a stream.
type Ending = fn(u32) -> Vec<Frame>;

/// Returns the head of a response and the first half of its body.
fn half(stream: u32) -> Vec<Frame> {
    vec![Frame::new(HEADERS, END_HEADERS, stream, &[0x88]), Frame::new(DATA, 0, stream, b"half")]
}

/// An API that ends each request with the given frames.
#[derive(Clone)]
struct FrameApi {
    address: SocketAddr,
    /// The frames, and whether the connection is closed after them.
    ending: Arc<Mutex<(Ending, bool)>>,
    seen: Arc<Mutex<usize>>,
}

impl FrameApi {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Self { address, ending: Arc::new(Mutex::new((half, true))), seen: Arc::default() };
        let serving = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        api
    }

    async fn serve(self, mut wire: TcpStream) -> Option<()> {
        wire.read_exact(&mut [0; PREFACE.len()]).await.ok()?;
        Frame::new(SETTINGS, 0, 0, &[]).write(&mut wire).await?;
        loop {
            let frame = Frame::read(&mut wire).await?;
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                Frame::new(SETTINGS, ACK, 0, &[]).write(&mut wire).await?;
            }
            if frame.ends_stream() {
                *self.seen.lock().unwrap() += 1;
                let (ending, closes) = *self.ending.lock().unwrap();
                for frame in ending(frame.stream) {
                    frame.write(&mut wire).await?;
                }
                if closes {
                    // Closing a socket with unread data would reset it and discard the last frames.
                    wire.shutdown().await.ok()?;
                    while Frame::read(&mut wire).await.is_some() {}
                    return None;
                }
            }
        }
    }

    /// Sets how the next requests end, and resets the counter.
    fn set_ending(&self, ending: Ending, closes: bool) {
        *self.ending.lock().unwrap() = (ending, closes);
        *self.seen.lock().unwrap() = 0;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_a_stream_has_at_most_one_effect_h27() {
    let api = FrameApi::start().await;
    let gateway = Gateway::start_with("memory:", &["--upstream", &format!("h2c://{}", api.address)]).await;
    let cut = |name, ending: Ending, closes| (name, ending, closes, "upstream-cut", "outcome-unknown", 1);
    let not_applied =
        |name, ending: Ending, closes| (name, ending, closes, "upstream-unreachable", "upstream-unreachable", 2);
    let endings = [
        cut(
            "an error in the response body",
            |stream| [half(stream), vec![Frame::reset(stream, INTERNAL_ERROR)]].concat(),
            false,
        ),
        cut(
            "cancelled in the response body",
            |stream| [half(stream), vec![Frame::reset(stream, CANCEL)]].concat(),
            false,
        ),
        cut(
            "NO_ERROR in the response body",
            |stream| [half(stream), vec![Frame::reset(stream, NO_ERROR)]].concat(),
            false,
        ),
        cut(
            "refused in the response body",
            |stream| [half(stream), vec![Frame::reset(stream, REFUSED_STREAM)]].concat(),
            false,
        ),
        cut("closed in the response body", half, true),
        cut("an error before the response", |stream| vec![Frame::reset(stream, INTERNAL_ERROR)], false),
        cut("NO_ERROR before the response", |stream| vec![Frame::reset(stream, NO_ERROR)], false),
        cut("closed before the response", |_| Vec::new(), true),
        cut("GOAWAY after the request", |stream| vec![Frame::go_away(stream, NO_ERROR)], true),
        cut("GOAWAY with an error after the request", |stream| vec![Frame::go_away(stream, INTERNAL_ERROR)], true),
        not_applied("refused", |stream| vec![Frame::reset(stream, REFUSED_STREAM)], false),
        not_applied("GOAWAY before the request", |_| vec![Frame::go_away(0, NO_ERROR)], true),
        not_applied("GOAWAY with an error before the request", |_| vec![Frame::go_away(0, INTERNAL_ERROR)], true),
    ];
    for (name, ending, closes, first, copy, runs) in endings {
        api.set_ending(ending, closes);
        for problem in [first, copy] {
            let got = gateway.post("/charges", &name.replace(' ', "-"), "{}").await.unwrap();
            assert_eq!(got.problem(), problem, "{name}: {}", got.body);
        }
        assert_eq!(*api.seen.lock().unwrap(), runs, "{name}");
    }
    let whole = |stream| [half(stream), vec![Frame::new(DATA, END_STREAM, stream, b" and half")]].concat();
    api.set_ending(whole, false);
    let got = gateway.post("/charges", "the-last", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), got.body.as_str()), (200, "half and half"));
}

/// The head of a response with this length.
fn head_with_length(stream: u32, length: &str) -> Frame {
    Frame::new(HEADERS, END_HEADERS, stream, &[vec![0x88], field("content-length", length)].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_fit_its_length_is_cut_for_the_client_h42() {
    let api = FrameApi::start().await;
    let upstream = format!("h2c://{}", api.address);
    let gateway = Gateway::start_with("memory:", &["--upstream", &upstream, "--tenant", "none"]).await;
    let endings: [(&str, Ending); 3] = [
        ("short", |stream| vec![head_with_length(stream, "9"), Frame::new(DATA, END_STREAM, stream, b"half")]),
        ("long", |stream| vec![head_with_length(stream, "2"), Frame::new(DATA, END_STREAM, stream, b"half")]),
        ("list", |stream| vec![head_with_length(stream, "4, 4"), Frame::new(DATA, END_STREAM, stream, b"half")]),
    ];
    for (name, ending) in endings {
        for method in ["GET", "POST"] {
            api.set_ending(ending, false);
            let mut wire = RawConnection::to(gateway.public).await;
            let request = format!("{method} / HTTP/1.1\r\nhost: a\r\nidempotency-key: {name}\r\n\r\n");
            wire.send_bytes(request.as_bytes()).await;
            let status = wire.read_response().await.map(|answer| answer.status);
            let expected = if method == "GET" { [None, Some(502)] } else { [Some(502); 2] };
            assert!(expected.contains(&status), "{method} {name}: {status:?}");
        }
    }
}

/// A body with one frame of data, then these trailers.
fn with_trailers(fields: &[(&'static str, &'static str)]) -> impl Body<Data = Bytes, Error = Infallible> + use<> {
    let trailers = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    Full::new(Bytes::from("data")).with_trailers(std::future::ready(Some(Ok(trailers))))
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_an_answer_obey_the_rules_of_its_head_h45() {
    const TRAILERS: [(&str, &str); 6] = [
        ("x-checksum", "7"),
        ("hapax-recorded", "pending"),
        ("idempotent-replayed", "true"),
        ("idempotency-key-expires", "never"),
        ("content-length", "9"),
        ("proxy-authenticate", "b"),
    ];
    let plain = format!("h2c://{}", serve_with(|_| Response::new(with_trailers(&TRAILERS))).await);
    let pki = Pki::new();
    let (cert, key) = (pki.path("cert"), pki.path("key"));
    let gateway = Gateway::start_with("memory:", &["--upstream", &plain, "--tls-cert", &cert, "--tls-key", &key]).await;
    let request = Request::get(format!("https://{}/", gateway.public)).body(Full::default()).unwrap();
    let answer = crate::tls::client(&pki, Version::HTTP_2).request(request).await.unwrap();
    let body = answer.into_body().collect().await.unwrap();
    let names: Vec<_> = body.trailers().unwrap().keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["x-checksum"]);
    gateway.terminate();
    let line = access(&gateway.wait_for_exit().1).remove(0);
    assert!(line["status"] == 200 && line["cut"].is_null(), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_during_the_request_body_records_nothing_h11() {
    let (api, pki) = (Api::start().await, Pki::new());
    let gateway = secure_gateway(api.address, &pki).await;
    let mut config = client_config(&pki);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let plain = TcpStream::connect(gateway.public).await.unwrap();
    let mut wire = TlsConnector::from(Arc::new(config)).connect(name, plain).await.unwrap();
    wire.write_all(PREFACE).await.unwrap();
    let head = [
        field(":method", "POST"),
        field(":scheme", "https"),
        field(":path", "/charges"),
        field(":authority", "a"),
        field("idempotency-key", "key-1"),
    ];
    for frame in [
        Frame::new(SETTINGS, 0, 0, &[]),
        Frame::new(HEADERS, END_HEADERS, 1, &head.concat()),
        Frame::new(DATA, 0, 1, b"{"),
        // A reset without an error.
        Frame::reset(1, NO_ERROR),
    ] {
        frame.write(&mut wire).await.unwrap();
    }
    until("the gateway has ended the request", async || {
        let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
        page.lines().any(|line| line.starts_with("hapax_gateway_requests_total") && line.ends_with(" 1"))
    })
    .await;
    assert_eq!(api.seen().len(), 0, "an incomplete body was forwarded");
}
