#![doc = include_str!("../README.md")]

use std::env;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use hapax::broker::{DeadLetterStore, Job};
use hapax::ledger::{Call, Entry, Event, HandlerFailure, Terms};
use hapax::runtime::Tokio;
use hapax::stores::{SqliteDeadLetters, SqliteLedger, SqliteQueue};
use hapax::worker::{MessageIdentity, RedriveSource, Worker};
use hapax::{Identity, Key, Rule, Scope};
use rusqlite::{Connection, Transaction};
use tokio::signal::unix::{SignalKind, signal};

#[cfg(test)]
mod tests;

/// Takes an order. The order and its event commit together, once for each id.
fn order(shop: &Path, id: &str, customer: &str, item: &str) -> anyhow::Result<String> {
    let mut shop = Connection::open(shop)?;
    SqliteLedger::migrate(&mut shop)?;
    shop.execute_batch("create table if not exists purchase (customer text not null, item text not null) strict")?;

    let identity = Identity::plain();
    let payload = identity.fingerprint(Rule(1), &[customer.as_bytes(), item.as_bytes()]);
    let call = identity.call(&Scope::untenanted("shop")?, &Key::new(id.as_bytes())?).fingerprint(payload);
    let ledger = SqliteLedger::new(Terms::new("shop")?);
    let ordered = ledger.run(&mut shop, Call::from(call), |shop, entry| {
        shop.execute("insert into purchase values (?1, ?2)", [customer, item])?;
        entry.emit(Event::new("orders", format!("{customer} {item}")).ordered_by(customer.to_owned()))?;
        Ok(format!("{customer} ordered {item}"))
    })?;
    Ok(ordered.answer)
}

/// Packs a parcel for each event. The ledger knows the ids of the events that it has handled.
fn pack(warehouse: &Transaction<'_>, jobs: &[Job], new: &mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>> {
    let mut answers = Vec::new();
    for entry in new {
        let order = str::from_utf8(&jobs[entry.index()].message.payload)?;
        warehouse.execute("insert into parcel values (?1)", [order])?;
        answers.push(format!("packed: {order}"));
    }
    Ok(answers)
}

/// A worker that packs what the relay puts into the queue `orders`.
fn warehouse(post: &Path, parcels: &Path) -> anyhow::Result<Worker> {
    let mut connection = Connection::open(parcels)?;
    SqliteLedger::migrate(&mut connection)?;
    connection.execute_batch("create table if not exists parcel (content text not null) strict")?;

    let dead: Arc<dyn DeadLetterStore> = Arc::new(SqliteDeadLetters::open(parcels)?);
    let orders = Box::new(SqliteQueue::new("orders")?.source(post)?);
    let source = RedriveSource::new(orders, Arc::clone(&dead), Arc::new(Tokio::current()));
    let ledger = SqliteLedger::new(Terms::new("warehouse")?);
    let worker = Worker::builder(Box::new(source), Arc::new(ledger.process(connection, pack)), dead);
    Ok(worker.identity(MessageIdentity::new("warehouse")?).build()?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["shop", file, id, customer, item] => println!("{}", order(Path::new(file), id, customer, item)?),
        ["warehouse", post, parcels] => {
            let mut stop = signal(SignalKind::terminate())?;
            warehouse(Path::new(post), Path::new(parcels))?
                .run(async { stop.recv().await.unwrap_or_default() })
                .await?;
        }
        _ => bail!("usage: example-events-sqlite shop FILE ID CUSTOMER ITEM | warehouse QUEUE_FILE FILE"),
    }
    Ok(())
}
