//! The outbox in a PostgreSQL database. The server's clock is its only clock.

mod columns;
mod sql;
mod upkeep;
mod wake_up;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use async_trait::async_trait;
use hapax_core::outbox::{EventRow, Horizon, MarkedRows, OpenRows, Outbox, ParkedRow, ReadRequest, Rewinds, RowId};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind, Result};
use tokio::sync::OnceCell;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresUrl;
use super::call_error::{NO_TABLES, PostgresCallError};
use super::check::ServerFacts;
use super::migrations;
use super::pool::{ConnectionPool, Parameter};
use super::sequences;
use super::trust;
use columns::column;
use sql::OutboxSql;
use wake_up::WakeUp;

/// The outbox in a PostgreSQL database, for the relay and for operators. At its first call it creates its tables, if
/// they are missing and the role may create them.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::outbox::OutboxUpkeep;
/// use hapax::stores::PostgresOutbox;
///
/// let outbox = PostgresOutbox::connect(&"postgres://relay@localhost/shop".parse()?)?;
/// for parked in outbox.parked(None, 100).await? {
///     println!("{}: {}", parked.event, parked.reason);
/// }
/// # Ok(())
/// # }
/// ```
pub struct PostgresOutbox {
    pool: ConnectionPool,
    url: Arc<PostgresUrl>,
    sql: OutboxSql,
    wake_up: Option<WakeUp>,
    /// Set once the tables are there.
    has_tables: OnceCell<()>,
    /// The page at which the next sweep continues.
    swept_to: AtomicU32,
}

impl PostgresOutbox {
    /// The outbox in the database of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn connect(url: &PostgresUrl) -> Result<Self> {
        Self::with(url, Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// The outbox in the database of this URL, on this runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    pub fn with(url: &PostgresUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let url = Arc::new(url.clone());
        let pool = ConnectionPool::new(Arc::clone(&url), Arc::clone(&runtime), url.connections)?;
        Ok(Self {
            sql: OutboxSql::new(&url.schema),
            wake_up: Some(WakeUp::new(pool.clone(), runtime)),
            pool,
            url,
            has_tables: OnceCell::new(),
            swept_to: AtomicU32::new(0),
        })
    }

    /// Waits for no notifications, so that the relay only looks from time to time. For connections through a pooler
    /// that gives a session to several clients: the session that listens would be another one.
    #[must_use]
    pub fn without_notifications(mut self) -> Self {
        self.wake_up = None;
        self
    }

    /// Runs one of the statements, once the tables are there.
    async fn query(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.create_tables().await?;
        Ok(self.pool.query(statement, parameters).await?)
    }

    /// Runs a statement that returns one row.
    async fn query_one(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
        let none = || Error::new(ErrorKind::Unusable, "the server returned no row; see `hapax migrate`");
        self.query(statement, parameters).await?.pop().ok_or_else(none)
    }

    async fn create_tables(&self) -> Result<()> {
        let create = async || migrations::prepare(&self.pool, &self.url).await;
        self.has_tables.get_or_try_init(create).await?;
        Ok(())
    }
}

