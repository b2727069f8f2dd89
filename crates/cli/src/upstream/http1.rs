//! Connections to an API that speaks HTTP/1.1. Each carries one request at a time and is driven by whoever waits for its answer, in the
//! same task: no other has to be woken. In between it rests. Only one that still sends when its answer begins gets a task of its own.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::RequestBody;
use http::{Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tower_service::Service;

use crate::gateway::ingress::request_body::ClientBody;
use crate::upstream::forward::{IDLE_TIMEOUT, SendError};

/// Longer than an API that has answered takes to read the rest of a request.
const FINISH: Duration = Duration::from_secs(60);

/// How often a request that was not written is taken to another connection.
const TRIES: usize = 3;

type Sent = Request<RequestBody<ClientBody>>;

/// All connections to the API, as many as are needed.
#[derive(Debug)]
pub(crate) struct Http1 {
    connector: HttpsConnector<HttpConnector>,
    target: Uri,
    connect_timeout: Duration,
    idle: Arc<IdleConnections>,
}

/// The connections that carry nothing, the last one that did at the end.
#[derive(Debug, Default)]
struct IdleConnections(Mutex<IdleList>);

#[derive(Debug, Default)]
struct IdleList {
    lines: Vec<(Http1Connection, Instant)>,
    is_watched: bool,
}

/// A connection.
#[derive(Debug)]
struct Http1Connection {
    sender: SendRequest<RequestBody<ClientBody>>,
    driver: ConnectionDriver,
}

/// Who writes what there is to write, and reads what has come.
#[derive(Debug)]
enum ConnectionDriver {
    /// Whoever waits for something of it.
    Caller(Pin<Box<Http1Driver>>),
    /// A task of its own.
    Task,
    /// Nobody: it is over.
    Nobody,
}

type Http1Driver = Connection<MaybeHttpsStream<TokioIo<TcpStream>>, RequestBody<ClientBody>>;

impl Http1 {
    /// `target` has the scheme and the authority of the API.
    pub(crate) fn new(connector: HttpsConnector<HttpConnector>, target: Uri, connect_timeout: Duration) -> Self {
        Self { connector, target, connect_timeout, idle: Arc::default() }
    }

    /// Sends a request. One that is not written, because its connection was just closing, is sent on another: nothing of it can
    /// have arrived.
    pub(crate) async fn send(&self, mut request: Sent) -> Result<Response<Http1ResponseBody>, SendError> {
        let mut why: BoxError = "its connections close at once".into();
        for _ in 0..TRIES {
            let mut line = match self.idle.take() {
                Some(line) => line,
                // Boxed: it is much larger than all the rest, and rare.
                None => Box::pin(self.connect()).await.map_err(SendError::Unsent)?,
            };
            let streams_up = matches!(request.body(), RequestBody::Streaming(body) if !body.is_end_stream());
            match line.ask(request).await {
                Ok(response) => {
                    if streams_up {
                        // A client that sends all before it reads anything must not wait for itself.
                        line.drive_by_task();
                    }
                    return Ok(response.map(|body| Http1ResponseBody::new(body, line, Arc::clone(&self.idle))));
                }
                Err(mut error) => match (error.take_message(), error.into_error()) {
                    (Some(unsent), error) => (request, why) = (unsent, error.into()),
                    (None, error) => return Err(SendError::Cut(error.into())),
                },
            }
        }
        Err(SendError::Unsent(why))
    }

    async fn connect(&self) -> Result<Http1Connection, BoxError> {
        let opened = async {
            let stream = self.connector.clone().call(self.target.clone()).await?;
            let (sender, connection) = handshake(stream).await?;
            Ok(Http1Connection { sender, driver: ConnectionDriver::Caller(Box::pin(connection)) })
        };
        let opened = tokio::time::timeout(self.connect_timeout, opened).await;
        opened.unwrap_or_else(|_| Err("no connection came about in time".into()))
    }
}

impl Http1Connection {
    async fn ask(&mut self, request: Sent) -> Result<Response<Incoming>, TrySendError<Sent>> {
        // A budget that is used up would wake whoever is named here, which may be nobody.
        let mut answered = pin!(unconstrained(self.sender.try_send_request(request)));
        let driver = &mut self.driver;
        poll_fn(|context| {
            driver.go_on(context);
            answered.as_mut().poll(&mut driver.context(context))
        })
        .await
    }

    /// Whether it can carry a request. What is known to have come meanwhile is looked at: the API may have closed it.
    fn is_of_use(&mut self) -> bool {
        self.driver.go_on(&mut Context::from_waker(Waker::noop()));
        !matches!(self.driver, ConnectionDriver::Nobody) && self.sender.is_ready()
    }

    fn drive_by_task(&mut self) {
        self.driver = match std::mem::replace(&mut self.driver, ConnectionDriver::Nobody) {
            ConnectionDriver::Caller(connection) => {
                tokio::spawn(async move { ended(connection.await) });
                ConnectionDriver::Task
            }
            already @ (ConnectionDriver::Task | ConnectionDriver::Nobody) => already,
        };
    }

    /// Carries nothing more. What the API still wants of a request that it has answered is sent, and the connection closed in order.
    fn finish(self) {
        if let ConnectionDriver::Caller(connection) = self.driver {
            tokio::spawn(async move {
                match tokio::time::timeout(FINISH, connection).await {
                    Ok(end) => ended(end),
                    Err(_) => tracing::debug!("the API did not take the rest of a request in time"),
                }
            });
        }
    }
}

impl ConnectionDriver {
    fn go_on(&mut self, context: &mut Context<'_>) {
        if let Self::Caller(connection) = self
            && let Poll::Ready(end) = connection.as_mut().poll(context)
        {
            ended(end);
            // Whoever waits for something of it is told that nothing comes.
            *self = Self::Nobody;
        }
    }

    /// For what only the connection can bring. Who drives it looks at that again whenever it has gone on, and need not be woken.
    fn context<'a>(&self, context: &Context<'a>) -> Context<'a> {
        match self {
            Self::Caller(_) | Self::Nobody => Context::from_waker(Waker::noop()),
            Self::Task => Context::from_waker(context.waker()),
        }
    }
}

