use std::path::Path;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

/// The schema that this release writes, and the newest that it reads.
const SCHEMA_VERSION: i64 = 1;

/// The smallest `pragma synchronous` under which a commit is on the disk when it returns.
pub(super) const SYNCHRONOUS_FULL: i64 = 2;

/// How long a group of steps waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an opening waits for the file's lock. SQLite's lock is not fair: a busy process may hold it most of the
/// time.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

/// How often an opening tries to switch to the write-ahead log while other processes do the same.
const TRIES: u32 = 50;

/// The time between two of these tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a connection, in write-ahead mode and with a sync at every commit. Creates the file if it does not exist.
pub(super) fn open(path: &Path) -> Result<Connection> {
    refuse_network(path)?;
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

/// Creates a missing file that only its owner can read: it has the answers in plain text. SQLite would let everybody
/// read it. Its log and the log's index get the mode of the file.
#[cfg(unix)]
fn create_private(path: &Path) {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let created = File::options().append(true).create_new(true).mode(0o600).open(path);
    // The umask may have removed a permission of the owner. SQLite reports a file that cannot be created or used.
    let _ = created.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
}

#[cfg(not(unix))]
fn create_private(_path: &Path) {}

/// Refuses a file on a network file system. Locks are unreliable there, and the index of the write-ahead log is shared
/// memory, which hosts do not share.
#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // If the directory cannot be examined, opening the file fails with a more precise error.
    match rustix::fs::statfs(directory) {
        Ok(found) if is_network(found.f_type) => {
            let message = format!("{} is on a network file system; choose a local one", path.display());
            Err(Error::new(ErrorKind::Unusable, message))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_path: &Path) -> Result<()> {
    Ok(())
}

/// Compares with the magic numbers of NFS, SMB, CIFS, SMB2, AFS, Coda, NCP and Ceph in linux/magic.h.
#[cfg(target_os = "linux")]
fn is_network(file_system: impl Into<i64>) -> bool {
    // The type of `f_type` differs between architectures.
    let file_system = file_system.into();
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

/// Creates the tables if they are missing, and refuses a schema that is newer than this release.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<()> {
    let version = migrate(connection).map_err(|error| unusable(path, error))?;
    if version > SCHEMA_VERSION {
        let message = format!(
            "{}: the schema has version {version} and this release knows {SCHEMA_VERSION}; use the release that wrote \
             it, or a newer one",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unusable, message));
    }
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|error| unusable(path, error))
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<i64> {
    // Lock the file first: two processes that open a new file at the same time must not both create the tables.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let exists: bool = transaction.query_row(include_str!("has_schema.sql"), [], |row| row.get(0))?;
    if !exists {
        transaction.execute_batch(include_str!("schema.sql"))?;
    }
    let version = transaction.query_row(include_str!("version.sql"), [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(version)
}

fn unusable(path: &Path, error: rusqlite::Error) -> Error {
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
    use super::*;

    #[test]
    fn network_file_systems_are_recognised() {
        for network in [0x6969_i64, 0xFF53_4D42, 0xFE53_4D42, i64::from(0xFE53_4D42_u32.cast_signed())] {
            assert!(is_network(network), "{network:x}");
        }
        for local in [0xEF53_i64, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert!(!is_network(local), "{local:x}");
        }
    }
}
