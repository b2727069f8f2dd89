//! An event as the columns that every database keeps.

use bytes::Bytes;
use hapax_core::broker::Headers;
use hapax_core::outbox::{OutgoingEvent, RowState};
use hapax_core::{Error, ErrorKind, EventId, OperationId, Result, Timestamp};
use serde_json::Value;

/// The columns of an event in the outbox.
#[derive(Debug)]
pub(crate) struct StoredEventColumns {
    pub(crate) id: [u8; 16],
    pub(crate) namespace: String,
    pub(crate) operation: Option<[u8; 16]>,
    pub(crate) number: Option<i64>,
    pub(crate) topic: String,
    pub(crate) ordering_key: Option<Vec<u8>>,
    pub(crate) kind: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) created_at: Timestamp,
}

impl From<StoredEventColumns> for OutgoingEvent {
    fn from(columns: StoredEventColumns) -> Self {
        Self {
            id: EventId::from_bytes(columns.id),
            namespace: columns.namespace,
            operation: columns.operation.map(OperationId::from_bytes),
            number: columns.number.and_then(|number| u32::try_from(number).ok()),
            topic: columns.topic,
            ordering_key: columns.ordering_key.map(Bytes::from),
            kind: columns.kind,
            source: columns.source,
            content_type: columns.content_type,
            headers: headers(&columns.headers),
            payload: columns.payload.into(),
            created_at: columns.created_at,
            republications: 0,
        }
    }
}

/// The headers of an event: an object of texts. Every writer can insert rows, so a value that is no text becomes its
/// JSON, and what is no object has no headers: an error would keep back the whole bucket.
fn headers(json: &str) -> Headers {
    let Ok(Value::Object(headers)) = serde_json::from_str(json) else {
        return Headers::default();
    };
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    headers.into_iter().map(|(name, value)| (name, text(value))).collect()
}

/// Why an event is not published whose column has a text that is not UTF-8.
pub(crate) fn not_utf8(column: &str) -> String {
    format!("the column {column} of the row is not UTF-8; drop the row, and emit the event again")
}

/// The state that a database stores.
pub(crate) fn state(number: i16) -> Result<RowState> {
    let unknown = || Error::new(ErrorKind::Damaged, format!("a row of the outbox has the unknown state {number}"));
    RowState::from_stored(number).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_every_writer_can_be_read() {
        let list = |json| headers(json).iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>();
        assert_eq!(list(r#"{"b": "1", "a": "\u00e4"}"#), [r#"a=b"\xc3\xa4""#, r#"b=b"1""#]);
        assert_eq!(
            list(r#"{"a": 1, "b": null, "c": {"d": [true]}}"#),
            [r#"a=b"1""#, r#"b=b"null""#, r#"c=b"{\"d\":[true]}""#]
        );
        for none in ["", "[]", "7", "{", "\"a\""] {
            assert!(list(none).is_empty(), "{none}");
        }
    }
}
