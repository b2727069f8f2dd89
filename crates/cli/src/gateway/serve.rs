use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tower_service::Service;

/// How long a client may take over the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// After an accept failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves clients until a signal to stop, then lets open requests end. A second signal, or `drain`, ends the wait.
pub(crate) async fn until_stopped<S, B>(listener: TcpListener, service: S, drain: Duration) -> Result<(), anyhow::Error>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => connect(stream, service.clone(), &connections),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tracing::info!(
        drain_s = drain.as_secs(),
        "stopping; requests that run are let end (a second signal stops at once)"
    );
    let ended = pin!(connections.shutdown());
    tokio::select! {
        biased;
        () = ended => {}
        _ = terminate.recv() => std::process::exit(1),
        _ = interrupt.recv() => std::process::exit(1),
        () = tokio::time::sleep(drain) => tracing::warn!("connections were still open after the drain"),
    }
    Ok(())
}

fn connect<S, B>(stream: TcpStream, service: S, connections: &GracefulShutdown)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection could not be set to send at once");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        // A client may close its side once it has sent; it still gets its answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended badly");
        }
    });
}
