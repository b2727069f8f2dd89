//! The commands, each in its own file. No other module depends on them.

pub(crate) mod backup;
pub(crate) mod dead;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod gateway;
pub(crate) mod guide;
mod instant;
pub(crate) mod journal;
pub(crate) mod keys;
pub(crate) mod manual;
pub(crate) mod migrate;
mod number_format;
pub(crate) mod outbox;
pub(crate) mod plan;
mod print;
mod progress;
pub(crate) mod reconcile;
pub(crate) mod relay;
pub(crate) mod worker;
