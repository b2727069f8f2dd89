use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax::BoxError;
use hapax::runtime::BoxFuture;
use http::{HeaderName, Request, Response};
use hyper::body::Body;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::gateway::ingress::Ingress;
use crate::gateway::ingress::activity::ConnectionActivity;
use crate::gateway::ingress::headers::{Peer, ProtectedFields};
use crate::gateway::ingress::request_body::{BodyMemory, ClientBody};
use crate::gateway::limits::{HEAD_BYTES, HEAD_FIELDS, Limits, READ_CAP, RESET_STREAMS, STREAMS, WINDOW};
use crate::gateway::listen::capped_reads::CappedReads;
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::ops::metrics::{ConnectionGauge, ListenerMetrics};
use crate::tls::H2;

/// What all connections share: the rules and limits that hold for each.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) kept: Arc<ProtectedFields>,
    pub(crate) limits: Limits,
    pub(crate) room: BodyMemory,
    pub(crate) tenant: Option<HeaderName>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) stop: CancellationToken,
    pub(crate) meters: Arc<ListenerMetrics>,
}

/// A client's connection, and what answers its requests.
pub(crate) struct Connection<S> {
    pub(crate) service: S,
    pub(crate) turns: FairQueue,
    pub(crate) shared: ConnectionSettings,
    pub(crate) ip: IpAddr,
}

impl<S, B> Connection<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// Serves its requests until the client or the gateway ends it.
    pub(crate) async fn serve(mut self, stream: TcpStream) {
        let _connected = ConnectionGauge::new(Arc::clone(&self.shared.meters));
        // Until then it has next to no memory: many can wait.
        self.turns.take(Caller::Connection(self.ip)).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection could not be set to send at once");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.shared.limits.stall));
        let stream = Box::pin(stream);
        // Boxed, so that a connection takes the memory of its own kind alone.
        match self.shared.tls.take() {
            None => Box::pin(self.http1(stream, "http")).await,
            Some(tls) => Box::pin(self.secured(tls, stream)).await,
        }
    }

    async fn secured<I>(self, tls: TlsAcceptor, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match tokio::time::timeout(self.shared.limits.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(H2) => Box::pin(self.http2(stream)).await,
            Ok(Ok(stream)) => Box::pin(self.http1(stream, "https")).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn http1<I>(self, stream: I, scheme: &'static str)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (limits, stop, activity) = (self.shared.limits, self.shared.stop.clone(), ConnectionActivity::default());
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Runs from the end of one request to the end of the next one's head.
            .header_read_timeout(limits.idle)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEAD_FIELDS)
            // A client may close its side once it has sent; it still gets its answer.
            .half_close(true);
        let edge = TowerToHyperService::new(self.edge(scheme, activity.clone()));
        let connection = builder.serve_connection(TokioIo::new(CappedReads::of(stream, READ_CAP)), edge);
        drive(connection, stop, activity.ceased(limits.idle)).await;
    }

    async fn http2<I>(self, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (limits, stop, activity) = (self.shared.limits, self.shared.stop.clone(), ConnectionActivity::default());
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
            // A peer that is gone without a word is noticed.
            .keep_alive_interval(limits.stall)
            .keep_alive_timeout(limits.handshake);
        let edge = TowerToHyperService::new(self.edge("https", activity.clone()));
        let connection = builder.serve_connection(TokioIo::new(stream), edge);
        drive(connection, stop, activity.ceased(limits.idle)).await;
    }

    fn edge(self, scheme: &'static str, activity: ConnectionActivity) -> Ingress<S> {
        let Self { service: inner, turns, shared, ip } = self;
        let ConnectionSettings { kept, limits, room, tenant, meters, .. } = shared;
        Ingress { inner, turns, tenant, kept, limits, room, peer: Peer::new(ip, scheme), activity, meters }
    }
}

/// Lets a connection end by itself; once there is an end to wait for, with the answers that are under way.
async fn drive<C>(connection: C, stop: CancellationToken, idle: impl Future<Output = ()> + Send)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    // A connection moves several times for each request. These are looked at only when they have moved themselves.
    let mut over: FuturesUnordered<BoxFuture<'_, ()>> =
        [Box::pin(stop.cancelled()) as BoxFuture<'_, ()>, Box::pin(idle)].into_iter().collect();
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        _ = over.next() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}
