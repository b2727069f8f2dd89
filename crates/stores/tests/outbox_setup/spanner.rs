//! The outbox suite's setup of Spanner. Writers have no ledger.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::ledger::{Event, Terms};
use hapax_core::outbox::{Outbox, OutboxUpkeep, OutgoingEvent};
use hapax_core::runtime::Tokio;
use hapax_core::{BoxError, EventId, Inspect, Store};
use hapax_stores::{Spanner, SpannerLedger, SpannerOutbox, SpannerTables, SpannerTransaction, SpannerUrl};
use hapax_testkit::servers::SpannerServer;
use hapax_testkit::{OutboxBackend, OutboxCapability, OutboxSetup, OutboxWriter};
use tokio::sync::Mutex;

pub(crate) fn backend() -> OutboxBackend {
    OutboxBackend::new("spanner", || async { Box::new(SpannerOutboxDatabase::new().await) as Box<dyn OutboxSetup> })
        .requiring("spanner")
        .lacking(&[(OutboxCapability::ConcurrentWriters, "the emulator runs one transaction of a database at a time")])
}

/// The columns of a row whose time is moved.
const COLUMNS: &str = "bucket, seq, event_id, namespace, operation, n, okey, topic, type, source, content_type, \
                       headers, state, payload";

struct SpannerOutboxDatabase {
    _server: Arc<SpannerServer>,
    outbox: Arc<SpannerOutbox>,
    store: Arc<Spanner>,
    writers: SpannerLedger,
}

/// The emulator of the cases that run at once. The transaction that runs wins against the one that begins.
async fn server() -> Arc<SpannerServer> {
    static SERVER: Mutex<Weak<SpannerServer>> = Mutex::const_new(Weak::new());
    let mut shared = SERVER.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let options = ["--abort_current_transaction_probability", "0"];
    let server = Arc::new(SpannerServer::start(&options).await.expect("the server starts"));
    *shared = Arc::downgrade(&server);
    server
}

impl SpannerOutboxDatabase {
    async fn new() -> Self {
        let server = server().await;
        let url: SpannerUrl = server.new_database().parse().expect("the URL is valid");
        SpannerTables::connect(&url).expect("the URL can be used").create().await.expect("the database is new");
        let store = Arc::new(Spanner::with(&url, Arc::new(Tokio::current())).expect("the URL can be used"));
        for change in [
            // Sweeps leave the work to a policy.
            "ALTER TABLE hapax_outbox DROP ROW DELETION POLICY",
            include_str!("aged.sql"),
        ] {
            store.change_table(change).await.expect("the tables are new");
        }
        let writers = SpannerLedger::connect(&url, Terms::new("writers").expect("the namespace is allowed"));
        Self {
            _server: server,
            outbox: Arc::new(SpannerOutbox::connect(&url).expect("the URL can be used")),
            store,
            writers: writers.expect("the URL can be used"),
        }
    }

    /// A transaction that no other one is in the way of any more.
    async fn transaction(&self) -> SpannerTransaction {
        for _ in 0..10_000 {
            let transaction = self.writers.transaction().await.expect("there is a session");
            if transaction.execute("SELECT id FROM hapax_relay").await.is_ok() {
                return transaction;
            }
            transaction.roll_back().await;
        }
        panic!("other transactions are always in the way");
    }
}

#[async_trait(?Send)]
impl OutboxSetup for SpannerOutboxDatabase {
    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::clone(&self.outbox) as Arc<dyn Outbox>
    }

    fn upkeep(&self) -> Arc<dyn OutboxUpkeep> {
        Arc::clone(&self.outbox) as Arc<dyn OutboxUpkeep>
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn records(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as Arc<dyn Inspect>
    }

    async fn begin(&self) -> Box<dyn OutboxWriter> {
        Box::new(SpannerWriter(self.transaction().await))
    }

    async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter> {
        let mut writer = self.begin().await;
        writer.emit(event).await.expect("the event is within its limits");
        writer
    }

    /// The time is a part of the key, so each row is replaced by another one.
    async fn age(&self, by: Duration) {
        let earlier = |column: &str| format!("TIMESTAMP_SUB({column}, INTERVAL {} MICROSECOND)", by.as_micros());
        let (created_at, published_at, parked_at) =
            (earlier("created_at"), earlier("published_at"), earlier("parked_at"));
        let transaction = self.transaction().await;
        for statement in [
            format!(
                "INSERT INTO aged ({COLUMNS}, created_at, published_at) \
                 SELECT {COLUMNS}, created_at, published_at FROM hapax_outbox"
            ),
            "DELETE FROM hapax_outbox WHERE TRUE".to_owned(),
            format!(
                "INSERT INTO hapax_outbox ({COLUMNS}, created_at, published_at) \
                 SELECT {COLUMNS}, {created_at}, {published_at} FROM aged"
            ),
            "DELETE FROM aged WHERE TRUE".to_owned(),
            format!("UPDATE hapax_parked SET created_at = {created_at}, parked_at = {parked_at} WHERE TRUE"),
        ] {
            transaction.execute(&statement).await.expect("the tables exist");
        }
        transaction.commit().await.expect("nothing else runs");
    }
}

struct SpannerWriter(SpannerTransaction);

#[async_trait(?Send)]
impl OutboxWriter for SpannerWriter {
    async fn emit(&mut self, event: &OutgoingEvent) -> Result<EventId, BoxError> {
        let mut written = Event::new(&*event.topic, event.payload.clone());
        if let Some(key) = &event.ordering_key {
            written = written.ordered_by(key.clone());
        }
        if let Some(kind) = &event.kind {
            written = written.kind(kind);
        }
        if let Some(source) = &event.source {
            written = written.source(source);
        }
        if let Some(content_type) = &event.content_type {
            written = written.content_type(content_type);
        }
        for (name, value) in event.headers.iter() {
            written = written.header(name, std::str::from_utf8(value)?);
        }
        Ok(SpannerOutbox::emit(&self.0, &event.namespace, event.operation.zip(event.number), written).await?)
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.0.commit().await?)
    }
}
