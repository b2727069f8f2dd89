use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::broker::Headers;
use crate::chaos::Mutant;
use crate::key::{EventId, OperationId};
use crate::record::Timestamp;

/// The id of a row, unique in its outbox, above 0. A transaction draws the ids of its rows after it has its own id. Ids
/// are compared, and nothing else is known of them: there may be none between two of them, or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub u128);

/// Where a read of rows begins. A start at a row is before one behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadStart {
    /// The row.
    pub row: RowId,
    /// Whether the row itself is not read.
    pub is_behind: bool,
}

impl ReadStart {
    /// All rows are read.
    pub const FIRST: Self = Self::behind(RowId(0));

    /// This row is the first one that is read.
    pub const fn at(row: RowId) -> Self {
        Self { row, is_behind: false }
    }

    /// Only larger rows are read.
    pub const fn behind(row: RowId) -> Self {
        Self { row, is_behind: true }
    }
}

impl Default for ReadStart {
    fn default() -> Self {
        Self::FIRST
    }
}

impl RangeBounds<RowId> for ReadStart {
    fn start_bound(&self) -> Bound<&RowId> {
        if self.is_behind { Bound::Excluded(&self.row) } else { Bound::Included(&self.row) }
    }

    fn end_bound(&self) -> Bound<&RowId> {
        Bound::Unbounded
    }
}

/// A row and the event in it. A restored or truncated outbox may give the id to another row, which this does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventRow {
    /// The row.
    pub id: RowId,
    /// The event.
    pub event: EventId,
}

/// The result of marking rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkedRows {
    /// The number of rows that are published now.
    pub marked: usize,
    /// Another number of republications has begun, so nothing was marked: read the rows again.
    pub is_rewound: bool,
    /// Open rows on which another transaction has a lock. They are as before: mark them again later.
    pub locked: Vec<EventRow>,
}

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowState {
    /// It is to be published.
    Open,
    /// The sink has confirmed it.
    Published,
    /// Its key is parked.
    Aside,
    /// An operator dropped it: it is never published.
    Dropped,
}

impl RowState {
    /// The state with this number, as databases store it.
    pub const fn from_stored(number: i16) -> Option<Self> {
        match number {
            0 => Some(Self::Open),
            1 => Some(Self::Published),
            2 => Some(Self::Aside),
            3 => Some(Self::Dropped),
            _ => None,
        }
    }

    /// The word for operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Published => "published",
            Self::Aside => "aside",
            Self::Dropped => "dropped",
        }
    }
}

/// From where, and how far, one bucket is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCursor {
    /// The bucket, from 0 to 63.
    pub bucket: u8,
    /// The row from which on rows are read.
    pub from: ReadStart,
    /// The number of rows that are read at most.
    pub limit: u32,
}

/// A request for the open rows of some buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// From where, and how far, each bucket is read.
    pub cursors: Vec<BucketCursor>,
    /// The bytes of payloads at which a read stops.
    pub bytes: usize,
    /// Topics whose rows are not read if they have no ordering key.
    pub left_out: Vec<EventTopic>,
}

/// A topic of one namespace. A sink chooses the endpoint of an event by both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventTopic {
    /// The namespace of the events.
    pub namespace: String,
    /// Their topic.
    pub topic: String,
}

impl EventTopic {
    /// The topic of this event.
    pub fn of(event: &OutgoingEvent) -> Self {
        Self { namespace: event.namespace.clone(), topic: event.topic.clone() }
    }
}

impl ReadRequest {
    /// Reads rows of all topics, up to the limit from each bucket.
    pub fn all_buckets(from: ReadStart, limit: u32, bytes: usize) -> Self {
        let cursors = (0..BUCKETS).map(|bucket| BucketCursor { bucket, from, limit });
        Self { cursors: cursors.collect(), bytes, left_out: Vec::new() }
    }

    /// Whether the row of this event is not read.
    pub fn leaves_out(&self, event: &OutgoingEvent) -> bool {
        let is_topic = |left: &EventTopic| left.topic == event.topic && left.namespace == event.namespace;
        event.ordering_key.is_none() && self.left_out.iter().any(is_topic)
    }
}

/// How often relays had to read everything again. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rewinds {
    /// The transactions that opened rows again behind a cursor: steps of a republication, and keys that were resumed.
    /// Marks count as before.
    pub openings: u64,
    /// The republications that have begun. A mark counts only if its event was published under this number, and a
    /// broker recognizes no event that it had under another one: see [`OutgoingEvent::deduplication_id`].
    pub republications: u64,
}

/// What a read of the outbox found.
#[derive(Clone, Debug, Default)]
pub struct OpenRows {
    /// The rows. Those of one bucket are in the order of their ids.
    pub rows: Vec<OpenRow>,
    /// Whether rows were left out because of the limit on bytes.
    pub is_cut: bool,
    /// Grows, in the same transaction, whenever rows behind a cursor become open again, and when a republication
    /// begins. The relay then reads everything again before it publishes these rows.
    pub rewinds: Rewinds,
}

