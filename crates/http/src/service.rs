use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::gate::{Attempt, Failure};
use hapax_core::runtime::{BoxFuture, timeout};
use hapax_core::{BoxError, Call, Error, ErrorKind, Key, RecordKey, Scope};
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, response};
use http_body::Body;
use tower_service::Service;
use tracing::{Instrument, Span};

use crate::answer::{Answered, answer, shown};
use crate::body::{Collected, RequestBody, ResponseBody, collect, drain};
use crate::headers::is_reserved;
use crate::key::KeyMalformed;
use crate::layer::Config;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::stored::Stored;

/// How much of a body that is too long is read before the refusal, and for how long: a client that is still sending would not
/// see an answer.
const DRAINED: usize = 4 << 20;
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
///
/// # Errors
/// The inner service's own, passed on to the caller whose request ran it; its outcome is unknown then. All else is a response.
///
/// # Cancel safety
/// A request that is dropped before it has arrived whole leaves nothing behind. From then on it goes on without its caller, and a
/// copy gets the answer.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use bytes::Bytes;
/// # use hapax_core::store::Memory;
/// # use hapax_core::{Gate, Identity, Settings};
/// # use hapax_http::{IdempotencyLayer, RequestBody, Tenant, TenantScope};
/// # use http::{Request, Response};
/// # use http_body_util::Full;
/// # let store = Memory::new();
/// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// # let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("shop", Tenant::None, Identity::plain())?);
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let charge = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
///     Ok::<_, Infallible>(Response::new(Full::from("charged")))
/// });
/// let service = layer.layer(charge);
/// for replayed in [false, true] {
///     let request = Request::post("/charges").header("idempotency-key", "order-7").body(Full::from("amount=5"))?;
///     let response = service.clone().oneshot(request).await?;
///     assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotency<S> {
    pub(crate) inner: S,
    pub(crate) config: Arc<Config>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call; its clone waits for its own turn.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            match identify(&config, request).await {
                Ok(Identified::Protected(call, request)) => protected(&config, inner, call, request).await,
                Ok(Identified::Unprotected(request)) => Ok(inner.call(request).await?.map(ResponseBody::streaming)),
                Err(problem) => Ok(shown(&*config.problem, &problem, None)),
            }
        })
    }
}

/// What the inner service answered, for the caller who waits now. Only the one whose request ran it finds something here.
type Live<R, E> = Arc<Mutex<Option<Answered<R, E>>>>;

async fn protected<S, B, R>(
    config: &Arc<Config>,
    inner: S,
    call: Call,
    request: Request<RequestBody<B>>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    let live = Live::default();
    let desk = Desk { live: Arc::clone(&live), config: Arc::clone(config) };
    // The handler runs in another task, and what it logs belongs to the request that it serves.
    let span = Span::current();
    // Boxed before it is handed on: a request is large, and each hand would copy it.
    let handler = Box::new(move |attempt| run(inner, request, attempt, desk).instrument(span));
    let ran = config.gate.run(call, handler).await;
    let live = live.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer(&*config.problem, &call, ran, live)
}

/// A request, once it is known what becomes of it.
enum Identified<B> {
    /// It runs once.
    Protected(Call, Request<RequestBody<B>>),
    /// It streams past.
    Unprotected(Request<RequestBody<B>>),
}

/// Key, scope, body and fingerprint: nothing is recorded before the request has arrived whole, and all that the head tells is looked
/// at before the body is waited for.
async fn identify<B>(config: &Config, request: Request<B>) -> Result<Identified<B>, Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError> + Send,
{
    let (parts, body) = request.into_parts();
    if passes(config, &parts) {
        return Ok(Identified::Unprotected(streaming(parts, body)));
    }
    if config.key.is_in_body() {
        let body = whole(config, body).await?;
        return match allowed(config, config.key.key_of_whole(&parts, &body))? {
            Some(key) => Ok(identified(config, &scope(config, &parts)?, &key, Request::from_parts(parts, body))),
            None => Ok(Identified::Unprotected(Request::from_parts(parts, RequestBody::Whole(body)))),
        };
    }
    let Some(key) = allowed(config, config.key.key(&parts))? else {
        return Ok(Identified::Unprotected(streaming(parts, body)));
    };
    let scope = scope(config, &parts)?;
    let body = whole(config, body).await?;
    Ok(identified(config, &scope, &key, Request::from_parts(parts, body)))
}

/// Whether a request needs no protection here.
fn passes(config: &Config, parts: &Parts) -> bool {
    if !config.methods.contains(&parts.method) {
        return true;
    }
    let protected = parts.extensions.get::<Attempt>().is_some();
    if protected {
        tracing::warn!("a request is protected by an outer layer already; this one lets it pass");
    }
    protected
}

fn streaming<B>(parts: Parts, body: B) -> Request<RequestBody<B>> {
    Request::from_parts(parts, RequestBody::Streaming(Box::pin(body)))
}

/// The key that was found, or that there may be none.
fn allowed(config: &Config, found: Result<Option<Key>, KeyMalformed>) -> Result<Option<Key>, Problem> {
    match found {
        Ok(None) if config.key_required => Err(Problem::KeyMissing),
        Ok(key) => Ok(key),
        Err(malformed) => Err(Problem::KeyMalformed(malformed.0)),
    }
}

