use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Fingerprint, Gate, Identity, Key, RecordKey, Scope};
use http::request::Parts;
use http::response::Parts as ResponseParts;
use http::{HeaderName, Method, Response};
use tower_layer::Layer;

use crate::call::{CallerUnknown, MakeScope, Tenant, TenantScope};
use crate::fingerprint::{MakeFingerprint, RawFingerprint};
use crate::headers::{is_reserved, is_storable};
use crate::key::{FindKey, KeyField, KeyMalformed};
use crate::outcome::{JudgeOutcome, Outcome, StatusOutcomes};
use crate::problem::{Problem, ProblemDetails, ShowProblem};
use crate::service::Idempotency;

/// Protects the `POST` and `PATCH` requests of an inner service. A copy of a request that is running or answered does
/// not reach the inner service. The next copy reaches it again after a response that means *not applied*, and under the
/// policy `retry` also if the outcome is unknown.
///
/// # Order of layers
/// The handler runs in a task of its own and is never cancelled. So every layer that may drop the handler must be
/// outside of this layer. Layers that authenticate the caller must be outside too, because a replay does not reach the
/// inner layers.
///
/// | layer | place | otherwise |
/// |---|---|---|
/// | authentication | outside | a replay is given to anybody who knows the key |
/// | timeout | outside | the timeout drops the running handler and answers 408, which means *unknown* |
/// | concurrency limit | outside | a copy waits for a permit instead of getting 409 `in-progress` |
/// | load shedding | outside | a rejected request ends with an error, which means *unknown* |
/// | compression | outside | compression sees `Accept-Encoding: identity` and does nothing |
/// | trace, metrics | outside | replays are not counted |
/// | another `IdempotencyLayer` | nowhere | the inner one protects nothing, and logs a warning |
/// | `Router::nest` of axum | inside, or outside with the feature `axum` | the prefix is missing from the fingerprint |
///
/// ```
/// # use tower::{ServiceBuilder, service_fn};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hapax::store::Memory;
/// use hapax::{Gate, Settings};
/// use hapax::http::{IdempotencyLayer, Tenant};
///
/// let store = Memory::new();
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// let idempotency = IdempotencyLayer::new(gate).tenant("payments", Tenant::Authorization)?;
///
/// // The first layer is the outermost. A caller who waits too long gets the timeout's response; the handler continues.
/// # let handler = service_fn(|_: http::Request<hapax::http::RequestBody<http_body_util::Empty<bytes::Bytes>>>| async {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
/// # });
/// let service = ServiceBuilder::new().timeout(Duration::from_secs(10)).layer(idempotency).service(handler);
/// # Ok(())
/// # }
/// ```
///
/// The reverse order is wrong: `.layer(idempotency).timeout(Duration::from_secs(10))` drops the handler after ten
/// seconds, and the outcome is unknown. Nothing runs twice, but no copy gets an answer.
#[derive(Clone)]
pub struct IdempotencyLayer {
    pub(crate) config: Arc<LayerConfig>,
}

/// An [`IdempotencyLayer`] without a scope. [`UnscopedLayer::tenant`] or [`UnscopedLayer::scope`] completes it. Without
/// one of them it is no layer:
///
/// ```compile_fail,E0277
/// # fn protect(gate: hapax::Gate) {
/// use axum::Router;
/// use hapax::http::IdempotencyLayer;
///
/// let router: Router = Router::new().layer(IdempotencyLayer::new(gate));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct UnscopedLayer {
    gate: Gate,
}

#[derive(Clone)]
pub(crate) struct LayerConfig {
    pub(crate) gate: Gate,
    pub(crate) identity: Identity,
    pub(crate) scope: Arc<dyn MakeScope>,
    pub(crate) key: Arc<dyn FindKey>,
    pub(crate) key_required: bool,
    pub(crate) fingerprint: Arc<dyn MakeFingerprint>,
    pub(crate) older_fingerprint: Option<Arc<dyn MakeFingerprint>>,
    pub(crate) outcome: Arc<dyn JudgeOutcome>,
    pub(crate) problem: Arc<dyn ShowProblem>,
    pub(crate) methods: Vec<Method>,
    pub(crate) store_headers: Vec<HeaderName>,
    pub(crate) max_request_body: usize,
    pub(crate) max_stored_body: usize,
}

const MIB: usize = 1 << 20;

