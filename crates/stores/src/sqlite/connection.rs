use std::path::Path;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::log_owner;
use super::turn::Turn;

/// The schema that this release writes, and the newest that it reads.
const SCHEMA_VERSION: i64 = 1;

/// The smallest `pragma synchronous` under which a commit is on the disk when it returns.
pub(super) const SYNCHRONOUS_FULL: i64 = 2;

/// How long a transaction waits for another connection that writes.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an opening waits for another connection that writes, if it must write itself: to create tables, or to
/// switch to the write-ahead log. A transaction of the service may take long.
const OPENING_TIMEOUT: Duration = Duration::from_secs(30);

/// How often an opening tries to switch to the write-ahead log, until its time is over.
const TRIES: u32 = 1_500;

/// The time between two of these tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a connection, in write-ahead mode and with a sync at every commit. Creates the file if it does not exist.
pub(super) fn open(path: &Path) -> Result<Connection> {
    if file_system(path).is_some_and(is_network) {
        let message = format!("{} is on a network file system; choose a local one", path.display());
        return Err(Error::new(ErrorKind::Unusable, message));
    }
    log_owner::check(path)?;
    create_private(path);
    let connection = Connection::open(path).map_err(|error| unusable(path, error))?;
    configure(&connection, path)?;
    Ok(connection)
}

fn configure(connection: &Connection, path: &Path) -> Result<()> {
    connection.busy_timeout(OPENING_TIMEOUT).map_err(|error| unusable(path, error))?;
    let mode = journal_mode(connection).map_err(|error| unusable(path, error))?;
    if mode != "wal" {
        let message =
            format!("{}: SQLite cannot use a write-ahead log there; choose a local file system", path.display());
        return Err(Error::new(ErrorKind::Unusable, message));
    }
    // `Checkpoints` moves the log into the file; an automatic checkpoint would delay the commit that triggers it.
    connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(|error| unusable(path, error))?;
    connection.pragma_update(None, "synchronous", "full").map_err(|error| unusable(path, error))
}

/// Creates a missing file that only its owner can use. The database has the answers in plain text, and SQLite would let
/// everybody read it. Its log and the log's index get the mode of the file.
pub(super) fn create_private(path: &Path) {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let created = File::options().append(true).create_new(true).mode(0o600).open(path);
    // The umask may have removed a permission of the owner. SQLite reports a file that cannot be created or used.
    let _ = created.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
}

/// The number of the file system that the file is on. If the directory cannot be examined, there is none: opening the
/// file then fails with a more precise error.
#[cfg(target_os = "linux")]
fn file_system(path: &Path) -> Option<i64> {
    #[cfg(test)]
    if let Some(pretended) = tests::PRETENDED.get() {
        return Some(pretended);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A file that exists may be a link to another file system.
    let found = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(directory));
    found.ok().map(|found| number(found.f_type))
}

/// The type of `f_type` differs between architectures.
#[cfg(target_os = "linux")]
fn number(file_system: impl Into<i64>) -> i64 {
    file_system.into()
}

#[cfg(not(target_os = "linux"))]
fn file_system(_path: &Path) -> Option<i64> {
    None
}

/// Whether the number is that of NFS, SMB, CIFS, SMB2, AFS, Coda, NCP or Ceph in linux/magic.h. Locks are unreliable
/// there, and the index of the write-ahead log is shared memory, which hosts do not share.
fn is_network(file_system: i64) -> bool {
    const NETWORK: [u32; 8] = [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x5346_414F, 0x7375_7245, 0x564C, 0x00C3_6400];
    NETWORK.iter().any(|number| i64::from(*number) == file_system || i64::from(number.cast_signed()) == file_system)
}

/// Switches to the write-ahead log. SQLite's busy timeout does not apply to this statement, so it is retried here.
fn journal_mode(connection: &Connection) -> rusqlite::Result<String> {
    let mut tries = 0;
    loop {
        let mode = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
        tries += 1;
        match mode {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries < TRIES => {
                #[expect(clippy::disallowed_methods, reason = "`Sqlite::open` documents that it blocks its caller")]
                std::thread::sleep(PAUSE);
            }
            mode => return mode,
        }
    }
}

/// Creates the tables of records if they are missing, and refuses a schema that is newer than this release.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<()> {
    let version = migrate(connection).map_err(|error| unusable(path, error))?;
    check_version(version, path)
}

