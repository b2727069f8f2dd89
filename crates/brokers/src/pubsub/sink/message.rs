//! From an event to a message of a topic.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hapax_core::outbox::OutgoingEvent;
use sha2::{Digest, Sha256};

use crate::pubsub::headers::fold;
use crate::pubsub::messages::TopicMessage;

/// The longest ordering key, in bytes.
const MAX_KEY: usize = 1024;

/// The message.
///
/// # Errors
/// Why Pub/Sub can never take the event.
pub(super) fn of(event: &OutgoingEvent) -> Result<TopicMessage, String> {
    let headers = event.published_headers("ce-");
    // The headers of the user come first, and the key is never one of them.
    let own = headers.iter().take_while(|(name, _)| *name != "Idempotency-Key").count();
    Ok(TopicMessage {
        data: event.payload.clone(),
        attributes: fold(&headers, own)?,
        ordering_key: event.ordering_key.as_deref().map(ordering_key).unwrap_or_default(),
        ..TopicMessage::default()
    })
}

/// The ordering key as Pub/Sub takes it: a text that is not too long, and not empty, which would order nothing.
fn ordering_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if (1..=MAX_KEY).contains(&text.len()) => text.to_owned(),
        Ok(_) | Err(_) => BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(key)),
    }
}

/// The bytes of a message, as the service counts them.
pub(super) fn size(message: &TopicMessage) -> usize {
    let attributes = message.attributes.iter().map(|(name, value)| name.len() + value.len());
    message.data.len() + attributes.sum::<usize>() + message.ordering_key.len()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hapax_core::EventId;

    use super::*;

    #[test]
    fn an_event_keeps_its_bytes_its_key_and_its_id() {
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "orders", &b"\x00\xff"[..]);
        event.ordering_key = Some(Bytes::from_static("kö".as_bytes()));
        let message = of(&event).unwrap();
        assert_eq!((&message.data[..], &*message.ordering_key), (&b"\x00\xff"[..], "kö"));
        assert_eq!(message.attributes["Idempotency-Key"], event.id.to_string());
        assert_eq!(message.attributes["ce-partitionkey"], "k%C3%B6");
        let names = message.attributes.iter().map(|(name, value)| name.len() + value.len());
        assert_eq!(size(&message), 2 + 3 + names.sum::<usize>());
        event.ordering_key = None;
        assert_eq!(of(&event).unwrap().ordering_key, "");
    }

    #[test]
    fn a_key_that_is_no_text_or_too_long_is_hashed() {
        assert_eq!(ordering_key(&[b'k'; 1024]), "k".repeat(1024));
        for key in [&[b'k'; 1025][..], b"\xff", b""] {
            let hashed = ordering_key(key);
            assert!(hashed.len() == 43 && hashed.bytes().all(|byte| byte.is_ascii_graphic()), "{hashed}");
        }
        assert_ne!(ordering_key(&[b'k'; 1025]), ordering_key(&[b'k'; 1026]));
    }
}
