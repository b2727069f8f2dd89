//! A durable queue in an SQLite file. A service enqueues in its own transaction, and workers lease the messages.

mod settle;
mod sink;
mod source;
mod statements;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::broker::Message;
use hapax_core::{Error, ErrorKind, Result};
use rusqlite::Connection;

use super::{connection, file_thread};
pub use sink::{SqliteSink, SqliteSinkConfig};
pub use source::{SqliteSource, SqliteSourceSettings};

/// A queue in an SQLite file, for those who put messages in. [`SqliteSource`] takes them out. [`SqliteSink`] puts the
/// events of an outbox in.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::broker::Message;
/// use hapax::stores::SqliteQueue;
///
/// # let mut connection = rusqlite::Connection::open_in_memory()?;
/// # connection.execute_batch("create table account (id text, balance integer)")?;
/// SqliteQueue::migrate(&mut connection)?;
/// let queue = SqliteQueue::new("payments")?;
///
/// let transaction = connection.transaction()?;
/// transaction.execute("update account set balance = balance - 5 where id = 'acme'", [])?;
/// let message = Message {
///     payload: "5".into(),
///     headers: [("Idempotency-Key", "order-7")].into_iter().collect(),
///     ordering_key: Some("acme".into()),
///     ..Message::default()
/// };
/// queue.enqueue(&transaction, &message)?;
/// transaction.commit()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteQueue {
    name: Arc<str>,
}

impl SqliteQueue {
    /// The queue with this name. A file can have many.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 255 characters.
    pub fn new(name: &str) -> Result<Self> {
        if !(1..=255).contains(&name.chars().count()) {
            return Err(Error::new(ErrorKind::Invalid, "the name of a queue has from 1 to 255 characters"));
        }
        Ok(Self { name: name.into() })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the tables that are missing.
    ///
    /// If another connection writes, it waits as long as the busy timeout of this connection says, but only where a
    /// table is missing.
    ///
    /// # Errors
    /// `Unusable` if the tables cannot be created.
    pub fn migrate(connection: &mut Connection) -> Result<()> {
        let unusable =
            |error| Error::new(ErrorKind::Unusable, "the tables of the queue cannot be created").caused_by(error);
        connection::create(connection, include_str!("queue/tables.sql")).map_err(unusable)
    }

    /// Puts a message in, in the caller's own transaction: it can be delivered after the commit. Returns the id of the
    /// message, which no other message of this file ever has. The message's coordinates and timestamp are ignored.
    ///
    /// # Errors
    /// - `NotApplied`: roll the transaction back and run it again: another connection writes, or the statement failed.
    /// - `Unusable`: the tables are missing.
    pub fn enqueue(&self, transaction: &Connection, message: &Message) -> Result<u64> {
        self.enqueue_after(transaction, message, Duration::ZERO)
    }

    /// As [`enqueue`](Self::enqueue), but the message is delivered only after this time. Later messages of its ordering
    /// key wait for it.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    pub fn enqueue_after(&self, transaction: &Connection, message: &Message, delay: Duration) -> Result<u64> {
        statements::enqueue(transaction, &self.name, message, delay).map_err(file_thread::not_applied)
    }

    /// Opens the queue for a worker, on the current tokio runtime. Creates the file and the tables if they are missing.
    /// Blocks for a few milliseconds, or up to 30 seconds while another process writes.
    ///
    /// # Errors
    /// As [`SqliteSource::open`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn source(&self, path: impl AsRef<Path>) -> Result<SqliteSource> {
        let runtime = Arc::new(hapax_core::runtime::Tokio::current());
        SqliteSource::open(path.as_ref(), self, runtime, SqliteSourceSettings::default())
    }
}
