//! One client connection: TLS, the version of HTTP, its limits, and its orderly end.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax::BoxError;
use hapax::http::RequestBody;
use hapax::runtime::BoxFuture;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::gateway::ingress::access_log::ConnectionActivity;
use crate::gateway::ingress::headers::Peer;
use crate::gateway::ingress::request_body::ClientBody;
use crate::gateway::ingress::shared_window::SharedWindow;
use crate::gateway::ingress::{Ingress, IngressRules};
use crate::gateway::limits::shares::AddressAccount;
use crate::gateway::limits::{
    CONNECTION_WINDOW, HEAD_BYTES, HEAD_FIELDS, HTTP2_START, Limits, READ_CAP, RESET_STREAMS, STREAMS, WINDOW,
};
use crate::gateway::listen::capped_reads::{CappedReads, Traffic};
use crate::gateway::listen::client_socket::{ClientSocket, CloseDelimited};
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::gateway::listen::lingering_close::{LingeringClose, UnreadRest};
use crate::gateway::listen::protocol::StartedStream;
use crate::gateway::listen::stream_flow::StreamExecutor;
use crate::gateway::listen::tunnel;
use crate::serve::metrics::ConnectionGauge;
use crate::tls::H2;
use crate::upstream::websocket::{EndedConnection, Tunnel, TunnelSlot};

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
    pub(crate) account: Arc<AddressAccount>,
    pub(crate) close_delimited: CloseDelimited,
    pub(crate) unread_rest: UnreadRest,
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
        let mut stream = TimeoutStream::new(ClientSocket::new(stream, self.close_delimited.clone()));
        stream.set_write_timeout(Some(self.settings.rules.limits.stall));
        let stop = self.settings.stop.clone();
        // Below TLS, so that a body that nobody reads is not decrypted.
        let stream = LingeringClose::new(Box::pin(stream), self.unread_rest.clone(), stop);
        // Boxed, so that a connection does not reserve the memory of the other kinds.
        match self.settings.tls.take() {
            None => Box::pin(self.serve_plain(stream)).await,
            Some(tls) => Box::pin(self.serve_tls(tls, stream)).await,
        }
    }

    /// Serves the version of HTTP with which the client begins. Nothing else announces HTTP/2 without TLS.
    async fn serve_plain<I>(self, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let idle = self.settings.rules.limits.idle;
        // The limit for the first head counts from here, not from the first byte.
        let activity = ConnectionActivity::default();
        let started = tokio::select! {
            // The client is read first, so that a request that has arrived is taken before the gateway stops.
            biased;
            started = tokio::time::timeout(idle, StartedStream::read_start(stream)) => started,
            () = self.settings.stop.cancelled() => return,
        };
        match started {
            Ok(Ok(stream)) if stream.begins_http2() => Box::pin(self.serve_http2(stream, "http", activity)).await,
            Ok(Ok(stream)) => Box::pin(self.serve_http1(stream, "http", activity)).await,
            Ok(Err(error)) => tracing::debug!(%error, "a client connection failed"),
            Err(_) => tracing::debug!("a client sent no request in time"),
        }
    }

    async fn serve_tls<I>(self, tls: TlsAcceptor, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let accepted = tokio::time::timeout(self.settings.rules.limits.handshake, tls.accept(stream)).await;
        let activity = ConnectionActivity::default();
        match accepted {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(H2) => {
                Box::pin(self.serve_http2(stream, "https", activity)).await;
            }
            Ok(Ok(stream)) => Box::pin(self.serve_http1(stream, "https", activity)).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn serve_http1<I>(self, stream: I, scheme: &'static str, activity: ConnectionActivity)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = CappedReads::new(stream, READ_CAP);
        // The limit for heads covers the first one.
        let ends = self.ends(stream.traffic(), 0, activity);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Runs from the end of one request to the end of the head of the next.
            .header_read_timeout(ends.limits.idle)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEAD_FIELDS)
            // A client may close its sending side after the request and still read the response.
            .half_close(true);
        let after = AfterHttp1 {
            ip: self.ip,
            limits: ends.limits,
            stop: ends.stop.clone(),
            close_delimited: self.close_delimited.clone(),
        };
        let tunnel = TunnelSlot::default();
        let ingress = Ingress { tunnel: tunnel.clone(), ..self.ingress(scheme, ends.activity.clone(), None) };
        ends.drive(builder.serve_connection(TokioIo::new(stream), ingress).with_upgrades()).await;
        // Here, so that a WebSocket counts as a connection as long as it is open.
        match tunnel.take() {
            None => {}
            Some(EndedConnection::Switched(tunnel)) => after.run_tunnel(tunnel).await,
            Some(EndedConnection::Unswitched(client)) => after.close(client).await,
        }
    }

    async fn serve_http2<I>(self, stream: I, scheme: &'static str, activity: ConnectionActivity)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = CappedReads::new(stream, u64::MAX);
        let ends = self.ends(stream.traffic(), HTTP2_START, activity);
        let limits = ends.limits;
        let mut builder = http2::Builder::new(StreamExecutor { stall: limits.stall });
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
            // Pings detect a client that has disappeared.
            .keep_alive_interval(limits.stall)
            .keep_alive_timeout(limits.handshake);
        let ingress = self.ingress(scheme, ends.activity.clone(), Some(SharedWindow::default()));
        ends.drive(builder.serve_connection(TokioIo::new(stream), ingress)).await;
    }

    fn ends(&self, traffic: Traffic, start: u64, activity: ConnectionActivity) -> ConnectionEnds {
        let (limits, stop) = (self.settings.rules.limits, self.settings.stop.clone());
        ConnectionEnds { limits, stop, activity, traffic, start }
    }

    fn ingress(self, scheme: &'static str, activity: ConnectionActivity, window: Option<SharedWindow>) -> Ingress<S> {
        let Self { service: inner, queue, settings, ip, account, close_delimited, unread_rest } = self;
        let rules = settings.rules;
        let peer = Peer::new(ip, scheme, rules.trusted.contains(ip));
        let tunnel = TunnelSlot::default();
        Ingress { rules, queue, peer, ip, account, activity, window, close_delimited, unread_rest, tunnel, inner }
    }
}

