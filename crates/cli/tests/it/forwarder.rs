//! A bare forwarder, to which a gateway is compared.

use std::net::SocketAddr;

use http::{Request, Uri, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Forwards every request and every response of clients with TLS, in the version of HTTP that they choose.
pub(crate) async fn serve_tls(listener: TcpListener, upstream: SocketAddr, acceptor: TlsAcceptor) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Incoming>();
    while let Ok((stream, _)) = listener.accept().await {
        let (client, acceptor) = (client.clone(), acceptor.clone());
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let stream = acceptor.accept(stream).await.ok()?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |mut request: Request<Incoming>| {
                let target = format!("http://{upstream}{}", request.uri().path());
                *request.uri_mut() = target.parse::<Uri>().unwrap();
                *request.version_mut() = Version::HTTP_11;
                client.request(request)
            });
            if is_http2 {
                http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok()
            } else {
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok()
            }
        });
    }
}

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
