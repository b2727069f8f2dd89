use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::broker::Headers;
use crate::key::{EventId, OperationId};
use crate::record::Timestamp;

/// The id of a row, unique in its outbox, above 0. A transaction draws the ids of its rows after it has its own id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub u64);

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
    /// A republication has begun since the given rewinds, so nothing was marked: read the rows again.
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
    /// Rows with larger ids are read.
    pub after: RowId,
    /// The number of rows that are read at most.
    pub limit: u32,
}

/// By how much [`OpenRows::rewinds`] grows where rows are opened and marks still count. Two numbers in one: below are
/// the republications.
pub const OPENING: u64 = 1 << 32;

/// How many republications have begun, of [`OpenRows::rewinds`]. A mark counts only if no further one has begun since
/// its event was published.
pub const fn republications(rewinds: u64) -> u64 {
    rewinds % OPENING
}

/// What a read of the outbox found.
#[derive(Clone, Debug, Default)]
pub struct OpenRows {
    /// The rows. Those of one bucket are in the order of their ids.
    pub rows: Vec<OpenRow>,
    /// Whether rows were left out because of the limit on bytes.
    pub is_cut: bool,
    /// Grows, in the same transaction, whenever rows behind a cursor become open again: by 1 when a republication
    /// begins, and by [`OPENING`] when it opens further rows, or when a key is resumed. The relay then reads everything
    /// again before it publishes these rows.
    pub rewinds: u64,
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
}

/// An event as it leaves the database.
#[derive(Clone, PartialEq, Eq)]
pub struct OutgoingEvent {
    /// Names the event for the broker and for consumers. The same in every publication.
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
}

impl OutgoingEvent {
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
        }
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
