//! The connections of the admin listener.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_io_timeout::TimeoutStream;

use crate::admin::listener::answering::{Answering, AnsweringStream};
use crate::serve::client_address::ClientAddress;

/// Connections at once: probes and scrapers are few.
const CONNECTIONS: usize = 64;

/// Connections at once, with those that were opened just now.
const CONNECTIONS_WITH_NEW: usize = 256;

/// Connections at once of one address, new ones included. This host may hold all: its probes and its other clients
/// have one address.
const CONNECTIONS_OF_ADDRESS: usize = CONNECTIONS / 2;

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
/// there is room for them. An address at its own limit loses one of its own connections.
#[derive(Debug)]
pub(super) struct AdminConnections {
    open: VecDeque<OpenConnection>,
    limits: ConnectionLimits,
}

#[derive(Debug)]
struct OpenConnection {
    task: AbortHandle,
    answering: Answering,
    opened_at: Instant,
    address: ClientAddress,
}

impl OpenConnection {
    fn is_new(&self, limits: ConnectionLimits) -> bool {
        self.opened_at.elapsed() < limits.new
    }
}

impl AdminConnections {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { open: VecDeque::new(), limits }
    }

    /// Serves the connection of this client in a task of its own.
    pub(super) fn serve<S, F>(&mut self, stream: TcpStream, client: IpAddr, respond: S)
    where
        S: Fn(Request<Incoming>) -> F + Send + 'static,
        F: Future<Output = Result<Response, Infallible>> + Send + 'static,
    {
        let address = ClientAddress::from(client);
        self.open.retain(|connection| !connection.task.is_finished());
        if !client.to_canonical().is_loopback() {
            self.make_room_for_address(address);
        }
        self.make_room();
        let answering = Answering::default();
        let connection = serve_connection(stream, self.limits, answering.clone(), respond);
        let task = tokio::spawn(connection).abort_handle();
        self.open.push_back(OpenConnection { task, answering, opened_at: Instant::now(), address });
    }

    /// Closes a connection of this address if it has all that it may have.
    fn make_room_for_address(&mut self, address: ClientAddress) {
        let own = self.open.iter().enumerate().filter(|(_, connection)| connection.address == address);
        let own: Vec<_> = own.map(|(place, connection)| (place, connection.answering.is_idle())).collect();
        if own.len() < CONNECTIONS_OF_ADDRESS {
            return;
        }
        if let Some((place, _)) = own.iter().find(|(_, is_idle)| *is_idle).or(own.first()) {
            self.close(*place, CONNECTIONS_OF_ADDRESS);
        }
    }

    /// Closes a connection if the limit of all is reached.
    fn make_room(&mut self) {
        if self.open.len() < CONNECTIONS {
            return;
        }
        let is_full = self.open.len() >= CONNECTIONS_WITH_NEW;
        // Idle connections first, and of these the oldest. Only a full listener closes others.
        let idle = self.open.iter().position(|connection| connection.answering.is_idle());
        let is_old = |place: &usize| self.open.get(*place).is_some_and(|connection| !connection.is_new(self.limits));
        if let Some(place) = if is_full { idle.or(Some(0)) } else { idle.filter(is_old) } {
            self.close(place, CONNECTIONS);
        }
    }

    fn close(&mut self, place: usize, limit: usize) {
        if let Some(connection) = self.open.remove(place) {
            connection.task.abort();
            let address = connection.address.0;
            tracing::warn!(%address, limit, "the oldest admin connection was closed: the limit is reached");
        }
    }
}

