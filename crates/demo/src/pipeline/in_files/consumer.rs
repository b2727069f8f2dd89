//! The consumer: sends a receipt for each charge. Its ledger, the inbox, knows the events that it has handled.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use hapax::broker::{Job, Process};
use hapax::ledger::{Entry, HandlerFailure, Terms};
use hapax::stores::SqliteLedger;
use rusqlite::Transaction;

use super::database;
use crate::pipeline::delivery::Cause;
use crate::pipeline::messages::{RECEIPTS, charge};

/// Sends the receipts of the events once each.
pub(super) fn send_once(file: &Path) -> Result<Arc<dyn Process>> {
    let inbox = SqliteLedger::new(Terms::new(RECEIPTS)?);
    Ok(Arc::new(inbox.process(database::open_post(file)?, send_receipts)))
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
