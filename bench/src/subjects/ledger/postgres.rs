use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use anyhow::ensure;
use futures_util::future::try_join_all;
use hapax_core::gate::Provenance;
use hapax_core::ledger::{Call, Terms, Work};
use hapax_stores::{PostgresLedger, PostgresUrl};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio_postgres::{Statement, Transaction};
use uuid::Uuid;

use crate::harness::{BatchResult, MeasuredBatch, per_second};
use crate::subjects::statements::{
    TABLES, bare_transaction, connect, locking_transaction, prepare_bare_claim, prepared_bare_transaction,
    write_effects,
};
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
            this.shared.runtime.block_on(connect_all(&ledger, &this.take(clients)))?;
            let calls = match pass {
                Pass::Fresh => this.take(count_of(batch)),
                Pass::Replay => this.ended_calls(&ledger, batch)?,
            };
            let figures = this.with_log(calls.len(), || {
                per_second(calls.len(), || this.shared.runtime.block_on(run_all(&ledger, &calls, clients, batch, pass)))
            })?;
            if pass == Pass::Fresh && batch > 1 {
                this.shared.ended.lock().expect("no batch panicked").push_back(calls);
            }
            Ok(figures)
        })
    }

    fn ended_calls(&self, ledger: &PostgresLedger, batch: usize) -> anyhow::Result<Vec<Call>> {
        let ended = self.shared.ended.lock().expect("no batch panicked").pop_front();
        let mut calls = match ended {
            Some(calls) => calls,
            None => {
                let calls = self.take(BATCHED_CALLS);
                self.shared.runtime.block_on(run_all(ledger, &calls, 1, super::BATCH, Pass::Fresh))?;
                calls
            }
        };
        calls.truncate(count_of(batch));
        Ok(calls)
    }

    /// Measures, and notes how many bytes of the server's log each operation wrote.
    fn with_log(
        &self,
        operations: usize,
        run: impl FnOnce() -> anyhow::Result<BatchResult>,
    ) -> anyhow::Result<BatchResult> {
        let bytes = || {
            self.shared.runtime.block_on(async {
                let written = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
                anyhow::Ok(self.shared.server.client().await?.query_one(written, &[]).await?.get::<_, i64>(0))
            })
        };
        let before = bytes()?;
        let figures = run()?;
        let written = (bytes()? - before) / i64::try_from(operations)?;
        Ok(BatchResult { note: format!("{written} B of WAL an operation"), ..figures })
    }

    /// Runs batches, each measurement in a namespace of its own.
    pub(super) fn in_added_namespaces(&self) -> MeasuredBatch {
        let (this, mut number) = (self.clone(), 0);
        Box::new(move || {
            let _inside = this.shared.runtime.enter();
            number += 1;
            let ledger = ledger(&this.shared.server, Terms::new(&format!("added-{number}"))?)?;
            this.shared.runtime.block_on(ledger.create_tables())?;
            let calls = this.take(BATCHED_CALLS);
            per_second(calls.len(), || {
                this.shared.runtime.block_on(run_all(&ledger, &calls, 1, super::BATCH, Pass::Fresh))
            })
        })
    }

    /// The effects with a bare row for each call, by the driver alone. Its claim is prepared, as those of the ledger
    /// are.
    pub(super) fn bare(&self, clients: usize, batch: usize) -> MeasuredBatch {
        self.by_driver(clients, count_of(batch), batch, async |transaction, claim, operations| {
            prepared_bare_transaction(transaction, claim, operations).await
        })
    }

    /// The same without prepared statements.
    pub(super) fn bare_unprepared(&self, clients: usize, batch: usize) -> MeasuredBatch {
        self.by_driver(clients, count_of(batch), batch, async |transaction, _, operations| {
            bare_transaction(transaction, operations).await
        })
    }

    /// The pattern of many tutorials: a row that is locked while its message is handled.
    pub(super) fn published_pattern(&self, clients: usize) -> MeasuredBatch {
        self.by_driver(clients, SINGLE_CALLS, 1, async |transaction, _, operations| {
            locking_transaction(transaction, operations).await
        })
    }

    fn by_driver(
        &self,
        clients: usize,
        count: usize,
        batch: usize,
        run: impl AsyncFn(&Transaction<'_>, &Statement, &[Uuid]) -> anyhow::Result<()> + Copy + 'static,
    ) -> MeasuredBatch {
        let this = self.clone();
        Box::new(move || {
            let operations: Vec<Uuid> = this.take(count).iter().map(uuid).collect();
            let url = this.shared.server.url();
            let connections = this.shared.runtime.block_on(try_join_all((0..clients).map(async |_| {
                let client = connect(&url).await?;
                let claim = prepare_bare_claim(&client).await?;
                anyhow::Ok((client, claim))
            })))?;
            let shares = operations.chunks(count.div_ceil(clients));
            let loops = connections.into_iter().zip(shares).map(async |((mut client, claim), share)| {
                for operations in share.chunks(batch) {
                    let transaction = client.transaction().await?;
                    run(&transaction, &claim, operations).await?;
                    transaction.commit().await?;
                }
                anyhow::Ok(())
            });
            this.with_log(count, || per_second(count, || this.shared.runtime.block_on(try_join_all(loops)).map(drop)))
        })
    }
}

/// How many calls a measurement makes with so many to a transaction.
fn count_of(batch: usize) -> usize {
    if batch == 1 { SINGLE_CALLS } else { BATCHED_CALLS }
}

pub(super) fn ledger(server: &PostgresServer, terms: Terms) -> anyhow::Result<PostgresLedger> {
    let url: PostgresUrl = format!("{}?connections=32", server.url()).parse()?;
    Ok(PostgresLedger::connect(&url, terms)?)
}

fn uuid(call: &Call) -> Uuid {
    Uuid::from_bytes(*call.operation().as_bytes())
}

/// Opens a connection for each of these calls, as the loops without the ledger do before they are measured.
async fn connect_all(ledger: &PostgresLedger, calls: &[Call]) -> anyhow::Result<()> {
    let all_are_open = Barrier::new(calls.len());
    let runs = calls.iter().map(async |call| {
        let run = ledger.run(*call, async |_, _| {
            all_are_open.wait().await;
            Ok(bytes::Bytes::from_static(ANSWER))
        });
        run.await.map_err(|refused| anyhow::anyhow!("{refused}"))
    });
    try_join_all(runs).await.map(drop)
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
