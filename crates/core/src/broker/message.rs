use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::record::Timestamp;

/// A message, as its broker delivered it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The payload. Empty also where the broker distinguishes an empty payload from none.
    pub payload: Bytes,
    /// The headers.
    pub headers: Headers,
    /// Messages with the same key are processed one after the other. None: in any order.
    pub ordering_key: Option<Bytes>,
    /// Where the message lies. None if the broker has no name for it that stays.
    pub coordinates: Option<Coordinates>,
    /// When the message got to the broker, by the broker's clock. A redelivery has the same time.
    pub timestamp: Option<Timestamp>,
    /// Why the message cannot be read, if its bytes at the broker are damaged. It becomes a dead letter.
    pub damage: Option<Arc<str>>,
}

/// Prints neither the payload nor the ordering key: both may be confidential.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("payload_bytes", &self.payload.len())
            .field("headers", &self.headers)
            .field("has_ordering_key", &self.ordering_key.is_some())
            .field("coordinates", &self.coordinates)
            .field("timestamp", &self.timestamp)
            .field("damage", &self.damage)
            .finish()
    }
}

impl Message {
    /// How many bytes it takes of a worker's room.
    pub fn size(&self) -> usize {
        self.payload.len() + self.headers.size() + self.ordering_key.as_ref().map_or(0, Bytes::len)
    }
}

/// The headers of a message, in the order of the broker. Names match without case on every broker.
///
/// ```
/// use hapax::broker::Headers;
///
/// let headers: Headers = [("Idempotency-Key", "order-7")].into_iter().collect();
/// assert_eq!(headers.all("idempotency-key").count(), 1);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Arc<str>, Bytes)>);

impl Headers {
    /// Adds a header behind the others. A name may repeat.
    pub fn push(&mut self, name: impl Into<Arc<str>>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// The values of every header of this name, compared without case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Bytes> {
        self.0.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers, with their names as they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    pub(crate) fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl<N: Into<Arc<str>>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Prints only the names: values may be keys or secrets.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Where a message lies at its broker: the same for each redelivery, another one for each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// The broker and the topic or queue, for instance `kafka/<id of the cluster>/orders`: the same for every worker of
    /// the group, whatever address it connected to.
    pub origin: Arc<str>,
    /// The partition; 0 where there are none.
    pub partition: u32,
    /// The place in it.
    pub position: Position,
}

/// The place of a message in its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// An offset, a sequence number or the number of a row.
    Number(u64),
    /// An id that the broker gave.
    Id(Bytes),
}
