use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hapax::BoxError;
use http::{Request, Response};
use hyper::body::Body;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::activity::Activity;
use super::arriving::{Arriving, Room};
use super::edge::Edge;
use super::headers::{Kept, Peer};
use super::limits::{HEAD_BYTES, HEAD_FIELDS, Limits, RESET_STREAMS, SIP, STREAMS};
use super::metrics::Connected;
use super::sips::Sips;
use super::tls::H2;

/// What all connections share: the rules and limits that hold for each.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) kept: Arc<Kept>,
    pub(super) limits: Limits,
    pub(super) room: Room,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: CancellationToken,
}

/// A client's connection, and what answers its requests.
pub(super) struct Connection<S> {
    pub(super) service: S,
    pub(super) shared: Shared,
    pub(super) ip: IpAddr,
}

impl<S, B> Connection<S>
where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// Serves its requests until the client or the gateway ends it.
    pub(super) async fn serve(mut self, stream: TcpStream) {
        let _connected = Connected::new();
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection could not be set to send at once");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.shared.limits.stall));
        let stream = Box::pin(stream);
        // Boxed, so that a connection takes the memory of its own kind alone.
        match self.shared.tls.take() {
            None => {
                let builder = builder(self.shared.limits).http1_only();
                Box::pin(self.requests(Sips::of(stream, SIP), "http", builder)).await;
            }
            Some(tls) => Box::pin(self.secured(tls, stream)).await,
        }
    }

    async fn secured<I>(self, tls: TlsAcceptor, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match tokio::time::timeout(self.shared.limits.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                let builder = builder(self.shared.limits);
                let (builder, sip) = if is_h2 { (builder.http2_only(), u64::MAX) } else { (builder.http1_only(), SIP) };
                let stream = Sips::of(stream, sip);
                Box::pin(self.requests(stream, "https", builder)).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn requests<I>(self, stream: I, scheme: &'static str, builder: auto::Builder<TokioExecutor>)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Activity::default();
        let edge = Edge {
            inner: self.service,
            kept: self.shared.kept,
            limits: self.shared.limits,
            room: self.shared.room,
            peer: Peer { ip: self.ip, scheme },
            activity: activity.clone(),
        };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(edge)));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shared.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = activity.ceased(self.shared.limits.idle) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended badly");
        }
    }
}

fn builder(limits: Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Runs from the end of one request to the end of the next one's head.
        .header_read_timeout(limits.idle)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_FIELDS)
        // A client may close its side once it has sent; it still gets its answer.
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
        // A peer that is gone without a word is noticed.
        .keep_alive_interval(limits.stall)
        .keep_alive_timeout(limits.handshake);
    builder
}
