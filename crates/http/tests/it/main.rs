//! The layer around small services, on the memory store.

mod answers;
mod keys;
mod outcomes;
mod world;
