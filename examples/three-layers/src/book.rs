//! Layers 2 and 3: a payment, its row of the ledger and its event commit together, and the event is published.

use std::path::Path;
use std::sync::Arc;

use hapax::broker::Job;
use hapax::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax::relay::Relay;
use hapax::runtime::Tokio;
use hapax::stores::{Sqlite, SqliteDeadLetters, SqliteLedger, SqliteOutbox, SqliteQueue, SqliteSink, SqliteSinkConfig};
use hapax::worker::{MessageIdentity, Worker};
use rusqlite::{Connection, Transaction};

use crate::{accept, receipts};

/// Runs once for each payment, however often its message is delivered.
fn book(bank: &Transaction<'_>, jobs: &[Job], new: &mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>> {
    let mut answers = Vec::new();
    for entry in new {
        let payment = str::from_utf8(&jobs[entry.index()].message.payload)?;
        bank.execute("insert into booking values (?1)", [payment])?;
        entry.emit(Event::new(receipts::QUEUE, payment.to_owned()))?;
        answers.push(format!("booked {payment}"));
    }
    Ok(answers)
}

pub(crate) fn worker(folder: &Path) -> anyhow::Result<Worker> {
    let file = folder.join("bank.db");
    let mut bank = Connection::open(&file)?;
    SqliteLedger::migrate(&mut bank)?;
    bank.execute_batch("create table if not exists booking (payment text not null) strict")?;

    let source = SqliteQueue::new(accept::QUEUE)?.source(&file)?;
    let dead = Arc::new(SqliteDeadLetters::open(&file)?);
    let ledger = SqliteLedger::new(Terms::new("bank")?);
    let worker = Worker::builder(Box::new(source), Arc::new(ledger.process(bank, book)), dead);
    Ok(worker.identity(MessageIdentity::new("bank")?).build()?)
}

/// Publishes the events of the bank into the queue of the service that writes receipts.
pub(crate) fn relay(folder: &Path) -> anyhow::Result<Relay> {
    let bank = folder.join("bank.db");
    let outbox = Arc::new(SqliteOutbox::open(&bank)?);
    // The relays of an outbox share it by leases, which are records in its database.
    let leases = Arc::new(Sqlite::open(&bank)?);
    let sink = SqliteSink::open(SqliteSinkConfig::new(folder.join("receipts.db")), Arc::new(Tokio::current()))?;
    Ok(Relay::builder(outbox, leases, Arc::new(sink)).build()?)
}
