//! The service of a connection. Each request gets a log entry, waits for its turn in the fair queue, and is checked
//! against the rules about header fields. Then its route handles it.

pub(crate) mod access_log;
pub(crate) mod answer_body;
pub(crate) mod cross_origin;
pub(crate) mod field_names;
pub(crate) mod headers;
pub(crate) mod refusal;
pub(crate) mod request_body;
pub(crate) mod shared_window;
pub(crate) mod upload_pace;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::{Problem, ProblemDetails, ProblemTemplate, RequestBody, RequestOrigin, ResponseBody, ShowProblem};
use hapax::runtime::BoxFuture;
use http::header::CONNECTION;
use http::{HeaderName, HeaderValue, Request, Response, Version};
use hyper::body::{Body, Incoming};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::gateway::ingress::access_log::{AccessLogEntry, ConnectionActivity};
use crate::gateway::ingress::answer_body::{AnswerBody, answer};
use crate::gateway::ingress::cross_origin::CrossOrigin;
use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::ingress::headers::{Peer, admit};
use crate::gateway::ingress::request_body::{BodyReservation, ChunkedEnd, ClientBody};
use crate::gateway::ingress::shared_window::SharedWindow;
use crate::gateway::limits::Limits;
use crate::gateway::limits::shares::{AddressAccount, Resource, Shares};
use crate::gateway::limits::trusted_proxies::TrustedProxies;
use crate::gateway::listen::client_socket::CloseDelimited;
use crate::gateway::listen::fair_queue::{Caller, FairQueue};
use crate::gateway::listen::lingering_close::UnreadRest;
use crate::gateway::routing::{Routed, Routes};
use crate::serve::metrics::ListenerMetrics;
use crate::upstream::websocket::{TunnelSlot, WebSocketWish};

/// The rules and limits that all connections share.
#[derive(Debug)]
pub(crate) struct IngressRules {
    pub(crate) routes: Routes,
    pub(crate) protected_fields: Arc<ProtectedFields>,
    /// The field that names the tenant in the fair queue. Without it, the address identifies the caller.
    pub(crate) tenant: Option<HeaderName>,
    pub(crate) limits: Limits,
    /// The proxies whose X-Forwarded-For names the client.
    pub(crate) trusted: TrustedProxies,
    pub(crate) cross_origin: Arc<CrossOrigin>,
    /// The shape of problems. None: problem details.
    pub(crate) problem_template: Option<Arc<ProblemTemplate>>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) metrics: Arc<ListenerMetrics>,
    /// Set when the time for open requests is over: those that are left are cut.
    is_cutting: AtomicBool,
    /// Whether the log says that a field about another client was replaced.
    has_replaced: AtomicBool,
}

impl IngressRules {
    pub(crate) fn new(routes: Routes, protected_fields: ProtectedFields, limits: Limits) -> Self {
        let (shares, metrics) = (Shares::new(&limits), ListenerMetrics::new());
        let protected_fields = Arc::new(protected_fields);
        let (trusted, is_cutting, has_replaced) =
            (TrustedProxies::default(), AtomicBool::new(false), AtomicBool::new(false));
        Self {
            routes,
            protected_fields,
            tenant: None,
            limits,
            trusted,
            cross_origin: Arc::default(),
            problem_template: None,
            shares,
            metrics,
            is_cutting,
            has_replaced,
        }
    }

    /// Notes that requests without a response are cut from now on.
    pub(crate) fn set_cutting(&self) {
        self.is_cutting.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cutting(&self) -> bool {
        self.is_cutting.load(Ordering::Relaxed)
    }

    /// Logs the first field that was replaced. Without the remedy, the API takes `https` for `http` behind a balancer.
    fn report_replaced(&self, name: &HeaderName, client: IpAddr) {
        if !self.has_replaced.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %name,
                %client,
                "a field that only a trusted proxy may set was replaced; if this client is your load balancer or \
                 proxy, name its network with --trusted-proxy. Further fields are replaced without a line in the log"
            );
        }
    }
}

/// The service of one connection: hyper calls it for each request.
#[derive(Clone, Debug)]
pub(crate) struct Ingress<S> {
    pub(crate) rules: Arc<IngressRules>,
    pub(crate) queue: FairQueue,
    pub(crate) peer: Peer,
    /// The address of the connection.
    pub(crate) ip: IpAddr,
    /// The account of that address. A trusted proxy forwards requests of other addresses.
    pub(crate) account: Arc<AddressAccount>,
    pub(crate) activity: ConnectionActivity,
    /// None in HTTP/1.
    pub(crate) window: Option<SharedWindow>,
    pub(crate) close_delimited: CloseDelimited,
    pub(crate) unread_rest: UnreadRest,
    /// Where the tunnel of a WebSocket is kept until the response is sent.
    pub(crate) tunnel: TunnelSlot,
    /// Handles the requests that are admitted. It must always be ready, because hyper does not ask.
    pub(crate) inner: S,
}

