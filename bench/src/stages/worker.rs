//! Charges with the worker, with the ledger or without it, with an outbox or without it.

use std::fmt;
use std::fs::File;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use hapax_brokers::KafkaSource;
use hapax_core::broker::{Job, MemoryDeadLetterStore, Process, Verdict};
use hapax_core::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax_core::runtime::Tokio;
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_stores::{HandleJobs, PostgresLedger, PostgresTransaction};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::publishing::DirectPublisher;
use super::{PipelineLayers, StagePlaces, StampedTransaction, microseconds, number_of, payment};
use crate::subjects::connect;

/// The messages of one transaction, at most.
pub(super) const BATCH: usize = 256;

/// The topic of the events.
const CHARGED: &str = "charged";

pub(super) async fn work(address: SocketAddr, layers: PipelineLayers, places: &StagePlaces) -> anyhow::Result<()> {
    let (_, schema) = places.schema()?;
    let (insert, has_outbox) = (insert_of(schema), layers.outbox);
    let inner: Arc<dyn Process> = if layers.ledger {
        let url = format!("{}&connections=8", places.database).parse()?;
        let ledger = PostgresLedger::connect(&url, Terms::new("payments")?)?;
        Arc::new(ledger.process(ChargeOrders { insert, has_outbox }))
    } else {
        Arc::new(UncheckedCharges::connect(places).await?)
    };
    let publisher = if has_outbox { None } else { Some(DirectPublisher::connect(places).await?) };
    let process = Arc::new(StampedProcess { inner, publisher, stamps: File::create(&places.stamps)? });
    // A group of its own: a killed worker of an earlier run would keep its place for a while.
    let url = format!("kafka://{0}/{1}?group={1}", places.kafka, places.topic).parse()?;
    let source = KafkaSource::connect(&url, Arc::new(Tokio::current())).await?;
    let dead = Arc::new(MemoryDeadLetterStore::new(Arc::new(Tokio::current())));
    let mut settings = WorkerSettings::default();
    settings.batch = BATCH;
    let worker = Worker::builder(Box::new(source), process, dead).identity(MessageIdentity::new("payments")?);
    let worker = worker.settings(settings).build()?;
    let _ready = TcpListener::bind(address).await?;
    worker.run(pending()).await.map(drop).context("the worker ended")
}

/// The effects of these payments.
pub(super) fn insert_of(schema: &str) -> String {
    format!("insert into {schema}.payment select number, 500 from unnest($1::bigint[]) number")
}

/// The charges of new messages. The ledger commits its rows, the charges and their events together.
struct ChargeOrders {
    insert: String,
    has_outbox: bool,
}

impl HandleJobs<String> for ChargeOrders {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        let number = |entry: &Entry| number_of(&jobs[entry.index()].message.payload);
        let numbers = entries.iter().map(number).collect::<anyhow::Result<Vec<u64>>>()?;
        let keys: Vec<i64> = numbers.iter().map(|number| number.cast_signed()).collect();
        transaction.execute(&self.insert, &[&keys]).await?;
        if self.has_outbox {
            for (entry, number) in entries.iter_mut().zip(&numbers) {
                entry.emit(Event::new(CHARGED, payment(*number)))?;
            }
        }
        Ok(vec!["charged".to_owned(); numbers.len()])
    }
}

/// Layer 2 is missing: every message is charged. Charges and events commit together.
struct UncheckedCharges {
    insert: String,
    emit: String,
    /// As many as the worker has transactions at once.
    clients: Vec<Mutex<Client>>,
}

impl UncheckedCharges {
    async fn connect(places: &StagePlaces) -> anyhow::Result<Self> {
        let (url, schema) = places.schema()?;
        let mut clients = Vec::new();
        for _ in 0..WorkerSettings::default().concurrency {
            clients.push(Mutex::new(connect(url).await?));
        }
        let emit = format!(
            "select {schema}.hapax_emit('payments', null, null, '{CHARGED}', payload) from unnest($1::bytea[]) payload"
        );
        Ok(Self { insert: insert_of(schema), emit, clients })
    }

    async fn charge(&self, numbers: &[u64]) -> anyhow::Result<()> {
        let free = self.clients.iter().find_map(|client| client.try_lock().ok());
        let mut client = free.context("there are more transactions than connections")?;
        let keys: Vec<i64> = numbers.iter().map(|number| number.cast_signed()).collect();
        let events: Vec<Vec<u8>> = numbers.iter().map(|number| payment(*number).into_bytes()).collect();
        let transaction = client.transaction().await?;
        transaction.execute(&self.insert, &[&keys]).await?;
        transaction.execute(&self.emit, &[&events]).await?;
        Ok(transaction.commit().await?)
    }
}

impl fmt::Debug for UncheckedCharges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UncheckedCharges").finish_non_exhaustive()
    }
}

#[async_trait]
impl Process for UncheckedCharges {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdict = match self.charge(&numbers_of(&jobs)).await {
            Ok(()) => Verdict::Done { caught: false },
            Err(_) => Verdict::Retry { after: Duration::from_millis(50) },
        };
        vec![verdict; jobs.len()]
    }
}

/// Writes down when messages arrived and when their effects were committed. Without an outbox it publishes their
/// events.
struct StampedProcess {
    inner: Arc<dyn Process>,
    publisher: Option<DirectPublisher>,
    stamps: File,
}

impl fmt::Debug for StampedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StampedProcess").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl Process for StampedProcess {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let (received, numbers) = (microseconds(), numbers_of(&jobs));
        let verdicts = self.inner.process(jobs).await;
        let committed = microseconds();
        let is_done = |verdict: &Verdict| matches!(verdict, Verdict::Done { .. });
        let done = numbers.iter().zip(&verdicts).filter(|(_, verdict)| is_done(verdict));
        let done: Vec<u64> = done.map(|(number, _)| *number).collect();
        // The measurement misses a payment whose time or event is lost, and fails.
        let _ = StampedTransaction { received, committed }.write(&self.stamps, &done);
        if let Some(publisher) = &self.publisher {
            let _ = publisher.publish(&done).await;
        }
        verdicts
    }
}

/// The numbers of the payments. A message that is no payment has none.
fn numbers_of(jobs: &[Job]) -> Vec<u64> {
    jobs.iter().map(|job| number_of(&job.message.payload).unwrap_or(u64::MAX)).collect()
}
