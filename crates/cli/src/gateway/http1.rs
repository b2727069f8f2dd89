//! Connections to an API that speaks HTTP/1.1. Each carries one request at a time and is driven by whoever waits for its answer, in the
//! same task: no other has to be woken. In between it lies still.

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
use tokio::time::Instant;
use tower_service::Service;

use super::arriving::Arriving;
use super::forward::{Failed, IDLE_TIMEOUT};

/// How often a request that was not written is taken to another connection.
const TRIES: usize = 3;

type Sent = Request<RequestBody<Arriving>>;

/// All connections to the API, as many as are needed.
#[derive(Debug)]
pub(super) struct Http1 {
    connector: HttpsConnector<HttpConnector>,
    target: Uri,
    connect_timeout: Duration,
    idle: Arc<Idle>,
}

/// The connections that carry nothing, the last one that did at the end.
#[derive(Debug, Default)]
struct Idle(Mutex<Lying>);

#[derive(Debug, Default)]
struct Lying {
    lines: Vec<(Line, Instant)>,
    is_watched: bool,
}

/// A connection.
#[derive(Debug)]
struct Line {
    sender: SendRequest<RequestBody<Arriving>>,
    /// None once it is over.
    connection: Option<Pin<Box<Driven>>>,
}

type Driven = Connection<MaybeHttpsStream<TokioIo<TcpStream>>, RequestBody<Arriving>>;

impl Http1 {
    /// `target` has the scheme and the authority of the API.
    pub(super) fn new(connector: HttpsConnector<HttpConnector>, target: Uri, connect_timeout: Duration) -> Self {
        Self { connector, target, connect_timeout, idle: Arc::default() }
    }

    /// Sends a request. One that is not written, because its connection was just closing, is sent on another: nothing of it can
    /// have arrived.
    pub(super) async fn send(&self, mut request: Sent) -> Result<Response<Answer>, Failed> {
        let mut why: BoxError = "its connections close at once".into();
        for _ in 0..TRIES {
            let mut line = match self.idle.take() {
                Some(line) => line,
                // Boxed: it is much larger than all the rest, and rare.
                None => Box::pin(self.connect()).await.map_err(Failed::Unsent)?,
            };
            match line.ask(request).await {
                Ok(response) => return Ok(response.map(|body| Answer::new(body, line, Arc::clone(&self.idle)))),
                Err(mut error) => match (error.take_message(), error.into_error()) {
                    (Some(unsent), error) => (request, why) = (unsent, error.into()),
                    (None, error) => return Err(Failed::Cut(error.into())),
                },
            }
        }
        Err(Failed::Unsent(why))
    }

    async fn connect(&self) -> Result<Line, BoxError> {
        let opened = async {
            let stream = self.connector.clone().call(self.target.clone()).await?;
            let (sender, connection) = handshake(stream).await?;
            Ok(Line { sender, connection: Some(Box::pin(connection)) })
        };
        let opened = tokio::time::timeout(self.connect_timeout, opened).await;
        opened.unwrap_or_else(|_| Err("no connection came about in time".into()))
    }
}

impl Line {
    async fn ask(&mut self, request: Sent) -> Result<Response<Incoming>, TrySendError<Sent>> {
        let mut answered = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        poll_fn(|context| {
            go_on(connection, context);
            // Nothing but the connection brings an answer.
            answered.as_mut().poll(&mut still())
        })
        .await
    }

    /// Whether it can carry a request. What came of it meanwhile is looked at: the API may have closed it.
    fn is_of_use(&mut self) -> bool {
        go_on(&mut self.connection, &mut still());
        self.connection.is_some() && self.sender.is_ready()
    }
}

/// Writes what there is to write, and reads what has come.
fn go_on(connection: &mut Option<Pin<Box<Driven>>>, context: &mut Context<'_>) {
    let Some(Poll::Ready(ended)) = connection.as_mut().map(|connection| connection.as_mut().poll(context)) else {
        return;
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the API ended badly");
    }
    // Whoever waits for something of it is told that nothing comes.
    *connection = None;
}

/// For what is looked at again whenever its connection has gone on.
fn still() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Idle {
    fn take(&self) -> Option<Line> {
        loop {
            let (mut line, since) = self.lying().lines.pop()?;
            if since.elapsed() < IDLE_TIMEOUT && line.is_of_use() {
                return Some(line);
            }
        }
    }

    fn keep(self: &Arc<Self>, line: Line) {
        let mut lying = self.lying();
        lying.lines.push((line, Instant::now()));
        if !std::mem::replace(&mut lying.is_watched, true) {
            tokio::spawn(close_in_time(Arc::downgrade(self)));
        }
    }

    fn lying(&self) -> MutexGuard<'_, Lying> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what nobody has used for long, until nothing is left.
async fn close_in_time(idle: Weak<Idle>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut lying = idle.lying();
        lying.lines.retain_mut(|(line, since)| since.elapsed() < IDLE_TIMEOUT && line.is_of_use());
        if lying.lines.is_empty() {
            lying.is_watched = false;
            return;
        }
    }
}

/// The body of an answer, which its connection brings as long as it is waited for.
#[derive(Debug)]
pub(super) struct Answer {
    body: Incoming,
    /// None once it is whole, and the connection free for another request.
    line: Option<Line>,
    idle: Arc<Idle>,
}

impl Answer {
    fn new(body: Incoming, line: Line, idle: Arc<Idle>) -> Self {
        let mut answer = Self { body, line: Some(line), idle };
        if answer.body.is_end_stream() {
            answer.ended();
        }
        answer
    }

    /// A connection on which something is still to be sent, or to come, is closed.
    fn ended(&mut self) {
        if let Some(mut line) = self.line.take()
            && line.is_of_use()
        {
            self.idle.keep(line);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(&mut still());
        if frame.is_pending()
            && let Some(line) = &mut self.line
        {
            go_on(&mut line.connection, context);
            frame = Pin::new(&mut self.body).poll_frame(&mut still());
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