impl<S, R> hyper::service::Service<Request<Incoming>> for Ingress<S>
where
    S: Service<Request<RequestBody<ClientBody>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    R: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
{
    type Response = Response<AnswerBody<R>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let mut entry = AccessLogEntry::new(&request, self.activity.open_request(), Arc::clone(&self.rules));
        // Takes the place in the queue now, in the order of arrival; the future is awaited later.
        let account = self.account(&request);
        let turn = self.queue.wait_turn(self.caller(&request, &account.number().to_ne_bytes()));
        let chunked_end = ChunkedEnd::of(&request);
        let close_delimited = (request.version() == Version::HTTP_10).then(|| self.close_delimited.clone());
        let cross_origin = Arc::clone(&self.rules.cross_origin);
        let page = cross_origin.grant(request.headers());
        let websocket = self.websocket_wish(&mut request, &account);
        let mut request = self.with_limits(request, &account, chunked_end.clone());
        request.extensions_mut().insert(entry.record_key_slot());
        match self.route(&mut request, &mut entry, websocket) {
            Routed::Layer(layer) => {
                // The layer boxes its future here, so that the request is not moved into a second box.
                let response = layer.layer(self.inner.clone()).call(request);
                let span = entry.span();
                let handled = async move {
                    turn.await;
                    let mut response = answer(entry, response.await?, account);
                    cross_origin.apply(page.as_ref(), &mut response);
                    if let Some(close_delimited) =
                        close_delimited.filter(|_| response.body().size_hint().exact().is_none())
                    {
                        close_delimited.begin();
                    }
                    Ok(closing_after_trailers(response, chunked_end.as_ref()))
                };
                Box::pin(handled.instrument(span))
            }
            Routed::Page(response) | Routed::Refusal(response) => Box::pin(async move {
                turn.await;
                let mut response = answer(entry, response.map(ResponseBody::whole), account);
                cross_origin.apply(page.as_ref(), &mut response);
                Ok(closing_after_trailers(response, chunked_end.as_ref()))
            }),
        }
    }
}

impl<S> Ingress<S> {
    /// The caller whose turn a request takes. The tenant field is not verified at this point.
    fn caller<'a>(&'a self, request: &'a Request<Incoming>, address: &'a [u8]) -> Caller<'a> {
        match self.rules.tenant.as_ref().and_then(|field| request.headers().get(field)) {
            Some(tenant) => Caller::Tenant(tenant.as_bytes()),
            None => Caller::Address(address),
        }
    }

    /// The account of the client: that of the connection, unless a trusted proxy forwards the request.
    fn account(&self, request: &Request<Incoming>) -> Arc<AddressAccount> {
        let client = self.rules.trusted.client(self.ip, request.headers());
        if client == self.ip { Arc::clone(&self.account) } else { self.rules.shares.account(client) }
    }

    fn with_limits(
        &self,
        request: Request<Incoming>,
        account: &Arc<AddressAccount>,
        chunked_end: Option<ChunkedEnd>,
    ) -> Request<ClientBody> {
        let reservation = BodyReservation::new(Arc::clone(account));
        let version = request.version();
        let protected = Arc::clone(&self.rules.protected_fields);
        let mut request = request.map(|body| {
            let body = ClientBody::new(body, version, self.rules.limits, reservation.clone());
            let body = body.with_rules(protected, chunked_end).in_window(self.window.clone());
            if version == Version::HTTP_2 { body } else { body.reporting_rest(self.unread_rest.clone()) }
        });
        if let Some(refused) = request.body().refused() {
            request.extensions_mut().insert(refused);
        }
        // The extensions live until the API has answered, and so does the memory that the body occupies.
        request.extensions_mut().insert(reservation);
        request.extensions_mut().insert(RequestOrigin(account.number()));
        request
    }

    /// The wish of a request to switch to WebSocket, or the refusal if its client has no room for another connection.
    fn websocket_wish(
        &self,
        request: &mut Request<Incoming>,
        account: &Arc<AddressAccount>,
    ) -> Result<Option<WebSocketWish>, TunnelsFull> {
        if request.version() == Version::HTTP_2 {
            return Ok(None);
        }
        self.tunnel.begin_request(request);
        let Some(wish) = WebSocketWish::of(request, &self.tunnel) else { return Ok(None) };
        // The connection of a trusted proxy counts for nobody, because its clients share it. A WebSocket is not shared.
        if self.rules.trusted.contains(self.ip) {
            self.tunnel.occupy(Box::new(account.take(Resource::Connections, 1).ok_or(TunnelsFull)?));
        }
        Ok(Some(wish))
    }

    /// Applies the rules of every request, then asks the routes.
    fn route(
        &self,
        request: &mut Request<ClientBody>,
        entry: &mut AccessLogEntry,
        websocket: Result<Option<WebSocketWish>, TunnelsFull>,
    ) -> Routed<'_> {
        match admit(request, &self.rules.protected_fields, &self.peer) {
            Ok(replaced) => replaced.iter().for_each(|name| self.rules.report_replaced(name, self.ip)),
            Err(refusal) => {
                entry.set_refused();
                return Routed::Refusal(refusal.response());
            }
        }
        match websocket {
            Ok(Some(wish)) => drop(request.extensions_mut().insert(wish)),
            Ok(None) => {}
            Err(TunnelsFull) => {
                entry.set_refused();
                return Routed::Refusal(ProblemDetails::default().show(&Problem::Overloaded, None));
            }
        }
        if let Some(response) = self.rules.cross_origin.preflight(request) {
            return Routed::Page(response);
        }
        let routed = self.rules.routes.route(request);
        if matches!(routed, Routed::Refusal(_)) {
            entry.set_refused();
        }
        routed
    }
}

/// The client of a trusted proxy has no room for another connection.
#[derive(Debug)]
struct TunnelsFull;

/// Lets hyper close the connection after the response, unless the chunked body of the request has ended cleanly.
/// Otherwise hyper may have read past the next request, and a client must not wait for its response.
fn closing_after_trailers<R>(mut response: Response<R>, chunked_end: Option<&ChunkedEnd>) -> Response<R> {
    if chunked_end.is_some_and(|end| !end.is_clean()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
