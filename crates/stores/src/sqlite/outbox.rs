//! The outbox in an SQLite file. Its writers take turns, so the order of the ids is the order of the commits.

mod statements;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::ledger::Event;
use hapax_core::outbox::{
    EventRow, Horizon, MarkedRows, OpenRows, Outbox, OutboxCounts, OutboxUpkeep, OutgoingEvent, ParkedKey, ParkedRow,
    ReadRequest, Reopened, RowId, RowState,
};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, EventId, OperationId, Result, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::file_thread::{self, FileThread, in_transaction, not_applied};
use super::{SqliteLedger, connection};

/// How many ids one step of a sweep covers, so that no writer waits for long.
const SWEPT_IDS: i64 = 4_096;

/// The outbox in an SQLite file, for the relay and for operators. A service writes rows with the ledger, or with
/// [`emit`](Self::emit).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::ledger::Event;
/// use hapax::stores::{SqliteLedger, SqliteOutbox};
///
/// # let mut connection = rusqlite::Connection::open_in_memory()?;
/// # connection.execute_batch("create table account (id text, balance integer)")?;
/// SqliteLedger::migrate(&mut connection)?;
/// SqliteOutbox::migrate(&mut connection)?;
///
/// let transaction = connection.transaction()?;
/// transaction.execute("update account set balance = balance - 5 where id = 'acme'", [])?;
/// let event = Event::new("withdrawals", "5").ordered_by("acme");
/// let id = SqliteOutbox::emit(&transaction, "accounts", None, event)?;
/// transaction.commit()?;
/// println!("{id} leaves after the commit");
/// # Ok(())
/// # }
/// ```
pub struct SqliteOutbox {
    thread: FileThread,
    runtime: Arc<dyn Runtime>,
    horizons: AtomicU64,
    /// The id from which the next sweep continues.
    swept_to: Arc<AtomicI64>,
}

impl SqliteOutbox {
    /// Opens the file on the current tokio runtime.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// Opens the file on this runtime. Creates the file and the tables if they are missing. Blocks for a few
    /// milliseconds, or up to 30 seconds while another process writes.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database, and if the system cannot start a thread.
    pub fn with(path: &Path, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let opened = file_thread::open(path, |connection| {
            SqliteLedger::migrate(connection)?;
            Self::migrate(connection)
        })?;
        let thread = FileThread::start(&*runtime, "hapax-sqlite-outbox", opened)?;
        Ok(Self { thread, runtime, horizons: AtomicU64::new(0), swept_to: Arc::default() })
    }

    /// Creates the tables of the relay that are missing. [`SqliteLedger::migrate`] creates the outbox itself; call it
    /// first.
    ///
    /// If another connection writes, it waits as long as the busy timeout of this connection says, but only where a
    /// table is missing.
    ///
    /// # Errors
    /// `Unusable` if the tables cannot be created.
    pub fn migrate(connection: &mut Connection) -> Result<()> {
        let unusable =
            |error| Error::new(ErrorKind::Unusable, "the tables of the relay cannot be created").caused_by(error);
        connection::create(connection, include_str!("outbox/tables.sql")).map_err(unusable)
    }

    /// Writes an event in a transaction of the caller's own, without a ledger. It leaves after the commit. With an
    /// operation and the number of the event within it, counted from 0, the id is derived, so that the same event is
    /// written once. Without them the id is new. Returns the id.
    ///
    /// # Errors
    /// - `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was written.
    /// - `NotApplied`: roll the transaction back: the operation has written this event before, or a statement failed.
    pub fn emit(
        transaction: &Connection,
        namespace: &str,
        operation: Option<(OperationId, u32)>,
        event: Event,
    ) -> Result<EventId> {
        let id = match operation {
            Some((operation, number)) => operation.event(namespace, number),
            None => EventId::from_random(statements::random(transaction).map_err(not_applied)?),
        };
        let event = OutgoingEvent {
            namespace: namespace.to_owned(),
            operation: operation.map(|(operation, _)| operation),
            number: operation.map(|(_, number)| number),
            ..event.into_outgoing(id)?
        };
        statements::insert(transaction, &event).map_err(not_applied)?;
        Ok(id)
    }

    /// Runs statements that read, in one snapshot.
    async fn read<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let read = move |connection: &mut Connection| {
            let snapshot = connection.transaction().map_err(not_applied)?;
            statements(&snapshot).map_err(not_applied)
        };
        self.thread.run(read).await
    }

    /// Runs statements that write, in a transaction that has the file's lock. They get the time, read behind the lock.
    async fn write<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection, Timestamp) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let runtime = Arc::clone(&self.runtime);
        let write = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| statements(transaction, runtime.wall_now()))
        };
        self.thread.run(write).await
    }
}

