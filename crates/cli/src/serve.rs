//! What every process that serves needs: its frame, addresses, signals, the orderly stop, logs, metrics, traces and
//! their export, and the errors of commands.

pub(crate) mod bind;
pub(crate) mod client_address;
pub(crate) mod exit;
pub(crate) mod frame;
pub(crate) mod history;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod otlp;
mod process;
pub(crate) mod shutdown;
pub(crate) mod signals;
