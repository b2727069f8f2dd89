//! Connections to an API that speaks HTTP/2. Each carries many requests at once and is driven by a task of its own.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::RequestBody;
use http::{Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tower_service::Service;

use crate::causes::in_words;
use crate::upstream::{CONNECT_TIMEOUT, CONNECTIONS_CLOSE, IDLE_TIMEOUT, SendError, TRIES};

/// Requests at once on one connection: as many as RFC 9113 recommends that every server accepts. More requests open
/// more connections.
pub(crate) const API_STREAMS: usize = 100;

/// The bytes of one response that may wait for its client. The window of the connection has room for as much of each
/// stream, so that a client that reads slowly does not block the others.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 100;

/// Limit for the head of a response, in bytes.
const HEAD: u32 = 64 << 10;

/// Pings detect an API that has disappeared while requests wait for it.
const PING_EVERY: Duration = Duration::from_secs(10);

/// All connections to the API, as many as needed.
#[derive(Debug)]
pub(crate) struct Http2<B> {
    connector: HttpsConnector<HttpConnector>,
    target: Uri,
    connect_timeout: Duration,
    /// The API has negotiated HTTP/1.1.
    is_unsupported: AtomicBool,
    connections: Mutex<Vec<Http2Connection<B>>>,
    /// Locked while a connection is opened. If that fails, the tasks that waited for the lock return the same failure.
    last_failure: tokio::sync::Mutex<Option<FailedConnect>>,
}

/// A failed attempt to open a connection.
#[derive(Debug)]
struct FailedConnect {
    at: Instant,
    reason: String,
}

#[derive(Debug)]
struct Http2Connection<B> {
    sender: SendRequest<RequestBody<B>>,
    load: Arc<Mutex<ConnectionLoad>>,
}

#[derive(Debug)]
struct ConnectionLoad {
    streams: usize,
    idle_since: Instant,
}

type ReservedStream<B> = (SendRequest<RequestBody<B>>, StreamSlot);

impl<B> Http2Connection<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn is_usable(&self) -> bool {
        let load = self.load.lock();
        let is_fresh = load.streams > 0 || load.idle_since.elapsed() < IDLE_TIMEOUT;
        is_fresh && !self.sender.is_closed()
    }

    fn reserve_stream(&self) -> Option<ReservedStream<B>> {
        let mut load = self.load.lock();
        (load.streams < API_STREAMS).then(|| {
            load.streams += 1;
            (self.sender.clone(), StreamSlot(Arc::clone(&self.load)))
        })
    }
}

/// One of the streams of a connection, occupied until the response has ended.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<Mutex<ConnectionLoad>>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut load = self.0.lock();
        load.streams -= 1;
        load.idle_since = Instant::now();
    }
}

impl<B> Http2<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// `target` has the scheme and the authority of the API. With `http` the API must speak HTTP/2; with `https` TLS
    /// negotiates it.
    pub(crate) fn new(connector: HttpsConnector<HttpConnector>, target: Uri, connect_timeout: Duration) -> Self {
        let (is_unsupported, connections) = (AtomicBool::new(false), Mutex::default());
        let last_failure = tokio::sync::Mutex::default();
        Self { connector, target, connect_timeout, is_unsupported, connections, last_failure }
    }

    /// Sends a request. If its connection closes before the request is written, another connection is tried. The
    /// stream stays occupied until the returned slot is dropped.
    ///
    /// The outer `Err` returns the request, not sent, if the API speaks only HTTP/1.1.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody<B>>,
    ) -> Result<Result<(Response<Incoming>, StreamSlot), SendError>, Request<RequestBody<B>>> {
        let mut reason: BoxError = CONNECTIONS_CLOSE.into();
        for _ in 0..TRIES {
            let (mut sender, slot) = match self.reserve_stream().await {
                Ok(Some(reserved)) => reserved,
                Ok(None) => return Err(request),
                Err(error) => return Ok(Err(SendError::Unsent(error))),
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(Ok((response, slot))),
                Err(mut error) => {
                    let unsent = error.take_message();
                    let error = error.into_error();
                    // hyper returns the request only if it has not begun to send it.
                    match unsent {
                        Some(unsent) => (request, reason) = (unsent, error.into()),
                        None if was_not_processed(&error) => return Ok(Err(SendError::Unsent(error.into()))),
                        None => return Ok(Err(SendError::Cut(error.into()))),
                    }
                }
            }
        }
        Ok(Err(SendError::Unsent(reason)))
    }

    /// Reserves a stream on an open connection or on a new one. None if the API does not speak HTTP/2.
    async fn reserve_stream(&self) -> Result<Option<ReservedStream<B>>, BoxError> {
        if self.is_unsupported.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(reserved) = self.reserve_open_stream() {
            return Ok(Some(reserved));
        }
        let asked_at = Instant::now();
        let mut last_failure = self.last_failure.lock().await;
        // The task that held the lock may have opened a connection, or failed to.
        if let Some(reserved) = self.reserve_open_stream() {
            return Ok(Some(reserved));
        }
        // An older failure may be resolved by now, so only one that happened while this task waited is shared.
        if let Some(failure) = last_failure.as_ref().filter(|failure| failure.at >= asked_at) {
            return Err(failure.reason.clone().into());
        }
        let opened = tokio::time::timeout(self.connect_timeout, self.connect()).await;
        match opened.unwrap_or_else(|_| Err(CONNECT_TIMEOUT.into())) {
            Ok(Some(connection)) => {
                let reserved = connection.reserve_stream();
                self.connections.lock().push(connection);
                Ok(reserved)
            }
            Ok(None) => {
                self.is_unsupported.store(true, Ordering::Release);
                Ok(None)
            }
            Err(error) => {
                *last_failure = Some(FailedConnect { at: Instant::now(), reason: in_words(&*error) });
                Err(error)
            }
        }
    }

    fn reserve_open_stream(&self) -> Option<ReservedStream<B>> {
        let mut connections = self.connections.lock();
        // Drops the sender of an unusable connection; the connection then closes after its last response.
        connections.retain(Http2Connection::is_usable);
        connections.iter().find_map(Http2Connection::reserve_stream)
    }

    async fn connect(&self) -> Result<Option<Http2Connection<B>>, BoxError> {
        let stream = self.connector.clone().call(self.target.clone()).await?;
        // Without TLS nothing is negotiated: with h2c:// the user has declared that the API speaks HTTP/2.
        let is_negotiated = self.target.scheme() == Some(&http::uri::Scheme::HTTPS);
        if is_negotiated && !stream.connected().is_negotiated_h2() {
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
                tracing::debug!(%error, "a connection to the API failed");
            }
        });
        let load = ConnectionLoad { streams: 0, idle_since: Instant::now() };
        Ok(Some(Http2Connection { sender, load: Arc::new(Mutex::new(load)) }))
    }
}

/// The next frame of an HTTP/2 body, with an error if the body ends without its end being marked.
///
/// A stream that is reset without an error code just stops (RFC 9113, 8.1), and hyper reports that as the end: half a
/// body would be taken for the whole.
pub(crate) fn poll_frame(
    body: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let frame = ready!(Pin::new(&mut *body).poll_frame(context));
    if frame.is_none() && !body.is_end_stream() {
        return Poll::Ready(Some(Err("the stream was reset before the end of the body".into())));
    }
    Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
}

/// Whether the API itself says that it has not processed a request: it refused the stream (RFC 9113, 8.7), or it closed
/// the connection and named an earlier stream as the last one it processed. Any other error leaves that open.
fn was_not_processed(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}