fn ended(end: hyper::Result<()>) {
    if let Err(error) = end {
        tracing::debug!(%error, "a connection to the API ended badly");
    }
}

impl IdleConnections {
    fn take(&self) -> Option<Http1Connection> {
        loop {
            let (mut line, since) = self.resting().lines.pop()?;
            if since.elapsed() < IDLE_TIMEOUT && line.is_of_use() {
                return Some(line);
            }
            line.finish();
        }
    }

    fn keep(self: &Arc<Self>, line: Http1Connection) {
        let mut resting = self.resting();
        resting.lines.push((line, Instant::now()));
        if !std::mem::replace(&mut resting.is_watched, true) {
            tokio::spawn(close_in_time(Arc::downgrade(self)));
        }
    }

    fn resting(&self) -> MutexGuard<'_, IdleList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what nobody has used for long, until nothing is left.
async fn close_in_time(idle: Weak<IdleConnections>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut resting = idle.resting();
        let is_over =
            |(line, since): &mut (Http1Connection, Instant)| since.elapsed() >= IDLE_TIMEOUT || !line.is_of_use();
        resting.lines.extract_if(.., is_over).for_each(|(line, _)| line.finish());
        if resting.lines.is_empty() {
            resting.is_watched = false;
            return;
        }
    }
}

/// The body of an answer, which its connection brings as long as it is waited for.
#[derive(Debug)]
pub(crate) struct Http1ResponseBody {
    body: Incoming,
    /// None once it is whole, and the connection free for another request.
    line: Option<Http1Connection>,
    idle: Arc<IdleConnections>,
}

impl Http1ResponseBody {
    fn new(body: Incoming, line: Http1Connection, idle: Arc<IdleConnections>) -> Self {
        let mut answer = Self { body, line: Some(line), idle };
        if answer.body.is_end_stream() {
            answer.ended();
        }
        answer
    }

    fn ended(&mut self) {
        if let Some(mut line) = self.line.take() {
            if line.is_of_use() { self.idle.keep(line) } else { line.finish() }
        }
    }
}

impl Body for Http1ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { body, line, .. } = &mut *self;
        let Some(Http1Connection { driver, .. }) = line else {
            return Pin::new(body).poll_frame(context);
        };
        let mut frame = Pin::new(&mut *body).poll_frame(&mut driver.context(context));
        if frame.is_pending() {
            driver.go_on(context);
            frame = Pin::new(body).poll_frame(&mut driver.context(context));
        }
        let is_last = match &frame {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            self.ended();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
