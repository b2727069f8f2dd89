use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::{Outcome, Problem, ProblemDetails, RequestBody, ShowProblem};
use hapax::{BoxError, RecordKey};
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::arriving::{Arriving, Held};
use super::headers::clear_answer;

/// Shorter than the 5 s after which common servers close an idle connection: none is used that the API is just closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Sends requests on to the API, and says of each failure whether the request may have got there.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    client: Client<HttpsConnector<HttpConnector>, RequestBody<Arriving>>,
    upstream: Upstream,
    timeout: Duration,
}

/// The API: its scheme and its authority.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
}

type ForwardedBody = Either<Timed, Full<Bytes>>;

impl Forward {
    pub(crate) fn new(upstream: Upstream, tls: ClientConfig, timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Whether it is http or https is for the connector around it.
        connector.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = builder.enable_http1().wrap_connector(connector);
        // A request is sent again only if it was never written to its connection.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self { client, upstream, timeout }
    }

    async fn forward(self, mut request: Request<RequestBody<Arriving>>) -> Response<ForwardedBody> {
        let attempt = request.extensions_mut().remove::<Attempt>();
        let rk = attempt.as_ref().map(Attempt::record_key);
        // The body takes its room until the API has answered.
        let _held = request.extensions_mut().remove::<Held>();
        self.address(&mut request);
        if let Some(attempt) = &attempt {
            introduce(request.headers_mut(), attempt);
        }
        if let RequestBody::Whole(body) = request.body() {
            // Framed anew, with a length also where there is nothing: some servers want to be told.
            let length = HeaderValue::from(body.len());
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let patience = self.patience(&mut request);
        let answered = tokio::select! {
            biased;
            answered = self.client.request(request) => answered,
            () = patience => {
                tracing::warn!(?rk, timeout_s = self.timeout.as_secs(), "the API did not answer in time");
                return refused(Problem::UpstreamTimeout, Outcome::Unknown, rk);
            }
        };
        match answered {
            // Nobody asked for another protocol.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                tracing::warn!(?rk, "the API switched protocols, which nobody asked for");
                refused(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
            Ok(response) => self.passed_on(response, attempt.is_some()),
            Err(error) if error.is_connect() => {
                tracing::warn!(?rk, %error, "the API cannot be reached");
                refused(Problem::UpstreamUnreachable, Outcome::NotApplied, rk)
            }
            Err(error) => {
                tracing::warn!(?rk, %error, "the connection to the API failed in mid-request");
                refused(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
        }
    }

    /// Ends when the API has had its time: from now, or from the last piece of a body that streams.
    fn patience(&self, request: &mut Request<RequestBody<Arriving>>) -> impl Future<Output = ()> + use<> {
        let progress = match request.body_mut() {
            RequestBody::Whole(_) => Arc::default(),
            RequestBody::Streaming(body) => body.as_mut().get_mut().streams(),
        };
        let timeout = self.timeout;
        async move { progress.ceased(timeout).await }
    }

    fn passed_on(&self, mut response: Response<Incoming>, is_protected: bool) -> Response<ForwardedBody> {
        clear_answer(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        // Nobody waits for the body of an unprotected request before it is passed on.
        let limit = is_protected.then_some(self.timeout);
        response.map(|body| Either::Left(Timed::new(body, limit)))
    }

    /// The same path at the API. Host stays what the client wrote.
    fn address(&self, request: &mut Request<RequestBody<Arriving>>) {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder()
            .scheme(self.upstream.scheme.clone())
            .authority(self.upstream.authority.clone())
            .path_and_query(path);
        *request.uri_mut() = uri.build().expect("a scheme, an authority and a path make a URI");
        *request.version_mut() = Version::HTTP_11;
    }
}

/// Tells the API which attempt this is. An answer that is kept must be readable for every later client: no encoding.
fn introduce(headers: &mut HeaderMap, attempt: &Attempt) {
    let mut tell = |name, value: String| {
        let value = HeaderValue::from_str(&value).expect("digits and hyphens make a header");
        headers.insert(HeaderName::from_static(name), value);
    };
    tell("hapax-operation", attempt.operation().to_string());
    tell("hapax-attempt", attempt.number().to_string());
    if let Some(grant) = attempt.grant() {
        tell("hapax-token", grant.token.0.to_string());
        tell("hapax-fingerprint", grant.fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect());
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

fn refused(problem: Problem, outcome: Outcome, rk: Option<RecordKey>) -> Response<ForwardedBody> {
    let mut response = ProblemDetails::default().show(&problem, rk.as_ref()).map(|body| Either::Right(Full::new(body)));
    response.extensions_mut().insert(outcome);
    response
}

/// A body of which each piece must come within a limit: the whole answer of a protected request is waited for.
#[derive(Debug)]
pub(crate) struct Timed {
    body: Incoming,
    limit: Option<Duration>,
    /// Runs while a piece is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn new(body: Incoming, limit: Option<Duration>) -> Self {
        Self { body, limit, waiting: None }
    }
}

impl Body for Timed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(limit) = self.limit else {
            return Poll::Pending;
        };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        waiting.as_mut().poll(cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Service<Request<RequestBody<Arriving>>> for Forward {
    type Response = Response<ForwardedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Arriving>>) -> Self::Future {
        let forward = self.clone();
        Box::pin(async move { Ok(forward.forward(request).await) })
    }
}
