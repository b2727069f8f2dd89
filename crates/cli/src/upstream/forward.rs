//! Forwards requests to the API, and classifies each failure by whether the API may have processed the request.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::RequestBody;
use hapax::http::headers::is_reserved;
use hapax::runtime::BoxFuture;
use hapax::{BoxError, RecordKey};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Body;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use crate::upstream::SendError;
use crate::upstream::body::UpstreamBody;
use crate::upstream::client::{Upstream, UpstreamClient};
use crate::upstream::failure::UpstreamFailure;
use crate::upstream::fields::{add_attempt_fields, remove_unforwardable, take_framing};

/// Time limit for opening a connection to the API, or half of the API's time limit if that is shorter. A connection
/// must fail before the API's time limit ends: then it is certain that nothing was sent.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// A body that records when its last frame arrived, because the API's time limit counts from there.
pub(crate) trait StreamedBody: Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static {
    /// Lets the body pass on each frame as it arrives, and returns the record of its progress.
    fn start_streaming(&mut self) -> Arc<StreamProgress>;

    /// Waits until the first frame arrives or fails, and keeps it for the next read. Is ready with whether the body has
    /// ended without a frame.
    fn poll_is_empty(&mut self, cx: &mut Context<'_>) -> Poll<bool>;
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
    /// The record of a protected request.
    rk: Option<RecordKey>,
}

impl<B: StreamedBody> Forwarder<B> {
    async fn forward(&self, mut request: Request<RequestBody<B>>) -> Response<UpstreamBody<B>> {
        let attempt = request.extensions_mut().remove::<Attempt>();
        let asked = Asked {
            is_head: request.method() == Method::HEAD,
            is_protected: attempt.is_some(),
            rk: attempt.as_ref().map(Attempt::record_key),
        };
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
                return UpstreamFailure::TimedOut(self.timeout).response(asked.rk);
            }
        };
        self.respond(sent, &asked)
    }

    fn respond(&self, sent: Result<Response<UpstreamBody<B>>, SendError>, asked: &Asked) -> Response<UpstreamBody<B>> {
        let rk = asked.rk;
        match sent {
            // No forwarded request has an Upgrade field, so this response is invalid. The API may have run the request.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                UpstreamFailure::Switched.response(rk)
            }
            Ok(mut response) => match take_framing(response.headers_mut(), asked.is_head) {
                Ok(()) => self.pass_on(response, asked),
                Err(why) => UpstreamFailure::Framing(why).response(rk),
            },
            Err(error) => UpstreamFailure::from(error).response(rk),
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

    fn pass_on(&self, mut response: Response<UpstreamBody<B>>, asked: &Asked) -> Response<UpstreamBody<B>> {
        remove_unforwardable(response.headers_mut(), is_reserved);
        *response.version_mut() = Version::HTTP_11;
        // The response to a protected request is read into memory before the client gets it, so a silent API must not
        // block it forever. Any other response streams at the pace of the API.
        response.body_mut().frame_limit = asked.is_protected.then_some(self.timeout);
        response
    }
}
