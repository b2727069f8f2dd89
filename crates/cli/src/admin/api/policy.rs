//! What a process does, and under which policy.

use std::time::Duration;

use hapax::{OnBusy, OnLapse, OnStoreDown, Policy};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The policy of a process, for operators.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PolicyDescription {
    /// The kind of the process, such as `gateway`.
    pub(crate) process: String,
    version: String,
    pub(crate) namespace: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl PolicyDescription {
    /// The description of a process with this namespace.
    pub(crate) fn new(process: &str, namespace: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { process: process.to_owned(), version, namespace: namespace.to_owned(), fields: Map::new() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.to_owned(), value);
        self
    }
}

/// A policy of the gate.
pub(crate) fn policy_fields(policy: &Policy) -> Value {
    let seconds = |duration: Duration| json!(duration.as_secs_f64());
    let wait = match policy.on_busy {
        OnBusy::Reject => Duration::ZERO,
        OnBusy::Wait(wait) => wait,
    };
    json!({
        "lease_seconds": seconds(policy.lease),
        "retention_seconds": seconds(policy.retention),
        "final_retention_seconds": seconds(policy.final_retention.unwrap_or(policy.retention)),
        "unknown_retention_seconds": seconds(policy.unknown_retention),
        "released_retention_seconds": seconds(policy.released_retention),
        "max_execution_seconds": seconds(policy.max_execution),
        "wait_seconds": seconds(wait),
        "on_lapse": on_lapse(&policy.on_lapse),
        "when_store_down": when_store_down(&policy.on_store_down),
    })
}

/// The name of a lapse policy, as `--on-lapse` takes it.
pub(crate) fn on_lapse(policy: &OnLapse) -> &'static str {
    match policy {
        OnLapse::Hold => "hold",
        OnLapse::Retry(_) => "retry",
        OnLapse::Resolve(_) => "resolve",
    }
}

fn when_store_down(policy: &OnStoreDown) -> &'static str {
    match policy {
        OnStoreDown::Reject => "reject",
        OnStoreDown::Pass(_) => "pass",
    }
}
