use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::key::{EventId, OperationId};
use crate::outbox::{OutgoingEvent, bucket_of};

/// An event that leaves the database after the transaction has committed, exactly as it was emitted.
///
/// ```
/// use hapax::ledger::Event;
///
/// let event = Event::new("transfers", r#"{"amount":5}"#).ordered_by("account-7").content_type("application/json");
/// assert_eq!(event.topic(), "transfers");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    topic: String,
    payload: Bytes,
    ordering_key: Option<Bytes>,
    kind: Option<String>,
    source: Option<String>,
    content_type: Option<String>,
    headers: Vec<(String, String)>,
}

impl Event {
    /// The largest event, in bytes: payload and headers together. NATS and Kafka count headers in their limit of 1 MiB.
    pub const MAX_LEN: usize = 1_000_000;

    /// The longest topic, ordering key, type, source and content type, in bytes. Every sink keeps room for them beside
    /// the largest event.
    pub const MAX_NAME: usize = 255;

    /// An event for this topic.
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            payload: payload.into(),
            ordering_key: None,
            kind: None,
            source: None,
            content_type: None,
            headers: Vec::new(),
        }
    }

    /// Publishes the event after earlier events with the same ordering key. Without one it may be published in any
    /// order.
    #[must_use]
    pub fn ordered_by(mut self, key: impl Into<Bytes>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Sets the CloudEvents attribute `type`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets the CloudEvents attribute `source`.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets a header, for instance `traceparent`. A header with the same name is replaced.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.headers.retain(|(set, _)| *set != name);
        self.headers.push((name, value.into()));
        self
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The row of this event, the `number`-th of its operation.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key, an attribute or the size is out of its limits.
    pub(super) fn into_row(self, namespace: &str, operation: OperationId, number: u32) -> Result<OutboxRow> {
        self.validate()?;
        let Self { topic, payload, ordering_key, kind, source, content_type, headers } = self;
        let id = operation.event(namespace, number);
        Ok(OutboxRow {
            id,
            operation,
            number,
            topic,
            payload,
            ordering_key,
            is_in_commit_order: false,
            kind,
            source,
            content_type,
            headers,
        })
    }

    /// The event as it leaves, with this id, for a writer without a ledger. It has no namespace and no operation yet.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key, an attribute or the size is out of its limits.
    pub fn into_outgoing(self, id: EventId) -> Result<OutgoingEvent> {
        self.validate()?;
        Ok(OutgoingEvent {
            ordering_key: self.ordering_key,
            kind: self.kind,
            source: self.source,
            content_type: self.content_type,
            headers: self.headers.into_iter().collect(),
            ..OutgoingEvent::new(id, self.topic, self.payload)
        })
    }

    fn validate(&self) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.topic.is_empty() || self.topic.len() > Self::MAX_NAME {
            return invalid("the topic of an event has 1 to 255 bytes");
        }
        if self.ordering_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > Self::MAX_NAME) {
            return invalid("the ordering key of an event has 1 to 255 bytes; leave it out for events in any order");
        }
        let attributes = [
            (&self.kind, "the type of an event has at most 255 bytes"),
            (&self.source, "the source of an event has at most 255 bytes"),
            (&self.content_type, "the content type of an event has at most 255 bytes"),
        ];
        for (value, message) in attributes {
            if value.as_ref().is_some_and(|value| value.len() > Self::MAX_NAME) {
                return invalid(message);
            }
        }
        if self.payload.len() + headers > Self::MAX_LEN {
            return invalid("an event has at most 1,000,000 bytes, headers included");
        }
        Ok(())
    }
}

/// A row of the outbox: an event with its derived id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Derived from the namespace, the operation and the number, so that a later attempt emits the same id.
    pub id: EventId,
    /// The operation that emits the event.
    pub operation: OperationId,
    /// The number of the event within its operation, from 0.
    pub number: u32,
    /// The topic.
    pub topic: String,
    /// The body of the event.
    pub payload: Bytes,
    /// Events with the same ordering key are published in the order of their rows.
    pub ordering_key: Option<Bytes>,
    /// Whether the row is inserted behind the commits of all transactions that emitted so for its key before.
    pub is_in_commit_order: bool,
    /// The CloudEvents attribute `type`.
    pub kind: Option<String>,
    /// The CloudEvents attribute `source`.
    pub source: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: Vec<(String, String)>,
}

impl OutboxRow {
    /// The bucket of the row, from 0. Rows with the same ordering key are in the same bucket.
    pub fn bucket(&self) -> u8 {
        bucket_of(self.ordering_key.as_deref().unwrap_or(self.id.as_bytes()))
    }
}
