use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::key::EventId;
use crate::outbox::{OutgoingEvent, RowId, RowState};
use crate::record::Timestamp;

/// What operators, and the upkeep of a relay, do with an outbox. Each call is one short transaction; callers repeat
/// those with a limit until they return 0.
///
/// # Cancel safety
/// A dropped call may have changed up to its limit of rows. Repeating it is safe.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no outbox with upkeep",
    label = "does not implement `OutboxUpkeep`",
    note = "pass an outbox of `hapax::stores`, or implement `OutboxUpkeep`"
)]
#[async_trait]
pub trait OutboxUpkeep: fmt::Debug + Send + Sync + 'static {
    /// Counts for metrics. The number of open rows is bounded by `limit`, because counting reads them.
    ///
    /// # Errors
    /// As every call of this trait: `NotApplied`, `Unknown`, `Unusable`.
    async fn counts(&self, limit: u64) -> Result<OutboxCounts>;

    /// Returns at most `limit` parked keys, the one that was parked first at the front, behind the key `after`. Fewer
    /// than `limit` are the last ones.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>>;

    /// Returns the event with this id, its row and its state.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>>;

    /// Opens up to `limit` rows of a parked key again, smallest ids first. The key stays parked until a call finds none
    /// left; that call returns 0, ends the parking, and makes relays read everything again. Returns None if the key is
    /// not parked.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>>;

    /// Drops the row that was refused: it is never published. The key stays parked. Returns the event of the row, or
    /// None if the key is not parked, is parked for another event than `expected`, or its row was published or dropped.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>>;

    /// Begins a republication: from now on the mark of an event that was published before does not count, so a relay
    /// publishes it once more, and brokers do not recognize what they had before. Waits for marks that run.
    ///
    /// Call [`now`](Self::now) after it, and then [`republish`](Self::republish) until that time: each mark that counts
    /// has ended by then. It reads no row, so that no lock on a row delays it.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn begin_republication(&self) -> Result<()>;

    /// Goes through the next `limit` rows behind `after`, in the order of their ids, and opens those again that were
    /// published within this time. If it opens one, relays read everything again. Returns None at the end of the table.
    ///
    /// Without [`begin_republication`](Self::begin_republication) before the first call, brokers may drop the events.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>>;

    /// The time on the clock by which rows become published, for the end of a republication.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn now(&self) -> Result<Timestamp>;

    /// Removes up to `limit` published or dropped rows that are older than this. Returns how many.
    ///
    /// # Errors
    /// See [`counts`](Self::counts).
    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize>;
}

/// What one call of [`OutboxUpkeep::republish`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reopened {
    /// The last of the rows that it went through.
    pub last: RowId,
    /// How many rows it opened.
    pub rows: usize,
}

/// How much waits in an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// The number of open rows, up to the limit of the call.
    pub open: u64,
    /// The age of the oldest open row whose key is not parked. None without one.
    pub oldest: Option<Duration>,
    /// The number of parked keys.
    pub parked_keys: u64,
}

/// A key whose rows are not published until an operator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedKey {
    /// The ordering key, or the id of an event without one.
    pub key: Bytes,
    /// The row that was refused.
    pub row: RowId,
    /// The event in it.
    pub event: EventId,
    /// Its topic.
    pub topic: String,
    /// Why the sink refused it.
    pub reason: String,
    /// When.
    pub parked_at: Timestamp,
}
