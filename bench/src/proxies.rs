//! The processes that the gateway is measured with: the API behind it, and a forwarder that does nothing else.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

const ANSWER: &[u8] = b"{\"charge\":\"ch_0123456789\",\"amount\":500,\"status\":\"paid\"}";

/// Runs an API that answers every request at once, and those to `/stalls` never.
pub(crate) async fn api(address: SocketAddr) -> anyhow::Result<()> {
    serve(address, |request| async move {
        if request.uri().path() == "/stalls" {
            std::future::pending::<()>().await;
        }
        let response = Response::builder().header("content-type", "application/json");
        response.body(Full::new(Bytes::from_static(ANSWER))).expect("a response")
    })
    .await
}

/// Runs a forwarder that passes on every request and every response, and does nothing else.
pub(crate) async fn forwarder(address: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Incoming>(connector);
    serve(address, move |mut request| {
        let client = client.clone();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("http://{upstream}{path}").parse().expect("a URI");
        *request.uri_mut() = uri;
        async move { client.request(request).await.expect("the API answers") }
    })
    .await
}

/// Serves requests until the process is killed.
pub(crate) async fn serve<H, F, B>(address: SocketAddr, handler: H) -> anyhow::Result<()>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let response = handler(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
