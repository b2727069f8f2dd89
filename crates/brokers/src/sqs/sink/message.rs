//! From an event to a message of SQS.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hapax_core::outbox::OutgoingEvent;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use sha2::{Digest, Sha256};

use crate::folded::BASE64;
use crate::sqs::headers::{ENCODING, fold, sendable, text};
use crate::sqs::queue::SentMessage;
use crate::sqs::url::is_fifo;

/// The longest name of a message group, and the longest deduplication id.
const MAX_ID: usize = 128;

/// What a group does not have as it is. Percent-encoding leaves the other printable ASCII.
const NOT_IN_GROUPS: &AsciiSet = &CONTROLS.add(b' ');

/// The message.
///
/// # Errors
/// Why SQS can never take the event.
pub(super) fn of(event: &OutgoingEvent, queue: &str) -> Result<SentMessage, String> {
    let headers = event.published_headers("ce-");
    // The headers of the user come first, and the key is never one of them.
    let own = headers.iter().take_while(|(name, _)| *name != "Idempotency-Key").count();
    let body = sendable(&event.payload);
    let spare = usize::from(body.is_none());
    let refused = |name| format!("SQS takes no header with the name {name:?}");
    let mut attributes = fold(&headers, own, spare).map_err(refused)?;
    let message_body = body.map_or_else(|| BASE64_STANDARD.encode(&event.payload), str::to_owned);
    if body.is_none() {
        attributes.insert(ENCODING.to_owned(), text(BASE64));
    }
    let is_fifo = is_fifo(queue);
    Ok(SentMessage {
        message_body,
        message_attributes: attributes,
        message_group_id: is_fifo.then(|| group(event)),
        message_deduplication_id: is_fifo.then(|| event.deduplication_id()),
    })
}

/// The message group: the ordering key, or the id of an event without one, so that it waits for no other.
fn group(event: &OutgoingEvent) -> String {
    let Some(key) = &event.ordering_key else { return event.id.to_string() };
    let encoded = percent_encode(key, NOT_IN_GROUPS).to_string();
    if (1..=MAX_ID).contains(&encoded.len()) {
        return encoded;
    }
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(key))
}

/// Whether the body is in base64.
pub(super) fn is_encoded(message: &SentMessage) -> bool {
    message.message_attributes.contains_key(ENCODING)
}

/// The bytes of a message, as the service counts them.
pub(super) fn size(message: &SentMessage) -> usize {
    let attributes = message.message_attributes.iter().map(|(name, attribute)| {
        let value = attribute.string_value.as_ref().or(attribute.binary_value.as_ref());
        name.len() + attribute.data_type.len() + value.map_or(0, String::len)
    });
    message.message_body.len() + attributes.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hapax_core::{EventId, Timestamp};

    use super::*;
    use crate::folded::FOLDED;

    fn event(payload: &'static [u8]) -> OutgoingEvent {
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "orders", payload);
        event.created_at = Timestamp(1_000_000);
        event
    }

    #[test]
    fn a_body_that_is_no_text_of_sqs_is_sent_in_base64() {
        for (payload, body) in [(&b""[..], ""), (b"\x00", "AA=="), (b"\xff", "/w=="), (b"a\x0b", "YQs=")] {
            let message = of(&event(payload), "q").unwrap();
            assert_eq!(message.message_body, body);
            assert_eq!(message.message_attributes[ENCODING], text(BASE64));
        }
        let message = of(&event(b"{\"a\":1}\r\n"), "q").unwrap();
        assert_eq!(message.message_body, "{\"a\":1}\r\n");
        assert!(!message.message_attributes.contains_key(ENCODING));
    }

    #[test]
    fn a_message_never_has_more_than_ten_attributes() {
        for count in 0..20 {
            let mut event = event(b"\xff");
            event.content_type = Some("a/b".into());
            event.ordering_key = Some(Bytes::from_static(b"k"));
            event.headers = (0..count).map(|number| (format!("h{number}"), "v")).collect();
            let attributes = of(&event, "q").unwrap().message_attributes;
            assert!(attributes.len() <= 10, "{count}: {:?}", attributes.keys());
            assert_eq!(attributes.contains_key(FOLDED), count > 1, "{count}");
            assert!(attributes.contains_key("Idempotency-Key") && attributes.contains_key("ce-id"));
        }
    }

    #[test]
    fn only_a_fifo_queue_gets_a_group_and_an_id_for_deduplication() {
        let mut keyed = event(b"x");
        keyed.ordering_key = Some(Bytes::from_static(b"account-7"));
        keyed.republications = 2;
        let standard = of(&keyed, "q").unwrap();
        assert_eq!((standard.message_group_id, standard.message_deduplication_id), (None, None));
        let fifo = of(&keyed, "q.fifo").unwrap();
        assert_eq!(fifo.message_group_id.as_deref(), Some("account-7"));
        assert_eq!(fifo.message_deduplication_id, Some(format!("{}/2", keyed.id)));
        let free = event(b"x");
        assert_eq!(of(&free, "q.fifo").unwrap().message_group_id, Some(free.id.to_string()));
    }

    #[test]
    fn a_group_has_its_alphabet_and_its_length() {
        let group = |key: &[u8]| {
            let mut event = event(b"x");
            event.ordering_key = Some(Bytes::copy_from_slice(key));
            group(&event)
        };
        assert_eq!(group("ä b\u{7f}~%".as_bytes()), "%C3%A4%20b%7F~%");
        assert_eq!(group(&[b'k'; 128]), "k".repeat(128));
        for long in [&[b'k'; 129][..], &[0xff; 43], b""] {
            let hashed = group(long);
            assert_eq!(hashed.len(), 43);
            assert!(hashed.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        }
        assert_ne!(group(&[b'k'; 129]), group(&[b'k'; 130]));
    }

    #[test]
    fn names_types_and_values_of_attributes_count_as_bytes() {
        let message = of(&event(b"12345"), "q").unwrap();
        let attributes: usize = message
            .message_attributes
            .iter()
            .map(|(name, attribute)| name.len() + "String".len() + attribute.string_value.as_ref().unwrap().len())
            .sum();
        assert_eq!(size(&message), 5 + attributes);
    }
}
