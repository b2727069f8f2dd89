//! The source suite on the queue in an SQLite file.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{Message, Source};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_stores::{SqliteQueue, SqliteSource, SqliteSourceSettings};
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
    serve_source, source_main,
};
use parking_lot::Mutex;
use rusqlite::Connection;
use tempfile::TempDir;

/// Long enough for a machine that is busy: a lease that ends while its worker lives fails a case.
const LEASE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    const NO_LANES: &str = "all workers of a queue share one lane, which never moves";
    const NO_LONGEST: &str = "a lease can be extended for ever";
    const NO_SERVER: &str = "the queue is a file: there is no server to restart";
    const KEEPS_ALL: &str = "a queue has no offsets, and deletes a message only when it is acknowledged";
    serve_source(|path| Box::pin(async move { open(Path::new(&path)) }));
    let backend = SourceBackend::new("sqlite", |case| run_source_case(case, async || SqliteSetup::new()));
    source_main(&[backend.at_once(12).lacking(&[
        (SourceCapability::Rebalance, NO_LANES),
        (SourceCapability::Loss, NO_LANES),
        (SourceCapability::LongestLease, NO_LONGEST),
        (SourceCapability::Restart, NO_SERVER),
        (SourceCapability::ExpiringOffsets, KEEPS_ALL),
    ])])
}

fn queue() -> SqliteQueue {
    SqliteQueue::new("suite").unwrap()
}

fn open(path: &Path) -> hapax_core::Result<Box<dyn Source>> {
    let settings = SqliteSourceSettings::default().lease(LEASE);
    let source = SqliteSource::open(path, &queue(), Arc::new(Tokio::current()), settings)?;
    Ok(Box::new(source))
}

struct SqliteSetup {
    _folder: TempDir,
    path: PathBuf,
    runtime: Arc<dyn Runtime>,
    service: Mutex<Service>,
}

/// Puts messages in.
struct Service {
    connection: Connection,
    /// The ids of the messages.
    published: Vec<u64>,
}

impl SqliteSetup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        // Creates the file as a worker does.
        drop(open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        let service = Mutex::new(Service { connection, published: Vec::new() });
        Self { _folder: folder, path, runtime: Arc::new(Tokio::current()), service }
    }
}

/// Whether no connection has the lock of the file.
fn is_free(path: &Path) -> bool {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::ZERO).unwrap();
    connection.execute_batch("begin immediate; rollback").is_ok()
}

#[async_trait]
impl SourceSetup for SqliteSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        SourceTimes {
            slow: LEASE * 2 + LEASE / 2,
            settle: Duration::from_secs(1),
            backoff: Duration::from_millis(10),
            look: Duration::from_millis(20),
        }
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        let path = self.path.clone();
        let target = path.display().to_string();
        Arc::new(SourceProcess::start(target).paused_if(move || is_free(&path)))
    }

    async fn publish(&self, messages: Vec<Message>) {
        let mut service = self.service.lock();
        for message in messages {
            let id = queue().enqueue(&service.connection, &message).unwrap();
            service.published.push(id);
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let service = self.service.lock();
        let mut statement = service.connection.prepare_cached("select id from hapax_queue").unwrap();
        let left = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        let left: BTreeSet<u64> = left.map(|id| id.unwrap().cast_unsigned()).collect();
        let places = service.published.iter().enumerate().filter(|(_, id)| left.contains(id));
        places.map(|(place, _)| place).collect()
    }
}
