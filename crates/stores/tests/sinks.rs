//! The sink suite on the queue in an SQLite file.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_stores::{SqliteQueue, SqliteSink, SqliteSinkConfig, SqliteSource, SqliteSourceSettings};
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkOptions, SinkSetup, run_sink_case, sink_main};
use rusqlite::Connection;
use tempfile::TempDir;

const QUEUE: &str = "orders.suite";

fn main() -> ExitCode {
    const NO_SERVER: &str = "the queue is a file: there is no server and no network";
    const NO_TOPICS: &str = "a queue exists as soon as a message is in it";
    const NO_LIMIT: &str = "a queue takes every event of an outbox";
    let backend = SinkBackend::new("sqlite", |case| run_sink_case(case, async || SqliteSetup::new()));
    sink_main(&[backend.lacking(&[
        (SinkCapability::Network, NO_SERVER),
        (SinkCapability::Restart, NO_SERVER),
        (SinkCapability::MissingTopic, NO_TOPICS),
        (SinkCapability::SmallLimit, NO_LIMIT),
    ])])
}

struct SqliteSetup {
    _folder: TempDir,
    path: PathBuf,
    runtime: Arc<dyn Runtime>,
}

impl SqliteSetup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        Self { _folder: folder, path, runtime: Arc::new(Tokio::current()) }
    }
}

#[async_trait]
impl SinkSetup for SqliteSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        QUEUE.into()
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let config = SqliteSinkConfig::new(&self.path).topic(options.topic);
        Arc::new(SqliteSink::open(config, self.runtime()).unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        let connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        let mut statement =
            connection.prepare("select queue, okey, headers, payload from hapax_queue order by id").unwrap();
        let arrived = statement.query_map([], |row| {
            let headers: Vec<(String, String)> = serde_json::from_str(&row.get::<_, String>(2)?).unwrap();
            let headers: Headers = headers.into_iter().collect();
            let id = headers.all("ce-id").next().unwrap();
            Ok(ArrivedEvent {
                id: String::from_utf8_lossy(id).into_owned(),
                name: row.get(0)?,
                ordering_key: row.get::<_, Option<Vec<u8>>>(1)?.map(Bytes::from),
                headers: headers.clone(),
                payload: row.get::<_, Vec<u8>>(3)?.into(),
            })
        });
        arrived.unwrap().map(Result::unwrap).collect()
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        ("orders.{topic}".parse().unwrap(), "suite".into())
    }

    fn invalid_topic(&self) -> String {
        "long".repeat(64)
    }

    async fn source(&self) -> Box<dyn Source> {
        let queue = SqliteQueue::new(QUEUE).unwrap();
        let settings = SqliteSourceSettings::default();
        Box::new(SqliteSource::open(&self.path, &queue, self.runtime(), settings).unwrap())
    }
}
