//! The tools of an operator: the admin listener, the metrics and the stop signal.

pub(crate) mod admin;
pub(crate) mod metrics;
pub(crate) mod signals;