#[async_trait]
impl Outbox for PostgresOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        let ReadRequest { cursors, bytes, left_out } = request;
        let buckets: Vec<i16> = cursors.iter().map(|cursor| cursor.bucket.into()).collect();
        let first: Vec<i64> = cursors.iter().map(|cursor| stored(cursor.from.row)).collect();
        let is_behind: Vec<bool> = cursors.iter().map(|cursor| cursor.from.is_behind).collect();
        let limits: Vec<i64> = cursors.iter().map(|cursor| cursor.limit.into()).collect();
        let left_out = left_out.iter().map(|left| (left.namespace.as_str(), left.topic.as_str()));
        let (namespaces, topics): (Vec<&str>, Vec<&str>) = left_out.unzip();
        let largest = limits.iter().max().copied().unwrap_or_default();
        let parameters: [Parameter<'_>; 8] = [
            (&buckets, Type::INT2_ARRAY),
            (&first, Type::INT8_ARRAY),
            (&limits, Type::INT8_ARRAY),
            (&count(*bytes), Type::INT8),
            (&largest, Type::INT8),
            (&namespaces, Type::TEXT_ARRAY),
            (&topics, Type::TEXT_ARRAY),
            (&is_behind, Type::BOOL_ARRAY),
        ];
        let rows = self.query(&self.sql.read, &parameters).await?;
        let first = rows.first().ok_or_else(|| Error::new(ErrorKind::Unusable, NO_COUNTER))?;
        let count_of = |name| column::<i64>(first, name).map(i64::unsigned_abs);
        let rewinds = Rewinds { openings: count_of("openings")?, republications: count_of("republications")? };
        let found =
            column::<Option<i64>>(first, "found")?.map_or(0, |found| usize::try_from(found).unwrap_or_default());
        let rows = rows.iter().filter_map(|row| columns::open_row(row).transpose());
        let mut rows = rows.collect::<Result<Vec<_>>>()?;
        rows.sort_unstable_by_key(|row| row.id);
        Ok(OpenRows { is_cut: rows.len() < found, rows, rewinds })
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        let ((ids, events), republications) = (names(rows), i64::try_from(republications).unwrap_or(i64::MAX));
        let parameters: [Parameter<'_>; 3] =
            [(&ids, Type::INT8_ARRAY), (&events, Type::UUID_ARRAY), (&republications, Type::INT8)];
        self.create_tables().await?;
        let marked = match self.pool.query(&self.sql.mark, &parameters).await {
            Err(error) if error.is_lock_timeout() => self.pool.query(&self.sql.mark_unlocked, &parameters).await?,
            marked => marked?,
        };
        let row = marked.first().ok_or_else(|| Error::new(ErrorKind::Unknown, "the server returned no row"))?;
        let locked = if row.len() == 4 { column::<Vec<i64>>(row, "locked")? } else { Vec::new() };
        Ok(MarkedRows {
            marked: usize::try_from(column::<i64>(row, "marked")?).unwrap_or_default(),
            is_rewound: column(row, "is_rewound")?,
            locked: rows.iter().filter(|row| locked.contains(&stored(row.id))).copied().collect(),
        })
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        let named: Vec<EventRow> = rows.iter().map(ParkedRow::named).collect();
        let (ids, events) = names(&named);
        // A text of PostgreSQL has no NUL.
        let reasons: Vec<String> = rows.iter().map(|row| row.reason.replace('\0', " ")).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&ids, Type::INT8_ARRAY), (&events, Type::UUID_ARRAY), (&reasons, Type::TEXT_ARRAY)];
        let found = self.query(&self.sql.park, &parameters).await?;
        let found = found.iter().map(|row| column(row, "id")).collect::<Result<HashSet<i64>>>()?;
        Ok(named.into_iter().filter(|row| !found.contains(&stored(row.id))).collect())
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        let (ids, events) = names(rows);
        self.query(&self.sql.set_aside, &[(&ids, Type::INT8_ARRAY), (&events, Type::UUID_ARRAY)]).await.map(drop)
    }

    async fn horizon(&self) -> Result<Horizon> {
        // The second statement begins when the first one has ended: a transaction that draws an id up to `drawn` has
        // drawn its stamp before that.
        let drawn = self.query_one(&self.sql.drawn, &[]).await?;
        let stamp = self.query_one(&self.sql.stamp, &[]).await?;
        Ok(Horizon {
            drawn: RowId(column::<i64>(&drawn, "drawn")?.unsigned_abs().into()),
            stamp: column::<i64>(&stamp, "stamp")?.unsigned_abs(),
            settled: column::<i64>(&stamp, "settled")?.unsigned_abs(),
        })
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let refuse = |message: &str| Finding { severity: Severity::Refuse, message: message.to_owned() };
        // Tables that are missing and cannot be created are found below.
        match self.create_tables().await {
            Err(error) if error.kind() != ErrorKind::Unusable || migrations::is_name_taken(&error) => {
                return Err(error);
            }
            Ok(()) | Err(_) => {}
        }
        let unread = || Error::new(ErrorKind::NotApplied, "the server does not tell its settings");
        let row = self.pool.query(&self.sql.facts, &[]).await?.pop().ok_or_else(unread)?;
        let facts = ServerFacts::read(&row).map_err(PostgresCallError::Sent)?;
        let mut findings = facts.findings(&["hapax_outbox", "hapax_parked", "hapax_relay"]);
        findings.extend(trust::findings(&*self.pool.get().await?, &self.url.schema).await?);
        if column::<&str>(&row, "isolation")? != "read committed" {
            findings.push(refuse(ISOLATION));
        }
        if !column::<bool>(&row, "has_tables")? {
            findings.push(refuse(NO_TABLES));
        } else if !column::<bool>(&row, "has_rights")? {
            findings.push(refuse(NO_RIGHTS));
        } else {
            findings.extend(sequences::OUTBOX.run(&self.pool, &self.url.schema).await?);
        }
        Ok(findings)
    }

    async fn wait_for_rows(&self) {
        match &self.wake_up {
            Some(wake_up) => wake_up.wait().await,
            None => std::future::pending().await,
        }
    }
}

const NO_RIGHTS: &str =
    "the role lacks a right of a relay on the tables of the outbox; docs/outbox_rights.sql grants them";

const ISOLATION: &str = "default_transaction_isolation is not 'read committed', so that the mark of an event \
    could miss a republication that has just begun; set it to 'read committed' for this role";

const NO_COUNTER: &str = "the table hapax_relay has no row; restore it: insert into hapax_relay (id) values (1), \
    then restart the relays";

fn stored(id: RowId) -> i64 {
    i64::try_from(id.0).unwrap_or(i64::MAX)
}

/// The ids and the events of these rows.
fn names(rows: &[EventRow]) -> (Vec<i64>, Vec<Uuid>) {
    rows.iter().map(|row| (stored(row.id), Uuid::from_bytes(*row.event.as_bytes()))).unzip()
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl fmt::Debug for PostgresOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOutbox").field("url", &self.url).finish_non_exhaustive()
    }
}
