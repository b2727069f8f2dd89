//! `hapax relay`: publishes the events of an outbox after their transactions have committed.

pub(crate) use crate::relay::run::{RelayArgs, run};
