//! What a process does, and under which policy.

use std::time::Duration;

use hapax::{OnBusy, OnLapse, OnStoreDown, Policy};
use serde_json::{Map, Value, json};

/// The policy of a process, for operators.
#[derive(Debug)]
pub(crate) struct PolicyDescription {
    process: &'static str,
    fields: Map<String, Value>,
}

impl PolicyDescription {
    /// The description of a process with this namespace.
    pub(crate) fn new(process: &'static str, namespace: &str) -> Self {
        Self { process, fields: Map::new() }
            .with("process", json!(process))
            .with("version", json!(env!("CARGO_PKG_VERSION")))
            .with("namespace", json!(namespace))
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.to_owned(), value);
        self
    }

    /// What the process is, for errors: `gateway`.
    pub(crate) fn process(&self) -> &'static str {
        self.process
    }

    pub(crate) fn into_json(self) -> Value {
        Value::Object(self.fields)
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

fn on_lapse(policy: &OnLapse) -> &'static str {
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
