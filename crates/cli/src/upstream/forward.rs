//! Forwards requests to the API, and classifies each failure by whether the API may have processed the request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::RequestBody;
use hapax::http::headers::is_reserved;
use hapax::runtime::BoxFuture;
use hapax::{BoxError, RecordKey};
use http::header::{CONTENT_LENGTH, EXPECT, TE, TRAILER};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Body;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use crate::serve::otlp::{inject, spans};
use crate::upstream::body::UpstreamBody;
use crate::upstream::client::{Upstream, UpstreamClient, has_unknown_length};
use crate::upstream::failure::UpstreamFailure;
use crate::upstream::fields::{add_attempt_fields, declared_trailers, remove_unforwardable, take_framing};
use crate::upstream::websocket::{WebSocketWish, mark_switch};

/// Time limit for opening a connection to the API, or half of the API's time limit if that is shorter. A connection
/// must fail before the API's time limit ends: then it is certain that nothing was sent.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// A body that records its progress: the API's time limit counts from the last frame, and the API is not blamed for a
/// body that its client does not send completely.
pub(crate) trait StreamedBody: Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static {
    /// Lets the body pass on each frame as it arrives, and returns the record of its progress.
    fn start_streaming(&mut self) -> Arc<StreamProgress>;

    /// Waits until the first frame arrives or fails, and keeps it for the next read. Is ready with whether the body has
    /// ended without a frame.
    fn poll_is_empty(&mut self, cx: &mut Context<'_>) -> Poll<bool>;
}

/// How far a streamed body has arrived.
#[derive(Debug)]
pub(crate) struct StreamProgress(Mutex<Received>);

#[derive(Debug)]
struct Received {
    last_frame: Instant,
    is_answered: bool,
    /// Why the rest does not arrive: the client was too slow (`TimedOut`), or it broke its upload off.
    failure: Option<io::ErrorKind>,
}

impl Default for StreamProgress {
    fn default() -> Self {
        Self(Mutex::new(Received { last_frame: Instant::now(), is_answered: false, failure: None }))
    }
}

impl StreamProgress {
    pub(crate) fn record_frame(&self) {
        self.0.lock().last_frame = Instant::now();
    }

    pub(crate) fn record_failure(&self, error: &BoxError) {
        let kind = error.downcast_ref::<io::Error>().map_or(io::ErrorKind::UnexpectedEof, io::Error::kind);
        self.0.lock().failure = Some(kind);
    }

    /// Notes that the head of the answer has arrived.
    fn set_answered(&self) {
        self.0.lock().is_answered = true;
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.0.lock().is_answered
    }

    /// Whether the client has not sent its body completely, whatever the API did.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().failure.is_some()
    }

    fn last_frame_at(&self) -> Instant {
        self.0.lock().last_frame
    }

    fn failure(&self) -> Option<UpstreamFailure> {
        self.0.lock().failure.map(UpstreamFailure::Upload)
    }

