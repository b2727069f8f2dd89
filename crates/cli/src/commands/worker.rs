//! `hapax worker`: takes messages from a broker, hands each to a service, and acknowledges it afterwards.

pub(crate) use crate::worker::run::{WorkerArgs, run};
