//! The consumer: sends a receipt for each charge. Its ledger, the inbox, knows the events that it has handled.

use std::sync::Arc;

use anyhow::{Context, Result};
use hapax::broker::{Job, Process};
use hapax::ledger::{Entry, HandlerFailure, Terms};
use hapax::stores::SqliteLedger;
use rusqlite::Transaction;
use serde_json::Value;

use super::database;
use super::delivery::Cause;
use super::service::DemoServiceArgs;
use crate::traffic::PaymentOrder;

/// The namespace of the inbox.
pub(super) const NAMESPACE: &str = "receipts";

/// What the consumer does with events.
pub(super) fn process(args: &DemoServiceArgs) -> Result<Arc<dyn Process>> {
    let Some(file) = args.file() else {
        return super::servers::send_receipts(&args.database);
    };
    let post = database::open_post(file)?;
    let inbox = SqliteLedger::new(Terms::new(NAMESPACE)?);
    Ok(Arc::new(inbox.process(post, send_receipts)))
}

fn send_receipts(
    post: &Transaction<'_>,
    jobs: &[Job],
    new: &mut [Entry],
) -> Result<Vec<String>, HandlerFailure<String>> {
    let mut answers = Vec::new();
    for entry in new {
        send_receipt(post, &jobs[entry.index()])?;
        answers.push("sent".to_owned());
    }
    Ok(answers)
}

fn send_receipt(post: &Transaction<'_>, job: &Job) -> Result<()> {
    let (charge, order) = charge(job)?;
    Ok(database::insert_receipt(post, charge, &order, Cause::of(job))?)
}

/// The charge that an event tells of, and its order.
pub(super) fn charge(job: &Job) -> Result<(i64, PaymentOrder)> {
    let event: Value = serde_json::from_slice(&job.message.payload)?;
    let charge = event.get("charge").and_then(Value::as_i64);
    charge.zip(PaymentOrder::read(&event)).context("the event is of no charge")
}
