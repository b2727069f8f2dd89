//! Forwards requests to the API, and classifies each failure by whether the API may have processed the request.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::headers::{HAPAX_ATTEMPT, HAPAX_FINGERPRINT, HAPAX_OPERATION, HAPAX_TOKEN, HOP_BY_HOP, is_reserved};
use hapax::http::{Outcome, Problem, ProblemDetails, RequestBody, ShowProblem};
use hapax::runtime::BoxFuture;
use hapax::{BoxError, Fingerprint, RecordKey};
use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower_service::Service;

use crate::upstream::SendError;
use crate::upstream::http1::{Http1, ResponseConnection};
use crate::upstream::http2::{self, Http2, StreamSlot};

/// Time limit for opening a connection to the API, or half of the API's time limit if that is shorter. A connection
/// must fail before the API's time limit ends: then it is certain that nothing was sent.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// The API: its scheme, its authority, and whether it speaks HTTP/2 without TLS.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) is_h2: bool,
}

impl Upstream {
    fn uri(&self, authority: &Authority, path: PathAndQuery) -> Uri {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(authority.clone()).path_and_query(path);
        uri.build().expect("a scheme, an authority and a path make a URI")
    }
}

/// A body that records when its last frame arrived, because the API's time limit counts from there.
pub(crate) trait StreamedBody: Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static {
    /// Lets the body pass on each frame as it arrives, and returns the record of its progress.
    fn start_streaming(&mut self) -> Arc<StreamProgress>;
}

/// When the last frame of a streamed body arrived.
#[derive(Debug)]
pub(crate) struct StreamProgress(Mutex<Instant>);

impl Default for StreamProgress {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl StreamProgress {
    pub(crate) fn record_frame(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last_frame_at(&self) -> Instant {
        *self.0.lock()
    }

    /// Waits until no frame has arrived for this long.
    async fn wait_until_stalled(&self, limit: Duration) {
        while self.last_frame_at().elapsed() < limit {
            sleep_until(self.last_frame_at() + limit).await;
        }
    }
}

/// The connections to the API, in the version of HTTP that it speaks. Generic in the streamed body of the request.
#[derive(Debug)]
pub(crate) struct UpstreamClient<B> {
    http1: Http1<B>,
    /// None for an API that speaks only HTTP/1.1.
    http2: Option<Http2<B>>,
    upstream: Upstream,
    /// The host of the API, for a request of HTTP/1.0 without a Host field.
    host: HeaderValue,
}

impl<B> UpstreamClient<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    pub(crate) fn new(upstream: Upstream, tls: &ClientConfig, connect_timeout: Duration) -> Self {
        let connector = || {
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(connect_timeout));
            // Without this, the connector would refuse https URLs. The connector around it adds TLS.
            connector.enforce_http(false);
            connector
        };
        let target = upstream.uri(&upstream.authority, PathAndQuery::from_static("/"));
        let http1_connector = with_tls(tls).enable_http1().wrap_connector(connector());
        let http1 = Http1::new(http1_connector, target.clone(), connect_timeout);
        let may_be_h2 = upstream.is_h2 || upstream.scheme == Scheme::HTTPS;
        let http2 = may_be_h2.then(|| {
            let connector = with_tls(tls).enable_all_versions().wrap_connector(connector());
            Http2::new(connector, target, connect_timeout)
        });
        let host = HeaderValue::from_str(upstream.authority.as_str()).expect("an authority is a valid field value");
        Self { http1, http2, upstream, host }
    }

    /// Sends a request with the target in origin form. The frames of the response have no time limit yet.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody<B>>,
    ) -> Result<Response<UpstreamBody<B>>, SendError> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        if let Some(http2) = &self.http2 {
            let host = request.headers_mut().remove(HOST);
            *request.uri_mut() = self.upstream.uri(&self.authority(host.as_ref()), path.clone());
            *request.version_mut() = Version::HTTP_2;
            // Boxed: this future is four times as large as the rest, and most APIs do not need it.
            match Box::pin(http2.send(request)).await {
                Ok(sent) => {
                    let (response, slot) = sent?;
                    return Ok(response.map(|body| UpstreamContent::Http2 { body, _slot: slot }.into()));
                }
                Err(unsent) => request = unsent,
            }
            request.headers_mut().extend(host.map(|host| (HOST, host)));
        }
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        let (response, connection) = self.http1.send(request).await?;
        Ok(response.map(|body| UpstreamContent::Http1 { body, connection }.into()))
    }

    /// The client's Host field. HTTP/2 has it in the target of the request.
    fn authority(&self, host: Option<&HeaderValue>) -> Authority {
        let requested = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        requested.unwrap_or_else(|| self.upstream.authority.clone())
    }
}

