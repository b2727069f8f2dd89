use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::gate::Attempt;
use hapax_core::runtime::{BoxFuture, timeout};
use hapax_core::{BoxError, Call, Key, Scope};
use http::header::{ACCEPT_ENCODING, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Request, Response, Version};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::answer::{problem_response, respond, run_handler};
use crate::body::{BodyRead, RequestBody, ResponseBody, discard, read_body};
use crate::call::{BodyRefused, RecordKeySlot, RequestOrigin};
use crate::grpc;
use crate::key::KeyMalformed;
use crate::layer::{IdempotencyLayer, LayerConfig};
use crate::problem::Problem;

/// A client that is still sending may not read a response. So the layer reads and discards the rest of a body that is
/// too long before it returns the refusal: at most this many bytes, and at most for [`DISCARDED_FOR`].
const DISCARDED_BYTES: usize = 4 << 20;
const DISCARDED_FOR: Duration = Duration::from_secs(1);

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
///
/// # Errors
/// Returns the error of the inner service to the caller whose request ran it. The outcome of that request is unknown.
/// Every other failure is a response.
///
/// # Cancel safety
/// A request that is dropped before its body has arrived completely leaves no record. After that the handler continues
/// without its caller, and a copy of the request gets the answer.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use bytes::Bytes;
/// # use hapax::store::Memory;
/// # use hapax::{Gate, Settings};
/// # use hapax::http::{IdempotencyLayer, RequestBody, Tenant};
/// # use http::{Request, Response};
/// # use http_body_util::Full;
/// # let store = Memory::new();
/// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// # let layer = IdempotencyLayer::new(gate).tenant("shop", Tenant::None)?;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let charge = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
///     Ok::<_, Infallible>(Response::new(Full::from("charged")))
/// });
/// let service = layer.layer(charge);
/// for is_replay in [false, true] {
///     let request = Request::post("/charges").header("idempotency-key", "order-7").body(Full::from("amount=5"))?;
///     let response = service.clone().oneshot(request).await?;
///     assert_eq!(response.headers().contains_key("idempotent-replayed"), is_replay);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency { inner, config: Arc::clone(&self.config) }
    }
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
        // tower requires a call on the service that `poll_ready` was called on, which a fresh clone is not.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let config = Arc::clone(&self.config);
        // Over HTTP/1.1 no client reads a status of gRPC, and 200 would say that the call ran.
        let speaks_grpc = request.version() == Version::HTTP_2;
        Box::pin(async move {
            match classify(&config, request).await {
                Ok(Classified::Protected(call, request)) => run_once(&config, inner, call, request).await,
                Ok(Classified::Unprotected(request)) => Ok(inner.call(request).await?.map(ResponseBody::streaming)),
                Err(problem @ Problem::GrpcCall) if speaks_grpc => {
                    Ok(grpc::refusal(&problem, problem_response(&*config.problem, problem.clone(), None)))
                }
                Err(problem) => Ok(problem_response(&*config.problem, problem, None)),
            }
        })
    }
}

/// A request that was not refused, ready for the inner service.
enum Classified<B> {
    Protected(Call, Request<RequestBody<B>>),
    Unprotected(Request<RequestBody<B>>),
}

/// Decides whether the request is protected and reads its key, scope, body and fingerprint.
///
/// Everything in the head is checked before the body is awaited, so that a bad request is refused early.
async fn classify<B>(config: &LayerConfig, request: Request<B>) -> Result<Classified<B>, Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError> + Send,
{
    let (parts, body) = request.into_parts();
    if !is_protected(config, &parts) {
        return Ok(stream_unprotected(parts, body));
    }
    if grpc::is_call(&parts.headers) {
        return match is_key_expected(config, &parts) {
            true => Err(Problem::GrpcCall),
            false => Ok(stream_unprotected(parts, body)),
        };
    }
    if config.key.is_in_body() {
        let body = read_whole(config, &parts, body).await?;
        return match require_key(config, config.key.key_in_body(&parts, &body))? {
            // The scope is computed after the key: a request that may go without a key needs no known caller.
            Some(key) => Ok(protect(config, &scope_of(config, &parts)?, &key, Request::from_parts(parts, body))),
            None => Ok(Classified::Unprotected(Request::from_parts(parts, RequestBody::Whole(body)))),
        };
    }
    let Some(key) = require_key(config, config.key.key(&parts))? else {
        return Ok(stream_unprotected(parts, body));
    };
    let scope = scope_of(config, &parts)?;
    let body = read_whole(config, &parts, body).await?;
    Ok(protect(config, &scope, &key, Request::from_parts(parts, body)))
}

