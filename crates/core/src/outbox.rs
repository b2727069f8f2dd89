//! What the relay of layer 3 needs from the database that holds the outbox, and from what it publishes to.
//!
//! ```text
//! rows.rs        a row as the relay reads it, and the event in it
//! sink.rs        trait Sink: publishes one event
//! template.rs    from the topic of an event to the name in a sink
//! attributes.rs  the headers under which every sink publishes an event
//! upkeep.rs      trait OutboxUpkeep: for operators: parked keys, counts, republish, retention
//! memory.rs      an outbox in memory, for tests and simulations
//! ```
//!
//! A row has one of four states. The relay publishes rows that are *open*, in the order of their ids per ordering key,
//! and then makes them *published*. A row that the sink refuses for good makes its key *parked*: its rows are *set
//! aside* until an operator resumes the key, or makes the refused row *dropped*.
//!
//! The state of a row is the truth. Cursors, floors and notifications only decide when the relay reads.

mod attributes;
mod memory;
mod rows;
mod sink;
mod template;
mod upkeep;

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::store::Finding;

pub(crate) use attributes::{is_reserved_header, percent_decoded, percent_encoded, rfc3339};
pub use memory::{MemoryOutbox, MemoryTransaction};
pub use rows::{
    BUCKETS, BucketCursor, EventRow, EventTopic, Horizon, MarkedRows, OpenRow, OpenRows, OutgoingEvent, ParkedRow,
    ReadRequest, ReadStart, Rewinds, RowId, RowState, bucket_of,
};
pub use sink::{Published, Sink};
pub use template::TopicTemplate;
pub use upkeep::{OutboxCounts, OutboxUpkeep, ParkedKey, Reopened};

/// The outbox of a database. Each operation is one transaction, and repeating it is safe.
///
/// # Cancel safety
/// Dropping the future of an operation leaves its outcome unknown. Repeating it is always safe.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no outbox",
    label = "does not implement `Outbox`",
    note = "pass an outbox of `hapax::stores`, or implement `Outbox`"
)]
#[async_trait]
pub trait Outbox: fmt::Debug + Send + Sync + 'static {
    /// Reads open rows: of each bucket those from its cursor on, in the order of their ids, up to its limit. One
    /// snapshot for all buckets, the parked keys and [`OpenRows::rewinds`].
    ///
    /// Rows that the request leaves out count towards no limit: the rows behind them are read instead.
    ///
    /// It stops before the payloads exceed the bytes of the request, but returns at least one row if there is one. The
    /// buckets share the bytes: the first row of each comes before the second one of any.
    ///
    /// # Errors
    /// `NotApplied` if the database cannot be reached, `Unusable` if tables or rights are missing.
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows>;

    /// Makes these rows published where they are open. A row in another state stays as it is, and so does one with
    /// another event. It waits for no other transaction, except for a republication that is beginning.
    ///
    /// `republications`: the number under which the events were published. If another republication has begun since,
    /// nothing is marked: an operator publishes rows again because the broker may have lost them. None begins while a
    /// mark that counts runs.
    ///
    /// # Errors
    /// As [`read`](Self::read), and `Unknown`.
    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows>;

    /// Parks the keys of rows that are open or set aside, and sets these rows aside. A key that is parked already keeps
    /// its first reason. Returns the rows that do not exist or were published or dropped: no key is parked because of
    /// them.
    ///
    /// # Errors
    /// As [`mark`](Self::mark). One row on which another transaction has a lock may fail the call for all.
    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>>;

    /// Sets these rows aside where they are open and their keys are parked and not being resumed.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    async fn set_aside(&self, rows: &[EventRow]) -> Result<()>;

    /// Reads which ids are drawn, and which transactions have ended; see [`Horizon`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    async fn horizon(&self) -> Result<Horizon>;

    /// Checks whether a relay can use the database: whether the tables are there, with the rights of a relay, and
    /// whether the server keeps what it confirms. Do it at start.
    ///
    /// # Errors
    /// `NotApplied` if the database cannot be reached.
    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Waits until somebody says that rows were committed. It may end without a reason, and a notification may get
    /// lost: the relay also reads from time to time. Pending for ever where nobody says so.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn wait_for_rows(&self) {
        std::future::pending::<()>().await;
    }
}
