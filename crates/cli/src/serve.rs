//! What every process that serves needs: signals, the orderly stop, logs, metrics, traces and their export.

pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod otlp;
mod process;
pub(crate) mod shutdown;
pub(crate) mod signals;
