#![doc = include_str!("../README.md")]

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax::broker::Job;
use hapax::brokers::{RabbitMqSource, RabbitMqUrl};
use hapax::gate::Failure;
use hapax::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax::runtime::Tokio;
use hapax::stores::{HandleJobs, PostgresDeadLetters, PostgresLedger, PostgresTransaction};
use hapax::worker::{MessageIdentity, RedriveSource, Worker};
use tokio::signal::unix::{SignalKind, signal};

struct QueuedTransfers;

impl HandleJobs<String> for QueuedTransfers {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        let order = |entry: &Entry| str::from_utf8(&jobs[entry.index()].message.payload);
        let orders = entries.iter().map(order).collect::<Result<Vec<_>, _>>()?;
        // In one order: otherwise two batches could wait for each other.
        let names: Vec<&str> = orders.iter().flat_map(|order| order.split(' ').take(2)).collect();
        let lock = "select from account where name = any($1) order by name for update";
        transaction.execute(lock, &[&names]).await?;
        for (place, (entry, order)) in entries.iter_mut().zip(&orders).enumerate() {
            if !transfer(transaction, order, &entry.operation().to_string()).await? {
                let answer = format!("{order}: no such transfer, or not enough money");
                return Err(HandlerFailure::of(place, Failure::finally(answer)));
            }
            let payer = order.split(' ').next().unwrap_or_default().to_owned();
            entry.emit(Event::new("transferred", order.to_string()).ordered_by(payer))?;
        }
        Ok(orders.into_iter().map(|order| format!("transferred: {order}")).collect())
    }
}

/// Moves the money. Returns false if there is no such account, or not enough money.
async fn transfer(
    transaction: &PostgresTransaction<'_>,
    order: &str,
    operation: &str,
) -> Result<bool, tokio_postgres::Error> {
    let [payer, payee, amount] = order.split(' ').collect::<Vec<_>>()[..] else { return Ok(false) };
    let Some(amount) = amount.parse::<i64>().ok().filter(|amount| *amount > 0) else { return Ok(false) };
    let take = "update account set balance = balance - $2 where name = $1 and balance >= $2";
    let give = "update account set balance = balance + $2 where name = $1";
    let note = "insert into transfer (operation, payer, payee, amount) values ($1, $2, $3, $4)";
    transaction.execute(note, &[&operation, &payer, &payee, &amount]).await?;
    Ok(transaction.execute(take, &[&payer, &amount]).await? == 1
        && transaction.execute(give, &[&payee, &amount]).await? == 1)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [queue, database] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        anyhow::bail!("usage: example-worker-rabbitmq AMQP_URL POSTGRES_URL");
    };
    let mut stop = signal(SignalKind::terminate())?;
    let (queue, database): (RabbitMqUrl, _) = (queue.parse()?, database.parse()?);
    let runtime = Arc::new(Tokio::current());
    let ledger = PostgresLedger::connect(&database, Terms::new("bank")?)?;
    let dead = Arc::new(PostgresDeadLetters::connect(&database)?);
    let source = RabbitMqSource::connect(queue.clone(), Arc::clone(&runtime) as _).await.context("RabbitMQ")?;
    // Delivers the dead letters that `hapax dead redrive` has marked, too.
    let source = RedriveSource::new(Box::new(source), Arc::clone(&dead) as _, runtime);
    let worker = Worker::builder(Box::new(source), Arc::new(ledger.process(QueuedTransfers)), dead)
        .identity(MessageIdentity::new("bank")?)
        .build()?;
    // Removes the rows of the ledger after their retention. It ends with the program.
    tokio::spawn(async move { ledger.sweep_regularly(Duration::from_secs(3600)).await });
    println!("consuming {queue}");
    worker.run(async { stop.recv().await.unwrap_or_default() }).await?;
    Ok(())
}
