//! Google Cloud Spanner: the records, one row each, written in transactions; the ledger in those of a service; and its
//! outbox.
//!
//! The servers of Spanner agree on the time within milliseconds, so `CURRENT_TIMESTAMP()` judges leases and lifetimes.
//!
//! ```text
//! url.rs           the URL of a database
//! api.rs           calls and sessions; answers.rs says what an answer means
//! messages.rs      the messages of the API; values.rs writes and reads values
//! transactions.rs  transactions, and when they run again
//! row.rs           a record as a row, and back
//! records.rs       the five operations, and purges
//! inspection.rs    scans and sweeps
//! tables.rs        makes the table of the records, and says what is wrong with it; database.rs: all tables
//! ledger.rs        the ledger, in transactions of the service
//! outbox.rs        its events, for relays and operators
//! ```

mod answers;
mod api;
mod database;
mod inspection;
mod ledger;
mod messages;
mod outbox;
mod records;
mod row;
#[cfg(test)]
mod stand_in;
mod tables;
#[cfg(test)]
mod tests;
mod transactions;
mod url;
mod values;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Store, Swapped};
use hapax_core::{RecordKey, Result};
use parking_lot::Mutex;

use self::api::SpannerApi;
use self::messages::SqlValue;
use self::records::SpannerRecords;
use self::tables::RecordTableState;
use self::transactions::{LONGEST, TransactionEnd};
use self::values::SqlStatement;
use crate::executor::LocalTasks;
use crate::turns::Turns;

pub use self::database::SpannerTables;
pub use self::ledger::{
    HandleSpannerJobs, SpannerEntry, SpannerLedger, SpannerProcess, SpannerRow, SpannerStatement,
    SpannerStatementError, SpannerTransaction, SpannerValue,
};
pub use self::outbox::SpannerOutbox;
pub use self::url::SpannerUrl;

/// How long the state of the table is believed.
const STATE_HOLDS: Duration = Duration::from_secs(60);

/// A store in a database of Google Cloud Spanner, for any number of hosts.
///
/// Leases and lifetimes are judged by the clock of Spanner. A call for a key whose caller has gone runs to its end, so
/// that no lock stays behind. A sweep that is dropped can leave locks until Spanner ends its transaction.
///
/// It keeps no high-water mark of tokens. Tokens grow with the clock of Spanner.
///
/// ```no_run
/// use std::sync::Arc;
/// use hapax::runtime::Tokio;
/// use hapax::stores::Spanner;
///
/// # async fn open() -> hapax::Result<()> {
/// let url = "spanner://shop-4711/main/payments".parse()?;
/// let store = Spanner::with(&url, Arc::new(Tokio::current()))?;
/// store.create_table().await?;
/// # Ok(())
/// # }
/// ```
pub struct Spanner {
    records: SpannerRecords,
    turns: Turns,
    /// Whether Spanner removes what has expired, and when that was found, on the boot-time clock.
    removes_expired: Arc<Mutex<Option<(Duration, bool)>>>,
}

