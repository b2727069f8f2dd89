//! One client connection: TLS, the version of HTTP, its limits, and its orderly end.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax::BoxError;
use hapax::http::RequestBody;
use hapax::runtime::BoxFuture;
use http::{Request, Response};
use hyper::body::Body;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::gateway::ingress::access_log::ConnectionActivity;
use crate::gateway::ingress::headers::Peer;
use crate::gateway::ingress::request_body::ClientBody;
use crate::gateway::ingress::{Ingress, IngressRules};
use crate::gateway::limits::{HEAD_BYTES, HEAD_FIELDS, READ_CAP, RESET_STREAMS, STREAMS, WINDOW};
use crate::gateway::listen::capped_reads::CappedReads;
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::ops::metrics::ConnectionGauge;
use crate::tls::H2;

/// The settings that all connections share.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) rules: Arc<IngressRules>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) stop: CancellationToken,
}

/// A client connection, and the service that handles its requests.
pub(crate) struct ClientConnection<S> {
    pub(crate) service: S,
    pub(crate) queue: FairQueue,
    pub(crate) settings: ConnectionSettings,
    pub(crate) ip: IpAddr,
}

impl<S, R> ClientConnection<S>
where
    S: Service<Request<RequestBody<ClientBody>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    /// Serves its requests until the client or the gateway closes it.
    pub(crate) async fn serve(mut self, stream: TcpStream) {
        let _gauge = ConnectionGauge::new(Arc::clone(&self.settings.rules.metrics));
        // A connection waits before it gets its buffers, so that many can wait in little memory.
        self.queue.wait_turn(Caller::Connection(self.ip)).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set on a connection");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.settings.rules.limits.stall));
        let stream = Box::pin(stream);
        // Boxed, so that a connection does not reserve the memory of the other kinds.
        match self.settings.tls.take() {
            None => Box::pin(self.serve_http1(stream, "http")).await,
            Some(tls) => Box::pin(self.serve_tls(tls, stream)).await,
        }
    }

    async fn serve_tls<I>(self, tls: TlsAcceptor, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match tokio::time::timeout(self.settings.rules.limits.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(H2) => {
                Box::pin(self.serve_http2(stream)).await;
            }
            Ok(Ok(stream)) => Box::pin(self.serve_http1(stream, "https")).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn serve_http1<I>(self, stream: I, scheme: &'static str)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (idle, stop) = (self.settings.rules.limits.idle, self.settings.stop.clone());
        let activity = ConnectionActivity::default();
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Runs from the end of one request to the end of the head of the next.
            .header_read_timeout(idle)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEAD_FIELDS)
            // A client may close its sending side after the request and still read the response.
            .half_close(true);
        let ingress = self.ingress(scheme, activity.clone());
        let connection = builder.serve_connection(TokioIo::new(CappedReads::new(stream, READ_CAP)), ingress);
        drive(connection, stop, activity.wait_until_idle(idle)).await;
    }

    async fn serve_http2<I>(self, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (limits, stop) = (self.settings.rules.limits, self.settings.stop.clone());
        let activity = ConnectionActivity::default();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
            // Pings detect a client that has disappeared.
            .keep_alive_interval(limits.stall)
            .keep_alive_timeout(limits.handshake);
        let ingress = self.ingress("https", activity.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), ingress);
        drive(connection, stop, activity.wait_until_idle(limits.idle)).await;
    }

    fn ingress(self, scheme: &'static str, activity: ConnectionActivity) -> Ingress<S> {
        let Self { service: inner, queue, settings, ip } = self;
        Ingress { rules: settings.rules, queue, peer: Peer::new(ip, scheme), activity, inner }
    }
}

/// Serves a connection until it ends by itself. After `stop` or `idle` it takes no new request, and ends after the open
/// ones.
async fn drive<C>(connection: C, stop: CancellationToken, idle: impl Future<Output = ()> + Send)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    // A connection is polled several times for each request. FuturesUnordered polls these two only when they were woken
    // themselves.
    let mut ends: FuturesUnordered<BoxFuture<'_, ()>> =
        [Box::pin(stop.cancelled()) as BoxFuture<'_, ()>, Box::pin(idle)].into_iter().collect();
    let ended = tokio::select! {
        // The connection is polled first, so that it takes a request that has arrived before it is closed as idle.
        biased;
        ended = connection.as_mut() => ended,
        _ = ends.next() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client connection failed");
    }
}