/// The end of an HTTP/1 connection on which a request had the field `Upgrade`.
struct AfterHttp1 {
    ip: IpAddr,
    limits: Limits,
    stop: CancellationToken,
    close_delimited: CloseDelimited,
}

impl AfterHttp1 {
    async fn run_tunnel(self, tunnel: Tunnel) {
        let begun = Instant::now();
        let reason = tokio::select! {
            reason = tunnel::run(tunnel, self.limits.idle) => reason,
            () = self.stop.cancelled() => "the gateway stops",
        };
        tracing::info!(client = %self.ip, seconds = begun.elapsed().as_secs(), reason, "a WebSocket has ended");
    }

    async fn close(self, client: OnUpgrade) {
        // hyper may have dropped the end of a body. A client must not take a cut body without a length for a whole one,
        // so its connection is reset.
        if !self.close_delimited.is_begun() {
            tunnel::close(client, self.limits.handshake).await;
        }
    }
}

/// A connection of either version of HTTP. hyper-util has such a trait, but not for connections that may switch.
trait ServedConnection: Future<Output = hyper::Result<()>> {
    /// Takes no new request, and ends after the open ones.
    fn ask_to_go(self: Pin<&mut Self>);
}

impl<I, S, B> ServedConnection for http1::UpgradeableConnection<I, S>
where
    I: Read + Write + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody = B, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    fn ask_to_go(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B, E> ServedConnection for http2::Connection<I, S, E>
where
    I: Read + Write + Unpin + 'static,
    S: HttpService<Incoming, ResBody = B, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
    E: Http2ServerConnExec<S::Future, B>,
{
    fn ask_to_go(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Why the gateway ends a connection.
enum End {
    /// The gateway stops, or the connection is idle: the client is asked to go.
    Asked,
    /// The client did not send the start of HTTP/2 in time.
    Unstarted,
}

/// The events that end a connection.
struct ConnectionEnds {
    limits: Limits,
    stop: CancellationToken,
    activity: ConnectionActivity,
    traffic: Traffic,
    /// The bytes that the client must send within the limit for a handshake.
    start: u64,
}

impl ConnectionEnds {
    /// Serves a connection until it ends by itself. After a stop or an idle time it takes no new request, and ends
    /// after the open ones.
    async fn drive(self, connection: impl ServedConnection) {
        let mut connection = pin!(connection);
        // A connection is polled several times for each request. FuturesUnordered polls these only when they were woken
        // themselves.
        let mut ends: FuturesUnordered<BoxFuture<'_, End>> = [
            Box::pin(self.stop.cancelled().map(|()| End::Asked)) as BoxFuture<'_, End>,
            Box::pin(self.activity.wait_until_idle(self.limits.idle).map(|()| End::Asked)),
            Box::pin(self.wait_until_unstarted().map(|()| End::Unstarted)),
        ]
        .into_iter()
        .collect();
        let end = tokio::select! {
            // The connection is polled first, so that it takes a request that has arrived before it is closed as idle.
            biased;
            ended = connection.as_mut() => return log_end(ended),
            end = ends.next() => end,
        };
        match end {
            Some(End::Asked) => {}
            Some(End::Unstarted) | None => return tracing::debug!("a client did not begin HTTP/2 in time"),
        }
        connection.as_mut().ask_to_go();
        // A client may ignore the request to go. Requests that are open finish first, whatever time they take.
        tokio::select! {
            biased;
            ended = connection => log_end(ended),
            () = self.wait_until_ignored() => tracing::debug!("a client did not close its connection in time"),
        }
    }

    async fn wait_until_unstarted(&self) {
        sleep(self.limits.handshake).await;
        if self.traffic.received() >= self.start {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client has had no open request for the limit, and takes no more bytes. Over HTTP/1 a request
    /// ends when the connection has its whole answer, which the client may still be reading; the write time-out ends
    /// that.
    async fn wait_until_ignored(&self) {
        loop {
            self.activity.wait_until_idle_from(Instant::now(), self.limits.handshake).await;
            if !self.traffic.is_write_waiting() {
                return;
            }
        }
    }
}

fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a client connection failed");
    }
}
