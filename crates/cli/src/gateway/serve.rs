use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use hapax::BoxError;
use http::{Request, Response};
use hyper::body::Body;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::activity::Activity;
use super::arriving::{Arriving, Room};
use super::edge::Edge;
use super::headers::{Kept, Peer};
use super::limits::{HEAD_BYTES, HEAD_FIELDS, Limits, RESET_STREAMS, ROOM, SIP, STREAMS};
use super::metrics::Connected;
use super::sips::Sips;
use super::tls::H2;

/// After an accept failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The first signal asks to stop. A second one ends the process at once, whatever it is doing by then.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>, anyhow::Error> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        either(&mut terminate, &mut interrupt).await;
        tokio::spawn(async move {
            either(&mut terminate, &mut interrupt).await;
            tracing::warn!("stopped at once; what still ran will lapse, and answer as the policy says");
            std::process::exit(1);
        });
    })
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// What serves clients: the service, and the rules and limits that hold around it.
#[derive(Clone)]
pub(crate) struct Server<S> {
    service: S,
    kept: Arc<Kept>,
    limits: Limits,
    room: Room,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl<S, B> Server<S>
where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    pub(crate) fn new(service: S, kept: Kept, limits: Limits) -> Self {
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        Self { service, kept: Arc::new(kept), limits, room: Room::of(ROOM), tls: None, stop, connections }
    }

    pub(crate) fn tls(self, tls: Option<TlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    /// Serves clients until it is told to stop, then lets open requests end; `drain` ends the wait.
    pub(crate) async fn until(&self, stop: impl Future<Output = ()>, listener: TcpListener, drain: Duration) {
        tokio::select! {
            biased;
            () = stop => {}
            () = self.accept(&listener) => {}
        }
        drop(listener);
        tracing::info!(
            drain_s = drain.as_secs(),
            "stopping; requests that run are let end (a second signal stops at once)"
        );
        self.stop.cancel();
        self.connections.close();
        if tokio::time::timeout(drain, self.connections.wait()).await.is_err() {
            tracing::warn!("connections were still open after the drain");
        }
    }

    async fn accept(&self, listener: &TcpListener) {
        let room = Arc::new(Semaphore::new(self.limits.connections));
        loop {
            if room.available_permits() == 0 {
                tracing::warn!(limit = self.limits.connections, "no more connections are taken until one ends");
            }
            let Ok(place) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, address)) => {
                    self.connections.spawn(self.clone().connection(stream, address.ip().to_canonical(), place));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(mut self, stream: TcpStream, ip: IpAddr, _place: OwnedSemaphorePermit) {
        let _connected = Connected::new();
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection could not be set to send at once");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.stall));
        let stream = Box::pin(stream);
        // Boxed, so that a connection takes the memory of its own kind alone.
        match self.tls.take() {
            None => {
                let peer = Peer { ip, scheme: "http" };
                let builder = builder(self.limits).http1_only();
                Box::pin(self.requests(Sips::of(stream, SIP), peer, builder)).await;
            }
            Some(tls) => Box::pin(self.secured(tls, stream, ip)).await,
        }
    }

    async fn secured<I>(self, tls: TlsAcceptor, stream: I, ip: IpAddr)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match tokio::time::timeout(self.limits.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                let builder = builder(self.limits);
                let (builder, sip) = if is_h2 { (builder.http2_only(), u64::MAX) } else { (builder.http1_only(), SIP) };
                let stream = Sips::of(stream, sip);
                Box::pin(self.requests(stream, Peer { ip, scheme: "https" }, builder)).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn requests<I>(self, stream: I, peer: Peer, builder: auto::Builder<TokioExecutor>)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Activity::default();
        let edge = Edge {
            inner: self.service,
            kept: self.kept,
            limits: self.limits,
            room: self.room,
            peer,
            activity: activity.clone(),
        };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(edge)));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = activity.ceased(self.limits.idle) => {
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

#[cfg(test)]
mod tests;