/// Whether the method is a protected one and no outer layer protects the request already.
fn is_protected(config: &LayerConfig, parts: &Parts) -> bool {
    if !config.methods.contains(&parts.method) {
        return false;
    }
    let has_attempt = parts.extensions.get::<Attempt>().is_some();
    if has_attempt {
        tracing::warn!("an outer idempotency layer protects this request already; this layer passes it on");
    }
    !has_attempt
}

/// Whether the request has a key, or must have one. Where keys are in bodies, it may have one.
fn is_key_expected(config: &LayerConfig, parts: &Parts) -> bool {
    config.key_required || config.key.is_in_body() || !matches!(config.key.key(parts), Ok(None))
}

/// Passes the request on with its body unread.
fn stream_unprotected<B>(parts: Parts, body: B) -> Classified<B> {
    Classified::Unprotected(Request::from_parts(parts, RequestBody::Streaming(Box::pin(body))))
}

/// The key of the request. `None` if it has none and the layer does not require one.
fn require_key(config: &LayerConfig, found: Result<Option<Key>, KeyMalformed>) -> Result<Option<Key>, Problem> {
    match found {
        Ok(None) if config.key_required => Err(Problem::KeyMissing(config.key.place())),
        Ok(key) => Ok(key),
        Err(malformed) => Err(Problem::KeyMalformed(malformed.0)),
    }
}

fn scope_of(config: &LayerConfig, parts: &Parts) -> Result<Scope, Problem> {
    config.scope.scope(&config.identity, parts).map_err(|unknown| Problem::CallerUnknown(unknown.0))
}

/// Reads the whole body, up to the limit of the layer.
async fn read_whole<B>(config: &LayerConfig, parts: &Parts, body: B) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError> + Send,
{
    match read_body(body, config.max_request_body).await {
        BodyRead::Complete(body) => Ok(body),
        BodyRead::TooLong(rest) => {
            if let Some(refused) = parts.extensions.get::<BodyRefused>() {
                refused.set();
            }
            if !is_body_held_back(parts, &rest) {
                timeout(&**config.gate.runtime(), DISCARDED_FOR, discard(rest, DISCARDED_BYTES)).await;
            }
            Err(Problem::BodyTooLarge { limit: config.max_request_body })
        }
        BodyRead::Failed(error) => {
            let error: BoxError = error.into();
            // A service around the layer names the cause with these two kinds of I/O error, as the gateway does.
            Err(match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::TimedOut) => Problem::BodyTimeout,
                Some(io::ErrorKind::QuotaExceeded) => Problem::Overloaded,
                _ => Problem::BodyCut,
            })
        }
    }
}

/// Whether the client waits for a go-ahead before it sends the body, and has not got one: nothing was read. To read now
/// would be the go-ahead (RFC 9110, 10.1.1).
fn is_body_held_back<B: Body<Data = Bytes>>(parts: &Parts, rest: &ResponseBody<B>) -> bool {
    let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    rest.bytes_in_memory() == 0 && parts.headers.get(EXPECT).is_some_and(expects)
}

/// Derives the call of a protected request.
fn protect<B>(config: &LayerConfig, scope: &Scope, key: &Key, request: Request<Bytes>) -> Classified<B> {
    let (mut parts, body) = request.into_parts();
    let mut call = config.identity.call(scope, key);
    call = call.fingerprint(config.fingerprint.fingerprint(&config.identity, &parts, &body));
    if let Some(RequestOrigin(origin)) = parts.extensions.get() {
        call = call.origin(*origin);
    }
    if let Some(slot) = parts.extensions.get::<RecordKeySlot>() {
        slot.set(call.record_key());
    }
    if let Some(older) = &config.older_fingerprint {
        call = call.or_older(older.fingerprint(&config.identity, &parts, &body));
    }
    // The recorded answer goes to every later client, also to one that cannot decode a compressed body (H38).
    parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Classified::Protected(call, Request::from_parts(parts, RequestBody::Whole(body)))
}

/// Runs the inner service through the gate, and answers with its response, the recorded one, or a problem.
async fn run_once<S, B, R>(
    config: &Arc<LayerConfig>,
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
    let handler_config = Arc::clone(config);
    // Boxed here, because a request is large and every function that it is passed to by value would copy it.
    let handler = Box::new(move |attempt| run_handler(handler_config, inner, request, attempt));
    let (result, live) = config.gate.run_with_local(call, handler).await;
    respond(&*config.problem, &call, result, live)
}
