//! Calls of gRPC through the gateway, with a client and a server of tonic.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream;
use http::uri::PathAndQuery;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::config::directory_with;
use crate::harness::{Gateway, until};
use crate::tls::{Pki, client_config, tls_acceptor};

/// Both messages are strings, which are messages of protobuf already.
type Codec = ProstCodec<String, String>;

const SAY: &str = "/test.Echo/Say";
const TALK: &str = "/test.Echo/Talk";

/// A service that returns each message. It refuses the message `bad`.
#[derive(Clone, Default)]
struct Echo(Arc<AtomicUsize>);

impl Echo {
    async fn start(&self, tls: Option<TlsAcceptor>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (echo, address) = (self.clone(), listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (echo, tls) = (echo.clone(), tls.clone());
                let service = service_fn(move |request| echo.clone().answer(request));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move {
                    match tls {
                        None => builder.serve_connection(TokioIo::new(stream), service).await.ok(),
                        Some(tls) => {
                            let stream = tls.accept(stream).await.ok()?;
                            builder.serve_connection(TokioIo::new(stream), service).await.ok()
                        }
                    }
                });
            }
        });
        address
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut server = tonic::server::Grpc::new(Codec::default());
        if request.uri().path() == TALK {
            let talk = async |request: tonic::Request<Streaming<String>>| {
                Ok::<_, Status>(tonic::Response::new(request.into_inner()))
            };
            return Ok(server.streaming(tower::service_fn(talk), request).await);
        }
        let say = async |request: tonic::Request<String>| match request.into_inner() {
            bad if bad == "bad" => Err(Status::invalid_argument("it is bad")),
            message => Ok(tonic::Response::new(message)),
        };
        Ok(server.unary(tower::service_fn(say), request).await)
    }

    fn runs(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A gateway that protects nothing of this service, with more flags.
async fn start_gateway(upstream: &str, flags: &[&str]) -> (Gateway, TempDir) {
    let directory = directory_with("[[route]]\npath = '/test.Echo/{method}'\nmethod = 'POST'\nprotect = 'off'\n");
    let config = directory.path().join("hapax.toml").display().to_string();
    let fixed = ["--config", &config, "--upstream", upstream, "--tenant", "none"];
    (Gateway::start_with("memory:", &[&fixed, flags].concat()).await, directory)
}

async fn connect(gateway: &Gateway, pki: Option<&Pki>) -> Grpc<Channel> {
    let channel = match pki {
        None => Endpoint::from_shared(format!("http://{}", gateway.public)).unwrap().connect().await,
        Some(pki) => {
            let connector = HttpsConnectorBuilder::new().with_tls_config(client_config(pki)).https_only();
            let endpoint = Endpoint::from_shared(format!("https://{}", gateway.public)).unwrap();
            endpoint.connect_with_connector(connector.enable_http2().build()).await
        }
    };
    Grpc::new(channel.unwrap())
}

async fn say(
    client: &mut Grpc<Channel>,
    path: &'static str,
    request: tonic::Request<String>,
) -> Result<String, Status> {
    client.ready().await.unwrap();
    let answer = client.unary(request, PathAndQuery::from_static(path), Codec::default()).await;
    answer.map(tonic::Response::into_inner)
}

fn message(text: &str) -> tonic::Request<String> {
    tonic::Request::new(text.to_owned())
}

/// Sends each message after the answer to the one before, so that both directions are open at once, and pauses in
/// between for so long.
async fn talk(client: &mut Grpc<Channel>, pause: Duration) {
    let (sender, receiver) = mpsc::channel(1);
    let messages = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    client.ready().await.unwrap();
    let (path, codec) = (PathAndQuery::from_static(TALK), Codec::default());
    sender.send("0".to_owned()).await.unwrap();
    let mut answers = client.streaming(tonic::Request::new(messages), path, codec).await.unwrap().into_inner();
    for number in 0..3 {
        assert_eq!(answers.message().await.unwrap(), Some(number.to_string()));
        let paused = Instant::now();
        until("the client has paused", async || paused.elapsed() >= pause).await;
        sender.send((number + 1).to_string()).await.unwrap();
    }
    drop(sender);
    assert_eq!(answers.message().await.unwrap(), Some("3".to_owned()));
    assert_eq!(answers.message().await.unwrap(), None, "its status arrives, which is a trailer");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_grpc_pass_through_an_unprotected_route_h60() {
    let (echo, pki) = (Echo::default(), Pki::new());
    let plain = format!("h2c://{}", echo.start(None).await);
    let secure = format!("https://{}", echo.start(Some(tls_acceptor(&pki, &["h2"]))).await);
    let (ca, cert, key) = (pki.path("ca"), pki.path("cert"), pki.path("key"));
    let tls = ["--upstream-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    for (upstream, flags, pki) in [(&plain, &[][..], None), (&secure, &tls[..], Some(&pki))] {
        let (gateway, _directory) = start_gateway(upstream, flags).await;
        let mut client = connect(&gateway, pki).await;
        assert_eq!(say(&mut client, SAY, message("hello")).await.unwrap(), "hello");
        let refused = say(&mut client, SAY, message("bad")).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "it is bad"));
        talk(&mut client, Duration::ZERO).await;
    }
    assert_eq!(echo.runs(), 6);
}

/// The pauses are longer than the stall limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_grpc_may_pause_h60() {
    let upstream = format!("h2c://{}", Echo::default().start(None).await);
    let (gateway, _directory) = start_gateway(&upstream, &["--stall-timeout", "1s"]).await;
    talk(&mut connect(&gateway, None).await, Duration::from_millis(1500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_call_of_grpc_is_refused_before_it_runs_h60() {
    let echo = Echo::default();
    let upstream = format!("h2c://{}", echo.start(None).await);
    let with_key = |text| {
        let mut request = message(text);
        request.metadata_mut().insert("idempotency-key", "key-1".parse().unwrap());
        request
    };
    for (flags, passes_without_key) in [(&[][..], false), (&["--key", "optional"][..], true)] {
        let (gateway, _directory) = start_gateway(&upstream, flags).await;
        let mut client = connect(&gateway, None).await;
        let before = echo.runs();
        let refused = say(&mut client, "/other.Echo/Say", with_key("hello")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("cannot be protected"), "{}", refused.message());
        assert_eq!(echo.runs(), before);
        let without_key = say(&mut client, "/other.Echo/Say", message("hello")).await;
        assert_eq!(without_key.is_ok(), passes_without_key, "{without_key:?}");
        assert_eq!(echo.runs(), before + usize::from(passes_without_key));
        let request = Request::post(format!("http://{}/other.Echo/Say", gateway.public))
            .header("content-type", "application/grpc")
            .header("idempotency-key", "key-1");
        let over_http1 = gateway.send(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!((over_http1.status.as_u16(), over_http1.problem()), (501, "grpc-call"));
        let metrics = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
        assert!(metrics.lines().any(|line| line.contains("grpc-call") && !line.ends_with(" 0")), "{metrics}");
    }
}
