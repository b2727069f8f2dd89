//! From a message of NATS to a delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use hapax_core::Timestamp;
use hapax_core::broker::{Coordinates, Delivery, DeliveryId, Headers, Lane, Message, Position};
use tracing::error;

use super::NatsUrl;
use super::pump::Arrived;

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
    pub(super) fn read(&mut self, arrived: (Context, Arrived)) -> Option<Delivery> {
        let (context, Arrived { message, at }) = arrived;
        let message = jetstream::Message { message, context };
        let Ok(info) = message.info() else {
            error!(lane = ?self.lane, "a message has no coordinates of JetStream; it is left alone");
            return None;
        };
        let headers = message.headers.as_ref().map(headers).unwrap_or_default();
        let ordering_key = self.order_header.as_ref().and_then(|name| headers.all(name).next().cloned());
        let micros = u64::try_from(info.published.unix_timestamp_nanos() / 1000).unwrap_or_default();
        let coordinates = Coordinates {
            origin: Arc::clone(&self.origin),
            partition: 0,
            position: Position::Number(info.stream_sequence),
        };
        let attempt = u32::try_from(info.delivered).ok();
        let handle = message.reply.as_ref().map(|reply| Bytes::copy_from_slice(reply.as_bytes())).unwrap_or_default();
        self.next += 1;
        Some(Delivery {
            id: DeliveryId { lane: self.lane.clone(), number: self.next, handle },
            message: Arc::new(Message {
                payload: message.payload.clone(),
                headers,
                ordering_key,
                coordinates: Some(coordinates),
                timestamp: Some(Timestamp(micros)),
            }),
            attempt,
            leased_until: Some(at + self.lease),
        })
    }
}

fn headers(map: &HeaderMap) -> Headers {
    // NATS keeps the order of the values of one name. The driver keeps no order of the names.
    let mut pairs: Vec<(&str, &str)> =
        map.iter().flat_map(|(name, values)| values.iter().map(|value| (name.as_ref(), value.as_str()))).collect();
    pairs.sort_by_key(|(name, _)| *name);
    pairs.into_iter().map(|(name, value)| (name, Bytes::copy_from_slice(value.as_bytes()))).collect()
}
