//! The conformance cases, one folder for each trait that a backend implements.

pub(crate) mod store;
