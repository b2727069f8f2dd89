use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::ledger::{CommittedRow, LedgerRows};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{Fingerprint, OperationId, Result, Rule};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresUrl;
use super::call_error::PostgresCallError;
use super::ledger::guard;
use super::migrations;
use super::pool::ConnectionPool;
use super::row::damaged;
use super::sequences;
use crate::ledger_row::verdict;

/// The tables of Hapax in a PostgreSQL database: records, ledger, attempts, outbox and dead letters.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::stores::PostgresTables;
///
/// let tables = PostgresTables::connect(&"postgres://owner@localhost/shop".parse()?)?;
/// println!("missing: {:?}", tables.missing().await?);
/// tables.create().await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresTables {
    url: Arc<PostgresUrl>,
    pool: ConnectionPool,
}

impl PostgresTables {
    /// The tables in the database and schema of this URL, on the current tokio runtime.
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

    /// The tables in the database and schema of this URL, on this runtime.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    pub fn with(url: &PostgresUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let url = Arc::new(url.clone());
        let pool = ConnectionPool::new(Arc::clone(&url), runtime, 1)?;
        Ok(Self { url, pool })
    }

    /// The versions that the schema lacks. None are missing if the tables can be used.
    ///
    /// # Errors
    /// - `NotApplied` if the server cannot be reached.
    /// - `Unusable` if the schema has a version that this release does not know, or the server lets the role not in.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn missing(&self) -> Result<Vec<i32>> {
        let connection = self.pool.get().await?;
        let missing = migrations::missing(&connection, &self.url.schema).await?;
        Ok(missing.iter().map(|migration| migration.version).collect())
    }

    /// Looks for faults of tables that are all there: a sequence is behind its table, or the tables of claims do not
    /// stop a COMMIT.
    ///
    /// # Errors
    /// - `NotApplied` if the server cannot be reached.
    /// - `Unusable` if the tables are missing, or the role may not read them.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for sequence in [sequences::OUTBOX, sequences::DEAD] {
            findings.extend(sequence.run(&self.pool, &self.url.schema).await?);
        }
        findings.extend(guard::findings(&*self.pool.get().await?, &self.url.schema).await?);
        Ok(findings)
    }

    /// Brings the tables to the newest version, and creates the schema if it does not exist. All missing versions are
    /// one transaction; several processes may do this at once. Returns the versions that were applied.
    ///
    /// # Errors
    /// - `NotApplied` if the server cannot be reached.
    /// - `Unusable` if the role may not create tables, another object has a name that they need, or the schema has a
    ///   version that this release does not know.
    ///
    /// # Cancel safety
    /// If dropped, either all missing versions are applied or none.
    pub async fn create(&self) -> Result<Vec<i32>> {
        Ok(migrations::apply_on(&self.pool, &self.url.schema).await?)
    }

    /// The SQL that [`create`](Self::create) would run, as a script for `psql`.
    ///
    /// # Errors
    /// As [`missing`](Self::missing).
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn script(&self) -> Result<String> {
        let connection = self.pool.get().await?;
        Ok(migrations::script(&connection, &self.url.schema).await?)
    }
}

#[async_trait]
impl LedgerRows for PostgresTables {
    async fn rows_of(&self, operations: &[OperationId]) -> Result<Vec<CommittedRow>> {
        let operations: Vec<Uuid> = operations.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        let sql = self.url.schema.qualify(include_str!("ledger/rows_of.sql"));
        let rows = self.pool.query(&sql, &[(&operations, Type::UUID_ARRAY)]).await?;
        rows.iter().map(ledger_row).collect()
    }
}

fn ledger_row(row: &Row) -> Result<CommittedRow> {
    let column = |name| row.try_get::<_, Option<i16>>(name).map_err(PostgresCallError::Sent);
    let operation: Uuid = row.try_get("operation").map_err(PostgresCallError::Sent)?;
    let fingerprint: &[u8] = row.try_get("fingerprint").map_err(PostgresCallError::Sent)?;
    let unreadable = || damaged("a row of the ledger cannot be read");
    let rule = column("rule")?.and_then(|rule| u8::try_from(rule).ok()).map(Rule).ok_or_else(unreadable)?;
    Ok(CommittedRow {
        operation: OperationId::from_bytes(operation.into_bytes()),
        namespace: row.try_get("namespace").map_err(PostgresCallError::Sent)?,
        fingerprint: Fingerprint::from_parts(rule, fingerprint.try_into().map_err(|_| unreadable())?),
        verdict: column("verdict")?.and_then(verdict).ok_or_else(unreadable)?,
    })
}

impl fmt::Debug for PostgresTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTables").field("url", &self.url).finish_non_exhaustive()
    }
}