impl Spanner {
    /// A store on the current tokio runtime. Connects to nothing yet.
    ///
    /// # Errors
    /// `Invalid` if the text is not the URL of a database.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &str) -> Result<Self> {
        Self::with(&url.parse()?, Arc::new(Tokio::current()))
    }

    /// As [`connect`](Self::connect), with a runtime. Connects to nothing yet.
    ///
    /// # Errors
    /// Those of the TLS library.
    pub fn with(url: &SpannerUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let records = SpannerRecords { api: SpannerApi::new(url, Arc::clone(&runtime))? };
        Ok(Self { records, turns: Turns::new(runtime), removes_expired: Arc::default() })
    }

    /// Whether the table exists.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn has_table(&self) -> Result<bool> {
        Ok(RecordTableState::read(&self.records.api).await?.exists())
    }

    /// Makes the table if there is none, and its row deletion policy, and waits until they are there. On an emulator
    /// it makes the instance and the database, too. Returns whether it changed a table.
    ///
    /// # Errors
    /// `Unusable` without the right to do it, `NotApplied` if it takes longer than ten minutes.
    ///
    /// # Cancel safety
    /// If dropped, the table may be made. A second call goes on.
    pub async fn create_table(&self) -> Result<bool> {
        tables::create(&self.records.api).await
    }

    /// The statements that [`create_table`](Self::create_table) would run now.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn missing_statements(&self) -> Result<Vec<String>> {
        Ok(RecordTableState::read(&self.records.api).await?.missing())
    }

    /// For tests: moves the clock of this store by so many microseconds, because that of an emulator cannot be moved.
    #[doc(hidden)]
    pub fn shift_clock(&self, micros: i64) {
        self.records.api.shift_clock(micros);
    }

    /// For tests: runs a statement that changes rows, as an operator would.
    #[doc(hidden)]
    pub async fn execute(&self, sql: &'static str, rk: &RecordKey) -> Result<()> {
        let statement = SqlStatement::new(sql).bytes("rk", rk.as_bytes());
        self.records.api.transact(&statement, |_| Ok(TransactionEnd::Write(Vec::new(), ()))).await
    }

    /// For tests: the rows of a query whose columns are all texts.
    #[doc(hidden)]
    pub async fn texts(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let rows = self.records.api.read(&SqlStatement::new(sql.to_owned())).await?;
        let text = |value: &SqlValue| Ok(value.as_text()?.unwrap_or_default().to_owned());
        rows.iter().map(|row| row.values.iter().map(text).collect()).collect()
    }

    /// For tests: runs a statement that changes tables, as an operator would.
    #[doc(hidden)]
    pub async fn change_table(&self, sql: &str) -> Result<()> {
        tables::change(&self.records.api, vec![sql.to_owned()]).await
    }

    /// Runs an operation on the record of this key when it is its turn.
    async fn run<T: Send + 'static>(
        &self,
        rk: RecordKey,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let api = self.records.api.clone();
        self.turns.run(rk, async move { api.admit().await }, call).await
    }

    /// Whether Spanner removes what has expired.
    async fn removes_expired(&self) -> Result<bool> {
        let now = self.records.api.runtime().boottime_now();
        let known = self.removes_expired.lock().filter(|(found, _)| now.saturating_sub(*found) < STATE_HOLDS);
        if let Some((_, removes)) = known {
            return Ok(removes);
        }
        let state = RecordTableState::read(&self.records.api).await?;
        *self.removes_expired.lock() = Some((now, state.removes_expired()));
        Ok(state.removes_expired())
    }
}

#[async_trait]
impl Store for Spanner {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let (records, ask) = (self.records.clone(), *ask);
        self.run(ask.call.record_key(), async move { records.begin(&ask).await }).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (records, rk, claim) = (self.records.clone(), *rk, *claim);
        self.run(rk, async move { records.renew(&rk, &claim).await }).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (records, rk, ask) = (self.records.clone(), *rk, ask.clone());
        self.run(rk, async move { records.complete(&rk, &ask).await }).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let (records, rk) = (self.records.clone(), *rk);
        self.run(rk, async move { records.read(&rk).await }).await
    }

    /// Returns a store with a connection, sessions and tasks of its own. It shares the turns.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let runtime: Arc<dyn Runtime> = Arc::new(LocalTasks::over(Arc::clone(self.records.api.runtime())));
        let records = SpannerRecords { api: self.records.api.dedicated(Arc::clone(&runtime))? };
        let turns = self.turns.on(runtime, LONGEST);
        Ok(Arc::new(Self { records, turns, removes_expired: Arc::clone(&self.removes_expired) }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (records, rk, seen, next) = (self.records.clone(), *rk, seen.clone(), next.clone());
        self.run(rk, async move { records.swap(&rk, &seen, &next).await }).await
    }
}

#[async_trait]
impl Inspect for Spanner {
    /// Removes nothing if Spanner does it. Without a row deletion policy it reads the whole table.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        if self.removes_expired().await? { Ok(0) } else { self.records.sweep(limit).await }
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        self.records.scan(ask).await
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let (records, rk, seen) = (self.records.clone(), *rk, seen.clone());
        self.run(rk, async move { records.purge(&rk, &seen).await }).await
    }

    /// Checks the columns of the table and its row deletion policy.
    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(RecordTableState::read(&self.records.api).await?.findings())
    }
}

impl fmt::Debug for Spanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spanner").field("api", &self.records.api).finish_non_exhaustive()
    }
}
