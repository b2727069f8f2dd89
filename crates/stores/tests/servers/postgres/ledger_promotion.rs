//! A standby that is promoted while a worker and a relay use the ledger.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use hapax_core::Result;
use hapax_core::gate::Provenance;
use hapax_core::ledger::Terms;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::relay::Relay;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::Finding;
use hapax_stores::{PostgresLedger, PostgresOutbox};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters};
use libtest_mimic::Trial;
use parking_lot::Mutex;
use tokio_postgres::Client;

use super::ledger::{ledger, run, terms};
use super::worker::{Sell, message, worker};
use super::{POSTGRES, start, store};
use crate::support::{test, until};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("a_worker_and_a_relay_outlive_the_promotion_of_a_synchronous_standby", POSTGRES, promoted),
        test("a_commit_that_does_not_wait_for_its_standby_is_reported", POSTGRES, cancelled),
    ]
}

const MESSAGES: usize = 400;

/// Keeps the payloads of the events that arrive.
#[derive(Debug)]
struct PayloadSink {
    name: Arc<str>,
    arrived: Mutex<BTreeSet<Vec<u8>>>,
}

#[async_trait]
impl Sink for PayloadSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        1_000_000
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        self.arrived.lock().insert(event.payload.to_vec());
        Published::Yes { caught: false }
    }

    async fn close(&self) {}
}

/// A primary whose COMMIT waits for its standby.
struct SynchronousServers {
    primary: PostgresServer,
    standby: PostgresServer,
    clients: Proxy,
}

impl SynchronousServers {
    async fn start() -> Self {
        let primary = start().await;
        let clients = Proxy::start(primary.address()).await.unwrap();
        let options = PostgresServerOptions::new().standby_of(primary.address());
        let standby = PostgresServer::start(options).await.unwrap();
        let admin = primary.client().await.unwrap();
        // After the standby has copied the settings of the primary: it will have no standby of its own.
        admin.batch_execute("alter system set synchronous_standby_names = '*'").await.unwrap();
        admin.batch_execute("select pg_reload_conf()").await.unwrap();
        let waits = "select exists (select from pg_stat_replication where sync_state = 'sync')";
        until("COMMIT waits for the standby", async || admin.query_one(waits, &[]).await.unwrap().get(0)).await;
        Self { primary, standby, clients }
    }

    /// The URL that leads to the primary, whichever server that is.
    fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.clients.address())
    }

    async fn fail_over(&self) {
        self.primary.kill();
        self.standby.promote().await.unwrap();
        self.clients.redirect_to(self.standby.address());
        self.clients.reset();
    }
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Each batch is confirmed only after its COMMIT, and so after the standby has it.
async fn promoted() {
    let servers = SynchronousServers::start().await;
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let admin = servers.primary.client().await.unwrap();
    let ledger = PostgresLedger::connect(&servers.url().parse().unwrap(), Terms::new("shop").unwrap()).unwrap();
    ledger.create_tables().await.unwrap();
    admin.batch_execute("create table effect (key text not null)").await.unwrap();
    let sink = Arc::new(PayloadSink { name: "payloads".into(), arrived: Mutex::default() });
    let outbox = PostgresOutbox::connect(&servers.url().parse().unwrap()).unwrap();
    let relay = Relay::builder(Arc::new(outbox), store(&servers.url()), Arc::clone(&sink) as _).build().unwrap();
    runtime.spawn(Box::pin(async move { drop(relay.run(pending()).await) }));
    let (broker, dead) = (MemoryBroker::prefix(Arc::clone(&runtime), 4), MemoryDeadLetters::new());
    let keys: Vec<String> = (0..MESSAGES).map(|n| format!("order {n:03}")).collect();
    for (n, key) in (0..).zip(&keys) {
        broker.publish(n % 4, message(key));
        broker.publish((n + 1) % 4, message(key));
    }
    let sell = Sell { insert: "insert into effect values ($1)".into() };
    let worker = worker(Arc::new(ledger.process::<String, _>(sell)), &broker, &dead);
    runtime.spawn(Box::pin(async move { drop(worker.run(pending()).await) }));
    let some = "select count(*) > 50 from effect";
    until("some effects are there", async || admin.query_one(some, &[]).await.unwrap().get(0)).await;
    servers.fail_over().await;
    until("all messages are done", async || broker.unfinished() == 0).await;
    until("all events have arrived", async || sink.arrived.lock().len() == MESSAGES).await;
    let admin = servers.standby.client().await.unwrap();
    assert_eq!(texts(&admin, "select key from effect order by key").await, keys);
    let events = "select convert_from(payload, 'UTF8') from hapax_outbox order by 1";
    assert_eq!(texts(&admin, events).await, keys);
    assert_eq!(texts(&admin, "select operation::text from hapax_ledger").await.len(), MESSAGES);
    assert_eq!(dead.letters().len(), 0);
}

/// The server waits for a standby that does not exist, until its wait is cancelled. The row is visible by then.
async fn cancelled() {
    let server = start().await;
    let admin = server.client().await.unwrap();
    let ledger = ledger(&server.url(), terms());
    ledger.create_tables().await.unwrap();
    assert_eq!(run(&ledger, "before").await.unwrap().provenance, Provenance::Fresh);
    let before = ledger.check(1).await.unwrap();
    admin.batch_execute("alter system set synchronous_standby_names = 'nobody'").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    let cancel = "select count(pg_cancel_backend(pid)) > 0 from pg_stat_activity where wait_event = 'SyncRep'";
    let cancels = until("the COMMIT waits", async || admin.query_one(cancel, &[]).await.unwrap().get(0));
    let waits = "select current_setting('synchronous_standby_names') = 'nobody'";
    until("the setting is read", async || admin.query_one(waits, &[]).await.unwrap().get(0)).await;
    let (ran, ()) = join(run(&ledger, "cancelled"), cancels).await;
    assert_eq!(ran.unwrap().provenance, Provenance::Fresh);
    let findings = ledger.check(1).await.unwrap();
    let added: Vec<_> = findings.iter().filter(|finding| !before.contains(finding)).collect();
    assert!(matches!(added[..], [one] if one.message.contains("before the standby had it")), "{findings:?}");
}
