use std::fmt;
use std::sync::Arc;

use hapax_core::{Gate, Identity};
use http::Method;
use tower_layer::Layer;

use crate::scope::MakeScope;
use crate::service::Idempotency;

/// Protects the `POST` and `PATCH` requests of an inner service: each key reaches it once.
///
/// Put it inside of authentication and outside of nothing that drops the handler: a timeout layer goes around it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax_core::runtime::Tokio;
/// use hapax_core::store::{Memory, MemorySettings};
/// use hapax_core::{Gate, Identity, Settings};
/// use hapax_http::{IdempotencyLayer, Tenant, TenantScope};
///
/// let store = Memory::new(Arc::new(Tokio::current()), MemorySettings::default());
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// let layer = IdempotencyLayer::new(gate).scope(TenantScope::new("payments", Tenant::Authorization, Identity::plain())?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    pub(crate) config: Arc<Config>,
}

/// A layer that does not know yet whose keys it will see: [`NeedsScope::scope`] completes it.
#[derive(Debug)]
pub struct NeedsScope {
    gate: Gate,
}

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) gate: Gate,
    pub(crate) identity: Identity,
    pub(crate) scope: Arc<dyn MakeScope>,
    pub(crate) max_request_body: usize,
    pub(crate) max_stored_body: usize,
}

impl Config {
    pub(crate) fn protects(&self, method: &Method) -> bool {
        matches!(*method, Method::POST | Method::PATCH)
    }
}

const MIB: usize = 1 << 20;

impl IdempotencyLayer {
    /// A layer over this gate.
    #[expect(clippy::new_ret_no_self, reason = "there is no layer without a scope")]
    pub fn new(gate: Gate) -> NeedsScope {
        NeedsScope { gate }
    }

    /// Derives ids under this identity instead of the plain one.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.changed(|config| config.identity = identity)
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

    fn changed(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl NeedsScope {
    /// Tells whose key a request carries.
    #[must_use]
    pub fn scope(self, scope: impl MakeScope) -> IdempotencyLayer {
        let config = Config {
            gate: self.gate,
            identity: Identity::plain(),
            scope: Arc::new(scope),
            max_request_body: MIB,
            max_stored_body: MIB,
        };
        IdempotencyLayer { config: Arc::new(config) }
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
