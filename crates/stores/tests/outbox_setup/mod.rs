//! The outbox suite's setups.

pub(crate) mod memory;
pub(crate) mod postgres;
pub(crate) mod spanner;
pub(crate) mod sqlite;
