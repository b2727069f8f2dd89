use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::{Outcome, Problem, ProblemDetails, RequestBody, ShowProblem};
use hapax::{BoxError, RecordKey};
use http::header::{
    ACCEPT_ENCODING, CONNECTION, EXPECT, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

/// Shorter than the 5 s after which common servers close an idle connection: none is used that the API is just closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What only the gateway may say, whichever side sent it.
const OURS: &str = "hapax-";
const OURS_TO_CLIENTS: [HeaderName; 2] =
    [HeaderName::from_static("idempotent-replayed"), HeaderName::from_static("idempotency-key-expires")];

/// Sends requests on to the API, and says of each failure whether the request may have got there.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    client: Client<HttpConnector, RequestBody<Incoming>>,
    upstream: Authority,
    timeout: Duration,
}

type ForwardedBody = Either<Timed, Full<Bytes>>;

impl Forward {
    pub(crate) fn new(upstream: Authority, timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // A request is sent again only if it was never written to its connection.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self { client, upstream, timeout }
    }

    async fn forward(self, mut request: Request<RequestBody<Incoming>>) -> Response<ForwardedBody> {
        if request.method() == Method::CONNECT {
            return status(StatusCode::METHOD_NOT_ALLOWED);
        }
        let attempt = request.extensions_mut().remove::<Attempt>();
        let rk = attempt.as_ref().map(Attempt::record_key);
        self.address(&mut request);
        strip(request.headers_mut());
        request.headers_mut().remove(EXPECT);
        if let Some(attempt) = &attempt {
            introduce(request.headers_mut(), attempt);
        }
        match tokio::time::timeout(self.timeout, self.client.request(request)).await {
            Ok(Ok(mut response)) => {
                strip(response.headers_mut());
                OURS_TO_CLIENTS.iter().for_each(|name| drop(response.headers_mut().remove(name)));
                *response.version_mut() = Version::HTTP_11;
                // Nobody waits for the body of an unprotected request before it is passed on.
                let limit = attempt.is_some().then_some(self.timeout);
                response.map(|body| Either::Left(Timed::new(body, limit)))
            }
            Ok(Err(error)) if error.is_connect() => {
                tracing::warn!(?rk, %error, "the API cannot be reached");
                refused(Problem::UpstreamUnreachable, Outcome::NotApplied, rk)
            }
            Ok(Err(error)) => {
                tracing::warn!(?rk, %error, "the connection to the API failed in mid-request");
                refused(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
            Err(_) => {
                tracing::warn!(?rk, timeout_s = self.timeout.as_secs(), "the API did not answer in time");
                refused(Problem::UpstreamTimeout, Outcome::Unknown, rk)
            }
        }
    }

    /// The same path at the API. Host stays what the client wrote.
    fn address(&self, request: &mut Request<RequestBody<Incoming>>) {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.upstream.clone()).path_and_query(path);
        *request.uri_mut() = uri.build().expect("a scheme, an authority and a path make a URI");
        *request.version_mut() = Version::HTTP_11;
    }
}

/// Removes what belongs to one connection, and what only the gateway may say.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let ours = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect::<Vec<_>>();
    for name in named.iter().chain(&ours).chain(&HOP_BY_HOP) {
        headers.remove(name);
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

fn status(status: StatusCode) -> Response<ForwardedBody> {
    let mut response = Response::new(Either::Right(Full::default()));
    *response.status_mut() = status;
    response
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

impl Service<Request<RequestBody<Incoming>>> for Forward {
    type Response = Response<ForwardedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Incoming>>) -> Self::Future {
        let forward = self.clone();
        Box::pin(async move { Ok(forward.forward(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_connection_or_to_the_gateway_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("hapax-token", "99"),
            ("idempotency-key", "k"),
            ("content-type", "text/plain"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "idempotency-key"]);
    }
}
