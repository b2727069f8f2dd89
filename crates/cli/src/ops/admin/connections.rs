//! The connections of the admin listener.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_io_timeout::TimeoutStream;

/// Connections at once: probes and scrapers are few.
const CONNECTIONS: usize = 64;

/// Connections at once, with those that were opened just now.
const CONNECTIONS_WITH_NEW: usize = 256;

/// Time limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    /// How long a client may take to send the head of a request, and how long it may be idle.
    pub(super) head: Duration,
    /// How long a client may read nothing of a response.
    pub(super) write: Duration,
    /// How long a connection is new. Its request may still be on the way.
    pub(super) new: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), write: Duration::from_secs(5), new: Duration::from_secs(1) }
    }
}

/// The open connections, oldest first. At the limit, a new one takes the place of the oldest one whose request is not
/// being answered at the moment, so that idle clients cannot keep probes away. New connections are spared as long as
/// there is room for them.
#[derive(Debug, Default)]
pub(super) struct AdminConnections(VecDeque<OpenConnection>);

#[derive(Debug)]
struct OpenConnection {
    task: AbortHandle,
    is_answering: Arc<AtomicBool>,
    opened_at: Instant,
}

impl AdminConnections {
    /// Serves a connection in a task of its own.
    pub(super) fn serve<S, F>(&mut self, stream: TcpStream, limits: ConnectionLimits, respond: S)
    where
        S: Fn(Request<Incoming>) -> F + Send + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        self.make_room(limits.new);
        let is_answering = Arc::<AtomicBool>::default();
        let connection = serve_connection(stream, limits, Arc::clone(&is_answering), respond);
        let task = tokio::spawn(connection).abort_handle();
        self.0.push_back(OpenConnection { task, is_answering, opened_at: Instant::now() });
    }

    /// Closes a connection if the limit is reached. A connection is new for this long.
    fn make_room(&mut self, new: Duration) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() < CONNECTIONS {
            return;
        }
        let is_idle = |connection: &OpenConnection| !connection.is_answering.load(Ordering::Relaxed);
        let is_full = self.0.len() >= CONNECTIONS_WITH_NEW;
        // Idle connections first, and of these the oldest. Only a full listener closes others.
        let place = self.0.iter().position(is_idle).unwrap_or(0);
        let is_new = |connection: &OpenConnection| !is_idle(connection) || connection.opened_at.elapsed() < new;
        if !is_full && self.0.get(place).is_some_and(is_new) {
            return;
        }
        if let Some(connection) = self.0.remove(place) {
            connection.task.abort();
            tracing::warn!(limit = CONNECTIONS, "the oldest admin connection was closed: the limit is reached");
        }
    }
}

async fn serve_connection<S, F>(stream: TcpStream, limits: ConnectionLimits, is_answering: Arc<AtomicBool>, respond: S)
where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let service = service_fn(move |request| {
        is_answering.store(true, Ordering::Relaxed);
        let (response, is_answering) = (respond(request), Arc::clone(&is_answering));
        async move {
            let response = response.await;
            is_answering.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "an admin connection failed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Opens connections that send nothing, and returns how many of them are open in the end.
    async fn open_after(connections: usize, limits: ConnectionLimits) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut admin, mut clients) = (AdminConnections::default(), Vec::new());
        for _ in 0..connections {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            let (stream, _) = listener.accept().await.unwrap();
            admin.serve(stream, limits, |_| async { Response::new(Full::default()) });
        }
        admin.0.len()
    }

    #[tokio::test]
    async fn a_new_connection_is_spared_while_there_is_room() {
        let hour = Duration::from_secs(3600);
        let limits = ConnectionLimits { new: hour, ..ConnectionLimits::default() };
        assert_eq!(open_after(2 * CONNECTIONS, limits).await, 2 * CONNECTIONS);
        assert_eq!(open_after(CONNECTIONS_WITH_NEW + 10, limits).await, CONNECTIONS_WITH_NEW);
        let none_is_new = ConnectionLimits { new: Duration::ZERO, ..limits };
        assert_eq!(open_after(2 * CONNECTIONS, none_is_new).await, CONNECTIONS);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let limits = ConnectionLimits { write: Duration::from_millis(50), ..ConnectionLimits::default() };
        // More than the buffers of both sockets hold.
        let page = Bytes::from(vec![b'x'; 64 << 20]);
        let respond = move |_| {
            let page = page.clone();
            async move { Response::new(Full::new(page)) }
        };
        // Ends while the client still has its connection.
        serve_connection(stream, limits, Arc::default(), respond).await;
        let mut received = Vec::new();
        // The connection may be reset.
        drop(client.read_to_end(&mut received).await);
        assert!(received.starts_with(b"HTTP/1.1 200") && received.len() < 64 << 20);
    }
}
