//! The layer around small services, on the memory store.

#![expect(clippy::disallowed_methods, reason = "the tests themselves run on tokio")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod abuse;
mod answers;
mod contract;
mod drops;
mod edges;
mod keys;
#[cfg(feature = "axum")]
mod layers;
mod outcomes;
mod trouble;
mod world;
