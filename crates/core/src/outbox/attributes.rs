//! The headers under which every sink publishes an event.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::broker::Headers;
use crate::outbox::OutgoingEvent;
use crate::record::Timestamp;

/// The header that names the event for the worker of a consumer: its first rule for keys.
const KEY: &str = "Idempotency-Key";

/// How the names of CloudEvents attributes begin, on some broker.
const PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"];

/// The prefix of HTTP, whose values are percent-encoded.
const OF_HTTP: &str = "ce-";

/// The attributes that a sink writes.
const ATTRIBUTES: [&str; 6] = ["specversion", "id", "source", "type", "time", "partitionkey"];

/// The last second of the year 9999, since the unix epoch.
const LATEST_TIME: Duration = Duration::from_secs(253_402_300_799);

impl OutgoingEvent {
    /// The headers under which a sink publishes this event: the event's own, `Idempotency-Key` with the event id,
    /// `content-type`, and the CloudEvents attributes as headers with this prefix, for instance `ce_`. A worker reads
    /// the key back, so that it handles an event once however often it was published.
    ///
    /// An own header with one of these names is left out: a message with two keys has none. Without a source, the
    /// attribute `source` is the namespace; without a type, `type` is the topic. `partitionkey` is the ordering key.
    ///
    /// Values are written as the binding of the prefix says: under `ce-`, as over HTTP, blanks, `"`, `%` and what is no
    /// printable ASCII are percent-encoded. Under the other prefixes a value is plain UTF-8, and only one that is no
    /// UTF-8 is percent-encoded.
    pub fn published_headers(&self, prefix: &str) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in self.headers.iter().filter(|(name, _)| !self.replaces(name)) {
            headers.push(name, value.clone());
        }
        let id = self.id.to_string();
        headers.push(KEY, id.clone());
        if let Some(content_type) = &self.content_type {
            headers.push("content-type", content_type.clone());
        }
        let namespace = if self.namespace.is_empty() { "hapax" } else { &self.namespace };
        let encoded = |value: &[u8]| match std::str::from_utf8(value) {
            Ok(_) if prefix != OF_HTTP => Bytes::copy_from_slice(value),
            Ok(_) | Err(_) => percent_encoded(value),
        };
        let mut attribute = |name: &str, value: Bytes| headers.push(format!("{prefix}{name}"), value);
        attribute("specversion", Bytes::from_static(b"1.0"));
        attribute("id", id.into());
        attribute("source", encoded(self.source.as_deref().unwrap_or(namespace).as_bytes()));
        attribute("type", encoded(self.kind.as_deref().unwrap_or(&self.topic).as_bytes()));
        if self.created_at.0 > 0 {
            attribute("time", rfc3339(self.created_at).into());
        }
        if let Some(key) = &self.ordering_key {
            attribute("partitionkey", encoded(key));
        }
        headers
    }

    /// Whether a sink writes a header of this name itself.
    fn replaces(&self, name: &str) -> bool {
        is_attribute_or_key(name) || name.eq_ignore_ascii_case("content-type") && self.content_type.is_some()
    }
}

fn is_attribute_or_key(name: &str) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let is_attribute = |prefix: &str| ATTRIBUTES.iter().any(|attribute| is(&format!("{prefix}{attribute}")));
    is(KEY) || PREFIXES.into_iter().any(is_attribute)
}

/// Whether a header of this name has a meaning for a sink or its broker, so that a message that is passed on keeps it
/// under another name.
pub(crate) fn is_reserved_header(name: &str) -> bool {
    let is_command = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
    let is_letter = name.get(..11).is_some_and(|start| start.eq_ignore_ascii_case("hapax-dead-"));
    is_attribute_or_key(name) || is_command || is_letter
}

/// A value as CloudEvents writes it in a header: blanks, `"`, `%` and what is no printable ASCII are percent-encoded.
pub(crate) fn percent_encoded(value: &[u8]) -> Bytes {
    if value.iter().all(is_plain) {
        return Bytes::copy_from_slice(value);
    }
    let encoded = |byte: &u8| if is_plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    value.iter().map(encoded).collect::<String>().into()
}

/// A value without the encoding of [`percent_encoded`]. What is no encoded byte stays as it is.
pub(crate) fn percent_decoded(value: &[u8]) -> Vec<u8> {
    let digit = |place: usize| value.get(place).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut place) = (Vec::with_capacity(value.len()), 0);
    while let Some(&byte) = value.get(place) {
        match (byte, digit(place + 1), digit(place + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.extend(u8::try_from(high * 16 + low));
                place += 3;
            }
            _ => {
                decoded.push(byte);
                place += 1;
            }
        }
    }
    decoded
}

/// The time as RFC 3339 writes it, in UTC. A time behind the year 9999 has no such text, and becomes its last second.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    let since = Duration::from_micros(time.0).min(LATEST_TIME);
    humantime::format_rfc3339_micros(UNIX_EPOCH + since).to_string()
}

fn is_plain(byte: &u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::EventId;

    fn texts(headers: &Headers) -> Vec<(String, String)> {
        headers.iter().map(|(name, value)| (name.into(), String::from_utf8_lossy(value).into_owned())).collect()
    }

    #[test]
    fn an_event_is_published_with_its_headers_its_key_and_its_attributes() {
        let id = EventId::from_bytes([7; 16]);
        let mut event = OutgoingEvent::new(id, "paid", "5");
        event.namespace = "shop".into();
        event.content_type = Some("text/plain".into());
        event.ordering_key = Some(Bytes::from_static(b"a b\xff%"));
        event.created_at = Timestamp(1_000_000);
        event.headers = [("traceparent", "00-1"), ("Ce-Id", "x"), ("idempotency-key", "y")].into_iter().collect();
        let id = id.to_string();
        let expected = [
            ("traceparent", "00-1"),
            (KEY, &id),
            ("content-type", "text/plain"),
            ("ce_specversion", "1.0"),
            ("ce_id", &id),
            ("ce_source", "shop"),
            ("ce_type", "paid"),
            ("ce_time", "1970-01-01T00:00:01.000000Z"),
            ("ce_partitionkey", "a%20b%FF%25"),
        ];
        assert_eq!(texts(&event.published_headers("ce_")), expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn an_attribute_is_plain_where_the_binding_has_text_and_percent_encoded_where_it_is_that_of_http() {
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "paid", "5");
        event.source = Some("50%25 off, Zo\u{eb}".into());
        for (prefix, written) in [
            ("ce_", "50%25 off, Zo\u{eb}"),
            ("cloudEvents:", "50%25 off, Zo\u{eb}"),
            ("ce-", "50%2525%20off,%20Zo%C3%AB"),
        ] {
            let headers = event.published_headers(prefix);
            let name = format!("{prefix}source");
            assert_eq!(headers.all(&name).collect::<Vec<_>>(), [written], "{prefix}");
        }
    }

    #[test]
    fn a_content_type_among_the_headers_stays_where_the_event_has_no_other() {
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "paid", "5");
        event.headers = [("Content-Type", "a/b")].into_iter().collect();
        assert!(texts(&event.published_headers("ce-")).contains(&("Content-Type".into(), "a/b".into())));
        event.content_type = Some("c/d".into());
        let found = event.published_headers("ce-");
        assert_eq!(found.all("content-type").collect::<Vec<_>>(), ["c/d"]);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(Timestamp(seconds * 1_000_000)), text);
        }
        assert_eq!(rfc3339(Timestamp(1_000_001)), "1970-01-01T00:00:01.000001Z");
        assert_eq!(rfc3339(Timestamp(u64::MAX)), "9999-12-31T23:59:59.000000Z");
    }
}
