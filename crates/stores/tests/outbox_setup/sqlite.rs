//! The outbox suite's setup of SQLite. Writers have no ledger.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::ledger::Event;
use hapax_core::outbox::{Outbox, OutboxUpkeep, OutgoingEvent};
use hapax_core::{BoxError, EventId, Inspect, Store};
use hapax_stores::{Sqlite, SqliteOutbox};
use hapax_testkit::{OutboxBackend, OutboxCapability, OutboxSetup, OutboxWriter};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) fn backend() -> OutboxBackend {
    OutboxBackend::new("sqlite", || async { Box::new(SqliteOutboxFile::new()) as Box<dyn OutboxSetup> })
        .lacking(&[(OutboxCapability::ConcurrentWriters, "one transaction writes at a time")])
}

struct SqliteOutboxFile {
    path: PathBuf,
    outbox: Arc<SqliteOutbox>,
    store: Arc<Sqlite>,
    _directory: TempDir,
}

impl SqliteOutboxFile {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the file");
        let path = directory.path().join("service.db");
        let outbox = Arc::new(SqliteOutbox::open(&path).expect("the file is new"));
        let store = Arc::new(Sqlite::open(&path).expect("the file can hold records too"));
        Self { path, outbox, store, _directory: directory }
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(&self.path).expect("the file can be opened");
        connection.busy_timeout(Duration::from_secs(30)).expect("a time can be set");
        connection
    }
}

#[async_trait(?Send)]
impl OutboxSetup for SqliteOutboxFile {
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
        let connection = self.connection();
        connection.execute_batch("begin immediate").expect("nobody else writes");
        Box::new(SqliteWriter(connection))
    }

    async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter> {
        let mut writer = self.begin().await;
        writer.emit(event).await.expect("the event is within its limits");
        writer
    }

    async fn age(&self, by: Duration) {
        let age = format!(
            "update hapax_outbox set created_at = created_at - {0}, published_at = published_at - {0};
             update hapax_parked set parked_at = parked_at - {0}",
            by.as_millis()
        );
        self.connection().execute_batch(&age).expect("the tables exist");
    }
}

struct SqliteWriter(Connection);

#[async_trait(?Send)]
impl OutboxWriter for SqliteWriter {
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
        Ok(SqliteOutbox::emit(&self.0, &event.namespace, event.operation.zip(event.number), written)?)
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.0.execute_batch("commit")?)
    }
}
