pub(crate) mod capped_reads;
pub(crate) mod connection;
pub(crate) mod executors;
pub(crate) mod fair_queue;
pub(crate) mod open_files;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use http::{HeaderName, Request, Response};
use hyper::body::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::gateway::ingress::headers::ProtectedFields;
use crate::gateway::ingress::request_body::{BodyMemory, ClientBody};
use crate::gateway::limits::{BODY_MEMORY, Limits};
use crate::gateway::listen::connection::{Connection, ConnectionSettings};
use crate::gateway::listen::fair_queue::FairQueue;
use crate::ops::metrics::ListenerMetrics;

/// After an accept failed, for want of file descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What serves clients: on each core a service, and the rules and limits that hold on all of them.
pub(crate) struct GatewayServer<S> {
    cores: Vec<Core<S>>,
    shared: ConnectionSettings,
}

/// An executor, and what it serves its connections with.
struct Core<S> {
    executor: Handle,
    service: S,
    turns: FairQueue,
    connections: TaskTracker,
}

impl<S, B> GatewayServer<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// Serves clients on each of these executors with the service beside it.
    pub(crate) fn new(services: impl IntoIterator<Item = (Handle, S)>, kept: ProtectedFields, limits: Limits) -> Self {
        let core = |(executor, service)| Core {
            executor,
            service,
            turns: FairQueue::default(),
            connections: TaskTracker::new(),
        };
        let (kept, room, stop) = (Arc::new(kept), BodyMemory::of(BODY_MEMORY), CancellationToken::new());
        let shared =
            ConnectionSettings { kept, limits, room, tenant: None, tls: None, stop, meters: ListenerMetrics::new() };
        Self { cores: services.into_iter().map(core).collect(), shared }
    }

    /// Tells callers apart by this field of their requests, and by their address where it is missing.
    pub(crate) fn tenant(mut self, field: Option<HeaderName>) -> Self {
        self.shared.tenant = field;
        self
    }

    pub(crate) fn tls(mut self, tls: Option<TlsAcceptor>) -> Self {
        self.shared.tls = tls;
        self
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
        self.shared.stop.cancel();
        let all_ended = async {
            for core in &self.cores {
                core.connections.close();
                core.connections.wait().await;
            }
        };
        if tokio::time::timeout(drain, all_ended).await.is_err() {
            tracing::warn!("connections were still open after the drain");
        }
    }

    async fn accept(&self, listener: &TcpListener) {
        let limit = self.shared.limits.connections;
        let room = Arc::new(Semaphore::new(limit));
        loop {
            if room.available_permits() == 0 {
                tracing::warn!(limit, "no more connections are taken until one ends");
            }
            let Ok(place) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, address)) => self.serve(stream, address.ip().to_canonical(), place),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Takes a connection to the core that has the fewest; it stays there.
    fn serve(&self, stream: TcpStream, ip: IpAddr, place: OwnedSemaphorePermit) {
        let Some(core) = self.cores.iter().min_by_key(|core| core.connections.len()) else {
            return;
        };
        let (service, turns) = (core.service.clone(), core.turns.clone());
        let connection = Connection { service, turns, shared: self.shared.clone(), ip };
        // It wakes the executor that it is registered with.
        let moved = stream.into_std().and_then(|stream| {
            let _there = core.executor.enter();
            TcpStream::from_std(stream)
        });
        match moved {
            Ok(stream) => {
                let served = async move {
                    let _place = place;
                    connection.serve(stream).await;
                };
                core.connections.spawn_on(served, &core.executor);
            }
            Err(error) => tracing::warn!(%error, "a connection could not be served"),
        }
    }
}

#[cfg(test)]
mod tests;
