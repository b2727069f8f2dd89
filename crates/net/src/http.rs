//! A client of HTTP/1.1 that says whether a byte of a request may have left.
//!
//! It uses no proxy, and a redirect is an answer like any other.

mod resolve;

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{BoxFuture, Runtime, timeout};
use hapax_core::{BoxError, Result};
use http::response::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use rustls::ClientConfig;

pub(crate) use self::resolve::HostResolver;
pub use self::resolve::{ResolveHost, SystemResolver};
use crate::tls;

/// How long an idle connection stays open. Common servers close theirs after 5 s; a request must not hit a connection
/// that the server is closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the body of an answer is read of which only the head counts, so that its connection can be used again.
const READ_TIME: Duration = Duration::from_secs(1);

/// The largest head of an answer.
const MAX_HEAD: usize = 64 << 10;

/// How a client sends requests.
#[derive(Debug)]
pub struct HttpSettings {
    /// How servers are trusted. None for servers without TLS.
    pub tls: Option<ClientConfig>,
    /// Resolves the names of hosts. An address in a URL is not resolved.
    pub resolver: Arc<dyn ResolveHost>,
    /// How long a request may take. A connection may take half of it.
    pub time_limit: Duration,
    /// The largest body of an answer, in bytes.
    pub max_body: usize,
    /// Its clocks and tasks.
    pub runtime: Arc<dyn Runtime>,
}

impl HttpSettings {
    /// Servers without TLS, whose names the system resolves. A request may take 30 s, and its answer have 64 KiB.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let (resolver, time_limit) = (Arc::new(SystemResolver), Duration::from_secs(30));
        Self { tls: None, resolver, time_limit, max_body: 64 << 10, runtime }
    }
}

/// The connections to some servers. Clones share them.
#[derive(Clone)]
pub struct HttpClient {
    client: Client<HttpsConnector<HttpConnector<HostResolver>>, WatchedBody>,
    time_limit: Duration,
    max_body: usize,
    runtime: Arc<dyn Runtime>,
}

/// How long an answer may take.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// Until its head.
    pub head: Duration,
    /// Its body, from its head on.
    pub body: Duration,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum RequestFailure {
    /// Nothing of the request left.
    Unsent(BoxError),
    /// The request, or a part of it, may have reached the server.
    Cut(BoxError),
    /// The time was up.
    TimedOut {
        /// Whether a part of the request may have reached the server.
        sent: bool,
        /// How long it was.
        limit: Duration,
    },
}

