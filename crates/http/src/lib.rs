//! The HTTP contract of Hapax as a tower layer.
//!
//! A `POST` or `PATCH` that carries an `Idempotency-Key` reaches the inner service once. Every copy gets the same status,
//! stored headers and body, marked `Idempotent-Replayed: true`; what cannot be answered is said as problem details (RFC 9457).
//!
//! ```text
//! layer.rs      IdempotencyLayer: what is protected, how much is kept
//! service.rs    one request: key, scope, body, fingerprint, gate
//! answer.rs     what its caller is given: the live response, the recorded one, or a problem
//! key.rs        where a key is, and how it is written
//! scope.rs      whose key it is: from authenticated facts
//! fingerprint.rs  what of a request is its payload
//! outcome.rs    what a response means: applied, final, not applied, denied, unknown
//! stored.rs     a response as it is recorded
//! problem.rs    every refusal, with its status, type and advice
//! page.rs       the contract as it is published
//! body.rs       bodies that are whole, and bodies that stream past
//! headers.rs    the names of the header fields
//! axum.rs       extractors and responses for handlers of axum (feature `axum`)
//! ```
//!
//! Five traits of one method each say what a service wants otherwise: [`MakeScope`], [`FindKey`], [`MakeFingerprint`],
//! [`JudgeOutcome`] and [`ShowProblem`]. A closure is one of each.

mod answer;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod fingerprint;
pub mod headers;
mod key;
mod layer;
mod outcome;
mod page;
mod problem;
mod scope;
mod service;
mod stored;

pub use answer::Handled;
pub use body::{RequestBody, ResponseBody};
pub use fingerprint::{MakeFingerprint, RawFingerprint};
pub use key::{FindKey, Grammar, JsonKey, KeyField, KeyFormat, KeyMalformed};
pub use layer::{IdempotencyLayer, NeedsScope};
pub use outcome::{JudgeOutcome, Outcome, StatusOutcomes};
pub use page::PolicyPage;
pub use problem::{PAGE, Problem, ProblemDetails, ShowProblem};
pub use scope::{CallerUnknown, MakeScope, Tenant, TenantScope};
pub use service::Idempotency;
