//! The conformance cases, one folder for each thing that a backend implements.

pub(crate) mod ledger;
pub(crate) mod outbox;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod store;
