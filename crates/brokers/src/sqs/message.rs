//! From a message of SQS to a delivery.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::{Coordinates, Delivery, DeliveryId, Lane, Message, Position};

use super::headers::{self, ENCODING};
use super::queue::SqsMessage;
use crate::folded::BASE64;

/// Numbers deliveries.
pub(super) struct MessageReader {
    pub(super) lane: Lane,
    /// The account and the queue.
    origin: Arc<str>,
    /// Whether message groups have an order.
    is_fifo: bool,
    lease: Duration,
    next: u64,
}

impl MessageReader {
    pub(super) fn new(account: &str, queue: &str, is_fifo: bool, lease: Duration) -> Self {
        let lane = Lane { topic: queue.into(), partition: 0, generation: 0 };
        let origin = format!("sqs/{account}/{queue}").into();
        Self { lane, origin, is_fifo, lease, next: 0 }
    }

    /// The delivery of a message that arrived at this time.
    pub(super) fn read(&mut self, received: SqsMessage, at: Duration) -> Delivery {
        let SqsMessage { message_id, receipt_handle, body, attributes, message_attributes } = received;
        let number = |name: &str| attributes.get(name).and_then(|value| value.parse::<u64>().ok());
        let encoding = message_attributes.get(ENCODING).and_then(|found| found.string_value.as_deref());
        let decoded = (encoding == Some(BASE64)).then(|| BASE64_STANDARD.decode(&body));
        let (payload, damage) = match decoded {
            None => (Bytes::from(body), None),
            Some(Ok(payload)) => (Bytes::from(payload), None),
            Some(Err(_)) => (Bytes::from(body), Some("its body is no base64, as its hapax-encoding says".into())),
        };
        // On a standard queue a group names a tenant, and orders nothing.
        let group = attributes.get("MessageGroupId").filter(|_| self.is_fifo);
        let message = Message {
            payload,
            headers: headers::unfold(&message_attributes),
            ordering_key: group.map(|group| Bytes::copy_from_slice(group.as_bytes())),
            coordinates: Some(Coordinates {
                origin: Arc::clone(&self.origin),
                partition: 0,
                position: Position::Id(message_id.into()),
            }),
            timestamp: number("SentTimestamp").map(|millis| Timestamp(millis.saturating_mul(1000))),
            damage,
        };
        self.next += 1;
        Delivery {
            id: DeliveryId { lane: self.lane.clone(), number: self.next, handle: receipt_handle.into() },
            message: Arc::new(message),
            attempt: number("ApproximateReceiveCount").and_then(|count| u32::try_from(count).ok()),
            leased_until: Some(at + self.lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(encoding: Option<&str>, body: &str) -> SqsMessage {
        let attributes = [("ApproximateReceiveCount", "3"), ("SentTimestamp", "1700"), ("MessageGroupId", "g")];
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        SqsMessage {
            message_id: "id".into(),
            receipt_handle: "handle".into(),
            body: body.into(),
            attributes: attributes.into_iter().map(text).collect(),
            message_attributes: encoding.map(|name| (ENCODING.to_owned(), headers::text(name))).into_iter().collect(),
        }
    }

    #[test]
    fn a_delivery_has_what_the_service_says_of_the_message() {
        let mut reader = MessageReader::new("42", "orders.fifo", true, Duration::from_secs(30));
        let delivery = reader.read(received(None, "x"), Duration::from_secs(5));
        assert_eq!((delivery.attempt, delivery.leased_until), (Some(3), Some(Duration::from_secs(35))));
        assert_eq!((&delivery.id.handle[..], delivery.id.number), (&b"handle"[..], 1));
        let message = &delivery.message;
        assert_eq!((message.timestamp, message.ordering_key.as_deref()), (Some(Timestamp(1_700_000)), Some(&b"g"[..])));
        let coordinates = message.coordinates.clone().unwrap();
        assert_eq!(&*coordinates.origin, "sqs/42/orders.fifo");
        assert_eq!(coordinates.position, Position::Id(Bytes::from_static(b"id")));
        let mut standard = MessageReader::new("42", "orders", false, Duration::from_secs(30));
        assert_eq!(standard.read(received(None, "x"), Duration::ZERO).message.ordering_key, None);
    }

    #[test]
    fn a_body_in_base64_is_decoded_and_a_broken_one_is_damaged() {
        let mut reader = MessageReader::new("42", "orders", false, Duration::from_secs(30));
        let mut read = |encoding, body| reader.read(received(encoding, body), Duration::ZERO).message;
        let decoded = read(Some("base64"), "AP8=");
        assert_eq!((&decoded.payload[..], decoded.headers.iter().count()), (&b"\x00\xff"[..], 0));
        assert!(read(Some("base64"), "?").damage.is_some());
        assert_eq!(&read(Some("gzip"), "AP8=").payload[..], b"AP8=");
    }
}
