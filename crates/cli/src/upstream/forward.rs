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
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use crate::gateway::ingress::headers::clear_answer;
use crate::gateway::ingress::request_body::{BodyReservation, ClientBody};
use crate::gateway::limits::CONNECT;
use crate::hex::hex;
use crate::upstream::http1::{self, Http1};
use crate::upstream::http2::{self, Http2};

/// Shorter than the 5 s after which common servers close an idle connection: none is used that the API is just closing.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Sends requests on to the API, and says of each failure whether the request may have got there.
#[derive(Clone, Debug)]
pub(crate) struct Forward(Arc<Sender>);

/// What all clones of [`Forward`] share: there is one for every request.
#[derive(Debug)]
struct Sender {
    http1: Http1,
    /// None for an API that is spoken to in HTTP/1.1 alone.
    http2: Option<Http2>,
    upstream: Upstream,
    /// The API, for a request of HTTP/1.0 that does not say which host it is for.
    host: HeaderValue,
    timeout: Duration,
}

/// The API: its scheme, its authority, and whether it is known to speak HTTP/2 where it cannot be asked.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) is_h2: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing of the request arrived, or the API says that it has not looked at it.
    Unsent(BoxError),
    /// Nobody knows how far it came.
    Cut(BoxError),
}

/// The body of an answer, by the version of HTTP in which it comes.
type Coming = Either<http1::Http1ResponseBody, http2::Http2ResponseBody>;

type ForwardedBody = Either<UpstreamBody, Full<Bytes>>;

impl Forward {
    pub(crate) fn new(upstream: Upstream, tls: &ClientConfig, timeout: Duration) -> Self {
        let connect_timeout = CONNECT.min(timeout / 2);
        let connector = || {
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(connect_timeout));
            // Whether it is http or https is for the connector around it.
            connector.enforce_http(false);
            connector
        };
        let target = upstream.uri(&upstream.authority, PathAndQuery::from_static("/"));
        let in_http1 = secure(tls).enable_http1().wrap_connector(connector());
        let http1 = Http1::new(in_http1, target.clone(), connect_timeout);
        let may_be_h2 = upstream.is_h2 || upstream.scheme == Scheme::HTTPS;
        let http2 = may_be_h2.then(|| {
            let connector = secure(tls).enable_all_versions().wrap_connector(connector());
            Http2::new(connector, target, connect_timeout)
        });
        let host = HeaderValue::from_str(upstream.authority.as_str()).expect("an authority is a header");
        Self(Arc::new(Sender { http1, http2, upstream, host, timeout }))
    }
}

impl Sender {
    async fn forward(&self, mut request: Request<RequestBody<ClientBody>>) -> Response<ForwardedBody> {
        let attempt = request.extensions_mut().remove::<Attempt>();
        let rk = attempt.as_ref().map(Attempt::record_key);
        // The body takes its room until the API has answered.
        let _held = request.extensions_mut().remove::<BodyReservation>();
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
            answered = self.send(request) => answered,
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
            Err(SendError::Unsent(error)) => {
                tracing::warn!(?rk, %error, "the API cannot be reached");
                refused(Problem::UpstreamUnreachable, Outcome::NotApplied, rk)
            }
            Err(SendError::Cut(error)) => {
                tracing::warn!(?rk, %error, "the connection to the API failed in mid-request");
                refused(Problem::UpstreamCut, Outcome::Unknown, rk)
            }
        }
    }

    /// Sends a request in the version of HTTP that the API speaks.
    async fn send(&self, mut request: Request<RequestBody<ClientBody>>) -> Result<Response<Coming>, SendError> {
        let path = path(request.uri());
        if let Some(http2) = &self.http2 {
            let host = request.headers_mut().remove(HOST);
            *request.uri_mut() = self.upstream.uri(&self.named(host.as_ref()), path.clone());
            *request.version_mut() = Version::HTTP_2;
            // Boxed: it is four times as large as all the rest, and most APIs have no use for it.
            match Box::pin(http2.send(request)).await {
                Ok(sent) => return sent.map(|response| response.map(Either::Right)),
                Err(unsent) => request = unsent,
            }
            request.headers_mut().extend(host.map(|host| (HOST, host)));
        }
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        Ok(self.http1.send(request).await?.map(Either::Left))
    }

    /// Host stays what the client wrote; HTTP/2 has it in the target of the request.
    fn named(&self, host: Option<&HeaderValue>) -> Authority {
        let written = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        written.unwrap_or_else(|| self.upstream.authority.clone())
    }

    /// Ends when the API has had its time: from now, or from the last piece of a body that streams.
    fn patience(&self, request: &mut Request<RequestBody<ClientBody>>) -> impl Future<Output = ()> + use<> {
        let progress = match request.body_mut() {
            RequestBody::Whole(_) => None,
            RequestBody::Streaming(body) => Some(body.as_mut().get_mut().streams()),
        };
        let timeout = self.timeout;
        async move {
            match progress {
                None => sleep(timeout).await,
                Some(progress) => progress.ceased(timeout).await,
            }
        }
    }

    fn passed_on(&self, mut response: Response<Coming>, is_protected: bool) -> Response<ForwardedBody> {
        clear_answer(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        // Nobody waits for the body of an unprotected request before it is passed on.
        let limit = is_protected.then_some(self.timeout);
        response.map(|body| Either::Left(UpstreamBody::new(body, limit)))
    }
}

impl Upstream {
    fn uri(&self, authority: &Authority, path: PathAndQuery) -> Uri {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(authority.clone()).path_and_query(path);
        uri.build().expect("a scheme, an authority and a path make a URI")
    }
}

fn path(uri: &Uri) -> PathAndQuery {
    uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}

fn secure(tls: &ClientConfig) -> HttpsConnectorBuilder<WantsProtocols1> {
    HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http()
}

/// Tells the API which attempt this is. An answer that is kept must be readable for every later client: no encoding.
fn introduce(headers: &mut HeaderMap, attempt: &Attempt) {
    let mut tell = |name, value| drop(headers.insert(HeaderName::from_static(name), value));
    let text = |text: String| HeaderValue::try_from(text).expect("digits and hyphens make a header");
    tell("hapax-operation", text(attempt.operation().to_string()));
    tell("hapax-attempt", attempt.number().into());
    if let Some(grant) = attempt.grant() {
        tell("hapax-token", grant.token.0.into());
        tell("hapax-fingerprint", text(hex(grant.fingerprint.as_bytes())));
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
pub(crate) struct UpstreamBody {
    body: Coming,
    limit: Option<Duration>,
    /// Runs while a piece is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl UpstreamBody {
    fn new(body: Coming, limit: Option<Duration>) -> Self {
        Self { body, limit, waiting: None }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = None;
            return Poll::Ready(frame);
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

impl Service<Request<RequestBody<ClientBody>>> for Forward {
    type Response = Response<ForwardedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<ClientBody>>) -> Self::Future {
        let sender = Arc::clone(&self.0);
        Box::pin(async move { Ok(sender.forward(request).await) })
    }
}
