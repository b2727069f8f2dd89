//! Records in one SQLite file, for one host: several processes may share it.
//!
//! ```text
//! begin, renew, complete, swap ─► writer thread: BEGIN IMMEDIATE, all waiting steps, COMMIT (fsync), then the replies
//! read, the search of a sweep  ─► reader thread: committed data only, without waiting for the writer
//!                                checkpoint thread: copies the write-ahead log into the file
//! ```
//!
//! Writers do not wait for a checkpoint, unless the write-ahead log has grown to 64 MiB.
//! Waiting callers share one transaction and one fsync. Each gets its reply after that fsync.
//! The store's clock is the runtime's wall clock.

mod checkpoint;
mod connection;
mod dead;
mod file_thread;
mod group;
mod inspection;
mod ledger;
mod log_owner;
mod opened_file;
mod outbox;
mod queue;
mod row;
mod step;
mod sweep;
mod tables;
mod thread;
mod turn;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Severity, Store, Swapped};
use hapax_core::{RecordKey, Result};

use checkpoint::Checkpoints;
pub use dead::SqliteDeadLetters;
use file_thread::FileConnection;
pub use ledger::{SqliteEntry, SqliteLedger, SqliteProcess};
pub use opened_file::SqliteFile;
pub use outbox::SqliteOutbox;
pub use queue::{SqliteQueue, SqliteSink, SqliteSinkConfig, SqliteSource, SqliteSourceSettings};
pub use tables::SqliteTables;
use thread::DatabaseThread;

/// A store in one SQLite file. It removes expired records by itself, once a minute unless its settings say otherwise.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::{Gate, Identity, Key, Scope, Settings};
/// use hapax::stores::Sqlite;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("hapax.db");
/// let store = Sqlite::open(path)?;
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// gate.run(call, |_| async { Ok(String::from("charged")) }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sqlite {
    threads: Arc<Threads>,
}

/// Settings of a [`Sqlite`] store.
///
/// ```
/// use hapax::stores::SqliteSettings;
///
/// // The service calls `Inspect::sweep` itself, at night.
/// let settings = SqliteSettings::default().sweep_every(None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// How often the store removes expired records from the file. None: never. Default: 1 min.
    pub sweep_every: Option<Duration>,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self { sweep_every: Some(Duration::from_secs(60)) }
    }
}

impl SqliteSettings {
    /// Sets the field `sweep_every`.
    #[must_use]
    pub fn sweep_every(mut self, sweep_every: Option<Duration>) -> Self {
        self.sweep_every = sweep_every;
        self
    }
}

impl Sqlite {
    /// Opens the file, or creates it so that only its owner can read it. Blocks for a few milliseconds, or up to 30
    /// seconds while another process writes. Uses the default settings and the current tokio runtime.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database or has a newer schema, and if the system cannot start a thread.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let runtime = Arc::new(hapax_core::runtime::Tokio::current());
        Self::with(path.as_ref(), runtime, SqliteSettings::default())
    }

    /// Opens the file with these settings, on this runtime.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database or has a newer schema, and if the system cannot start a thread.
    pub fn with(path: &Path, runtime: Arc<dyn Runtime>, settings: SqliteSettings) -> Result<Self> {
        let threads = Arc::new(Threads::start(path, &runtime)?);
        if let Some(every) = settings.sweep_every {
            runtime.spawn(Box::pin(sweep::sweep_regularly(Arc::downgrade(&threads), Arc::clone(&runtime), every)));
        }
        Ok(Self { threads })
    }
}

/// The writer and the reader of a store, and the file that they use. The writer's work also owns the checkpoint thread.
#[derive(Debug)]
struct Threads {
    writer: DatabaseThread,
    reader: DatabaseThread,
    file: SqliteFile,
    /// The row id up to which sweeps have searched. The next sweep continues there.
    swept_to: AtomicI64,
}

impl Threads {
    fn start(path: &Path, runtime: &Arc<dyn Runtime>) -> Result<Self> {
        let mut writer = connection::open(path)?;
        let file = SqliteFile::at(path)?;
        connection::prepare(&mut writer, path)?;
        writer.busy_timeout(connection::BUSY_TIMEOUT).map_err(|error| connection::unusable(path, error))?;
        let reader = connection::open(path)?;
        let opened = |connection| FileConnection { connection, file: file.clone() };
        let checkpoints = Checkpoints::start(opened(connection::open(path)?), &**runtime)?;
        // Fails if the path was replaced while the three connections were opened: they might have different files.
        file.check()?;
        log_owner::note(path);
        let write = group::write_groups(opened(writer), checkpoints, Arc::clone(runtime));
        let read = group::read_steps(opened(reader), Arc::clone(runtime));
        Ok(Self {
            writer: DatabaseThread::start(&**runtime, "hapax-sqlite-writer", write)?,
            reader: DatabaseThread::start(&**runtime, "hapax-sqlite-reader", read)?,
            swept_to: AtomicI64::new(0),
            file,
        })
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let ask = *ask;
        self.threads.writer.run(move |step| step.begin(&ask)).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (rk, claim) = (*rk, *claim);
        self.threads.writer.run(move |step| step.decide(&rk, |seen| machine::renew(seen, &claim))).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (rk, ask) = (*rk, ask.clone());
        self.threads.writer.run(move |step| step.decide(&rk, |seen| machine::complete(seen, &ask))).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let rk = *rk;
        self.threads.reader.run(move |step| step.read(&rk)).await
    }

    /// Returns the store itself: its threads need no executor, and a renewal shares the next commit with all other
    /// steps.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (rk, seen, next) = (*rk, seen.clone(), next.clone());
        self.threads.writer.run(move |step| step.swap(&rk, &seen, &next)).await
    }
}

#[async_trait]
impl Inspect for Sqlite {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        sweep::sweep(&self.threads, limit).await
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        let ask = ask.clone();
        self.threads.reader.run(move |step| step.scan(&ask)).await
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let (rk, seen) = (*rk, seen.clone());
        self.threads.writer.run(move |step| step.purge(&rk, &seen)).await
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        if let Err(moved) = self.threads.file.check() {
            return Ok(vec![Finding { severity: Severity::Refuse, message: moved.to_string() }]);
        }
        if self.threads.file.is_damaged() {
            let path = self.threads.file.place();
            let message = format!(
                "{path} is damaged; stop the process, restore a backup, remove {path}-wal and {path}-shm, then start"
            );
            return Ok(vec![Finding { severity: Severity::Refuse, message }]);
        }
        let synchronous = self.threads.writer.run(|step| step.synchronous()).await?;
        if synchronous >= connection::SYNCHRONOUS_FULL {
            return Ok(Vec::new());
        }
        let message =
            "SQLite replies before its write-ahead log is on the disk; a power failure could lose a recorded effect"
                .into();
        Ok(vec![Finding { severity: Severity::Refuse, message }])
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        self.threads.reader.run(|step| step.count_unknown()).await.map(Some)
    }
}
