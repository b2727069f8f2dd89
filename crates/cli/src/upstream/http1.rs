//! Connections to an API that speaks HTTP/1.1. Each carries one request at a time.
//!
//! The task that waits for a response also drives the connection, so that no other task has to be woken. A connection
//! gets a task of its own in two cases: its request has a streamed body, or the connection is closed while it may still
//! have to send the rest of a request. No task drives an idle connection, unless an earlier request gave it one.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::RequestBody;
use hapax::runtime::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tower_service::Service;

use crate::upstream::{CONNECT_TIMEOUT, CONNECTIONS_CLOSE, IDLE_TIMEOUT, SendError, TRIES};

/// How long a connection may take to close, with the time to send the rest of a request that the API answered early. A
/// connection with a task of its own has no such limit.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The most fields of a response: more than the 255 that a record holds, with those of the connection. hyper takes 100
/// by default. A response with more fields counts as cut.
const MOST_FIELDS: usize = 300;

/// All connections to the API, as many as needed.
#[derive(Debug)]
pub(crate) struct Http1<B> {
    connector: HttpsConnector<HttpConnector>,
    target: Uri,
    connect_timeout: Duration,
    idle: Arc<IdleConnections<B>>,
}

/// A connection that no task drives yet, and its sending half.
type OpenedHttp1<B> = (SendRequest<RequestBody<B>>, Connection<MaybeHttpsStream<TokioIo<TcpStream>>, RequestBody<B>>);

/// The connections without a request, the last used one at the end.
///
/// hyper-util's pools hold only the sending half and leave each connection to a task of its own. Every request would
/// have to wake that task, whatever the executor.
#[derive(Debug)]
struct IdleConnections<B>(Mutex<IdleList<B>>);

#[derive(Debug)]
struct IdleList<B> {
    connections: Vec<(Http1Connection<B>, Instant)>,
    /// Whether a task runs that closes connections which have been idle for too long.
    has_cleaner: bool,
}

impl<B> Default for IdleConnections<B> {
    fn default() -> Self {
        Self(Mutex::new(IdleList { connections: Vec::new(), has_cleaner: false }))
    }
}

#[derive(Debug)]
struct Http1Connection<B> {
    sender: SendRequest<RequestBody<B>>,
    driver: ConnectionDriver,
}

/// The task that does the input and output of a connection.
enum ConnectionDriver {
    /// The task that waits for a response.
    Caller(BoxFuture<'static, hyper::Result<()>>),
    /// A task of its own.
    Task,
    /// No task, because the connection has ended.
    Ended,
}

impl fmt::Debug for ConnectionDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller(_) => "Caller",
            Self::Task => "Task",
            Self::Ended => "Ended",
        })
    }
}

impl<B> Http1<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// `target` has the scheme and the authority of the API.
    pub(crate) fn new(connector: HttpsConnector<HttpConnector>, target: Uri, connect_timeout: Duration) -> Self {
        Self { connector, target, connect_timeout, idle: Arc::default() }
    }

    /// Sends a request. If its connection closes before the request is written, another connection is tried. Read
    /// the body of the response with [`ResponseConnection::poll_frame`]: it drives a connection without a task.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody<B>>,
    ) -> Result<(Response<Incoming>, ResponseConnection<B>), SendError> {
        let mut reason: BoxError = CONNECTIONS_CLOSE.into();
        for _ in 0..TRIES {
            let mut connection = match self.idle.take() {
                Some(connection) => connection,
                // Boxed: this future is much larger than the rest, and rarely needed.
                None => Box::pin(self.connect()).await.map_err(SendError::Unsent)?,
            };
            let streams_up = matches!(request.body(), RequestBody::Streaming(body) if !body.is_end_stream());
            match connection.send(request).await {
                Ok(response) => {
                    if streams_up {
                        // A client may send its whole body before it reads the response, so both directions must
                        // proceed.
                        connection.drive_by_task();
                    }
                    let connection = ResponseConnection::new(response.body(), connection, Arc::clone(&self.idle));
                    return Ok((response, connection));
                }
                // hyper returns the request only if it has not begun to send it.
                Err(mut error) => match (error.take_message(), error.into_error()) {
                    (Some(unsent), error) => (request, reason) = (unsent, error.into()),
                    (None, error) => return Err(SendError::Cut(error.into())),
                },
            }
        }
        Err(SendError::Unsent(reason))
    }

    /// Sends a request on a connection of its own, which may switch to another protocol.
    pub(crate) async fn send_switch(
        &self,
        request: Request<RequestBody<B>>,
    ) -> Result<(Response<Incoming>, ResponseConnection<B>), SendError> {
        let (mut sender, connection) = self.open().await.map_err(SendError::Unsent)?;
        tokio::spawn(async move { log_end(connection.with_upgrades().await) });
        match sender.try_send_request(request).await {
            Ok(response) => Ok((response, ResponseConnection { connection: None, idle: Arc::clone(&self.idle) })),
            Err(mut error) => match (error.take_message(), error.into_error()) {
                (Some(_), error) => Err(SendError::Unsent(error.into())),
                (None, error) => Err(SendError::Cut(error.into())),
            },
        }
    }

    async fn connect(&self) -> Result<Http1Connection<B>, BoxError> {
        let (sender, connection) = self.open().await?;
        Ok(Http1Connection { sender, driver: ConnectionDriver::Caller(Box::pin(connection)) })
    }

    async fn open(&self) -> Result<OpenedHttp1<B>, BoxError> {
        let opened = async {
            let stream = self.connector.clone().call(self.target.clone()).await?;
            Ok(Builder::new().max_headers(MOST_FIELDS).handshake(stream).await?)
        };
        let opened = tokio::time::timeout(self.connect_timeout, opened).await;
        opened.unwrap_or_else(|_| Err(CONNECT_TIMEOUT.into()))
    }
}