fn with_tls(tls: &ClientConfig) -> HttpsConnectorBuilder<WantsProtocols1> {
    HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http()
}

/// The service behind the idempotency layer: it sends the request of one attempt to the API.
#[derive(Debug)]
pub(crate) struct Forward<B>(Arc<Forwarder<B>>);

/// The state that all clones of [`Forward`] share.
#[derive(Debug)]
struct Forwarder<B> {
    client: UpstreamClient<B>,
    timeout: Duration,
}

impl<B> Clone for Forward<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: StreamedBody> Forward<B> {
    pub(crate) fn new(upstream: Upstream, tls: &ClientConfig, timeout: Duration) -> Self {
        let client = UpstreamClient::new(upstream, tls, CONNECT.min(timeout / 2));
        Self(Arc::new(Forwarder { client, timeout }))
    }
}

impl<B: StreamedBody> Service<Request<RequestBody<B>>> for Forward<B> {
    type Response = Response<UpstreamBody<B>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<B>>) -> Self::Future {
        let forwarder = Arc::clone(&self.0);
        Box::pin(async move { Ok(forwarder.forward(request).await) })
    }
}

impl<B: StreamedBody> Forwarder<B> {
    async fn forward(&self, mut request: Request<RequestBody<B>>) -> Response<UpstreamBody<B>> {
        let attempt = request.extensions_mut().remove::<Attempt>();
        let rk = attempt.as_ref().map(Attempt::record_key);
        // The extensions hold the memory reservation of the body. It must last until the API has answered.
        let _extensions = std::mem::take(request.extensions_mut());
        if let Some(attempt) = &attempt {
            add_attempt_fields(request.headers_mut(), attempt);
        }
        if let RequestBody::Whole(body) = request.body() {
            // An empty body gets a length, too: some servers require it.
            let length = HeaderValue::from(body.len());
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let time_limit = self.time_limit(&mut request);
        let sent = tokio::select! {
            // A response that arrives together with the timeout is used.
            biased;
            sent = self.client.send(request) => sent,
            () = time_limit => {
                tracing::warn!(?rk, timeout_s = self.timeout.as_secs(), "the API timed out; outcome unknown");
                return problem(Problem::UpstreamTimeout, Outcome::Unknown, rk);
            }
        };
        self.respond(sent, attempt.is_some(), rk)
    }

    fn respond(
        &self,
        sent: Result<Response<UpstreamBody<B>>, SendError>,
        is_protected: bool,
        rk: Option<RecordKey>,
    ) -> Response<UpstreamBody<B>> {
        match sent {
            // No forwarded request has an Upgrade field, so this response is invalid. The API may have run the request.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                tracing::warn!(?rk, "the API switched protocols unasked; outcome unknown");
                problem(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
            Ok(response) => self.pass_on(response, is_protected),
            Err(SendError::Unsent(error)) => {
                tracing::warn!(?rk, %error, "the API is unreachable, or it rejected the stream unprocessed");
                problem(Problem::UpstreamUnreachable, Outcome::NotApplied, rk)
            }
            Err(SendError::Cut(error)) => {
                tracing::warn!(?rk, %error, "the connection to the API failed during the request; outcome unknown");
                problem(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
        }
    }

    /// Completes when the API has not answered in time. The time counts from now, or from the last frame of a streamed
    /// request body.
    fn time_limit(&self, request: &mut Request<RequestBody<B>>) -> impl Future<Output = ()> + use<B> {
        let progress = match request.body_mut() {
            RequestBody::Whole(_) => None,
            RequestBody::Streaming(body) => Some(body.as_mut().get_mut().start_streaming()),
        };
        let timeout = self.timeout;
        async move {
            match progress {
                None => sleep(timeout).await,
                Some(progress) => progress.wait_until_stalled(timeout).await,
            }
        }
    }

    fn pass_on(&self, mut response: Response<UpstreamBody<B>>, is_protected: bool) -> Response<UpstreamBody<B>> {
        remove_unforwardable(response.headers_mut(), is_reserved);
        *response.version_mut() = Version::HTTP_11;
        // The response to a protected request is read into memory before the client gets it, so a silent API must not
        // block it forever. Any other response streams at the pace of the API.
        response.body_mut().frame_limit = is_protected.then_some(self.timeout);
        response
    }
}

/// Adds the fields that tell the API which attempt this is.
fn add_attempt_fields(headers: &mut HeaderMap, attempt: &Attempt) {
    let text = |text: String| HeaderValue::try_from(text).expect("digits and hyphens are a valid field value");
    headers.insert(HAPAX_OPERATION, text(attempt.operation().to_string()));
    headers.insert(HAPAX_ATTEMPT, attempt.number().into());
    if let Some(grant) = attempt.grant() {
        headers.insert(HAPAX_TOKEN, grant.token.0.into());
        headers.insert(HAPAX_FINGERPRINT, text(fingerprint_digits(&grant.fingerprint)));
    }
    // The answer may be replayed to a client that does not accept the encodings of this one.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Two hexadecimal digits for each byte.
fn fingerprint_digits(fingerprint: &Fingerprint) -> String {
    let bytes = fingerprint.as_bytes();
    let mut number = [0; 16];
    number[16 - bytes.len()..].copy_from_slice(bytes);
    format!("{:0digits$x}", u128::from_be_bytes(number), digits = 2 * bytes.len())
}

fn problem<B>(problem: Problem, outcome: Outcome, rk: Option<RecordKey>) -> Response<UpstreamBody<B>> {
    let shown = ProblemDetails::default().show(&problem, rk.as_ref());
    let mut response = shown.map(|body| UpstreamContent::Whole(body).into());
    response.extensions_mut().insert(outcome);
    response
}

/// Removes the fields that belong to one connection, and those that only Hapax may set in this direction.
pub(crate) fn remove_unforwardable(headers: &mut HeaderMap, is_reserved: impl Fn(&HeaderName) -> bool) {
    let named = named_by_connection(headers).filter_map(|name| name.parse().ok());
    let others = headers.keys().filter(|name| HOP_BY_HOP.contains(name) || is_reserved(name));
    let removed: Vec<HeaderName> = named.chain(others.cloned()).collect();
    for name in removed {
        headers.remove(name);
    }
}

/// The names in all `Connection` fields. A field that is not text names no field.
pub(crate) fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let fields = headers.get_all(CONNECTION).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(',')).map(str::trim)
}

/// The body of a response: from the API over either version of HTTP, or of a problem. Each frame from the API may have
/// a time limit.
#[derive(Debug)]
pub(crate) struct UpstreamBody<B> {
    content: UpstreamContent<B>,
    frame_limit: Option<Duration>,
    /// The running time limit; none while no frame is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum UpstreamContent<B> {
    Http1 {
        body: Incoming,
        connection: ResponseConnection<B>,
    },
    /// The slot keeps the stream of the connection occupied until the body is dropped.
    Http2 {
        body: Incoming,
        _slot: StreamSlot,
    },
    Whole(Bytes),
}

impl<B> From<UpstreamContent<B>> for UpstreamBody<B> {
    fn from(content: UpstreamContent<B>) -> Self {
        Self { content, frame_limit: None, timer: None }
    }
}

impl<B> UpstreamBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.content {
            UpstreamContent::Http1 { body, connection } => connection.poll_frame(body, cx).map_err(Into::into),
            UpstreamContent::Http2 { body, .. } => http2::poll_frame(body, cx),
            UpstreamContent::Whole(body) if body.is_empty() => Poll::Ready(None),
            UpstreamContent::Whole(body) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(body))))),
        }
    }
}

impl<B> Body for UpstreamBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = self.poll_content(cx) {
            // Each frame has the whole limit.
            self.timer = None;
            return Poll::Ready(frame);
        }
        let Some(limit) = self.frame_limit else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            UpstreamContent::Http1 { body, .. } | UpstreamContent::Http2 { body, .. } => body.is_end_stream(),
            UpstreamContent::Whole(body) => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            UpstreamContent::Http1 { body, .. } | UpstreamContent::Http2 { body, .. } => body.size_hint(),
            UpstreamContent::Whole(body) => SizeHint::with_exact(u64::try_from(body.len()).unwrap_or(u64::MAX)),
        }
    }
}
