//! Workers that write the same as the others, but without a ledger: to prove that the audit can fail.

mod transfers;

use std::env;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax::broker::{Job, Process, Verdict};
use hapax::runtime::Tokio;
use hapax::stores::PostgresDeadLetters;
use hapax::worker::{MessageIdentity, Worker};
use hapax_systems::SourceUrl;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use transfers::{OrderedTransfer, apply};

#[derive(Debug)]
struct BareTransfers {
    database: String,
    /// None until the first batch, and after an error.
    client: Mutex<Option<Client>>,
}

#[async_trait]
impl Process for BareTransfers {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdict = match self.transfer(&jobs).await {
            Ok(()) => Verdict::Done { caught: false },
            Err(_) => Verdict::Pause { after: Duration::from_millis(100) },
        };
        vec![verdict; jobs.len()]
    }
}

impl BareTransfers {
    async fn transfer(&self, jobs: &[Job]) -> anyhow::Result<()> {
        let mut kept = self.client.lock().await;
        let mut client = match kept.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(&self.database, NoTls).await?;
                tokio::spawn(connection);
                client
            }
        };
        let transaction = client.transaction().await?;
        let transfers = jobs.iter().map(|job| Ok((job.call.operation().to_string(), OrderedTransfer::read(job)?)));
        apply(&transaction, &transfers.collect::<anyhow::Result<Vec<_>>>()?).await?;
        transaction.commit().await?;
        *kept = Some(client);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [source, database] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        anyhow::bail!("usage: hapax-worker-torture-bare SOURCE_URL POSTGRES_URL");
    };
    let mut stop = signal(SignalKind::terminate())?;
    let opened = source.parse::<SourceUrl>()?.open(Arc::new(Tokio::current()), Duration::from_secs(30)).await?;
    let dead = PostgresDeadLetters::connect(&database.parse()?)?;
    let process = BareTransfers { database: database.clone(), client: Mutex::default() };
    let worker = Worker::builder(opened, Arc::new(process), Arc::new(dead));
    let worker = worker.identity(MessageIdentity::new("bank")?).build()?;
    println!("consuming {source}");
    worker.run(async { stop.recv().await.unwrap_or_default() }).await?;
    Ok(())
}