/// A row that is not published.
#[derive(Clone, Debug)]
pub struct OpenRow {
    /// Its id.
    pub id: RowId,
    /// Its bucket.
    pub bucket: u8,
    /// Whether its key is parked, also while it is being resumed.
    pub is_parked: bool,
    /// Why it cannot be published, if a value in it cannot be decoded. The relay parks its key.
    pub damage: Option<String>,
    /// The event.
    pub event: Arc<OutgoingEvent>,
}

impl OpenRow {
    /// Names the row for a call of [`Outbox`](crate::outbox::Outbox).
    pub fn named(&self) -> EventRow {
        EventRow { id: self.id, event: self.event.id }
    }

    /// The row as one that the sink refused for this reason.
    pub fn refused(&self, reason: &str) -> ParkedRow {
        let (event, key) = (self.event.id, self.event.order());
        ParkedRow { id: self.id, event, bucket: self.bucket, key, reason: reason.to_owned() }
    }
}

/// An event as it leaves the database.
#[derive(Clone, PartialEq, Eq)]
pub struct OutgoingEvent {
    /// Names the event for consumers. The same in every publication.
    pub id: EventId,
    /// The namespace of the ledger or of the writer.
    pub namespace: String,
    /// The operation that emitted it. None if another writer inserted the row.
    pub operation: Option<OperationId>,
    /// The number of the event within its operation, from 0.
    pub number: Option<u32>,
    /// The topic.
    pub topic: String,
    /// Events with the same ordering key are published one after the other.
    pub ordering_key: Option<Bytes>,
    /// The CloudEvents attribute `type`.
    pub kind: Option<String>,
    /// The CloudEvents attribute `source`.
    pub source: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: Headers,
    /// The body.
    pub payload: Bytes,
    /// When the row was written, on the database's clock.
    pub created_at: Timestamp,
    /// How many republications had begun when a relay read the row. 0 where it was read otherwise.
    pub republications: u64,
}

impl OutgoingEvent {
    /// The type of an event that is a dead letter of a worker. A sink keeps no reserve of its broker's limit for it:
    /// the message has come from a broker, and may be as large as that one takes.
    pub const DEAD_LETTER: &str = "hapax.dead-letter";

    /// An event with this id, topic and body, and nothing else.
    pub fn new(id: EventId, topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            id,
            namespace: String::new(),
            operation: None,
            number: None,
            topic: topic.into(),
            ordering_key: None,
            kind: None,
            source: None,
            content_type: None,
            headers: Headers::default(),
            payload: payload.into(),
            created_at: Timestamp::default(),
            republications: 0,
        }
    }

    /// What a broker recognizes a repetition by: the event id and, after a republication, how many have begun. A broker
    /// that lost the event may remember its id, and would drop what is to replace it. Consumers get the event id.
    pub fn deduplication_id(&self) -> String {
        if self.republications == 0 || Mutant::RepublishedUnderOneId.is_on() {
            return self.id.to_string();
        }
        format!("{}/{}", self.id, self.republications)
    }

    /// What is published in order: the ordering key, or the id of an event that has none.
    pub fn order(&self) -> Bytes {
        self.ordering_key.clone().unwrap_or_else(|| Bytes::copy_from_slice(self.id.as_bytes()))
    }

    /// Payload and headers in bytes.
    pub fn size(&self) -> usize {
        self.payload.len() + self.headers.size()
    }
}

/// Hides the payload and the ordering key.
impl fmt::Debug for OutgoingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingEvent")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// A row that the sink refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedRow {
    /// The row.
    pub id: RowId,
    /// The event in it.
    pub event: EventId,
    /// Its bucket.
    pub bucket: u8,
    /// Its key: [`OutgoingEvent::order`].
    pub key: Bytes,
    /// Why the sink refused it, in words for an operator.
    pub reason: String,
}

impl ParkedRow {
    /// Names the row for a call of [`Outbox`](crate::outbox::Outbox).
    pub fn named(&self) -> EventRow {
        EventRow { id: self.id, event: self.event }
    }
}

/// Two readings tell below which id every row has been decided: if `settled` of a later one is above `stamp` of an
/// earlier one, every transaction that may hold an id up to `drawn` of the earlier one has ended.
///
/// `drawn` is read first, and `stamp` is drawn after it. A transaction that draws an id up to `drawn` had its own
/// stamp before that, so its stamp is below this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Horizon {
    /// The largest row id that is drawn.
    pub drawn: RowId,
    /// A number that grows with each transaction that begins to write.
    pub stamp: u64,
    /// All transactions with a smaller stamp have ended.
    pub settled: u64,
}

/// The number of buckets. It never changes.
pub const BUCKETS: u8 = 64;

/// The bucket of what is published in order, from 0.
pub fn bucket_of(order: &[u8]) -> u8 {
    Sha256::digest(order)[0] % BUCKETS
}
