//! The relay between an outbox and a sink.

pub(crate) mod health;
pub(crate) mod opening;
