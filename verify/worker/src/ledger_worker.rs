//! The workers with a ledger for queues of SQS, for which there is no example.

mod transfers;

use std::env;
use std::sync::Arc;
use std::time::Duration;

use hapax::broker::Job;
use hapax::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax::runtime::Tokio;
use hapax::stores::{HandleJobs, PostgresDeadLetters, PostgresLedger, PostgresTransaction};
use hapax::worker::{MessageIdentity, Worker};
use hapax_systems::SourceUrl;
use tokio::signal::unix::{SignalKind, signal};

use transfers::{OrderedTransfer, apply};

struct LedgerTransfers;

impl HandleJobs<String> for LedgerTransfers {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        let mut transfers = Vec::new();
        for entry in entries {
            let transfer = OrderedTransfer::read(&jobs[entry.index()])?;
            entry.emit(Event::new("transferred", "").ordered_by(transfer.payer.to_owned()))?;
            transfers.push((entry.operation().to_string(), transfer));
        }
        apply(&**transaction, &transfers).await?;
        Ok(vec!["transferred".to_owned(); transfers.len()])
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [source, database] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        anyhow::bail!("usage: hapax-worker-torture-ledger SOURCE_URL POSTGRES_URL");
    };
    let mut stop = signal(SignalKind::terminate())?;
    let opened = source.parse::<SourceUrl>()?.open(Arc::new(Tokio::current()), Duration::from_secs(30)).await?;
    let ledger = PostgresLedger::connect(&database.parse()?, Terms::new("bank")?)?;
    let dead = PostgresDeadLetters::connect(&database.parse()?)?;
    let worker = Worker::builder(opened, Arc::new(ledger.process(LedgerTransfers)), Arc::new(dead));
    let worker = worker.identity(MessageIdentity::new("bank")?).build()?;
    println!("consuming {source}");
    worker.run(async { stop.recv().await.unwrap_or_default() }).await?;
    Ok(())
}