impl UnscopedLayer {
    /// Finds the caller of a request in this place. The namespace is the name of the service.
    ///
    /// # Errors
    /// `Invalid` if the namespace is empty.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # let gate = Gate::builder(Arc::new(Memory::new()), Settings::default()).build()?;
    /// use hapax::http::{IdempotencyLayer, Tenant};
    /// use http::HeaderName;
    ///
    /// let account = Tenant::Header(HeaderName::from_static("x-account"));
    /// let layer = IdempotencyLayer::new(gate).tenant("payments", account)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tenant(self, namespace: impl Into<String>, tenant: Tenant) -> Result<IdempotencyLayer, Error> {
        Ok(self.scope_with(TenantScope::new(namespace.into(), tenant)?))
    }

    /// Finds the caller of a request with a closure over its head.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # use hapax::http::IdempotencyLayer;
    /// # let gate = Gate::builder(Arc::new(Memory::new()), Settings::default()).build()?;
    /// use hapax::Scope;
    ///
    /// // A proxy has authenticated the account.
    /// let layer = IdempotencyLayer::new(gate).scope(|parts| {
    ///     let account = parts.headers.get("x-account").ok_or("send X-Account")?;
    ///     Ok(Scope::tenant("payments", account.as_bytes())?)
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn scope(
        self,
        scope: impl Fn(&Parts) -> Result<Scope, CallerUnknown> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.scope_with(scope)
    }

    /// As [`scope`](Self::scope), with a type of your own that implements [`MakeScope`].
    #[must_use]
    pub fn scope_with(self, scope: impl MakeScope) -> IdempotencyLayer {
        let config = LayerConfig {
            gate: self.gate,
            identity: Identity::plain(),
            scope: Arc::new(scope),
            key: Arc::new(KeyField::default()),
            key_required: true,
            fingerprint: Arc::new(RawFingerprint::default()),
            older_fingerprint: None,
            outcome: Arc::new(StatusOutcomes::default()),
            problem: Arc::new(ProblemDetails::default()),
            methods: vec![Method::POST, Method::PATCH],
            store_headers: Vec::new(),
            max_request_body: MIB,
            max_stored_body: MIB,
        };
        IdempotencyLayer { config: Arc::new(config) }
    }
}

/// Implemented by no type. The compiler shows its message for a layer that has no scope.
#[diagnostic::on_unimplemented(
    message = "this idempotency layer does not know the callers of its requests",
    label = "the layer has no scope",
    note = "call `.tenant(\"NAME OF THE SERVICE\", Tenant::Authorization)?` or `.scope(|parts| …)` on it before"
)]
#[doc(hidden)]
pub trait HasScope<S> {
    fn with_scope(&self) -> IdempotencyLayer;
}

/// Exists for the message of the compiler; it never applies.
#[doc(hidden)]
impl<S> Layer<S> for UnscopedLayer
where
    Self: HasScope<S>,
{
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        self.with_scope().layer(inner)
    }
}

impl IdempotencyLayer {
    /// A layer over this gate. Routes with different policies need a layer each, over gates made with [`Gate::with`].
    #[expect(clippy::new_ret_no_self, reason = "there is no layer without a scope")]
    pub fn new(gate: Gate) -> UnscopedLayer {
        UnscopedLayer { gate }
    }

