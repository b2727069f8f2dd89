//! The store on AWS DynamoDB: one item for each record, written only under conditions.
//!
//! The service has conditions but no clock in them, so the store reads the clock of the service from its replies.
//!
//! ```text
//! url.rs         the URL of a table
//! api.rs         calls, and when the clock is asked for; answers.rs says what an answer means
//! clock.rs       the clock of the service, as an interval
//! item.rs        a record as an item, and back
//! parts.rs       answers that do not fit into an item
//! request.rs     the bodies of calls, and their conditions
//! records.rs     the five operations, and purges
//! inspection.rs  scans and sweeps
//! table.rs       makes the table, and says what is wrong with one
//! ```

mod answers;
mod api;
mod clock;
mod inspection;
mod item;
mod parts;
mod records;
mod request;
#[cfg(test)]
mod stand_in;
mod table;
#[cfg(test)]
mod tests;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Store, Swapped};
use hapax_core::{RecordKey, Result};
use parking_lot::Mutex;

use self::api::TableApi;
use self::records::RecordTable;
pub use self::table::MissingTableParts;
use self::table::TableState;
use crate::executor::LocalTasks;
use crate::turns::Turns;

pub use self::url::DynamoDbUrl;

/// How long the state of the table is believed.
const STATE_HOLDS: Duration = Duration::from_secs(60);

/// A store in a table of AWS DynamoDB, for any number of hosts.
///
/// Leases and lifetimes are judged by the clock of the service, which the store reads from its replies. A lapse may be
/// noticed up to three seconds late. It is noticed early, by less than a second, only if replies show a wrong second.
/// Nothing is written before three replies over two connections agree on the clock. If a later reply disagrees, both
/// clocks count until three replies settle it.
///
/// It keeps no high-water mark of tokens. Tokens of a key may not grow if its record is gone *and* the clock of the
/// service stepped back.
///
/// ```no_run
/// use std::sync::Arc;
/// use hapax::runtime::Tokio;
/// use hapax::stores::DynamoDb;
///
/// # async fn open() -> hapax::Result<()> {
/// let url = "dynamodb://eu-west-1/payments".parse()?;
/// let store = DynamoDb::with(&url, Arc::new(Tokio::current()))?;
/// store.create_table().await?;
/// # Ok(())
/// # }
/// ```
pub struct DynamoDb {
    records: RecordTable,
    turns: Turns,
    /// Whether the service removes what has expired, and when that was found, on the boot-time clock.
    removes_expired: Arc<Mutex<Option<(Duration, bool)>>>,
    /// The key behind which the next sweep begins. None at the beginning of the table.
    swept: Arc<Mutex<Option<Bytes>>>,
}

impl DynamoDb {
    /// A store on the current tokio runtime. Connects to nothing yet.
    ///
    /// # Errors
    /// `Invalid` if the text is not the URL of a table.
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
    pub fn with(url: &DynamoDbUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let records = RecordTable { api: TableApi::new(url, Arc::clone(&runtime))? };
        Ok(Self { records, turns: Turns::new(runtime), removes_expired: Arc::default(), swept: Arc::default() })
    }

    /// Whether the table exists.
    ///
    /// # Errors
    /// As DynamoDB says.
    pub async fn has_table(&self) -> Result<bool> {
        table::exists(&self.records.api).await
    }

    /// Makes the table if there is none, with capacity on demand, waits until it can be used, and turns its TTL on.
    /// A table that exists keeps its capacity. Returns whether it changed anything.
    ///
    /// # Errors
    /// `Unusable` without the right to do it, `NotApplied` if it takes longer than two minutes.
    ///
    /// # Cancel safety
    /// If dropped, the table may exist, perhaps without a TTL. A second call goes on.
    pub async fn create_table(&self) -> Result<bool> {
        table::create(&self.records.api).await
    }

    /// The calls that [`create_table`](Self::create_table) would make now.
    ///
    /// # Errors
    /// As DynamoDB says.
    pub async fn missing_parts(&self) -> Result<MissingTableParts> {
        table::missing(&self.records.api).await
    }

    /// How exactly the clock of the service is known. None before the first reply.
    #[doc(hidden)]
    pub fn clock_uncertainty(&self) -> Option<Duration> {
        self.records.api.range().map(clock::ClockRange::uncertainty)
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

    /// Whether the service removes what has expired. True if that is not known: then nothing is swept.
    async fn removes_expired(&self) -> Result<bool> {
        let now = self.records.api.runtime().boottime_now();
        let known = self.removes_expired.lock().filter(|(found, _)| now.saturating_sub(*found) < STATE_HOLDS);
        if let Some((_, removes)) = known {
            return Ok(removes);
        }
        Ok(self.note(&TableState::read(&self.records.api).await?))
    }

    fn note(&self, state: &TableState) -> bool {
        let removes = state.removes_expired().unwrap_or(true);
        *self.removes_expired.lock() = Some((self.records.api.runtime().boottime_now(), removes));
        removes
    }
}

#[async_trait]
impl Store for DynamoDb {
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

    /// Returns a store with connections and tasks of its own. It shares the clock and the turns.
    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let runtime: Arc<dyn Runtime> = Arc::new(LocalTasks::over(Arc::clone(self.records.api.runtime())));
        let records = RecordTable { api: self.records.api.dedicated(Arc::clone(&runtime))? };
        let turns = self.turns.on(runtime, self.records.api.url().longest_call());
        let (removes_expired, swept) = (Arc::clone(&self.removes_expired), Arc::clone(&self.swept));
        Ok(Arc::new(Self { records, turns, removes_expired, swept }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (records, rk, seen, next) = (self.records.clone(), *rk, seen.clone(), next.clone());
        self.run(rk, async move { records.swap(&rk, &seen, &next).await }).await
    }
}

#[async_trait]
impl Inspect for DynamoDb {
    /// Removes nothing if the service does it. Without a TTL it reads the whole table.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        if self.removes_expired().await? { Ok(0) } else { self.records.sweep(limit, &self.swept).await }
    }

    /// Reads the table in the order of DynamoDB, with consistent reads, which cost as much as all that is read.
    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        self.records.scan(ask).await
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let (records, rk, seen) = (self.records.clone(), *rk, seen.clone());
        self.run(rk, async move { records.purge(&rk, &seen).await }).await
    }

    /// Checks the key of the table, its TTL, and whether other regions write to it.
    async fn check(&self) -> Result<Vec<Finding>> {
        let state = TableState::read(&self.records.api).await?;
        self.note(&state);
        Ok(state.findings())
    }
}

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb").field("api", &self.records.api).finish_non_exhaustive()
    }
}
