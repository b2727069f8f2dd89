use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use hapax_core::ledger::{CommittedRow, LedgerRows, LedgerVerdict};
use hapax_core::{Error, ErrorKind, Fingerprint, OperationId, Result, Rule};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{SqliteDeadLetters, SqliteLedger, SqliteOutbox, SqliteQueue, connection};

/// The tables of Hapax in an SQLite file: records, ledger, attempts, outbox with parked keys, queue and dead letters.
///
/// ```
/// use hapax::stores::SqliteTables;
///
/// # let directory = tempfile::tempdir()?;
/// let tables = SqliteTables::new(directory.path().join("shop.db"));
/// assert_eq!(tables.missing()?, [1, 2, 3, 4, 5]);
/// tables.create()?;
/// assert!(tables.missing()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct SqliteTables {
    path: PathBuf,
}

/// A version of the schema.
struct TablesVersion {
    version: i32,
    sql: &'static str,
}

impl TablesVersion {
    /// The tables and triggers that the version creates.
    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let sql = self.sql;
        let parts = || sql.split(" if not exists ");
        let has_kind = |before: &str| ["table", "trigger"].iter().any(|kind| before.ends_with(kind));
        let named = parts().zip(parts().skip(1)).filter(move |(before, _)| has_kind(before));
        named.filter_map(|(_, rest)| rest.split_whitespace().next())
    }
}

const VERSIONS: [TablesVersion; 5] = [
    TablesVersion { version: 1, sql: include_str!("schema.sql") },
    TablesVersion { version: 2, sql: include_str!("ledger/tables.sql") },
    TablesVersion { version: 3, sql: include_str!("queue/tables.sql") },
    TablesVersion { version: 4, sql: include_str!("dead/tables.sql") },
    TablesVersion { version: 5, sql: include_str!("outbox/tables.sql") },
];

impl SqliteTables {
    /// The tables in this file.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }

    /// The versions of which the file lacks a table or a trigger: all of them if it does not exist.
    ///
    /// # Errors
    /// `Unusable` if the file cannot be read, is no SQLite database, or has a newer schema.
    pub fn missing(&self) -> Result<Vec<i32>> {
        Ok(self.find_missing()?.iter().map(|migration| migration.version).collect())
    }

    /// Creates the file if it does not exist, and the tables that are missing. Returns the versions that were applied.
    ///
    /// # Errors
    /// `Unusable` if the file cannot be written, is no SQLite database, or has a newer schema.
    pub fn create(&self) -> Result<Vec<i32>> {
        let missing = self.missing()?;
        let mut connection = connection::open(&self.path)?;
        connection::prepare(&mut connection, &self.path)?;
        SqliteLedger::migrate(&mut connection)?;
        SqliteQueue::migrate(&mut connection)?;
        SqliteDeadLetters::migrate(&mut connection)?;
        SqliteOutbox::migrate(&mut connection)?;
        Ok(missing)
    }

    /// The SQL that [`create`](Self::create) would run, as a script for `sqlite3`.
    ///
    /// # Errors
    /// As [`missing`](Self::missing).
    pub fn script(&self) -> Result<String> {
        let versions: String = self.find_missing()?.iter().map(|migration| format!("\n{}", migration.sql)).collect();
        Ok(format!("begin immediate;\n{versions}\ncommit;\n"))
    }

    /// Copies the file to a new one that only its owner can read, also while other processes write: the copy has the
    /// state of one instant, and no write-ahead log beside it. Blocks as long as the whole file takes to be read and
    /// written. The copy gets its name when it is complete and on disk. After a crash, an incomplete one may be left
    /// under that name with the id of the process and `.part` behind it.
    ///
    /// # Errors
    /// - `Invalid` if there is a file at `copy`, it cannot be created, or its name is not UTF-8.
    /// - `Unusable` if the file cannot be read or is no SQLite database, or the copy cannot be written. No copy is
    ///   left.
    pub fn copy_to(&self, copy: &Path) -> Result<()> {
        let refused = |error| Error::new(ErrorKind::Invalid, format!("{}", copy.display())).caused_by(error);
        // SQLite takes a name as text.
        let name = copy.to_str().ok_or_else(|| refused(io::Error::other("the name of the copy is not UTF-8")))?;
        let part = format!("{name}.{}.part", std::process::id());
        let open = || Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = open().map_err(|error| connection::unusable(&self.path, error))?;
        if copy.symlink_metadata().is_ok() {
            return Err(refused(io::ErrorKind::AlreadyExists.into()));
        }
        let created = File::options().write(true).create_new(true).mode(0o600).open(&part).map_err(refused)?;
        let written = || -> rusqlite::Result<()> {
            connection.busy_timeout(connection::BUSY_TIMEOUT)?;
            connection.execute("vacuum into ?1", [&part]).map(drop)
        };
        let not_kept = |error| Error::new(ErrorKind::Unusable, "the copy is not on disk").caused_by(error);
        let kept = written()
            .map_err(|error| connection::unusable(&self.path, error))
            .and_then(|()| created.sync_all().map_err(not_kept))
            // Unlike a new name, a second one replaces no file that has appeared meanwhile.
            .and_then(|()| fs::hard_link(&part, copy).map_err(refused));
        // The error of the copy is the one that counts, and a part that is left does no harm.
        let _ = fs::remove_file(&part);
        kept.and_then(|()| sync_folder_of(copy).map_err(not_kept))
    }

    fn find_missing(&self) -> Result<Vec<&'static TablesVersion>> {
        if !self.path.exists() {
            return Ok(VERSIONS.iter().collect());
        }
        let unusable = |error| connection::unusable(&self.path, error);
        let open = || Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = open().map_err(unusable)?;
        let found = || -> rusqlite::Result<Vec<String>> {
            let mut names = connection.prepare(include_str!("names.sql"))?;
            names.query_map([], |row| row.get(0))?.collect()
        };
        let found = found().map_err(unusable)?;
        if found.iter().any(|table| table == "hapax_store") {
            let version = connection.query_row(include_str!("version.sql"), [], |row| row.get(0)).optional();
            connection::check_version(version.map_err(unusable)?.unwrap_or_default(), &self.path)?;
        }
        let has = |name: &str| found.iter().any(|found| found == name);
        let is_missing = |migration: &&TablesVersion| !migration.names().all(has);
        Ok(VERSIONS.iter().filter(is_missing).collect())
    }
}

/// Each call opens the file to read it, and blocks its executor for some milliseconds.
#[async_trait]
impl LedgerRows for SqliteTables {
    async fn rows_of(&self, operations: &[OperationId]) -> Result<Vec<CommittedRow>> {
        let read = || -> rusqlite::Result<Vec<CommittedRow>> {
            let connection = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            connection.busy_timeout(connection::BUSY_TIMEOUT)?;
            let mut statement = connection.prepare(include_str!("ledger/rows_of.sql"))?;
            let mut rows = Vec::new();
            for operation in operations {
                let found = statement.query_map([operation.as_bytes()], |row| {
                    Ok(CommittedRow {
                        operation: *operation,
                        namespace: row.get(0)?,
                        fingerprint: Fingerprint::from_parts(Rule(row.get(1)?), row.get(2)?),
                        verdict: if row.get::<_, u8>(3)? == 2 {
                            LedgerVerdict::Rejected
                        } else {
                            LedgerVerdict::Applied
                        },
                    })
                })?;
                rows.extend(found.collect::<rusqlite::Result<Vec<_>>>()?);
            }
            Ok(rows)
        };
        read().map_err(|error| connection::unusable(&self.path, error))
    }
}

/// Makes the name of a new file durable.
fn sync_folder_of(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