fn scope(config: &Config, parts: &Parts) -> Result<Scope, Problem> {
    config.scope.scope(parts).map_err(|unknown| Problem::CallerUnknown(unknown.0))
}

async fn whole<B>(config: &Config, body: B) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError> + Send,
{
    match collect(body, config.max_request_body).await {
        Collected::Whole(body) => Ok(body),
        Collected::Over(rest) => {
            timeout(&**config.gate.runtime(), DRAINED_FOR, drain(rest, DRAINED)).await;
            Err(Problem::BodyTooLarge { limit: config.max_request_body })
        }
        Collected::Cut(error) => {
            let error: BoxError = error.into();
            Err(match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::TimedOut) => Problem::BodyTimeout,
                Some(io::ErrorKind::QuotaExceeded) => Problem::Overloaded,
                _ => Problem::BodyCut,
            })
        }
    }
}

fn identified<B>(config: &Config, scope: &Scope, key: &Key, request: Request<Bytes>) -> Identified<B> {
    let (mut parts, body) = request.into_parts();
    let mut call = config.identity.call(scope, key);
    call = call.fingerprint(config.fingerprint.fingerprint(&config.identity, &parts, &body));
    if let Some(former) = &config.former_fingerprint {
        call = call.or_older(former.fingerprint(&config.identity, &parts, &body));
    }
    // What is kept must be readable for every later client.
    parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Identified::Protected(call, Request::from_parts(parts, RequestBody::Whole(body)))
}

/// The gate's handler: calls the inner service, leaves its response for the caller and says what it means.
async fn run<S, B, R>(
    mut inner: S,
    mut request: Request<RequestBody<B>>,
    attempt: Attempt,
    desk: Desk<R, S::Error>,
) -> Result<Stored, Failure<Stored>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let rk = attempt.record_key();
    request.extensions_mut().insert(attempt);
    let (mut head, body) = match inner.call(request).await {
        Ok(response) => response.into_parts(),
        Err(error) => {
            desk.leave(Answered::ToPassOn(Err(error)));
            return Err(unknown("the inner service failed"));
        }
    };
    remove_ours(&mut head.headers);
    match Outcome::declared(&head).unwrap_or_else(|| desk.config.outcome.outcome(&head)) {
        Outcome::Applied => desk.capture(rk, head, body).await,
        Outcome::Final => Err(Failure::finally(desk.capture(rk, head, body).await?)),
        Outcome::NotApplied => {
            desk.pass_on(Response::from_parts(head, ResponseBody::streaming(body)));
            Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "see the response")))
        }
        Outcome::Denied => {
            desk.pass_on(Response::from_parts(head, ResponseBody::streaming(body)));
            Err(Failure::denied(Error::new(ErrorKind::NotApplied, "see the response")))
        }
        Outcome::Unknown => {
            desk.pass_on(Response::from_parts(head, ResponseBody::streaming(body)));
            Err(unknown("see the response"))
        }
    }
}

/// Where a response is left for the caller who waits.
struct Desk<R, E> {
    live: Live<R, E>,
    config: Arc<Config>,
}

impl<R, E> Desk<R, E> {
    fn leave(&self, answered: Answered<R, E>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
    }

    fn pass_on(&self, response: Response<ResponseBody<R>>) {
        self.leave(Answered::ToPassOn(Ok(response)));
    }

    /// Reads the body as far as it is kept.
    async fn capture(&self, rk: RecordKey, head: response::Parts, body: R) -> Result<Stored, Failure<Stored>>
    where
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let collected = if streams(&head) {
            Collected::Over(ResponseBody::streaming(body))
        } else {
            collect(body, self.config.max_stored_body).await
        };
        let (stored, body) = match collected {
            Collected::Whole(body) => {
                (Stored::response(&head, body.clone(), &self.config.store_headers), ResponseBody::whole(body))
            }
            Collected::Over(body) => (Stored::NotReplayable, body),
            Collected::Cut(error) => {
                let error = error.into();
                tracing::warn!(?rk, %error, "a response was cut off; the outcome is unknown");
                let problem = if timed_out(&*error) { Problem::UpstreamTimeout } else { Problem::UpstreamCut };
                self.pass_on(self.config.problem.show(&problem, Some(&rk)).map(ResponseBody::whole));
                return Err(unknown("the response was cut off"));
            }
        };
        self.leave(Answered::ToRecord(Response::from_parts(head, body)));
        Ok(stored)
    }
}

/// Whether an answer is a replay, and what became of its record, is not for the inner service to say.
fn remove_ours(headers: &mut HeaderMap) {
    let ours = headers.keys().filter(|name| is_reserved(name)).cloned().collect::<Vec<_>>();
    for name in ours {
        headers.remove(name);
    }
}

fn unknown<A>(message: &'static str) -> Failure<A> {
    Failure::unknown(Error::new(ErrorKind::Unknown, message))
}

/// A stream of events has no end to wait for. Media types are compared without regard to case.
fn streams(head: &response::Parts) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.and_then(|value| value.get(..EVENTS.len())).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

fn timed_out(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}
