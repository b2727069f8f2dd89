//! Another service: writes one receipt for each event, however often the event is published.

use std::path::Path;
use std::sync::Arc;

use hapax::broker::Job;
use hapax::ledger::{Entry, HandlerFailure, Terms};
use hapax::stores::{SqliteDeadLetters, SqliteLedger, SqliteQueue};
use hapax::worker::{MessageIdentity, Worker};
use rusqlite::{Connection, Transaction};

pub(crate) const QUEUE: &str = "receipts";

fn write(receipts: &Transaction<'_>, jobs: &[Job], new: &mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>> {
    let mut answers = Vec::new();
    for entry in new {
        let payment = str::from_utf8(&jobs[entry.index()].message.payload)?;
        receipts.execute("insert into receipt values (?1)", [payment])?;
        answers.push(format!("receipt for {payment}"));
    }
    Ok(answers)
}

pub(crate) fn worker(folder: &Path) -> anyhow::Result<Worker> {
    let file = folder.join("receipts.db");
    let mut receipts = Connection::open(&file)?;
    SqliteLedger::migrate(&mut receipts)?;
    receipts.execute_batch("create table if not exists receipt (payment text not null) strict")?;

    let source = SqliteQueue::new(QUEUE)?.source(&file)?;
    let dead = Arc::new(SqliteDeadLetters::open(&file)?);
    // Its rows are the inbox: the ids of the events that were handled.
    let ledger = SqliteLedger::new(Terms::new("receipts")?);
    let worker = Worker::builder(Box::new(source), Arc::new(ledger.process(receipts, write)), dead);
    Ok(worker.identity(MessageIdentity::new("receipts")?).build()?)
}
