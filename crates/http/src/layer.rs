use std::fmt;
use std::sync::Arc;

use hapax_core::{Error, ErrorKind, Gate, Identity};
use http::{HeaderName, Method};
use tower_layer::Layer;

use crate::fingerprint::{MakeFingerprint, RawFingerprint};
use crate::headers::is_storable;
use crate::key::{FindKey, KeyField};
use crate::outcome::{JudgeOutcome, StatusOutcomes};
use crate::page::PolicyPage;
use crate::problem::{ProblemDetails, ShowProblem};
use crate::scope::MakeScope;
use crate::service::Idempotency;

/// Protects the `POST` and `PATCH` requests of an inner service: each key reaches it once.
///
/// # Where it goes
/// The handler runs in a task of its own and is never cancelled, so whatever may drop it must be outside of this layer; whatever
/// says who the caller is must be outside, too, because a replay does not reach what is inside.
///
/// | layer | goes | else |
/// |---|---|---|
/// | authentication | outside | a replay is given to whoever has the key |
/// | timeout | outside | it drops the handler in mid-work and answers 408, which counts as *unknown* |
/// | concurrency limit | outside | a copy waits for room, instead of being told that the first still runs |
/// | load shedding | outside | a request that was shed ends with an error, which counts as *unknown* |
/// | compression | outside | it finds `Accept-Encoding: identity` and does nothing |
/// | trace, metrics | outside | replays are not seen |
/// | another `IdempotencyLayer` | nowhere | the inner one lets the request pass |
/// | `Router::nest` of axum | inside, or outside with the feature `axum` | the prefix would not count as path |
///
/// ```
/// # use tower::{ServiceBuilder, service_fn};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hapax_core::store::Memory;
/// use hapax_core::{Gate, Identity, Settings};
/// use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
///
/// let store = Memory::new();
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// let scope = TenantScope::new("payments", Tenant::Authorization, Identity::plain())?;
/// let idempotency = IdempotencyLayer::new(gate).scope(scope);
///
/// // The first layer is the outermost: a caller who waits for too long is told so, and the work goes on.
/// # let handler = service_fn(|_: http::Request<hapax_http::RequestBody<http_body_util::Empty<bytes::Bytes>>>| async {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
/// # });
/// let service = ServiceBuilder::new().timeout(Duration::from_secs(10)).layer(idempotency).service(handler);
/// # Ok(())
/// # }
/// ```
///
/// The other way around is wrong: `.layer(idempotency).timeout(Duration::from_secs(10))` drops the handler after ten seconds, and
/// nobody knows what it has done by then. The key is held as *unknown*; nothing runs twice, but nobody gets an answer.
#[derive(Clone)]
pub struct IdempotencyLayer {
    config: Arc<Config>,
}

/// A layer that does not know yet whose keys it will see: [`NeedsScope::scope`] completes it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax_core::store::Memory;
/// # use hapax_core::{Gate, Identity, Settings};
/// # use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
/// # let store = Memory::new();
/// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// use hapax_core::Scope;
/// use hapax_http::CallerUnknown;
///
/// // One tenant: all callers share their keys, and can be given each other's answers.
/// let layer = IdempotencyLayer::new(gate)
///     .scope(|_: &http::request::Parts| Scope::untenanted("payments").map_err(|error| CallerUnknown(error.to_string())));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NeedsScope {
    gate: Gate,
}

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) gate: Gate,
    pub(crate) identity: Identity,
    pub(crate) scope: Arc<dyn MakeScope>,
    pub(crate) key: Arc<dyn FindKey>,
    pub(crate) key_required: bool,
    pub(crate) fingerprint: Arc<dyn MakeFingerprint>,
    pub(crate) former_fingerprint: Option<Arc<dyn MakeFingerprint>>,
    pub(crate) outcome: Arc<dyn JudgeOutcome>,
    pub(crate) problem: Arc<dyn ShowProblem>,
    pub(crate) methods: Vec<Method>,
    pub(crate) store_headers: Vec<HeaderName>,
    pub(crate) max_request_body: usize,
    pub(crate) max_stored_body: usize,
}

const MIB: usize = 1 << 20;

