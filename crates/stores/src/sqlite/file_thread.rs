//! A thread that owns a connection, for work that shares no transaction with that of other callers.

use std::path::Path;
use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::connection;
use super::log_owner;
use super::opened_file::SqliteFile;
use super::turn::Turn;

/// How many calls may wait for the thread. A caller that finds the queue full waits for a free place.
const QUEUE: usize = 256;

/// After so many pages of the log, the commit that follows moves it into the file. Nobody else may have the file open.
const CHECKPOINT_PAGES: i64 = 1_000;

type FileWork = Box<dyn FnOnce(&mut FileConnection) + Send>;

/// A connection, and the file that it has open.
pub(super) struct FileConnection {
    pub(super) connection: Connection,
    pub(super) file: SqliteFile,
}

impl FileConnection {
    /// Closes the connection. The last one of all processes moves the log into the file and removes it, unless another
    /// file is at the path by now: the log there may belong to that one.
    pub(super) fn close(self) {
        let Self { connection, file } = self;
        if file.check().is_err() {
            // A failure would mean that this SQLite knows no such setting.
            let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            return;
        }
        // Connections that close at the same time keep each other from it.
        let _turn = Turn::take(&connection);
        drop(connection);
    }
}

/// Runs one piece of work after the other on a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct FileThread {
    work: mpsc::Sender<FileWork>,
}

/// The result of work that was handed to the thread.
pub(super) type Pending<T> = oneshot::Receiver<Result<T>>;

impl FileThread {
    /// Starts a thread for this file, which ends when the last clone is dropped. The tables must exist.
    pub(super) fn start(runtime: &dyn Runtime, name: &str, opened: FileConnection) -> Result<Self> {
        let (work, mut queue) = mpsc::channel::<FileWork>(QUEUE);
        let mut opened = opened;
        let body = move || {
            while let Some(work) = queue.blocking_recv() {
                work(&mut opened);
            }
            opened.close();
        };
        runtime.blocking(name, Box::new(body)).map_err(|source| {
            Error::new(ErrorKind::Unusable, "the system cannot start a thread for the SQLite file").caused_by(source)
        })?;
        Ok(Self { work })
    }

    /// Hands over work, which does not start if the file is no longer at its path. Its result can be awaited later, and
    /// by another future.
    ///
    /// # Cancel safety
    /// If dropped, the work is not handed over.
    pub(super) async fn hand_over<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<Pending<T>> {
        self.hand_over_unchecked(|FileConnection { connection, file }| file.guard(|| work(connection))).await
    }

    /// As [`hand_over`](Self::hand_over), for work that checks the file itself.
    pub(super) async fn hand_over_unchecked<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut FileConnection) -> Result<T> + Send + 'static,
    ) -> Result<Pending<T>> {
        let (reply, pending) = oneshot::channel();
        let work: FileWork = Box::new(move |opened| {
            // A failed send means that nobody waits for the result.
            let _ = reply.send(work(opened));
        });
        let ended = |_| Error::new(ErrorKind::NotApplied, "the thread of the SQLite file has ended");
        self.work.send(work).await.map_err(ended)?;
        Ok(pending)
    }

    /// Runs work on the thread and returns its result.
    ///
    /// # Cancel safety
    /// If dropped, the work may or may not run.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        replied(self.hand_over(work).await?.await)
    }
}

/// The result that the thread replied.
pub(super) fn replied<T>(reply: Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    let ended = |_| Error::new(ErrorKind::Unknown, "the thread of the SQLite file ended while it worked");
    reply.unwrap_or_else(|error| Err(ended(error)))
}

/// Opens a connection for a [`FileThread`]. Creates the file if it does not exist, and its tables by `migrate`.
pub(super) fn open(path: &Path, migrate: impl FnOnce(&mut Connection) -> Result<()>) -> Result<FileConnection> {
    let mut connection = connection::open(path)?;
    let file = SqliteFile::at(path)?;
    let unusable = |error| connection::unusable(path, error);
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(unusable)?;
    migrate(&mut connection)?;
    connection.busy_timeout(connection::BUSY_TIMEOUT).map_err(unusable)?;
    // Now the connection has the log open.
    file.check()?;
    log_owner::note(path);
    Ok(FileConnection { connection, file })
}

/// Runs statements in a transaction that has the file's lock from its begin.
pub(super) fn in_transaction<T>(
    connection: &mut Connection,
    statements: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T> {
    let _turn = Turn::take(connection);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(not_applied)?;
    let value = statements(&transaction).map_err(not_applied)?;
    transaction.commit().map_err(|error| {
        // After SQLITE_BUSY the commit never got the file's lock.
        let kind = if is_busy(&error) { ErrorKind::NotApplied } else { ErrorKind::Unknown };
        failure(error, kind)
    })?;
    Ok(value)
}

/// The error of a statement whose transaction is rolled back.
pub(super) fn not_applied(error: rusqlite::Error) -> Error {
    failure(error, ErrorKind::NotApplied)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn failure(error: rusqlite::Error, kind: ErrorKind) -> Error {
    let (kind, message) = match error.sqlite_error_code() {
        _ if is_busy(&error) => (kind, "another connection writes to the SQLite file; try again"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Damaged, "the SQLite file is damaged; restore it from a backup")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::Full, "the disk of the SQLite file is full"),
        // "No such table" has no code of its own.
        _ if error.to_string().contains("no such table: hapax_") => {
            (ErrorKind::Unusable, "the tables of Hapax are missing in the SQLite file; run `hapax migrate`")
        }
        Some(_) | None => (kind, "SQLite failed to carry out a statement"),
    };
    Error::new(kind, message).caused_by(Arc::new(error))
}
