//! Connections to an API that speaks HTTP/2.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::RequestBody;
use http::{Request, Response, Uri, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use crate::causes::in_words;
use crate::gateway::ingress::received::Received;
use crate::gateway::ingress::request_body::ClientBody;
use crate::gateway::limits::API_STREAMS;
use crate::upstream::forward::{IDLE_TIMEOUT, SendError};

/// How much of one answer may wait for its client, in bytes. The window of a connection has room for as much of each of its
/// streams: clients that do not take their answers hold up nobody else's.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 100;

/// The head of an answer, in bytes.
const HEAD: u32 = 64 << 10;

/// An API that is gone without a word is noticed while requests wait for it.
const PING_EVERY: Duration = Duration::from_secs(10);

/// How often a request that was not written is taken to another connection.
const TRIES: usize = 3;

type Sent = Request<RequestBody<ClientBody>>;

/// All connections to the API, as many as are needed.
#[derive(Debug)]
pub(crate) struct Http2 {
    connector: HttpsConnector<HttpConnector>,
    target: Uri,
    connect_timeout: Duration,
    /// Whether the API is known not to speak it.
    is_absent: AtomicBool,
    open: Mutex<Vec<Http2Connection>>,
    /// Held while one is opened; those who wait for it meanwhile share what comes of it.
    opening: tokio::sync::Mutex<Option<FailedConnect>>,
}

/// A connection that could not be opened.
#[derive(Debug)]
struct FailedConnect {
    at: Instant,
    why: String,
}

/// A connection.
#[derive(Debug)]
struct Http2Connection {
    sender: SendRequest<RequestBody<ClientBody>>,
    load: Arc<Mutex<ConnectionLoad>>,
}

#[derive(Debug)]
struct ConnectionLoad {
    streams: usize,
    idle_since: Instant,
}

impl Http2Connection {
    fn is_of_use(&self) -> bool {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = load.streams > 0 || load.idle_since.elapsed() < IDLE_TIMEOUT;
        is_fresh && !self.sender.is_closed()
    }

    fn place(&self) -> Option<(SendRequest<RequestBody<ClientBody>>, StreamSlot)> {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        (load.streams < API_STREAMS).then(|| {
            load.streams += 1;
            (self.sender.clone(), StreamSlot(Arc::clone(&self.load)))
        })
    }
}

/// The place of one request on its connection, until its answer is over.
#[derive(Debug)]
struct StreamSlot(Arc<Mutex<ConnectionLoad>>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut load = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        load.streams -= 1;
        load.idle_since = Instant::now();
    }
}

impl Http2 {
    /// `target` has the scheme and the authority of the API. Of `http` the API is known to speak HTTP/2; of `https` it is asked.
    pub(crate) fn new(connector: HttpsConnector<HttpConnector>, target: Uri, connect_timeout: Duration) -> Self {
        let (is_absent, open, opening) = (AtomicBool::new(false), Mutex::default(), tokio::sync::Mutex::default());
        Self { connector, target, connect_timeout, is_absent, open, opening }
    }

    /// Sends a request. One that is not written, because its connection was just closing, is sent on another: nothing of it can
    /// have arrived. `Err` gives it back, not sent, when the API speaks HTTP/1.1 alone.
    pub(crate) async fn send(&self, mut request: Sent) -> Result<Result<Response<Http2ResponseBody>, SendError>, Sent> {
        let mut why: BoxError = "its connections close at once".into();
        for _ in 0..TRIES {
            let (mut sender, place) = match self.place().await {
                Ok(Some(found)) => found,
                Ok(None) => return Err(request),
                Err(error) => return Ok(Err(SendError::Unsent(error))),
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(Ok(response.map(|body| Http2ResponseBody::new(body, place)))),
                Err(mut error) => {
                    let unsent = error.take_message();
                    let error = error.into_error();
                    match unsent {
                        Some(unsent) => (request, why) = (unsent, error.into()),
                        None if was_not_looked_at(&error) => return Ok(Err(SendError::Unsent(error.into()))),
                        None => return Ok(Err(SendError::Cut(error.into()))),
                    }
                }
            }
        }
        Ok(Err(SendError::Unsent(why)))
    }

    /// A place on a connection; none if the API does not speak HTTP/2.
    async fn place(&self) -> Result<Option<(SendRequest<RequestBody<ClientBody>>, StreamSlot)>, BoxError> {
        if self.is_absent.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(free) = self.free() {
            return Ok(Some(free));
        }
        let asked = Instant::now();
        let mut vain = self.opening.lock().await;
        if let Some(free) = self.free() {
            return Ok(Some(free));
        }
        if let Some(vain) = vain.as_ref().filter(|vain| vain.at >= asked) {
            return Err(vain.why.clone().into());
        }
        let opened = tokio::time::timeout(self.connect_timeout, self.connect()).await;
        match opened.unwrap_or_else(|_| Err("no connection came about in time".into())) {
            Ok(Some(open)) => {
                let place = open.place();
                self.open.lock().unwrap_or_else(PoisonError::into_inner).push(open);
                Ok(place)
            }
            Ok(None) => {
                self.is_absent.store(true, Ordering::Release);
                Ok(None)
            }
            Err(error) => {
                *vain = Some(FailedConnect { at: Instant::now(), why: in_words(&*error) });
                Err(error)
            }
        }
    }

    fn free(&self) -> Option<(SendRequest<RequestBody<ClientBody>>, StreamSlot)> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Once nobody can send on it any more, it ends when its last answer has.
        open.retain(Http2Connection::is_of_use);
        open.iter().find_map(Http2Connection::place)
    }

    async fn connect(&self) -> Result<Option<Http2Connection>, BoxError> {
        let stream = self.connector.clone().call(self.target.clone()).await?;
        let is_asked = self.target.scheme() == Some(&http::uri::Scheme::HTTPS);
        if is_asked && !stream.connected().is_negotiated_h2() {
            return Ok(None);
        }
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .handshake(stream)
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the API ended badly");
            }
        });
        let load = ConnectionLoad { streams: 0, idle_since: Instant::now() };
        Ok(Some(Http2Connection { sender, load: Arc::new(Mutex::new(load)) }))
    }
}

/// The body of an answer, which keeps its place on the connection.
#[derive(Debug)]
pub(crate) struct Http2ResponseBody {
    body: Received,
    _place: StreamSlot,
}

impl Http2ResponseBody {
    fn new(body: Incoming, place: StreamSlot) -> Self {
        Self { body: Received::new(body, Version::HTTP_2), _place: place }
    }
}

impl Body for Http2ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether the API said itself that it has done nothing with a request: it refused the stream (RFC 9113, 8.7), or went away and named
/// an earlier one as its last. The crate that knows is none of ours to name, so its words are read; they begin with who said it, and
/// whatever else they say counts as unknown.
fn was_not_looked_at(error: &hyper::Error) -> bool {
    let told = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    told == "stream error received: refused stream before processing any application logic"
        || told.starts_with("connection error received: ")
}