#[async_trait]
impl Outbox for SqliteOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        let request = request.clone();
        self.read(move |connection| statements::read(connection, &request)).await
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        let (rows, runtime) = (rows.to_vec(), Arc::clone(&self.runtime));
        let mark = move |connection: &mut Connection| {
            // A loss of power may forget it: then they are published again, under the same ids.
            connection.pragma_update(None, "synchronous", "normal").map_err(not_applied)?;
            let marked = in_transaction(connection, |transaction| {
                statements::mark(transaction, &rows, republications, runtime.wall_now())
            });
            // The other writes of this connection, a parked key for instance, must survive a loss of power.
            connection.pragma_update(None, "synchronous", "full").map_err(not_applied)?;
            marked
        };
        self.thread.run(mark).await
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        let rows = rows.to_vec();
        self.write(move |connection, now| statements::park(connection, &rows, now)).await
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        let rows = rows.to_vec();
        self.write(move |connection, _| statements::set_aside(connection, &rows)).await
    }

    /// A row id is drawn by a transaction that no other one overlaps, so a committed id has no smaller one to come.
    async fn horizon(&self) -> Result<Horizon> {
        let drawn = self.read(statements::drawn).await?;
        let stamp = self.horizons.fetch_add(1, Ordering::AcqRel);
        Ok(Horizon { drawn, stamp, settled: stamp })
    }
}

#[async_trait]
impl OutboxUpkeep for SqliteOutbox {
    async fn counts(&self, limit: u64) -> Result<OutboxCounts> {
        let now = self.runtime.wall_now();
        self.read(move |connection| statements::counts(connection, limit, now)).await
    }

    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>> {
        let after = after.cloned();
        self.read(move |connection| statements::parked(connection, after.as_ref(), limit)).await
    }

    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>> {
        self.read(move |connection| statements::find(connection, id)).await
    }

    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>> {
        let key = Bytes::copy_from_slice(key);
        self.write(move |connection, now| statements::resume(connection, &key, limit, now)).await
    }

    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>> {
        let key = Bytes::copy_from_slice(key);
        let drop = move |connection: &Connection, now| {
            let expected = expected.as_ref().map(EventId::as_bytes);
            let parameters = params![&key[..], statements::millis(now), expected];
            let mut statement = connection.prepare_cached(include_str!("outbox/drop.sql"))?;
            statement.query_row(parameters, |row| row.get(0).map(EventId::from_bytes)).optional()
        };
        self.write(drop).await
    }

    /// Writers take turns, so no mark runs meanwhile.
    async fn begin_republication(&self) -> Result<()> {
        let begin = include_str!("outbox/begin_republication.sql");
        self.write(move |connection, _| statements::execute(connection, begin, []).map(drop)).await
    }

    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>> {
        let published = published.clone();
        self.write(move |connection, _| statements::republish(connection, &published, after, limit)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.runtime.wall_now())
    }

    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize> {
        let micros = u64::try_from(older_than.as_micros()).unwrap_or(u64::MAX);
        let before = Timestamp(self.runtime.wall_now().0.saturating_sub(micros));
        // From where the last call ended, to the end of the table or to the first ids with old rows.
        loop {
            let swept_to = Arc::clone(&self.swept_to);
            let step = move |connection: &mut Connection| sweep_step(connection, &swept_to, before, limit);
            match self.thread.run(step).await? {
                Some(0) => {}
                Some(removed) => return Ok(removed),
                None => return Ok(0),
            }
        }
    }
}

/// Removes old rows of the next ids. Waits for no lock if there are none. None at the end of the table.
fn sweep_step(
    connection: &mut Connection,
    swept_to: &AtomicI64,
    before: Timestamp,
    limit: usize,
) -> Result<Option<usize>> {
    let ids = statements::ids(connection).map_err(not_applied)?;
    let from = swept_to.load(Ordering::Acquire);
    let Some((first, _)) = ids.filter(|(_, last)| from <= *last) else {
        // Rows behind this place get old, too: the next sweep begins with the first one.
        swept_to.store(0, Ordering::Release);
        return Ok(None);
    };
    let first = from.max(first);
    let to = first.saturating_add(SWEPT_IDS);
    let old = statements::old(connection, (first, to - 1), before, limit).map_err(not_applied)?;
    let removed = if old.is_empty() {
        0
    } else {
        in_transaction(connection, |transaction| {
            let sweep = |id: &i64| statements::execute(transaction, include_str!("outbox/sweep.sql"), [id]);
            old.iter().map(sweep).sum::<rusqlite::Result<usize>>()
        })?
    };
    // A full step may have left old rows of these ids: the next one begins with them again.
    if old.len() < limit {
        swept_to.store(to, Ordering::Release);
    }
    Ok(Some(removed))
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SqliteOutbox")
    }
}
