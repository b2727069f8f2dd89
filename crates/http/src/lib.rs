//! The HTTP contract of Hapax as a tower layer.
//!
//! A `POST` or `PATCH` that carries an `Idempotency-Key` reaches the inner service once. Every copy gets the same status,
//! stored headers and body, marked `Idempotent-Replayed: true`; what cannot be answered is said as problem details (RFC 9457).
//!
//! ```text
//! layer.rs      IdempotencyLayer: what is protected, how much is kept
//! service.rs    one request: key, scope, body, fingerprint, gate, answer
//! key.rs        the grammar of the Idempotency-Key field
//! scope.rs      whose key it is: from authenticated facts
//! outcome.rs    what a status means: applied, final, not applied, unknown
//! stored.rs     a response as it is recorded
//! problem.rs    every refusal, with its status, type and advice
//! body.rs       bodies that are whole, and bodies that stream past
//! ```

mod body;
mod key;
mod layer;
mod outcome;
mod problem;
mod scope;
mod service;
mod stored;

pub use body::{RequestBody, ResponseBody};
pub use layer::{IdempotencyLayer, NeedsScope};
pub use outcome::Outcome;
pub use problem::Problem;
pub use scope::{CallerUnknown, MakeScope, Tenant, TenantScope};
pub use service::Idempotency;
