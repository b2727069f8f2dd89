//! The layer around small services, on the memory store.

#![expect(clippy::disallowed_methods, reason = "the tests themselves run on tokio")]

mod answers;
mod keys;
mod outcomes;
mod world;
