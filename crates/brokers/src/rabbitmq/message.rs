//! From a message of AMQP to a delivery.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::broker::{Delivery, DeliveryId, Headers, Lane, Message};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::RabbitMqUrl;
use super::url::MessageOrder;

/// The header with the number of deliveries before this one. Quorum queues write it, from the second delivery on. A
/// publisher may have copied it from another message, and then it stays on every delivery by a classic queue. AMQP does
/// not tell the type of a queue.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// The header with the offset of a message in a stream.
const STREAM_OFFSET: &str = "x-stream-offset";

/// Reads deliveries.
pub(super) struct DeliveryReader {
    order: MessageOrder,
}

impl DeliveryReader {
    pub(super) fn new(url: &RabbitMqUrl) -> Self {
        Self { order: url.order.clone() }
    }

    /// The delivery. Its number is its tag.
    pub(super) fn read(&self, lane: &Lane, arrived: lapin::message::Delivery) -> Delivery {
        let headers = headers(&arrived.properties);
        let attempt = delivery_count(&arrived).map(|earlier| earlier.saturating_add(1));
        let ordering_key = match &self.order {
            MessageOrder::None => None,
            MessageOrder::RoutingKey => Some(Bytes::copy_from_slice(arrived.routing_key.as_str().as_bytes())),
            MessageOrder::Header(name) => headers.all(name).next().cloned(),
        };
        let message = Message {
            payload: arrived.data.into(),
            headers,
            ordering_key,
            // A message that is published again is a new one, and tags end with their channel.
            coordinates: None,
            // The time in the properties is the producer's.
            timestamp: None,
            damage: None,
        };
        let id = DeliveryId { lane: lane.clone(), number: arrived.delivery_tag, handle: Bytes::new() };
        Delivery { id, message: Arc::new(message), attempt, leased_until: None }
    }
}

/// Whether a message comes from a stream.
pub(super) fn is_of_stream(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|table| table.contains_key(STREAM_OFFSET))
}

fn delivery_count(arrived: &lapin::message::Delivery) -> Option<u32> {
    if !arrived.redelivered {
        // The publisher wrote it, with all headers of a message that it had consumed.
        return None;
    }
    let count = arrived.properties.headers().as_ref()?.inner().get(DELIVERY_COUNT)?;
    u32::try_from(integer(count)?).ok()
}

fn integer(value: &AMQPValue) -> Option<i128> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    match value {
        AMQPValue::ShortShortInt(number) => Some((*number).into()),
        AMQPValue::ShortShortUInt(number) => Some((*number).into()),
        AMQPValue::ShortInt(number) => Some((*number).into()),
        AMQPValue::ShortUInt(number) => Some((*number).into()),
        AMQPValue::LongInt(number) => Some((*number).into()),
        AMQPValue::LongUInt(number) => Some((*number).into()),
        AMQPValue::LongLongInt(number) => Some((*number).into()),
        AMQPValue::Timestamp(number) => Some((*number).into()),
        _ => None,
    }
}

/// The table of headers, and properties as headers, unless the table has one of the same name.
fn headers(properties: &BasicProperties) -> Headers {
    let mut headers = Headers::default();
    let table = properties.headers().as_ref();
    for (name, value) in table.into_iter().flat_map(FieldTable::inner) {
        push(&mut headers, name.as_str(), value);
    }
    let named = [
        ("message-id", properties.message_id()),
        ("correlation-id", properties.correlation_id()),
        ("type", properties.kind()),
        ("app-id", properties.app_id()),
        ("content-type", properties.content_type()),
    ];
    for (name, value) in named {
        if let Some(value) = value.as_ref().map(ShortString::as_str)
            && headers.all(name).next().is_none()
        {
            headers.push(name, value.to_owned());
        }
    }
    headers
}

/// Text as it is, numbers and booleans as decimal text, a list of text as several headers. The rest is left out.
fn push(headers: &mut Headers, name: &str, value: &AMQPValue) {
    if let AMQPValue::FieldArray(list) = value {
        let texts: Option<Vec<Bytes>> = list.as_slice().iter().map(text).collect();
        texts.into_iter().flatten().for_each(|text| headers.push(name, text));
    } else if let Some(text) = text(value).or_else(|| number(value)) {
        headers.push(name, text);
    }
}

fn text(value: &AMQPValue) -> Option<Bytes> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    match value {
        AMQPValue::LongString(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        AMQPValue::ShortString(text) => Some(Bytes::copy_from_slice(text.as_str().as_bytes())),
        AMQPValue::ByteArray(bytes) => Some(Bytes::copy_from_slice(bytes.as_slice())),
        _ => None,
    }
}

fn number(value: &AMQPValue) -> Option<Bytes> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    let text = match value {
        AMQPValue::Boolean(is_true) => is_true.to_string(),
        AMQPValue::Float(number) => number.to_string(),
        AMQPValue::Double(number) => number.to_string(),
        value => integer(value)?.to_string(),
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(headers: &[(&str, AMQPValue)]) -> lapin::message::Delivery {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let mut delivery = lapin::message::Delivery::mock(7, "e".into(), "account-7".into(), false, b"5".to_vec());
        delivery.properties = BasicProperties::default().with_headers(table).with_message_id("m".into());
        delivery
    }

    fn read(parameters: &str, headers: &[(&str, AMQPValue)]) -> Delivery {
        let url: RabbitMqUrl = format!("amqp://a?queue=q{parameters}").parse().unwrap();
        DeliveryReader::new(&url).read(&lane(), delivered(headers))
    }

    fn lane() -> Lane {
        Lane { topic: "q".into(), partition: 0, generation: 1 }
    }

    #[test]
    fn a_message_has_its_headers_and_properties_and_its_order() {
        let list = vec![AMQPValue::LongString("a".into()), AMQPValue::LongString("b".into())];
        let table = vec![AMQPValue::FieldTable(FieldTable::default())];
        let sent = [
            ("Number", AMQPValue::LongInt(-5)),
            ("Is", AMQPValue::Boolean(true)),
            ("List", AMQPValue::FieldArray(list.into())),
            ("x-death", AMQPValue::FieldArray(table.into())),
            ("Order", AMQPValue::LongString("o".into())),
        ];
        let delivery = read("&order=header:order", &sent);
        let headers: Vec<(&str, &[u8])> =
            delivery.message.headers.iter().map(|(name, value)| (name, &value[..])).collect();
        let expected: [(&str, &[u8]); 6] =
            [("Is", b"true"), ("List", b"a"), ("List", b"b"), ("Number", b"-5"), ("Order", b"o"), ("message-id", b"m")];
        assert_eq!(headers, expected);
        assert_eq!((delivery.id.number, delivery.message.ordering_key.as_deref()), (7, Some(&b"o"[..])));
        assert_eq!(delivery.attempt, None, "a first delivery is not counted");
        let by_key = read("&order=routing-key", &[]);
        assert_eq!(by_key.message.ordering_key.as_deref(), Some(&b"account-7"[..]));
    }

    #[test]
    fn the_header_of_a_first_delivery_does_not_count() {
        let url: RabbitMqUrl = "amqp://a?queue=q".parse().unwrap();
        for (redelivered, attempt) in [(true, Some(17)), (false, None)] {
            let mut arrived = delivered(&[(DELIVERY_COUNT, AMQPValue::LongLongInt(16))]);
            arrived.redelivered = redelivered;
            assert_eq!(DeliveryReader::new(&url).read(&lane(), arrived).attempt, attempt);
        }
    }
}
