//! Dead letters in an SQLite file.

mod statements;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, KeptLetter, LetterChange, LetterWord,
    ListedLetter, MarkedLetter, SeenLetter,
};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use rusqlite::Connection;

use super::file_thread::{self, FileThread, in_transaction, not_applied};
use super::{SqliteLedger, connection};
use crate::letter::readable;

/// Dead letters in an SQLite file, on a thread and a connection of its own. The wall clock of the runtime is the clock
/// of their leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::broker::DeadLetterStore;
/// use hapax::stores::SqliteDeadLetters;
///
/// # let directory = tempfile::tempdir()?;
/// let letters = SqliteDeadLetters::open(directory.path().join("shop.db"))?;
/// for letter in letters.list(None, 100).await? {
///     println!("{}: {} after {} attempts", letter.id, letter.reason.as_str(), letter.attempts);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SqliteDeadLetters {
    thread: FileThread,
    runtime: Arc<dyn Runtime>,
}

impl SqliteDeadLetters {
    /// Opens the file on the current tokio runtime. Creates the file, so that only its owner can read it, and the
    /// tables if they are missing. Blocks for a few milliseconds, or up to 30 seconds while another process writes.
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

    /// Opens the file on this runtime.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database, and if the system cannot start a thread.
    pub fn with(path: &Path, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let opened = file_thread::open(path, |connection| {
            // A redrive opens the operations of the ledger again.
            SqliteLedger::migrate(connection)?;
            Self::migrate(connection)
        })?;
        let thread = FileThread::start(&*runtime, "hapax-sqlite-dead", opened)?;
        Ok(Self { thread, runtime })
    }

    /// Creates the table if it is missing.
    ///
    /// If another connection writes, it waits as long as the busy timeout of this connection says, but only where a
    /// table is missing.
    ///
    /// # Errors
    /// `Unusable` if the table cannot be created.
    pub fn migrate(connection: &mut Connection) -> Result<()> {
        let unusable =
            |error| Error::new(ErrorKind::Unusable, "the table of dead letters cannot be created").caused_by(error);
        connection::create(connection, include_str!("dead/tables.sql")).map_err(unusable)
    }

    /// Frees letters only after this time. A worker that extends its lease has them until then.
    async fn move_end(&self, ids: &[DeadLetterId], by: Duration, is_taken: bool) -> Result<()> {
        let (ids, runtime) = (ids.to_vec(), Arc::clone(&self.runtime));
        let move_end = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                let free_at = runtime.wall_now().plus(by);
                statements::move_end(transaction, &ids, (free_at, is_taken.then_some(free_at)))
            })
        };
        self.thread.run(move_end).await
    }

    /// Writes a letter in a transaction of the caller's own, that of the ledger for instance.
    ///
    /// # Errors
    /// `NotApplied`: roll the transaction back and run it again.
    pub fn put_in(transaction: &Connection, letter: &DeadLetter) -> Result<()> {
        statements::put(transaction, letter).map_err(not_applied)
    }
}

#[async_trait]
impl DeadLetters for SqliteDeadLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let count = letters.len();
        let put = self.thread.run(move |connection| {
            in_transaction(connection, |transaction| {
                letters.iter().try_for_each(|letter| statements::put(transaction, letter))
            })
        });
        let put = put.await.map_err(Arc::new);
        let result = || match &put {
            Ok(()) => Ok(()),
            Err(error) => Err(Error::new(error.kind(), "the dead letter was not written").caused_by(Arc::clone(error))),
        };
        (0..count).map(|_| result()).collect()
    }
}

#[async_trait]
impl DeadLetterStore for SqliteDeadLetters {
    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>> {
        let unreadable = |error| Error::new(ErrorKind::Invalid, "this is no cursor of a list").caused_by(error);
        let after: i64 = after.map_or(Ok(0), |cursor| cursor.as_str().parse()).map_err(unreadable)?;
        self.thread.run(move |connection| statements::list(connection, after, limit).map_err(not_applied)).await
    }

    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>> {
        let row = self.thread.run(move |connection| statements::find(connection, id).map_err(not_applied)).await?;
        row.transpose()
    }

    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange> {
        let (seen, runtime) = (seen.clone(), Arc::clone(&self.runtime));
        let mark = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                statements::mark(transaction, id, (&seen, word), runtime.wall_now())
            })
        };
        self.thread.run(mark).await
    }

    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>> {
        let runtime = Arc::clone(&self.runtime);
        let use_up = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                statements::use_up_word(transaction, (id, marked_at), runtime.wall_now())
            })
        };
        self.thread.run(use_up).await
    }

    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange> {
        let (seen, runtime) = (seen.clone(), Arc::clone(&self.runtime));
        let remove = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                statements::remove_seen(transaction, (id, &seen), runtime.wall_now())
            })
        };
        self.thread.run(remove).await
    }

    fn tells_ordering_keys(&self) -> bool {
        true
    }

    async fn keys_with_letters(&self, source: &str, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let source = source.to_owned();
        let find = move |connection: &mut Connection| {
            statements::keys_with_letters(connection, &source, keys).map_err(not_applied)
        };
        self.thread.run(find).await
    }

    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>> {
        let (source, runtime) = (source.to_owned(), Arc::clone(&self.runtime));
        let take = move |connection: &mut Connection| {
            // Most looks find nothing, and then wait for no lock.
            if statements::marked(connection, &source, (runtime.wall_now(), 1)).map_err(not_applied)?.is_empty() {
                return Ok(Vec::new());
            }
            in_transaction(connection, |transaction| {
                let now = runtime.wall_now();
                let ids = statements::marked(transaction, &source, (now, limit))?;
                statements::take(transaction, &ids, now.plus(lease))
            })
        };
        let (marked, left_out) = readable(self.thread.run(take).await?);
        if !left_out.is_empty() {
            // Nobody processes them, so they can be dropped.
            self.postpone(&left_out, lease).await?;
        }
        Ok(marked)
    }

    async fn extend(&self, ids: &[DeadLetterId], lease: Duration) -> Result<()> {
        self.move_end(ids, lease, true).await
    }

    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()> {
        self.move_end(ids, by, false).await
    }

    async fn finish(&self, redriven: &[(DeadLetterId, Timestamp)]) -> Result<()> {
        let redriven = redriven.to_vec();
        let finish = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                redriven.iter().try_for_each(|(id, marked_at)| statements::finish(transaction, *id, *marked_at))
            })
        };
        self.thread.run(finish).await
    }
}

impl fmt::Debug for SqliteDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SqliteDeadLetters")
    }
}
