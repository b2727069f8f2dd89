//! The layer around small services, on the memory store.

#![expect(clippy::disallowed_methods, reason = "the tests themselves run on tokio")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod answers;
mod cancellation;
mod contract;
mod edge_cases;
mod hostile;
mod keys;
#[cfg(feature = "axum")]
mod layers;
mod outcomes;
mod store_failures;
mod world;