/// Refuses a schema that is newer than this release.
pub(super) fn check_version(version: i64, path: &Path) -> Result<()> {
    if version > SCHEMA_VERSION {
        let message = format!(
            "{}: the schema has version {version} and this release knows {SCHEMA_VERSION}; use the release that wrote \
             it, or a newer one",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unusable, message));
    }
    Ok(())
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<i64> {
    // A newer release may have changed the other tables; the version tells.
    run_unless(connection, include_str!("schema.sql"), |connection| has(connection, "hapax_store"))?;
    connection.query_row(include_str!("version.sql"), [], |row| row.get(0))
}

/// Runs a script that creates tables, indexes and triggers, unless the file has all of them: then the file is only
/// read, and no other connection that writes is waited for.
pub(super) fn create(connection: &mut Connection, script: &str) -> rusqlite::Result<()> {
    let names = || script.split("if not exists ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    run_unless(connection, script, |connection| {
        names().try_fold(true, |has_all, name| Ok(has_all && has(connection, name)?))
    })
}

fn run_unless(
    connection: &mut Connection,
    script: &str,
    is_done: impl Fn(&Connection) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    if is_done(connection)? {
        return Ok(());
    }
    let _turn = Turn::take(connection);
    // Lock the file first: two processes that open a new file at the same time must not both create the tables.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if !is_done(&transaction)? {
        transaction.execute_batch(script)?;
    }
    transaction.commit()
}

/// Whether there is a table, an index or a trigger with this name.
fn has(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    connection.query_row(include_str!("has_object.sql"), [name], |row| row.get(0))
}

pub(super) fn unusable(path: &Path, error: rusqlite::Error) -> Error {
    let problem_and_remedy = match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) => {
            "cannot be opened; check that its directory exists and that this user may write there"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "cannot be written; let this user write to the file and to its directory"
        }
        Some(ErrorCode::NotADatabase) => "is not an SQLite database; name another file",
        Some(ErrorCode::DatabaseCorrupt) => "is damaged; restore it from a backup",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "is locked by another process; end that process's transaction"
        }
        Some(_) | None => "cannot be used for another reason; see the cause",
    };
    Error::new(ErrorKind::Unusable, format!("{} {problem_and_remedy}", path.display())).caused_by(error)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::cell::Cell;
    use std::process::Command;
    use std::sync::Arc;

    use hapax_core::runtime::Tokio;

    use super::*;
    use crate::{Sqlite, SqliteSettings};

    thread_local! {
        /// The file system that every path of this thread seems to be on, because a test cannot mount a network one.
        pub(super) static PRETENDED: Cell<Option<i64>> = const { Cell::new(None) };
    }

    const NETWORK: [i64; 5] = [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0xFE53_4D42_u32.cast_signed() as i64, 0x00C3_6400];
    const LOCAL: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630];

    #[tokio::test]
    async fn a_store_on_a_network_file_system_is_refused_and_creates_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hapax.db");
        let open_on = |file_system| {
            PRETENDED.set(Some(file_system));
            let opened = Sqlite::with(&path, Arc::new(Tokio::current()), SqliteSettings::default());
            PRETENDED.set(None);
            opened
        };
        for network in NETWORK {
            let error = open_on(network).expect_err("the file system is not local");
            assert_eq!(error.kind(), ErrorKind::Unusable);
            assert!(error.to_string().contains("is on a network file system; choose a local one"), "{error}");
            assert!(!path.exists(), "{network:x}: a refused file was created");
        }
        for local in LOCAL {
            assert!(open_on(local).is_ok(), "{local:x}");
        }
    }

    #[test]
    fn the_file_system_is_the_one_that_the_system_reports() {
        for path in ["/proc", "/sys", "/dev", "/"] {
            let output = Command::new("stat").args(["-f", "-c", "%t", path]).output().unwrap();
            let hexadecimal = String::from_utf8(output.stdout).unwrap();
            let reported = i64::from_str_radix(hexadecimal.trim(), 16).unwrap();
            assert_eq!(file_system(&Path::new(path).join("hapax.db")), Some(reported), "{path}");
            let directory = tempfile::tempdir().unwrap();
            let link = directory.path().join("hapax.db");
            std::os::unix::fs::symlink(path, &link).unwrap();
            assert_eq!(file_system(&link), Some(reported), "a link to {path}");
        }
    }
}
