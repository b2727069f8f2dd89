use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use anyhow::ensure;
use futures_util::future::try_join_all;
use hapax_core::gate::Provenance;
use hapax_core::ledger::{Call, Terms, Work};
use hapax_stores::{PostgresLedger, PostgresUrl};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::harness::{MeasuredBatch, per_second};
use crate::subjects::statements::{TABLES, bare_transaction, connect, locking_transaction, write_effects};
use crate::subjects::{ANSWER, FreshCalls};

/// The calls of one measurement: few for single transactions, each of which waits for the disk.
const SINGLE_CALLS: usize = 2_000;
const BATCHED_CALLS: usize = 50 * super::BATCH;

const FILL: &str = include_str!("fill.sql");

/// Which calls a measurement makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// New ones.
    Fresh,
    /// Those of an earlier batch of new ones.
    Replay,
}

/// A server with the tables of the ledger and of the limits.
#[derive(Clone)]
pub(super) struct Database {
    shared: Arc<LedgerServer>,
}

struct LedgerServer {
    // Ends before the runtime that drives its connections.
    server: PostgresServer,
    runtime: Runtime,
    calls: Mutex<FreshCalls>,
    /// Calls that have run, for replays.
    ended: Mutex<VecDeque<Vec<Call>>>,
}

impl Database {
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let server = runtime.block_on(async {
            let server = PostgresServer::start(PostgresServerOptions::new()).await?;
            server.client().await?.batch_execute(TABLES).await?;
            ledger(&server, Terms::new("bench")?)?.create_tables().await?;
            anyhow::Ok(server)
        })?;
        let (calls, ended) = (Mutex::new(FreshCalls::new()), Mutex::default());
        Ok(Self { shared: Arc::new(LedgerServer { server, runtime, calls, ended }) })
    }

    /// Adds ten million rows to the ledger and to the bare claims. It takes minutes.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        let fill = async { anyhow::Ok(self.shared.server.client().await?.batch_execute(FILL).await?) };
        self.shared.runtime.block_on(fill)
    }

    pub(super) fn server(&self) -> &PostgresServer {
        &self.shared.server
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    pub(super) fn take(&self, count: usize) -> Vec<Call> {
        self.shared.calls.lock().expect("no batch panicked").take(count).into_iter().map(Call::from).collect()
    }

    /// Runs calls through the ledger, `batch` of them in a transaction.
    pub(super) fn through_the_ledger(&self, clients: usize, batch: usize, pass: Pass) -> MeasuredBatch {
        let this = self.clone();
        Box::new(move || {
            let _inside = this.shared.runtime.enter();
            let ledger = ledger(&this.shared.server, Terms::new("bench")?)?;
            let calls = match pass {
                Pass::Fresh => this.take(if batch == 1 { SINGLE_CALLS } else { BATCHED_CALLS }),
                Pass::Replay => this.ended_calls(&ledger, batch)?,
            };
            let figures = per_second(calls.len(), || {
                this.shared.runtime.block_on(run_all(&ledger, &calls, clients, batch, pass))
            })?;
            if pass == Pass::Fresh && batch > 1 {
                this.shared.ended.lock().expect("no batch panicked").push_back(calls);
            }
            Ok(figures)
        })
    }

    fn ended_calls(&self, ledger: &PostgresLedger, batch: usize) -> anyhow::Result<Vec<Call>> {
        if let Some(calls) = self.shared.ended.lock().expect("no batch panicked").pop_front() {
            return Ok(calls);
        }
        let calls = self.take(BATCHED_CALLS);
        self.shared.runtime.block_on(run_all(ledger, &calls, 1, batch, Pass::Fresh))?;
        Ok(calls)
    }

    /// Runs batches, each measurement in a namespace of its own.
    pub(super) fn in_added_namespaces(&self) -> MeasuredBatch {
        let (this, mut number) = (self.clone(), 0);
        Box::new(move || {
            let _inside = this.shared.runtime.enter();
            number += 1;
            let ledger = ledger(&this.shared.server, Terms::new(&format!("added-{number}"))?)?;
            let calls = this.take(BATCHED_CALLS);
            per_second(calls.len(), || {
                this.shared.runtime.block_on(run_all(&ledger, &calls, 1, super::BATCH, Pass::Fresh))
            })
        })
    }

    /// The effects with a bare row for each call, by the driver alone.
    pub(super) fn bare(&self, clients: usize, batch: usize) -> MeasuredBatch {
        self.by_driver(clients, if batch == 1 { SINGLE_CALLS } else { BATCHED_CALLS }, batch, bare_transaction)
    }

    /// The pattern of many tutorials: a row that is locked while its message is handled.
    pub(super) fn published_pattern(&self, clients: usize) -> MeasuredBatch {
        self.by_driver(clients, SINGLE_CALLS, 1, locking_transaction)
    }

    fn by_driver(
        &self,
        clients: usize,
        count: usize,
        batch: usize,
        run: impl AsyncFn(&Transaction<'_>, &[Uuid]) -> anyhow::Result<()> + Copy + 'static,
    ) -> MeasuredBatch {
        let this = self.clone();
        Box::new(move || {
            let operations: Vec<Uuid> = this.take(count).iter().map(uuid).collect();
            let url = this.shared.server.url();
            this.shared.runtime.block_on(async {
                let connections = try_join_all((0..clients).map(|_| connect(&url))).await?;
                let shares = operations.chunks(count.div_ceil(clients));
                let started = std::time::Instant::now();
                try_join_all(connections.into_iter().zip(shares).map(async |(mut client, share)| {
                    for operations in share.chunks(batch) {
                        let transaction = client.transaction().await?;
                        run(&transaction, operations).await?;
                        transaction.commit().await?;
                    }
                    anyhow::Ok(())
                }))
                .await?;
                let rate = count as f64 / started.elapsed().as_secs_f64();
                Ok(crate::harness::BatchResult { rate, note: String::new() })
            })
        })
    }
}

pub(super) fn ledger(server: &PostgresServer, terms: Terms) -> anyhow::Result<PostgresLedger> {
    let url: PostgresUrl = format!("{}?connections=32", server.url()).parse()?;
    Ok(PostgresLedger::connect(&url, terms)?)
}

fn uuid(call: &Call) -> Uuid {
    Uuid::from_bytes(*call.operation().as_bytes())
}

async fn run_all(
    ledger: &PostgresLedger,
    calls: &[Call],
    clients: usize,
    batch: usize,
    pass: Pass,
) -> anyhow::Result<()> {
    let shares = calls.chunks(calls.len().div_ceil(clients));
    try_join_all(shares.map(|share| run_share(ledger, share, batch, pass))).await.map(drop)
}

async fn run_share(ledger: &PostgresLedger, share: &[Call], batch: usize, pass: Pass) -> anyhow::Result<()> {
    let expected = if pass == Pass::Fresh { Provenance::Fresh } else { Provenance::Replayed };
    for calls in share.chunks(batch) {
        let work = calls.iter().map(|call| Work { call: *call, ordering_key: None, is_redelivered: false }).collect();
        let results = ledger
            .run_batch(work, async |transaction, entries| {
                let operations: Vec<Uuid> =
                    entries.iter().map(|entry| Uuid::from_bytes(*entry.operation().as_bytes())).collect();
                write_effects(transaction, &operations).await?;
                Ok(entries.iter().map(|_| bytes::Bytes::from_static(ANSWER)).collect())
            })
            .await;
        for result in results {
            ensure!(result.map_err(|refused| anyhow::anyhow!("{refused}"))?.provenance == expected, "a wrong result");
        }
    }
    Ok(())
}
