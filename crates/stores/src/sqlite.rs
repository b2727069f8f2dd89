//! Records in one SQLite file, for one host: several processes may share it.
//!
//! ```text
//! begin, renew, complete, swap ─► writer thread: BEGIN IMMEDIATE, all callers that wait, COMMIT (fsync), then the replies
//! read, the search of a sweep  ─► reader thread: what is committed, without waiting for the writer
//!                                checkpoint thread: moves the log into the file, while the writer goes on
//! ```
//!
//! A group of callers shares one transaction and one fsync, and no caller hears of its step before that fsync.
//! The store's clock is the runtime's wall clock.

mod checkpoint;
mod connection;
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
use thread::Worker;

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
/// // Every minute or so: expired records stay in the file until they are removed.
/// store.sweep(1000).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sqlite {
    writer: Worker,
    reader: Worker,
    /// How far into the table the current sweep has come.
    swept_to: AtomicI64,
}

/// How many rows one look of a sweep takes in.
const SWEEP_WINDOW: usize = 4096;

impl Sqlite {
    /// Opens the file, or makes it. Blocks for a few milliseconds, or up to ten seconds while another process writes.
    ///
    /// # Errors
    /// `Unusable` for a place that cannot be written or that is a network file system, a file that is no SQLite database or one with
    /// a newer schema, and if the system has no thread left.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use hapax_core::runtime::Tokio;
    /// use hapax_stores::Sqlite;
    ///
    /// let directory = tempfile::tempdir()?;
    /// let store = Sqlite::open(&directory.path().join("hapax.db"), Arc::new(Tokio::current()))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: &Path, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut writer = connection::open(path)?;
        connection::prepare(&mut writer, path)?;
        let reader = connection::open(path)?;
        let checkpoints = Checkpoints::start(connection::open(path)?, &*runtime)?;
        let write = step::group(writer, checkpoints, Arc::clone(&runtime));
        Ok(Self {
            writer: Worker::start(&*runtime, "hapax-sqlite-writer", write)?,
            reader: Worker::start(&*runtime, "hapax-sqlite-reader", step::snapshot(reader, Arc::clone(&runtime)))?,
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

    /// The store itself: its threads depend on no executor, and a renewal shares the next commit whoever else waits.
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
    /// Looks through the table a window at a time on the reader, so that no begin waits behind the search.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let mut swept = 0;
        while swept < limit {
            let from = self.swept_to.load(Ordering::Acquire);
            let most = limit - swept;
            let window = self.reader.run(move |step| step.expired(from, SWEEP_WINDOW, most)).await?;
            let (expired, next) = (window.expired, window.next);
            swept += self.writer.run(move |step| step.delete(&expired)).await?;
            self.swept_to.store(next.unwrap_or(0), Ordering::Release);
            if next.is_none() {
                break;
            }
        }
        Ok(swept)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let synchronous = self.writer.run(|step| step.synchronous()).await?;
        if synchronous >= connection::FULL {
            return Ok(Vec::new());
        }
        let message = "SQLite does not sync its log before it answers; a power failure could forget an effect".into();
        Ok(vec![Finding { severity: Severity::Refuse, message }])
    }
}
