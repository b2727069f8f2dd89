//! The tools of an operator: the admin listener, the metrics, signals and the orderly stop.

pub(crate) mod admin;
pub(crate) mod metrics;
mod process;
pub(crate) mod shutdown;
pub(crate) mod signals;
