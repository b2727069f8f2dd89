//! From a message of a subscription to a delivery.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::{Coordinates, Delivery, DeliveryId, Lane, Message, Position};

use super::headers;
use super::messages::{ProtoTime, PulledMessage, Subscription};

/// Numbers deliveries.
pub(super) struct TopicReader {
    pub(super) lane: Lane,
    /// The project and the topic.
    origin: Arc<str>,
    /// Whether the subscription keeps the order of keys.
    is_ordered: bool,
    lease: Duration,
    next: u64,
}

impl TopicReader {
    pub(super) fn new(name: &str, subscription: &Subscription, lease: Duration) -> Self {
        let lane = Lane { topic: name.into(), partition: 0, generation: 0 };
        // projects/PROJECT/topics/TOPIC
        let mut parts = subscription.topic.split('/');
        let (project, topic) = (parts.nth(1).unwrap_or_default(), parts.nth(1).unwrap_or_default());
        let origin = format!("pubsub/{project}/{topic}").into();
        Self { lane, origin, is_ordered: subscription.enable_message_ordering, lease, next: 0 }
    }

    /// The delivery of a message whose lease has run since this time.
    pub(super) fn read(&mut self, received: PulledMessage, at: Duration) -> Delivery {
        let PulledMessage { ack_id, message, delivery_attempt } = received;
        let received = message.unwrap_or_default();
        // Without the order of the subscription, a key orders nothing.
        let ordering_key = Some(received.ordering_key).filter(|key| self.is_ordered && !key.is_empty());
        let message = Message {
            payload: received.data,
            headers: headers::unfold(received.attributes),
            ordering_key: ordering_key.map(Bytes::from),
            coordinates: Some(Coordinates {
                origin: Arc::clone(&self.origin),
                partition: 0,
                position: Position::Id(received.message_id.into()),
            }),
            timestamp: received.publish_time.map(timestamp),
            damage: None,
        };
        self.next += 1;
        Delivery {
            id: DeliveryId { lane: self.lane.clone(), number: self.next, handle: ack_id.into() },
            message: Arc::new(message),
            attempt: u32::try_from(delivery_attempt).ok().filter(|attempt| *attempt > 0),
            leased_until: Some(at + self.lease),
        }
    }
}

fn timestamp(time: ProtoTime) -> Timestamp {
    let (seconds, nanos) = (u64::try_from(time.seconds).unwrap_or(0), u64::try_from(time.nanos).unwrap_or(0));
    Timestamp(seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::messages::TopicMessage;

    fn received(delivery_attempt: i32) -> PulledMessage {
        let publish_time = Some(ProtoTime { seconds: 1, nanos: 7_999 });
        let message = TopicMessage {
            data: Bytes::from_static(b"\xff"),
            message_id: "11".into(),
            ordering_key: "k".into(),
            publish_time,
            ..TopicMessage::default()
        };
        PulledMessage { ack_id: "ack".into(), message: Some(message), delivery_attempt }
    }

    #[test]
    fn a_delivery_has_what_the_service_says_of_the_message() {
        let subscription = |enable_message_ordering| Subscription {
            topic: "projects/shop/topics/orders".into(),
            enable_message_ordering,
            ..Subscription::default()
        };
        let mut reader = TopicReader::new("billing", &subscription(true), Duration::from_secs(60));
        let delivery = reader.read(received(3), Duration::from_secs(5));
        assert_eq!((delivery.attempt, delivery.leased_until), (Some(3), Some(Duration::from_secs(65))));
        assert_eq!((&delivery.id.handle[..], delivery.id.number), (&b"ack"[..], 1));
        let message = &delivery.message;
        assert_eq!((&message.payload[..], message.timestamp), (&b"\xff"[..], Some(Timestamp(1_000_007))));
        assert_eq!(message.ordering_key.as_deref(), Some(&b"k"[..]));
        let coordinates = message.coordinates.clone().unwrap();
        assert_eq!(&*coordinates.origin, "pubsub/shop/orders");
        assert_eq!(coordinates.position, Position::Id(Bytes::from_static(b"11")));
        let mut unordered = TopicReader::new("billing", &subscription(false), Duration::from_secs(60));
        let delivery = unordered.read(received(0), Duration::ZERO);
        assert_eq!((delivery.attempt, delivery.message.ordering_key.as_ref()), (None, None));
    }
}