impl NeedsScope {
    /// Tells whose key a request carries: [`TenantScope`](crate::TenantScope), or a closure over the head of the request.
    #[must_use]
    pub fn scope(self, scope: impl MakeScope) -> IdempotencyLayer {
        let config = Config {
            gate: self.gate,
            identity: Identity::plain(),
            scope: Arc::new(scope),
            key: Arc::new(KeyField::default()),
            key_required: true,
            fingerprint: Arc::new(RawFingerprint),
            former_fingerprint: None,
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

impl IdempotencyLayer {
    /// A layer over this gate. One route may have another policy than the next: give each a layer over [`Gate::with`].
    #[expect(clippy::new_ret_no_self, reason = "there is no layer without a scope")]
    pub fn new(gate: Gate) -> NeedsScope {
        NeedsScope { gate }
    }

    /// Derives ids under this identity instead of the plain one.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.changed(|config| config.identity = identity)
    }

    /// Reads keys like this: [`KeyField`], [`JsonKey`](crate::JsonKey), or a closure over the head of the request.
    #[must_use]
    pub fn key(self, key: impl FindKey) -> Self {
        self.changed(|config| config.key = Arc::new(key))
    }

    /// Lets requests without a key pass unprotected, instead of answering 400 `key-missing`.
    #[must_use]
    pub fn key_optional(self) -> Self {
        self.changed(|config| config.key_required = false)
    }

    /// Compares payloads like this: [`RawFingerprint`], or a closure over the request and its body.
    #[must_use]
    pub fn fingerprint(self, fingerprint: impl MakeFingerprint) -> Self {
        self.changed(|config| config.fingerprint = Arc::new(fingerprint))
    }

    /// Also accepts records that were made under this older rule, so that a rule can change without a wave of 422.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::store::Memory;
    /// # use hapax_core::{Gate, Identity, Settings};
    /// # use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("payments", Tenant::Authorization, Identity::plain())?);
    /// use bytes::Bytes;
    /// use hapax_core::Rule;
    /// use hapax_http::RawFingerprint;
    /// use http::request::Parts;
    ///
    /// // From now on the body alone is compared. What was recorded under the older rule stays a copy until it expires.
    /// let body_alone = |identity: &Identity, _: &Parts, body: &Bytes| identity.fingerprint(Rule(2), &[body]);
    /// let layer = layer.fingerprint(body_alone).formerly(RawFingerprint);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn formerly(self, fingerprint: impl MakeFingerprint) -> Self {
        self.changed(|config| config.former_fingerprint = Some(Arc::new(fingerprint)))
    }

    /// Reads responses like this where they declare no outcome: [`StatusOutcomes`], or a closure over the head of the response.
    #[must_use]
    pub fn outcome(self, outcome: impl JudgeOutcome) -> Self {
        self.changed(|config| config.outcome = Arc::new(outcome))
    }

    /// Shows problems like this: [`ProblemDetails`], or a closure.
    #[must_use]
    pub fn problem(self, problem: impl ShowProblem) -> Self {
        self.changed(|config| config.problem = Arc::new(problem))
    }

    /// Protects requests of these methods, instead of `POST` and `PATCH`; all others stream past.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::store::Memory;
    /// # use hapax_core::{Gate, Identity, Settings};
    /// # use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("payments", Tenant::Authorization, Identity::plain())?);
    /// use http::Method;
    ///
    /// let layer = layer.methods([Method::POST, Method::PATCH, Method::DELETE]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.changed(|config| config.methods = methods.into_iter().collect())
    }

    /// Stores this header, too, beside Content-Type, Content-Language, Content-Disposition, Content-Encoding with Vary, Location,
    /// ETag, Link and Retry-After.
    ///
    /// # Errors
    /// `Invalid` for what belongs to one connection, one moment or one client: hop-by-hop and framing fields, Date, Set-Cookie and
    /// authentication challenges.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::store::Memory;
    /// # use hapax_core::{Gate, Identity, Settings};
    /// # use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("payments", Tenant::Authorization, Identity::plain())?);
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
            let message = format!("{name} belongs to one connection, moment or client, and cannot be given to another");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(self.changed(|config| config.store_headers.push(name)))
    }

    /// The longest body of a protected request, in bytes; a longer one is answered with 413. 1 MiB.
    #[must_use]
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.changed(|config| config.max_request_body = bytes)
    }

    /// The longest body of an answer that is kept, in bytes; a longer one is passed on, and its copies get 409 `not-replayable`. 1 MiB.
    #[must_use]
    pub fn max_stored_body(self, bytes: usize) -> Self {
        self.changed(|config| config.max_stored_body = bytes)
    }

    /// The page on which this layer's contract is published, to be served at [`PAGE`](crate::PAGE).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::store::Memory;
    /// # use hapax_core::{Gate, Identity, Settings};
    /// # use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("payments", Tenant::Authorization, Identity::plain())?);
    /// assert_eq!(layer.page().json()["retention"]["seconds"], 86_400);
    /// # Ok(())
    /// # }
    /// ```
    pub fn page(&self) -> PolicyPage {
        PolicyPage::of(&self.config)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn changed(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency { inner, config: Arc::clone(&self.config) }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("gate", &self.config.gate).finish_non_exhaustive()
    }
}
