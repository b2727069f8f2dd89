use std::sync::Arc;

use anyhow::{Result, bail};
use hapax::ledger::LedgerRows;
use hapax::store::Finding;

use super::StoreUrl;

/// The tables of Hapax in the database that `--database` names. A build without databases has no variant.
#[derive(Debug)]
pub(crate) enum Tables {
    #[cfg(feature = "postgres")]
    Postgres(hapax::stores::PostgresTables),
    #[cfg(feature = "sqlite")]
    Sqlite(hapax::stores::SqliteTables),
}

/// The URLs that `--database` accepts, for help and errors.
pub(crate) const SCHEMES: &str = "postgres://HOST/DATABASE or sqlite://PATH";

/// The versions of an SQLite file with the ledger, whose outbox this is, and with the tables of the relay.
#[cfg(feature = "sqlite")]
const SQLITE_OUTBOX: [i32; 2] = [2, 5];

impl Tables {
    /// The tables in the database of this URL. Opens nothing.
    ///
    /// # Errors
    /// If the URL is wrong, names something without tables, or names a file that cannot be read.
    pub(crate) fn at(url: &str) -> Result<Self> {
        Self::of(&url.parse()?)
    }

    /// The tables in this database. Opens nothing.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub(crate) fn of(url: &StoreUrl) -> Result<Self> {
        match url {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => Ok(Self::Postgres(hapax::stores::PostgresTables::connect(url)?)),
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(path) => Ok(Self::Sqlite(hapax::stores::SqliteTables::new(path))),
            StoreUrl::Memory => bail!("memory: has no tables; name {SCHEMES}"),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(_) => bail!("Redis has no tables; name {SCHEMES}"),
        }
    }

    /// The rows of the ledgers in this database.
    pub(crate) fn into_ledger(self) -> Arc<dyn LedgerRows> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(tables) => Arc::new(tables),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(tables) => Arc::new(tables),
        }
    }

    pub(crate) async fn missing(&self) -> hapax::Result<Vec<i32>> {
        match *self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ref tables) => tables.missing().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref tables) => tables.missing(),
        }
    }

    /// What is wrong although no table is missing.
    pub(crate) async fn check(&self) -> hapax::Result<Vec<Finding>> {
        match *self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ref tables) => tables.check().await,
            // A table of SQLite draws no id that a row has.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Ok(Vec::new()),
        }
    }

    /// Whether the tables of the outbox are missing, or are not those of this release.
    pub(crate) async fn lack_outbox(&self) -> hapax::Result<bool> {
        match *self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ref tables) => Ok(!tables.missing().await?.is_empty()),
            // Each version of a file has tables of its own, and a service that needs no records has no table for them.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref tables) => Ok(tables.missing()?.iter().any(|version| SQLITE_OUTBOX.contains(version))),
        }
    }

    pub(crate) async fn create(&self) -> hapax::Result<Vec<i32>> {
        match *self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ref tables) => tables.create().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref tables) => tables.create(),
        }
    }

    pub(crate) async fn script(&self) -> hapax::Result<String> {
        match *self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ref tables) => tables.script().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref tables) => tables.script(),
        }
    }
}
