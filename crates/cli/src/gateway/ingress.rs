pub(crate) mod access_log;
pub(crate) mod activity;
pub(crate) mod headers;
pub(crate) mod received;
pub(crate) mod refusal;
pub(crate) mod request_body;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::BoxError;
use hapax::runtime::BoxFuture;
use http::{HeaderName, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tower_service::Service;

use crate::gateway::ingress::access_log::AccessLogEntry;
use crate::gateway::ingress::activity::ConnectionActivity;
use crate::gateway::ingress::headers::{Peer, ProtectedFields, admit};
use crate::gateway::ingress::received::Received;
use crate::gateway::ingress::request_body::{BodyMemory, ClientBody};
use crate::gateway::limits::Limits;
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::ops::metrics::ListenerMetrics;

/// What stands between one connection and all that answers: the rules of every route, and the log.
#[derive(Clone, Debug)]
pub(crate) struct Ingress<S> {
    pub(crate) inner: S,
    pub(crate) turns: FairQueue,
    pub(crate) tenant: Option<HeaderName>,
    pub(crate) kept: Arc<ProtectedFields>,
    pub(crate) limits: Limits,
    pub(crate) room: BodyMemory,
    pub(crate) peer: Peer,
    pub(crate) activity: ConnectionActivity,
    pub(crate) meters: Arc<ListenerMetrics>,
}

impl<S, B> Service<Request<Incoming>> for Ingress<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<LoggedBody<Either<B, Full<Bytes>>>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let mut line = AccessLogEntry::of(&request, self.activity.request(), Arc::clone(&self.meters));
        let turn = self.turns.take(self.caller(&request));
        let (limits, held) = (self.limits, self.room.body());
        let version = request.version();
        let mut request = request.map(|body| ClientBody::new(Received::new(body, version), limits, held.clone()));
        // Goes with the request as far as its body does.
        request.extensions_mut().insert(held);
        if let Err(refusal) = admit(&mut request, &self.kept, &self.peer) {
            line.refused();
            return Box::pin(async move {
                turn.await;
                Ok(leaving(line, refusal.response().map(Either::Right)))
            });
        }
        let answered = self.inner.call(request);
        Box::pin(async move {
            turn.await;
            Ok(leaving(line, answered.await?.map(Either::Left)))
        })
    }
}

impl<S> Ingress<S> {
    /// Whose turn a request takes: that of the tenant it claims to be, as nothing is known of it yet.
    fn caller<'a>(&'a self, request: &'a Request<Incoming>) -> Caller<'a> {
        match self.tenant.as_ref().and_then(|field| request.headers().get(field)) {
            Some(tenant) => Caller::Tenant(tenant.as_bytes()),
            None => Caller::Address(self.peer.ip().as_bytes()),
        }
    }
}

fn leaving<B: Body>(mut line: AccessLogEntry, response: Response<B>) -> Response<LoggedBody<B>> {
    line.answered(&response);
    response.map(|body| {
        if body.is_end_stream() {
            line.ended();
        }
        LoggedBody { body: Box::pin(body), line }
    })
}

/// The body of an answer on its way out. Its request is over, and logged, when it is.
#[derive(Debug)]
pub(crate) struct LoggedBody<B> {
    body: Pin<Box<B>>,
    line: AccessLogEntry,
}

impl<B> Body for LoggedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = self.body.as_mut().poll_frame(cx);
        let is_last = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            self.line.ended();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
