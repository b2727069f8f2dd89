//! The service of a connection. Each request gets a log entry, waits for its turn in the fair queue, and is checked
//! against the rules about header fields. Then its route handles it.

pub(crate) mod access_log;
pub(crate) mod field_names;
pub(crate) mod headers;
pub(crate) mod refusal;
pub(crate) mod request_body;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::{RequestBody, ResponseBody};
use hapax::runtime::BoxFuture;
use http::header::CONNECTION;
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tower_layer::Layer;
use tower_service::Service;

use crate::gateway::ingress::access_log::{AccessLogEntry, ConnectionActivity};
use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::ingress::headers::{Peer, admit};
use crate::gateway::ingress::request_body::{BodyMemory, ChunkedEnd, ClientBody};
use crate::gateway::limits::{BODY_MEMORY, Limits};
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::gateway::routing::{Routed, Routes};
use crate::ops::metrics::ListenerMetrics;

/// The rules and limits that all connections share.
#[derive(Debug)]
pub(crate) struct IngressRules {
    pub(crate) routes: Routes,
    pub(crate) protected_fields: Arc<ProtectedFields>,
    /// The field that names the tenant in the fair queue. Without it, the address identifies the caller.
    pub(crate) tenant: Option<HeaderName>,
    pub(crate) limits: Limits,
    body_memory: BodyMemory,
    pub(crate) metrics: Arc<ListenerMetrics>,
}

impl IngressRules {
    pub(crate) fn new(routes: Routes, protected_fields: ProtectedFields, limits: Limits) -> Self {
        let (body_memory, metrics) = (BodyMemory::new(BODY_MEMORY), ListenerMetrics::new());
        let protected_fields = Arc::new(protected_fields);
        Self { routes, protected_fields, tenant: None, limits, body_memory, metrics }
    }
}

/// The service of one connection: hyper calls it for each request.
#[derive(Clone, Debug)]
pub(crate) struct Ingress<S> {
    pub(crate) rules: Arc<IngressRules>,
    pub(crate) queue: FairQueue,
    pub(crate) peer: Peer,
    pub(crate) activity: ConnectionActivity,
    /// Handles the requests that are admitted. It must always be ready, because hyper does not ask.
    pub(crate) inner: S,
}

impl<S, R> hyper::service::Service<Request<Incoming>> for Ingress<S>
where
    S: Service<Request<RequestBody<ClientBody>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    type Response = Response<LoggedBody<R>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (activity, metrics) = (self.activity.open_request(), Arc::clone(&self.rules.metrics));
        let mut entry = AccessLogEntry::new(&request, activity, metrics);
        // Takes the place in the queue now, in the order of arrival; the future is awaited later.
        let turn = self.queue.wait_turn(self.caller(&request));
        let chunked_end = ChunkedEnd::of(&request);
        let mut request = self.with_limits(request, chunked_end.clone());
        match self.route(&mut request, &mut entry) {
            Routed::Layer(layer) => {
                // The layer boxes its future here, so that the request is not moved into a second box.
                let response = layer.layer(self.inner.clone()).call(request);
                Box::pin(async move {
                    turn.await;
                    let response = logged(entry, response.await?);
                    Ok(closing_after_trailers(response, chunked_end.as_ref()))
                })
            }
            Routed::Response(response) => Box::pin(async move {
                turn.await;
                let response = logged(entry, response.map(ResponseBody::whole));
                Ok(closing_after_trailers(response, chunked_end.as_ref()))
            }),
        }
    }
}

impl<S> Ingress<S> {
    /// The caller whose turn a request takes. The tenant field is not verified at this point.
    fn caller<'a>(&'a self, request: &'a Request<Incoming>) -> Caller<'a> {
        match self.rules.tenant.as_ref().and_then(|field| request.headers().get(field)) {
            Some(tenant) => Caller::Tenant(tenant.as_bytes()),
            None => Caller::Address(self.peer.ip().as_bytes()),
        }
    }

    fn with_limits(&self, request: Request<Incoming>, chunked_end: Option<ChunkedEnd>) -> Request<ClientBody> {
        let reservation = self.rules.body_memory.reservation();
        let version = request.version();
        let protected = Arc::clone(&self.rules.protected_fields);
        let mut request = request.map(|body| {
            ClientBody::new(body, version, self.rules.limits, reservation.clone()).with_rules(protected, chunked_end)
        });
        // The extensions live until the API has answered, and so does the memory that the body occupies.
        request.extensions_mut().insert(reservation);
        request
    }

    /// Applies the rules of every request, then asks the routes.
    fn route(&self, request: &mut Request<ClientBody>, entry: &mut AccessLogEntry) -> Routed<'_> {
        if let Err(refusal) = admit(request, &self.rules.protected_fields, &self.peer) {
            entry.set_refused();
            return Routed::Response(refusal.response());
        }
        self.rules.routes.route(request)
    }
}

/// Lets hyper close the connection after the response, unless the chunked body of the request has ended cleanly.
/// Otherwise hyper may have read past the next request, and a client must not wait for its response.
fn closing_after_trailers<R>(mut response: Response<R>, chunked_end: Option<&ChunkedEnd>) -> Response<R> {
    if chunked_end.is_some_and(|end| !end.is_clean()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn logged<R: Body<Data = Bytes>>(
    mut entry: AccessLogEntry,
    response: Response<ResponseBody<R>>,
) -> Response<LoggedBody<R>> {
    entry.set_response(&response);
    response.map(|body| {
        if body.is_end_stream() {
            entry.set_complete();
        }
        LoggedBody { body, entry }
    })
}

/// The body of a response to a client. When it is dropped, the request has ended and its log entry is written.
#[derive(Debug)]
pub(crate) struct LoggedBody<R> {
    body: ResponseBody<R>,
    entry: AccessLogEntry,
}

impl<R: Body<Data = Bytes>> Body for LoggedBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let is_last = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            self.entry.set_complete();
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
