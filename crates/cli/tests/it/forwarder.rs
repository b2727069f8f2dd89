//! A bare forwarder, to which a gateway is compared.

use std::net::SocketAddr;

use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Forwards every request and every response.
pub(crate) async fn serve(listener: TcpListener, upstream: SocketAddr) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Incoming>();
    while let Ok((stream, _)) = listener.accept().await {
        let client = client.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let target = format!("http://{upstream}{}", request.uri().path());
            *request.uri_mut() = target.parse::<Uri>().unwrap();
            client.request(request)
        });
        stream.set_nodelay(true).unwrap();
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
