//! From a message of NATS to a delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::{Coordinates, Delivery, DeliveryId, Headers, Lane, Message, Position};
use tracing::error;

use super::NatsUrl;
use super::pump::Arrived;
use super::unreadable::UnreadableMessage;

/// Where deliveries are acknowledged.
const ACK: &str = "$JS.ACK.";

/// The header of an unreadable message that shows its headers.
const UNREADABLE_HEADERS: &str = "Hapax-Unreadable-Headers";

/// As much of them is shown.
const SHOWN: usize = 1024;

/// Whether it is a message of a stream. The server's answers about a request have no subject for acknowledgements.
pub(super) fn is_delivery(message: &async_nats::Message) -> bool {
    message.reply.as_ref().is_some_and(|reply| reply.starts_with(ACK))
}

/// The fields in the subject for acknowledgements of a message.
pub(super) fn acknowledged(message: &async_nats::Message) -> Option<Acknowledged> {
    message.reply.as_ref().and_then(|reply| Acknowledged::read(reply))
}

/// The place in its stream of the message with this handle.
pub(super) fn sequence_of(handle: &[u8]) -> Option<u64> {
    Acknowledged::read(std::str::from_utf8(handle).ok()?).map(|read| read.sequence)
}

/// The subject under which a message is acknowledged that has not arrived. The server takes the number of the delivery
/// from its own records.
pub(super) fn handle(info: &consumer::Info, sequence: u64) -> String {
    format!("{ACK}{}.{}.1.{sequence}.0.0.0", info.stream_name, info.name)
}

/// The fields in the subject for acknowledgements.
pub(super) struct Acknowledged {
    delivered: u64,
    /// The place of the message in its stream.
    pub(super) sequence: u64,
    /// The number of the delivery among all of the consumer.
    pub(super) number: u64,
    /// In nanoseconds.
    published: u64,
}

impl Acknowledged {
    fn read(subject: &str) -> Option<Self> {
        // $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.number.time.pending[.token]
        let subject = subject.strip_prefix(ACK)?;
        let names = if subject.matches('.').count() == 6 { 2 } else { 4 };
        let mut numbers = subject.split('.').skip(names).map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { delivered: next()?, sequence: next()?, number: next()?, published: next()? })
    }
}

/// Numbers deliveries.
pub(super) struct Reader {
    lane: Lane,
    origin: Arc<str>,
    order_header: Option<String>,
    lease: Duration,
    next: u64,
}

impl Reader {
    pub(super) fn new(url: &NatsUrl, lane: Lane, created: &str, lease: Duration) -> Self {
        let origin = format!("nats/{}/{created}", url.stream()).into();
        Self { lane, origin, order_header: url.order_header().map(str::to_owned), lease, next: 0 }
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// None, and a line in the log, if it is no message of JetStream.
    pub(super) fn read(&mut self, arrived: &Arrived) -> Option<Delivery> {
        let message = &arrived.message;
        let reply = message.reply.as_ref().map(Subject::as_str).unwrap_or_default();
        let Some(read) = Acknowledged::read(reply) else {
            error!(lane = ?self.lane, "a message has no coordinates of JetStream; it is left alone");
            return None;
        };
        let headers = message.headers.as_ref().map(headers).unwrap_or_default();
        let message = Message {
            payload: message.payload.clone(),
            ordering_key: self.order_header.as_ref().and_then(|name| headers.all(name).next().cloned()),
            headers,
            coordinates: Some(self.coordinates(read.sequence)),
            timestamp: Some(Timestamp(read.published / 1000)),
            damage: None,
        };
        let attempt = u32::try_from(read.delivered).ok();
        Some(self.delivery(reply.as_bytes(), message, attempt, arrived.at))
    }

    /// The delivery of a message that the driver could not read, of which nothing arrived.
    pub(super) fn read_unreadable(
        &mut self,
        found: UnreadableMessage,
        info: &consumer::Info,
        now: Duration,
    ) -> Delivery {
        let shown = &found.headers[..found.headers.len().min(SHOWN)];
        let message = Message {
            payload: found.payload,
            headers: [(UNREADABLE_HEADERS, shown.escape_ascii().to_string())].into_iter().collect(),
            ordering_key: None,
            coordinates: Some(self.coordinates(found.sequence)),
            timestamp: Some(found.published),
            damage: Some(found.why.into()),
        };
        self.delivery(handle(info, found.sequence).as_bytes(), message, None, now)
    }

    fn coordinates(&self, sequence: u64) -> Coordinates {
        Coordinates { origin: Arc::clone(&self.origin), partition: 0, position: Position::Number(sequence) }
    }

    fn delivery(&mut self, handle: &[u8], message: Message, attempt: Option<u32>, at: Duration) -> Delivery {
        self.next += 1;
        let handle = Bytes::copy_from_slice(handle);
        Delivery {
            id: DeliveryId { lane: self.lane.clone(), number: self.next, handle },
            message: Arc::new(message),
            attempt,
            leased_until: Some(at + self.lease),
        }
    }
}

fn headers(map: &HeaderMap) -> Headers {
    // NATS keeps the order of the values of one name. The driver keeps no order of the names.
    let mut pairs: Vec<(&str, &str)> =
        map.iter().flat_map(|(name, values)| values.iter().map(|value| (name.as_ref(), value.as_str()))).collect();
    pairs.sort_by_key(|(name, _)| *name);
    pairs.into_iter().map(|(name, value)| (name, Bytes::copy_from_slice(value.as_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_for_acknowledgements_tells_the_place_of_a_message() {
        for subject in ["$JS.ACK.orders.d.2.77.99.1700.3", "$JS.ACK.hub.AABB.orders.d.2.77.99.1700.3.token"] {
            let read = Acknowledged::read(subject).unwrap();
            assert_eq!((read.delivered, read.sequence, read.number, read.published), (2, 77, 99, 1700), "{subject}");
            assert_eq!(sequence_of(subject.as_bytes()), Some(77));
        }
        for subject in ["", "$JS.ACK.", "$JS.ACK.orders.d.x.77.99.1700.3", "_INBOX.a.b"] {
            assert_eq!(sequence_of(subject.as_bytes()), None, "{subject}");
        }
    }
}