impl<B> Http1Connection<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    async fn send(
        &mut self,
        request: Request<RequestBody<B>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody<B>>>> {
        // When tokio's cooperative budget is used up, it wakes the waker of this poll. That may be a no-op waker, and
        // the request would hang.
        let mut response = pin!(unconstrained(self.sender.try_send_request(request)));
        let driver = &mut self.driver;
        poll_fn(|context| {
            driver.poll_connection(context);
            response.as_mut().poll(&mut driver.context(context))
        })
        .await
    }

    /// Whether the connection can carry a request. If no task drives the connection, this polls it once, to notice that
    /// the API has closed it.
    fn is_usable(&mut self) -> bool {
        self.driver.poll_connection(&mut Context::from_waker(Waker::noop()));
        !matches!(self.driver, ConnectionDriver::Ended) && self.sender.is_ready()
    }

    /// Moves the connection to a task of its own, so that it makes progress while no caller polls it.
    fn drive_by_task(&mut self) {
        self.driver = match std::mem::replace(&mut self.driver, ConnectionDriver::Ended) {
            ConnectionDriver::Caller(connection) => {
                tokio::spawn(async move { log_end(connection.await) });
                ConnectionDriver::Task
            }
            already @ (ConnectionDriver::Task | ConnectionDriver::Ended) => already,
        };
    }

    /// Closes the connection. If the API answered before the whole request was sent, sends the rest first.
    fn close(self) {
        if let ConnectionDriver::Caller(connection) = self.driver {
            tokio::spawn(async move {
                match tokio::time::timeout(CLOSE_TIMEOUT, connection).await {
                    Ok(end) => log_end(end),
                    Err(_) => tracing::debug!("the API did not read the rest of a request in time"),
                }
            });
        }
    }
}

impl ConnectionDriver {
    fn poll_connection(&mut self, context: &mut Context<'_>) {
        if let Self::Caller(connection) = self
            && let Poll::Ready(end) = connection.as_mut().poll(context)
        {
            log_end(end);
            // The drop of the connection ends the response future with an error.
            *self = Self::Ended;
        }
    }

    /// The context in which the response is polled. A caller that drives the connection polls the response again after
    /// each poll of the connection, so the response needs no waker.
    fn context<'a>(&self, context: &Context<'a>) -> Context<'a> {
        match self {
            Self::Caller(_) | Self::Ended => Context::from_waker(Waker::noop()),
            Self::Task => Context::from_waker(context.waker()),
        }
    }
}

fn log_end(end: hyper::Result<()>) {
    if let Err(error) = end {
        tracing::debug!(%error, "a connection to the API failed");
    }
}

impl<B> IdleConnections<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn take(&self) -> Option<Http1Connection<B>> {
        loop {
            // The connection that was used last is the least likely to have been closed by the API.
            let (mut connection, idle_since) = self.0.lock().connections.pop()?;
            if idle_since.elapsed() < IDLE_TIMEOUT && connection.is_usable() {
                return Some(connection);
            }
            connection.close();
        }
    }

    fn put(self: &Arc<Self>, connection: Http1Connection<B>) {
        let mut idle = self.0.lock();
        idle.connections.push((connection, Instant::now()));
        if !std::mem::replace(&mut idle.has_cleaner, true) {
            // Weak, so that the task does not keep the connections of a dropped client open.
            tokio::spawn(close_idle(Arc::downgrade(self)));
        }
    }
}

/// Closes connections that have been idle for too long, until none is left.
async fn close_idle<B>(idle: Weak<IdleConnections<B>>)
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut idle = idle.0.lock();
        let is_expired = |(connection, idle_since): &mut (Http1Connection<B>, Instant)| {
            idle_since.elapsed() >= IDLE_TIMEOUT || !connection.is_usable()
        };
        idle.connections.extract_if(.., is_expired).for_each(|(connection, _)| connection.close());
        if idle.connections.is_empty() {
            idle.has_cleaner = false;
            return;
        }
    }
}

/// The connection that a response body arrives on. Reading the body drives it, unless it has a task of its own.
#[derive(Debug)]
pub(crate) struct ResponseConnection<B> {
    /// `None` after the body is complete. The connection is then idle again, or is being closed.
    connection: Option<Http1Connection<B>>,
    idle: Arc<IdleConnections<B>>,
}

impl<B> ResponseConnection<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn new(body: &Incoming, connection: Http1Connection<B>, idle: Arc<IdleConnections<B>>) -> Self {
        let mut response = Self { connection: Some(connection), idle };
        // The gateway's HTTP server does not poll an empty body, so the connection must be returned here.
        if body.is_end_stream() {
            response.return_connection();
        }
        response
    }

    /// The next frame of the body. After the last one the connection can carry another request.
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(Http1Connection { driver, .. }) = &mut self.connection else {
            return Pin::new(body).poll_frame(context);
        };
        // An earlier poll of the connection may have delivered a frame already.
        let mut frame = Pin::new(&mut *body).poll_frame(&mut driver.context(context));
        if frame.is_pending() {
            // A connection without a task of its own delivers frames only while it is polled here.
            driver.poll_connection(context);
            frame = Pin::new(&mut *body).poll_frame(&mut driver.context(context));
        }
        let is_last = match &frame {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            self.return_connection();
        }
        frame
    }

    fn return_connection(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            if connection.is_usable() { self.idle.put(connection) } else { connection.close() }
        }
    }
}

#[cfg(test)]
mod tests;