    /// Derives record keys, fingerprints and hashes of credentials under this identity instead of [`Identity::plain`].
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.change(|config| config.identity = identity)
    }

    /// Finds keys with a closure over the head of the request.
    ///
    /// ```
    /// # fn older_clients(layer: hapax::http::IdempotencyLayer) -> hapax::http::IdempotencyLayer {
    /// use hapax::Key;
    ///
    /// layer.key(|parts| match parts.headers.get("x-request-id") {
    ///     Some(id) => Ok(Some(Key::new(id.as_bytes())?)),
    ///     None => Ok(None),
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Result<Option<Key>, KeyMalformed> + Send + Sync + 'static) -> Self {
        self.key_with(key)
    }

    /// Finds keys with a [`KeyField`] or a [`JsonKey`](crate::JsonKey).
    #[must_use]
    pub fn key_with(self, key: impl FindKey) -> Self {
        self.change(|config| config.key = Arc::new(key))
    }

    /// Passes requests without a key on unprotected, instead of answering 400 `key-missing`.
    #[must_use]
    pub fn key_optional(self) -> Self {
        self.change(|config| config.key_required = false)
    }

    /// Makes the fingerprint of a payload with a closure over the head of the request and its body. Payloads with the
    /// same fingerprint count as the same.
    #[must_use]
    pub fn fingerprint(
        self,
        fingerprint: impl Fn(&Identity, &Parts, &Bytes) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.fingerprint_with(fingerprint)
    }

    /// As [`fingerprint`](Self::fingerprint), with a [`RawFingerprint`], which is the default, or with a type of your
    /// own.
    #[must_use]
    pub fn fingerprint_with(self, fingerprint: impl MakeFingerprint) -> Self {
        self.change(|config| config.fingerprint = Arc::new(fingerprint))
    }

    /// Also accepts records made under this older rule, so that a new rule does not answer 422 to copies of old
    /// requests.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # use hapax::http::{IdempotencyLayer, Tenant};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).tenant("payments", Tenant::Authorization)?;
    /// use hapax::Rule;
    /// use hapax::http::RawFingerprint;
    ///
    /// // New records compare only the body. Copies of older records are still recognized until those records expire.
    /// let layer = layer
    ///     .fingerprint(|identity, _, body| identity.fingerprint(Rule(2), &[body]))
    ///     .older_fingerprint_with(RawFingerprint::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn older_fingerprint(
        self,
        fingerprint: impl Fn(&Identity, &Parts, &Bytes) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.older_fingerprint_with(fingerprint)
    }

    /// As [`older_fingerprint`](Self::older_fingerprint), with a [`RawFingerprint`] or a type of your own.
    #[must_use]
    pub fn older_fingerprint_with(self, fingerprint: impl MakeFingerprint) -> Self {
        self.change(|config| config.older_fingerprint = Some(Arc::new(fingerprint)))
    }

    /// Decides the outcome of a response with a closure over its head. The closure is asked only about responses that
    /// declare no [`Outcome`].
    #[must_use]
    pub fn outcome(self, outcome: impl Fn(&ResponseParts) -> Outcome + Send + Sync + 'static) -> Self {
        self.outcome_with(outcome)
    }

    /// As [`outcome`](Self::outcome), with a [`StatusOutcomes`], which is the default, or with a type of your own.
    #[must_use]
    pub fn outcome_with(self, outcome: impl JudgeOutcome) -> Self {
        self.change(|config| config.outcome = Arc::new(outcome))
    }

    /// Makes the responses of refused requests with a closure.
    #[must_use]
    pub fn problem(
        self,
        problem: impl Fn(&Problem, Option<&RecordKey>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.problem_with(problem)
    }

    /// As [`problem`](Self::problem), with a [`ProblemDetails`], which is the default, or with a type of your own.
    #[must_use]
    pub fn problem_with(self, problem: impl ShowProblem) -> Self {
        self.change(|config| config.problem = Arc::new(problem))
    }

    /// Protects requests of these methods instead of `POST` and `PATCH`. All other requests are passed on unprotected.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.change(|config| config.methods = methods.into_iter().collect())
    }

    /// Also stores the header of this name. Content-Type, Content-Language, Content-Disposition, Content-Encoding,
    /// Vary, Location, ETag, Link, Retry-After, Allow and Content-Range are stored anyway. A value of 64 KiB or more is
    /// left out.
    ///
    /// # Errors
    /// - `Invalid` for headers that belong to one connection, one moment or one client: hop-by-hop and framing fields,
    ///   Date, Set-Cookie and authentication challenges.
    /// - `Invalid` for headers that only Hapax sets: `Idempotent-Replayed`, `Idempotency-Key-Expires`, and all whose
    ///   names begin with `Hapax-`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # use hapax::http::{IdempotencyLayer, Tenant};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).tenant("payments", Tenant::Authorization)?;
    /// use http::HeaderName;
    /// use http::header::SET_COOKIE;
    ///
    /// let layer = layer.store_header(HeaderName::from_static("x-cost"))?;
    /// assert!(layer.store_header(SET_COOKIE).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_header(self, name: HeaderName) -> Result<Self, Error> {
        if !is_storable(&name) {
            let why = match is_reserved(&name) {
                true => "only Hapax sets it",
                false => "it belongs to one connection, moment or client",
            };
            return Err(Error::new(ErrorKind::Invalid, format!("{name} cannot be stored: {why}")));
        }
        Ok(self.change(|config| config.store_headers.push(name)))
    }

    /// The length of the longest body of a protected request, in bytes. A longer one gets 413. The default is 1 MiB.
    #[must_use]
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.change(|config| config.max_request_body = bytes)
    }

    /// The length of the longest response body that is stored, in bytes. The default is 1 MiB. A longer one is passed
    /// on, and copies of its request get 409 `not-replayable`.
    #[must_use]
    pub fn max_stored_body(self, bytes: usize) -> Self {
        self.change(|config| config.max_stored_body = bytes)
    }

    fn change(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        // Copies the configuration if a service or a clone of the layer shares it, so those do not change.
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("gate", &self.config.gate).finish_non_exhaustive()
    }
}
