//! The HTTP contract of Hapax as a tower layer.
//!
//! A `POST` or `PATCH` with an `Idempotency-Key` reaches the inner service once. Every copy gets the same status,
//! stored headers and body, marked `Idempotent-Replayed: true`. A refused request gets problem details (RFC 9457).
//!
//! ```text
//! layer.rs      IdempotencyLayer and its configuration: protected methods, key, scope, fingerprint, outcomes, limits
//! service.rs    one request through the layer: key, scope, body, fingerprint, gate, response
//! answer.rs     from the response of the inner service to the response of the caller
//! key.rs        where a request has its key, and the syntax of keys
//! call.rs       the scope of the caller
//! fingerprint.rs  the fingerprint of the payload
//! outcome.rs    what a response means: applied, final, not applied, denied, unknown
//! stored.rs     the stored form of a response
//! recorded.rs   a recorded response as an operator reads and writes it
//! problem.rs    every refusal, with its status, type and advice; problem/spec.rs is their table, problem/template.rs
//!               shows them in the shape of the errors of an API
//! page.rs       the policy page, which publishes the contract of a server
//! grpc.rs       calls of gRPC, which are refused where the layer would protect them
//! body.rs       request and response bodies: whole, or streamed
//! headers.rs    the names of the header fields
//! axum.rs       extractors and responses for handlers of axum (feature `axum`)
//! ```
//!
//! Five traits of one required method each change a decision of the layer: [`MakeScope`], [`FindKey`],
//! [`MakeFingerprint`], [`JudgeOutcome`] and [`ShowProblem`]. Each has two methods of the layer: `key` takes a closure,
//! and `key_with` takes a type that implements the trait, for instance a [`KeyField`].

mod answer;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod call;
mod fingerprint;
mod grpc;
pub mod headers;
mod key;
mod layer;
mod multipart;
mod outcome;
mod page;
mod problem;
mod recorded;
mod service;
mod stored;

pub use answer::{ProtectedOutcome, RequestSummary};
pub use body::{RequestBody, ResponseBody};
pub use call::{BodyRefused, CallerUnknown, MakeScope, RecordKeySlot, RequestOrigin, Tenant, TenantPart};
pub use fingerprint::{MakeFingerprint, RawFingerprint};
pub use key::{FindKey, Grammar, JsonKey, KeyField, KeyFormat, KeyMalformed};
pub use layer::{IdempotencyLayer, UnscopedLayer};
pub use outcome::{JudgeOutcome, Outcome, StatusOutcomes};
pub use page::PolicyPage;
pub use problem::{PAGE, Problem, ProblemDetails, ProblemTemplate, ShowProblem};
pub use recorded::RecordedResponse;
pub use service::Idempotency;
