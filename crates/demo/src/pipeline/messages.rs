//! The messages to the workers, and the events to the consumers.

use anyhow::{Context, Result};
use hapax::broker::{Job, Message};
use hapax::ledger::Event;
use serde_json::Value;

use super::rows::account;
use crate::traffic::PaymentOrder;

/// The queue between the service and its workers.
pub(super) const CHARGES: &str = "charges";

/// The queue between the relay and the consumers.
pub(super) const RECEIPTS: &str = "receipts";

/// The namespace of the workers' ledger and events.
pub(super) const PAYMENTS: &str = "payments";

/// The message of an order. Copies of an order have the same payload.
pub(super) fn message(order: &PaymentOrder, operation: &str) -> Message {
    Message {
        payload: order.body(),
        headers: [("Idempotency-Key", operation.to_owned())].into_iter().collect(),
        ordering_key: Some(account(order).into()),
        ..Message::default()
    }
}

/// The key of a message, as text.
pub(super) fn key(job: &Job) -> String {
    String::from_utf8_lossy(job.key.as_bytes()).into_owned()
}

/// The order in a message.
pub(super) fn order(job: &Job) -> Result<PaymentOrder> {
    let json = serde_json::from_slice(&job.message.payload)?;
    PaymentOrder::read(&json).context("the message is no order")
}

/// The event that tells of a charge.
pub(super) fn event(topic: &str, charge: i64, order: &PaymentOrder) -> Event {
    Event::new(topic, order.json("charge", charge).to_string()).ordered_by(account(order))
}

/// The charge that an event tells of, and its order.
pub(super) fn charge(job: &Job) -> Result<(i64, PaymentOrder)> {
    let event: Value = serde_json::from_slice(&job.message.payload)?;
    let charge = event.get("charge").and_then(Value::as_i64);
    charge.zip(PaymentOrder::read(&event)).context("the event is of no charge")
}