impl HttpClient {
    /// A client without connections.
    ///
    /// # Errors
    /// Those of the TLS library.
    pub fn new(settings: HttpSettings) -> Result<Self> {
        let HttpSettings { tls, resolver, time_limit, max_body, runtime } = settings;
        let mut connector = HttpConnector::new_with_resolver(HostResolver(resolver));
        connector.set_nodelay(true);
        // Divided among the addresses of a host: the second one has its turn if the first one does not answer.
        connector.set_connect_timeout(Some(time_limit / 2));
        // Without this, the connector would refuse https URLs. The connector around it adds TLS.
        connector.enforce_http(false);
        let tls = tls.map_or_else(tls::unused_config, Ok)?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector);
        let mut builder = Client::builder(RuntimeExecutor(Arc::clone(&runtime)));
        builder.pool_idle_timeout(IDLE_TIMEOUT).http1_max_buf_size(MAX_HEAD);
        Ok(Self { client: builder.build(connector), time_limit, max_body, runtime })
    }

    /// Sends a request, and reads its answer to the end.
    ///
    /// # Errors
    /// Why there is no answer. One whose body is too large is `Cut`.
    ///
    /// # Cancel safety
    /// If dropped, the request may have reached the server.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, RequestFailure> {
        self.send_within(request, self.time_limit).await
    }

    /// As [`send`](Self::send), with a time limit of its own. A connection may still take half of the limit of the
    /// client.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Cancel safety
    /// If dropped, the request may have reached the server.
    pub async fn send_within(
        &self,
        request: Request<Bytes>,
        limit: Duration,
    ) -> Result<Response<Bytes>, RequestFailure> {
        let (request, is_sent) = watched(request);
        let answer = async {
            let (head, body) =
                self.client.request(request).await.map_err(|error| failure(error, &is_sent))?.into_parts();
            let body = Limited::new(body, self.max_body).collect().await.map_err(|error| self.cut(error))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let answer = timeout(&*self.runtime, limit, answer).await;
        answer.unwrap_or_else(|| Err(timed_out(&is_sent, limit)))
    }

    /// As [`send`](Self::send), with a time limit of its own until the head of the answer, and another one for the body
    /// behind it. Returns when the head arrived, too, on the boot-time clock.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Cancel safety
    /// If dropped, the request may have reached the server.
    pub async fn send_timed(
        &self,
        request: Request<Bytes>,
        limits: AnswerLimits,
    ) -> Result<(Response<Bytes>, Duration), RequestFailure> {
        let (request, is_sent) = watched(request);
        let answer = timeout(&*self.runtime, limits.head, self.client.request(request)).await;
        let answer = answer.ok_or_else(|| timed_out(&is_sent, limits.head))?;
        let (head, body) = answer.map_err(|error| failure(error, &is_sent))?.into_parts();
        let began = self.runtime.boottime_now();
        let body = timeout(&*self.runtime, limits.body, Limited::new(body, self.max_body).collect()).await;
        let body = body.ok_or_else(|| timed_out(&is_sent, limits.body))?.map_err(|error| self.cut(error))?;
        Ok((Response::from_parts(head, body.to_bytes()), began))
    }

    /// Sends a request, and waits for the head of its answer. Then reads a body that is not too large for a second at
    /// most, so that the connection can be used again.
    ///
    /// # Errors
    /// Why there is no answer.
    ///
    /// # Cancel safety
    /// If dropped, the request may have reached the server.
    pub async fn send_for_head(&self, request: Request<Bytes>) -> Result<Parts, RequestFailure> {
        let (request, is_sent) = watched(request);
        let answer = timeout(&*self.runtime, self.time_limit, self.client.request(request)).await;
        let answer = answer.ok_or_else(|| timed_out(&is_sent, self.time_limit))?;
        let (head, body) = answer.map_err(|error| failure(error, &is_sent))?.into_parts();
        let _ = timeout(&*self.runtime, READ_TIME, Limited::new(body, self.max_body).collect()).await;
        Ok(head)
    }

    fn cut(&self, error: BoxError) -> RequestFailure {
        if !error.is::<LengthLimitError>() {
            return RequestFailure::Cut(error);
        }
        let kib = self.max_body >> 10;
        let limit = if kib.is_multiple_of(1024) { format!("{} MiB", kib >> 10) } else { format!("{kib} KiB") };
        RequestFailure::Cut(format!("the answer is longer than {limit}").into())
    }
}

/// Our end of the connection over which an answer came. None for an answer of another client.
pub fn connection_of<B>(response: &Response<B>) -> Option<SocketAddr> {
    response.extensions().get::<HttpInfo>().map(HttpInfo::local_addr)
}

fn timed_out(is_sent: &AtomicBool, limit: Duration) -> RequestFailure {
    RequestFailure::TimedOut { sent: is_sent.load(Ordering::Acquire), limit }
}

fn failure(error: hyper_util::client::legacy::Error, is_sent: &AtomicBool) -> RequestFailure {
    if error.is_connect() || !is_sent.load(Ordering::Acquire) {
        RequestFailure::Unsent(error.into())
    } else {
        RequestFailure::Cut(error.into())
    }
}

/// The cause is the source.
impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsent(_) => f.write_str("it cannot be reached"),
            Self::Cut(_) => f.write_str("the request was sent, but no whole answer came"),
            Self::TimedOut { sent: false, limit } => write!(f, "the request could not be sent within {limit:?}"),
            Self::TimedOut { sent: true, limit } => write!(f, "it does not answer within {limit:?}"),
        }
    }
}

impl StdError for RequestFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unsent(cause) | Self::Cut(cause) => Some(&**cause),
            Self::TimedOut { .. } => None,
        }
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

/// A body that notes when the connection takes it. The head of its request is written just before that, so a request
/// whose body was not taken has not left.
///
/// An empty body is never taken. Its request counts as sent from the start.
struct WatchedBody {
    bytes: Bytes,
    is_sent: Arc<AtomicBool>,
}

fn watched(request: Request<Bytes>) -> (Request<WatchedBody>, Arc<AtomicBool>) {
    let is_sent = Arc::new(AtomicBool::new(request.body().is_empty()));
    (request.map(|bytes| WatchedBody { bytes, is_sent: Arc::clone(&is_sent) }), is_sent)
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.is_sent.store(true, Ordering::Release);
        let bytes = std::mem::take(&mut this.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// Runs the tasks of connections.
#[derive(Clone)]
struct RuntimeExecutor(Arc<dyn Runtime>);

impl Executor<BoxFuture<'static, ()>> for RuntimeExecutor {
    fn execute(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

#[cfg(test)]
mod tests;
