//! Records in one SQLite file, for one host: several processes may share it.
//!
//! ```text
//! begin, renew, complete, swap ─► writer thread: BEGIN IMMEDIATE, all waiting steps, COMMIT (fsync), then the replies
//! read, the search of a sweep  ─► reader thread: committed data only, without waiting for the writer
//!                                checkpoint thread: moves the log into the file while the writer continues
//! ```
//!
//! Waiting callers share one transaction and one fsync. Each gets its reply after that fsync.
//! The store's clock is the runtime's wall clock.

mod checkpoint;
mod connection;
mod group;
mod row;
mod step;
mod thread;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Finding, Inserted, Inspect, Severity, Store, Swapped};
use hapax_core::{RecordKey, Result};

use checkpoint::Checkpoints;
use thread::DatabaseThread;

/// A store in one SQLite file.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax_core::runtime::Tokio;
/// use hapax_core::{Gate, Identity, Inspect, Key, Scope, Settings};
/// use hapax_stores::Sqlite;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("hapax.db");
/// let store = Arc::new(Sqlite::open(&path, Arc::new(Tokio::current()))?);
/// let gate = Gate::builder(Arc::clone(&store) as _, Settings::default()).build()?;
/// let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// gate.run(call, |_| async { Ok(String::from("charged")) }).await?;
///
/// // Every minute or so: expired records stay in the file until a sweep removes them.
/// store.sweep(1000).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sqlite {
    writer: DatabaseThread,
    reader: DatabaseThread,
    /// The row id up to which sweeps have searched. The next sweep continues there.
    swept_to: AtomicI64,
}

/// How many rows one search of a sweep reads.
const SWEEP_WINDOW: usize = 4096;

impl Sqlite {
    /// Opens the file, or creates it. Blocks for a few milliseconds, or up to ten seconds while another process writes.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database or has a newer schema, and if the system cannot start a thread.
    pub fn open(path: &Path, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut writer = connection::open(path)?;
        connection::prepare(&mut writer, path)?;
        let reader = connection::open(path)?;
        let checkpoints = Checkpoints::start(connection::open(path)?, &*runtime)?;
        let write = group::write_groups(writer, checkpoints, Arc::clone(&runtime));
        Ok(Self {
            writer: DatabaseThread::start(&*runtime, "hapax-sqlite-writer", write)?,
            reader: DatabaseThread::start(
                &*runtime,
                "hapax-sqlite-reader",
                group::read_steps(reader, Arc::clone(&runtime)),
            )?,
            swept_to: AtomicI64::new(0),
        })
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let ask = *ask;
        self.writer.run(move |step| step.begin(&ask)).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (rk, claim) = (*rk, *claim);
        self.writer.run(move |step| step.decide(&rk, |seen| machine::renew(seen, &claim))).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (rk, ask) = (*rk, ask.clone());
        self.writer.run(move |step| step.decide(&rk, |seen| machine::complete(seen, &ask))).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let rk = *rk;
        self.reader.run(move |step| step.read(&rk)).await
    }

    /// Returns the store itself: its threads need no executor, and a renewal shares the next commit with all other
    /// steps.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (rk, seen, next) = (*rk, seen.clone(), next.clone());
        self.writer.run(move |step| step.swap(&rk, &seen, &next)).await
    }
}

#[async_trait]
impl Inspect for Sqlite {
    /// Searches the table on the reader thread, one window at a time, so that no begin waits for the search.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let mut swept = 0;
        while swept < limit {
            let from = self.swept_to.load(Ordering::Acquire);
            let most = limit - swept;
            let window = self.reader.run(move |step| step.find_expired(from, SWEEP_WINDOW, most)).await?;
            // The reader does not lock the rows, so `delete` checks again that each has expired.
            let (expired, next) = (window.expired, window.next);
            swept += self.writer.run(move |step| step.delete(&expired)).await?;
            // At the end of the table, the next sweep starts at the first row.
            self.swept_to.store(next.unwrap_or(0), Ordering::Release);
            if next.is_none() {
                break;
            }
        }
        Ok(swept)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let synchronous = self.writer.run(|step| step.synchronous()).await?;
        if synchronous >= connection::SYNCHRONOUS_FULL {
            return Ok(Vec::new());
        }
        let message =
            "SQLite does not sync its log before it replies; a power failure could lose a recorded effect".into();
        Ok(vec![Finding { severity: Severity::Refuse, message }])
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        self.reader.run(|step| step.count_unknown()).await.map(Some)
    }
}
