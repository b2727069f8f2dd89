use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax::ledger::LedgerRows;
use hapax::store::Finding;

/// The tables of Hapax in a database.
#[async_trait]
pub trait Tables: fmt::Debug + Send + Sync {
    /// The versions of the tables that are missing.
    ///
    /// # Errors
    /// As the database says.
    async fn missing(&self) -> hapax::Result<Vec<i32>>;

    /// Looks for faults of tables that are all there.
    ///
    /// # Errors
    /// As the database says.
    async fn check(&self) -> hapax::Result<Vec<Finding>>;

    /// Whether the table of the records is missing.
    ///
    /// # Errors
    /// As the database says.
    async fn lack_records(&self) -> hapax::Result<bool> {
        const RECORDS: i32 = 1;
        Ok(self.missing().await?.contains(&RECORDS))
    }

    /// Whether the tables of the outbox are missing, or are not those of this release.
    ///
    /// # Errors
    /// As the database says.
    async fn lack_outbox(&self) -> hapax::Result<bool>;

    /// Whether the table of the dead letters is missing.
    ///
    /// # Errors
    /// As the database says.
    async fn lack_dead_letters(&self) -> hapax::Result<bool>;

    /// Creates the missing tables. Returns the versions that it created.
    ///
    /// # Errors
    /// As the database says.
    async fn create(&self) -> hapax::Result<Vec<i32>>;

    /// The SQL that creates what is missing.
    ///
    /// # Errors
    /// As the database says.
    async fn script(&self) -> hapax::Result<String>;

    /// The rows of the ledgers in this database.
    fn into_ledger(self: Box<Self>) -> Arc<dyn LedgerRows>;
}
