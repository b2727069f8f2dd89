use std::sync::{Arc, Mutex};

use hapax_core::ledger::Terms;
use hapax_core::runtime::Tokio;
use hapax_core::{Call, Inspect, Store};
use hapax_stores::{Postgres, PostgresLedger};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

use crate::harness::BatchResult;
use crate::subjects::FreshCalls;
use crate::subjects::statements::connect;

/// A server with the tables of the store and of the limits.
#[derive(Clone)]
pub(super) struct BenchDatabase {
    shared: Arc<SharedDatabase>,
}

struct SharedDatabase {
    // Ends before the runtime that drives its connections.
    server: PostgresServer,
    runtime: Runtime,
    calls: Mutex<FreshCalls>,
}

impl BenchDatabase {
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let server = runtime.block_on(async {
            let server = PostgresServer::start(PostgresServerOptions::new()).await?;
            server.client().await?.batch_execute(include_str!("tables.sql")).await?;
            open(&server)?.check().await?;
            anyhow::Ok(server)
        })?;
        Ok(Self { shared: Arc::new(SharedDatabase { server, runtime, calls: Mutex::new(FreshCalls::new()) }) })
    }

    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.shared.runtime.block_on(future)
    }

    pub(super) fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        let _inside = self.shared.runtime.enter();
        Ok(Arc::new(open(&self.shared.server)?))
    }

    pub(super) fn ledger(&self, terms: Terms) -> anyhow::Result<PostgresLedger> {
        let _inside = self.shared.runtime.enter();
        Ok(PostgresLedger::connect(&self.shared.server.url().parse()?, terms)?)
    }

    pub(super) fn take(&self, count: usize) -> Vec<Call> {
        self.shared.calls.lock().expect("no batch panicked").take(count)
    }

    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        connect(&self.shared.server.url()).await
    }

    /// Adds this many completed records. It takes minutes.
    pub(super) fn fill(&self, records: i64) -> anyhow::Result<()> {
        self.block_on(async {
            let client = self.client().await?;
            client.execute(include_str!("fill.sql"), &[&records]).await?;
            client.batch_execute("vacuum analyze hapax_record").await?;
            Ok(client.batch_execute("checkpoint").await?)
        })
    }

    /// The bytes of table and indexes for each record.
    pub(super) fn bloat(&self) -> anyhow::Result<BatchResult> {
        self.block_on(async {
            let row = self.client().await?.query_one(include_str!("bloat.sql"), &[]).await?;
            let (bytes, records, hot, dead): (f64, f64, f64, f64) = (row.get(0), row.get(1), row.get(2), row.get(3));
            let note = format!(
                "{records:.0} records, {:.0} MiB, {:.1} % of the updates wrote no index, {dead:.0} dead rows",
                bytes / f64::from(1 << 20),
                100.0 * hot
            );
            Ok(BatchResult { rate: bytes / records, note })
        })
    }
}

fn open(server: &PostgresServer) -> anyhow::Result<Postgres> {
    Ok(Postgres::with(&server.url().parse()?, Arc::new(Tokio::current()))?)
}
