//! The listener for clients: it accepts connections and spreads them over the executors.

pub(crate) mod capped_reads;
pub(crate) mod client_socket;
pub(crate) mod connection;
pub(crate) mod executors;
pub(crate) mod fair_queue;
pub(crate) mod lingering_close;
pub(crate) mod open_files;
pub(crate) mod protocol;
pub(crate) mod stream_flow;
pub(crate) mod tunnel;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::RequestBody;
use http::{Request, Response};
use hyper::body::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::gateway::ingress::IngressRules;
use crate::gateway::ingress::request_body::ClientBody;
use crate::gateway::limits::shares::{AddressAccount, Resource, Taken};
use crate::gateway::listen::client_socket::CloseDelimited;
use crate::gateway::listen::connection::{ClientConnection, ConnectionSettings};
use crate::gateway::listen::fair_queue::FairQueue;
use crate::gateway::listen::lingering_close::UnreadRest;

/// Pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves clients on several executors under the same rules.
pub(crate) struct GatewayServer<S> {
    executors: Vec<ServingExecutor<S>>,
    settings: ConnectionSettings,
}

/// One executor with its own service, queue and connections.
struct ServingExecutor<S> {
    handle: Handle,
    service: S,
    queue: FairQueue,
    connections: TaskTracker,
}

impl<S, R> GatewayServer<S>
where
    S: Service<Request<RequestBody<ClientBody>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    /// Each executor serves its connections with the service beside it.
    pub(crate) fn new(services: impl IntoIterator<Item = (Handle, S)>, rules: IngressRules) -> Self {
        let executor = |(handle, service)| {
            let (queue, connections) = (FairQueue::default(), TaskTracker::new());
            ServingExecutor { handle, service, queue, connections }
        };
        let settings = ConnectionSettings { rules: Arc::new(rules), tls: None, stop: CancellationToken::new() };
        Self { executors: services.into_iter().map(executor).collect(), settings }
    }

    pub(crate) fn tls(mut self, tls: Option<TlsAcceptor>) -> Self {
        self.settings.tls = tls;
        self
    }

    /// Serves clients until `stop` ends, then waits for the open requests, at most for `drain`.
    pub(crate) async fn serve_until(&self, stop: impl Future<Output = ()>, listener: TcpListener, drain: Duration) {
        tokio::select! {
            // `stop` is polled first, so that a flood of connections cannot delay it.
            biased;
            () = stop => {}
            () = self.accept(&listener) => {}
        }
        // Closes the port, so that new connections are refused while open requests finish.
        drop(listener);
        tracing::info!(
            drain_s = drain.as_secs(),
            "stopping; waiting for requests that are still running (a second signal stops at once)"
        );
        self.settings.stop.cancel();
        let all_ended = async {
            for executor in &self.executors {
                executor.connections.close();
                executor.connections.wait().await;
            }
        };
        if tokio::time::timeout(drain, all_ended).await.is_err() {
            self.settings.rules.set_cutting();
            tracing::warn!("connections are still open after the wait; they are closed when the process exits");
        }
    }

    async fn accept(&self, listener: &TcpListener) {
        let limit = self.settings.rules.limits.connections;
        let permits = Arc::new(Semaphore::new(limit));
        loop {
            if permits.available_permits() == 0 {
                tracing::warn!(limit, "the limit of connections is reached; no more are accepted until one ends");
            }
            // Acquired before the accept, so that further connections wait in the system's backlog.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, address)) => self.serve(stream, address.ip().to_canonical(), permit),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted; is the limit of open files reached?");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Moves a connection to the executor with the fewest connections, where it stays.
    fn serve(&self, stream: TcpStream, ip: IpAddr, permit: OwnedSemaphorePermit) {
        let Some(executor) = self.executors.iter().min_by_key(|executor| executor.connections.len()) else {
            return;
        };
        let Some((account, share)) = self.share(ip) else { return };
        let (service, queue) = (executor.service.clone(), executor.queue.clone());
        let (settings, close_delimited) = (self.settings.clone(), CloseDelimited::default());
        let unread_rest = UnreadRest::default();
        let connection = ClientConnection { service, queue, settings, ip, account, close_delimited, unread_rest };
        // A socket wakes the executor in whose context it was registered, so it is registered anew.
        let moved = stream.into_std().and_then(|stream| {
            let _context = executor.handle.enter();
            TcpStream::from_std(stream)
        });
        match moved {
            Ok(stream) => {
                let served = async move {
                    let _held = (permit, share);
                    connection.serve(stream).await;
                };
                executor.connections.spawn_on(served, &executor.handle);
            }
            Err(error) => tracing::warn!(%error, "a connection could not be moved to its executor"),
        }
    }

    /// Counts a connection against the share of its address. None if the address has too many; the connection is then
    /// closed. The connections of a trusted proxy belong to many clients, so they do not count.
    fn share(&self, ip: IpAddr) -> Option<(Arc<AddressAccount>, Option<Taken>)> {
        let rules = &self.settings.rules;
        let account = rules.shares.account(ip);
        if rules.trusted.contains(ip) {
            return Some((account, None));
        }
        let taken = account.take(Resource::Connections, 1)?;
        Some((account, Some(taken)))
    }
}

#[cfg(test)]
mod tests;