async fn serve_connection<S, F>(stream: TcpStream, limits: ConnectionLimits, answering: Answering, respond: S)
where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response, Infallible>>,
{
    let state = answering.clone();
    let service = service_fn(move |request| {
        state.begin();
        let (response, state) = (respond(request), state.clone());
        async move {
            let response = response.await;
            state.write();
            response
        }
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(AnsweringStream::new(Box::pin(stream), answering)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "an admin connection failed");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns both ends of a new connection.
    async fn connect() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // Others may connect to the port too, for example a test that looks for a server that has ended.
        loop {
            let (stream, address) = listener.accept().await.unwrap();
            if address == client.local_addr().unwrap() {
                return (client, stream);
            }
        }
    }

    /// Opens connections of this client that send nothing, and returns how many are open in the end.
    async fn open(admin: &mut AdminConnections, client: &str, connections: usize) -> usize {
        let client = client.parse().unwrap();
        for _ in 0..connections {
            let (other, stream) = connect().await;
            // The connection stays open while the task lives.
            let respond = move |_| {
                let _ = &other;
                async { Ok(Response::default()) }
            };
            admin.serve(stream, client, respond);
        }
        admin.open.iter().filter(|connection| connection.address == client.into()).count()
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_new_connection_is_spared_while_there_is_room() {
        let all_are_new = ConnectionLimits { new: HOUR, ..ConnectionLimits::default() };
        let none_is_new = ConnectionLimits { new: Duration::ZERO, ..all_are_new };
        for (limits, opened, expected) in [
            (all_are_new, 2 * CONNECTIONS, 2 * CONNECTIONS),
            (all_are_new, CONNECTIONS_WITH_NEW + 10, CONNECTIONS_WITH_NEW),
            (none_is_new, 2 * CONNECTIONS, CONNECTIONS),
        ] {
            assert_eq!(open(&mut AdminConnections::new(limits), "127.0.0.1", opened).await, expected);
        }
    }

    #[tokio::test]
    async fn one_address_of_another_host_holds_at_most_half_of_the_connections() {
        for new in [Duration::ZERO, HOUR] {
            let mut admin = AdminConnections::new(ConnectionLimits { new, ..ConnectionLimits::default() });
            assert_eq!(open(&mut admin, "10.0.0.1", 3).await, 3);
            for flood in ["10.0.0.2", "2001:db8::1", "::ffff:10.0.0.2"] {
                assert_eq!(open(&mut admin, flood, 2 * CONNECTIONS).await, CONNECTIONS_OF_ADDRESS, "{flood}");
                admin.open.retain(|connection| connection.address == "10.0.0.1".parse::<IpAddr>().unwrap().into());
                assert_eq!(admin.open.len(), 3, "{flood}");
            }
        }
    }

    #[tokio::test]
    async fn a_connection_is_not_idle_until_its_answer_is_written() {
        let (mut client, stream) = connect().await;
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        // More than the buffers of both sockets hold.
        let page = Bytes::from(vec![b'x'; 64 << 20]);
        let mut admin = AdminConnections::new(ConnectionLimits { write: HOUR, ..ConnectionLimits::default() });
        let respond = move |_| std::future::ready(Ok(Response::new(page.clone().into())));
        admin.serve(stream, client.peer_addr().unwrap().ip(), respond);
        let mut first = [0];
        client.read_exact(&mut first).await.unwrap();
        assert!(!admin.open[0].answering.is_idle(), "the answer is being written");
        let mut read = 1;
        while read < 64 << 20 {
            read += client.read(&mut [0; 1 << 16]).await.unwrap();
        }
        let idle = async {
            while !admin.open[0].answering.is_idle() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), idle).await.expect("the connection is idle");
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_dropped() {
        let (mut client, stream) = connect().await;
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let limits = ConnectionLimits { write: Duration::from_millis(50), ..ConnectionLimits::default() };
        // More than the buffers of both sockets hold.
        let page = Bytes::from(vec![b'x'; 64 << 20]);
        let respond = move |_| {
            let page = page.clone();
            async move { Ok(Response::new(page.into())) }
        };
        // Ends while the client still has its connection.
        serve_connection(stream, limits, Answering::default(), respond).await;
        let mut received = Vec::new();
        // The connection may be reset.
        drop(client.read_to_end(&mut received).await);
        assert!(received.starts_with(b"HTTP/1.1 200") && received.len() < 64 << 20);
    }
}
