//! `hapax gateway`: stands in front of an HTTP API and makes its requests safe to retry.

pub(crate) use crate::gateway::run::{GatewayArgs, run};