    /// Waits until no frame has arrived for this long.
    async fn wait_until_stalled(&self, limit: Duration) {
        while self.last_frame_at().elapsed() < limit {
            sleep_until(self.last_frame_at() + limit).await;
        }
    }
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

/// What the treatment of a response depends on.
struct Asked {
    is_head: bool,
    is_protected: bool,
    /// Whether the client gets the trailers of the answer.
    takes_trailers: bool,
    /// The wish to switch to WebSocket. A protected request has none.
    websocket: Option<WebSocketWish>,
    /// The record of a protected request.
    rk: Option<RecordKey>,
}

impl<B: StreamedBody> Forwarder<B> {
    async fn forward(&self, mut request: Request<RequestBody<B>>) -> Response<UpstreamBody<B>> {
        let attempt = request.extensions_mut().remove::<Attempt>();
        let asked = Asked {
            is_head: request.method() == Method::HEAD,
            is_protected: attempt.is_some(),
            takes_trailers: attempt.is_none() && request.headers().contains_key(TE),
            websocket: request.extensions_mut().remove().filter(|_| attempt.is_none() && self.client.can_switch()),
            rk: attempt.as_ref().map(Attempt::record_key),
        };
        // The extensions hold the memory reservation of the body. It must last until the API has answered.
        let _extensions = std::mem::take(request.extensions_mut());
        if let Some(attempt) = &attempt {
            add_attempt_fields(request.headers_mut(), attempt);
            // A recorded answer has no trailers (H20).
            request.headers_mut().remove(TE);
        }
        // hyper answers `Expect: 100-continue` itself, so the API must not answer it again.
        request.headers_mut().remove(EXPECT);
        if let RequestBody::Whole(body) = request.body() {
            // An empty body gets a length, too: some servers require it.
            let length = HeaderValue::from(body.len());
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let span = spans::upstream(request.method());
        inject(&span, request.headers_mut());
        let sent = self.send(request, asked.websocket.is_some()).await;
        spans::end_upstream(&span, sent.as_ref().ok().map(Response::status));
        drop(span);
        match sent {
            Ok(response) => self.respond(response, asked),
            Err(failure) => failure.response(asked.rk),
        }
    }

    /// Sends the request, and waits for the head of the response until the time limit.
    async fn send(
        &self,
        mut request: Request<RequestBody<B>>,
        may_switch: bool,
    ) -> Result<Response<UpstreamBody<B>>, UpstreamFailure> {
        let progress = start_streaming(request.body_mut());
        if may_be_empty(&request) {
            // The API has no part in this wait, so it is not within the time limit.
            drop_empty_body(request.body_mut()).await;
        }
        let failed_upload = || progress.as_ref().and_then(|progress| progress.failure());
        if let Some(failure) = failed_upload() {
            return Err(failure);
        }
        let sending = async {
            // Boxed, because few requests ask for a switch.
            if may_switch { Box::pin(self.client.send_switch(request)).await } else { self.client.send(request).await }
        };
        let mut response = tokio::select! {
            // A response that arrives together with the timeout is used.
            biased;
            sent = sending => sent.map_err(|error| failed_upload().unwrap_or_else(|| error.into()))?,
            () = self.time_limit(progress.as_deref()) => return Err(UpstreamFailure::TimedOut(self.timeout)),
        };
        progress.iter().for_each(|progress| progress.set_answered());
        response.body_mut().upload = progress;
        Ok(response)
    }

    fn respond(&self, mut response: Response<UpstreamBody<B>>, mut asked: Asked) -> Response<UpstreamBody<B>> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let granted = asked.websocket.take().and_then(|wish| wish.grant(response));
            // The request did not ask for this, so the response is invalid. The API may have run the request.
            let Some(granted) = granted else { return UpstreamFailure::Switched.response(asked.rk) };
            let mut response = self.pass_on(granted, &asked);
            mark_switch(response.headers_mut());
            return response;
        }
        match take_framing(response.headers_mut(), asked.is_head) {
            Ok(()) => self.pass_on(response, &asked),
            Err(why) => UpstreamFailure::Framing(why).response(asked.rk),
        }
    }

    /// Completes when the API has not answered in time. The time counts from now, or from the last frame of a streamed
    /// request body.
    async fn time_limit(&self, progress: Option<&StreamProgress>) {
        match progress {
            None => sleep(self.timeout).await,
            Some(progress) => progress.wait_until_stalled(self.timeout).await,
        }
    }

    fn pass_on(&self, mut response: Response<UpstreamBody<B>>, asked: &Asked) -> Response<UpstreamBody<B>> {
        let trailers = asked.takes_trailers.then(|| declared_trailers(response.headers())).flatten();
        remove_unforwardable(response.headers_mut(), is_reserved);
        response.headers_mut().extend(trailers.map(|names| (TRAILER, names)));
        *response.version_mut() = Version::HTTP_11;
        // The response to a protected request is read into memory before the client gets it, so a silent API must not
        // block it forever. Any other response streams at the pace of the API.
        response.body_mut().frame_limit = asked.is_protected.then_some(self.timeout);
        response
    }
}

/// Lets a body that is not in memory pass on its frames as they arrive.
fn start_streaming<B: StreamedBody>(body: &mut RequestBody<B>) -> Option<Arc<StreamProgress>> {
    match body {
        RequestBody::Whole(_) => None,
        RequestBody::Streaming(body) => Some(body.as_mut().get_mut().start_streaming()),
    }
}

/// Whether the body of a request is likely to be empty although its end is not known yet. A client of HTTP/2 may say so
/// after the head. Some servers refuse such a request if it comes with a body, even an empty one.
fn may_be_empty<B: Body<Data = Bytes>>(request: &Request<RequestBody<B>>) -> bool {
    !matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH) && has_unknown_length(request.body())
}

/// Waits for the first frame of a body, and removes the body if there is none.
async fn drop_empty_body<B: StreamedBody>(body: &mut RequestBody<B>) {
    let is_empty = match body {
        RequestBody::Whole(_) => false,
        RequestBody::Streaming(body) => poll_fn(|cx| body.as_mut().get_mut().poll_is_empty(cx)).await,
    };
    if is_empty {
        *body = RequestBody::Whole(Bytes::new());
    }
}
