//! From an event to a message of AMQP.

use bytes::Bytes;
use hapax_core::outbox::OutgoingEvent;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::RabbitMqSinkConfig;
use crate::rabbitmq::url::SHORT;

/// The bytes of a frame beside the properties: its own head and end, the class, the size of the body and the flags.
const FRAME: usize = 8 + 14;

/// More queues for a message, if they are lists.
const ROUTES: [&str; 2] = ["CC", "BCC"];

/// An event as it is published.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) properties: BasicProperties,
}

impl OutgoingMessage {
    /// Where it goes, for errors.
    pub(super) fn target(&self) -> String {
        match self.exchange.as_str() {
            "" => format!("the queue `{}`", self.routing_key),
            exchange => format!("`{}` at the exchange `{exchange}`", self.routing_key),
        }
    }
}

/// The message of an event, for a connection with frames of this size.
///
/// # Errors
/// Why RabbitMQ can never take the event.
pub(super) fn of(event: &OutgoingEvent, config: &RabbitMqSinkConfig, frame: usize) -> Result<OutgoingMessage, String> {
    let exchange = config.exchange.as_ref().map(|exchange| exchange.checked_name(event, check_name)).transpose()?;
    let routing_key = config.routing_key.checked_name(event, check_name)?;
    let content_type = event.content_type.as_deref().filter(|text| text.len() <= SHORT);
    let (mut table, mut size) = (FieldTable::default(), 0);
    for (name, value) in event.published_headers("cloudEvents:").iter() {
        if ROUTES.contains(&name) {
            return Err(format!("the header {name:?} is a command to the broker"));
        }
        let is_property = content_type.is_some() && name.eq_ignore_ascii_case("content-type");
        let key = ShortString::try_new(name).map_err(|_| "a header has a name of more than 255 bytes".to_owned())?;
        if !is_property {
            size += 2 + 5 + name.len() + 4 + value.len();
            add(&mut table, key, value);
        }
    }
    let id = event.deduplication_id();
    size += FRAME + 4 + 2 + SHORT + id.len();
    if size > frame {
        return Err(format!("the headers of the event have {size} bytes, and a frame of the broker has {frame}"));
    }
    let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(ShortString::from(id));
    let mut properties = properties.with_headers(table);
    if let Some(content_type) = content_type {
        properties = properties.with_content_type(content_type.into());
    }
    Ok(OutgoingMessage { exchange: exchange.unwrap_or_default(), routing_key, properties })
}

/// Adds a header. A table has a name once, so that several values become a list.
fn add(table: &mut FieldTable, name: ShortString, value: &Bytes) {
    let value = AMQPValue::LongString(value.to_vec().into());
    let value = match table.inner().get(name.as_str()) {
        None => value,
        Some(AMQPValue::FieldArray(earlier)) => {
            let mut list = earlier.clone();
            list.push(value);
            AMQPValue::FieldArray(list)
        }
        Some(earlier) => AMQPValue::FieldArray(vec![earlier.clone(), value].into()),
    };
    table.insert(name, value);
}

fn check_name(name: &str) -> Result<(), &'static str> {
    // The driver panics on a longer one.
    if name.len() > SHORT { Err("has more than 255 bytes") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use hapax_core::EventId;

    use super::*;

    fn published(change: impl FnOnce(&mut OutgoingEvent)) -> Result<OutgoingMessage, String> {
        let config: RabbitMqSinkConfig = "amqp://a?exchange=e.{topic}".parse().unwrap();
        let mut event = OutgoingEvent::new(EventId::from_bytes([7; 16]), "paid", "5");
        change(&mut event);
        of(&event, &config, 131_072)
    }

    #[test]
    fn a_message_has_the_id_of_its_event_and_every_value_of_a_header() {
        let message = published(|event| {
            event.content_type = Some("text/plain".into());
            event.headers = [("own", "a"), ("own", "b"), ("own", "c")].into_iter().collect();
        });
        let message = message.unwrap();
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("e.paid", "paid"));
        let id = EventId::from_bytes([7; 16]).to_string();
        assert_eq!(message.properties.message_id().as_ref().unwrap().as_str(), id);
        assert_eq!(message.properties.content_type().as_ref().unwrap().as_str(), "text/plain");
        assert_eq!(*message.properties.delivery_mode(), Some(2));
        let table = message.properties.headers().clone().unwrap();
        assert!(!table.contains_key("content-type"));
        let list = ["a", "b", "c"].map(|text| AMQPValue::LongString(text.into()));
        assert_eq!(table.inner().get("own"), Some(&AMQPValue::FieldArray(list.to_vec().into())));
    }

    /// The driver panics on names that are longer, and on larger headers the broker ends the connection with all that
    /// is in flight on it.
    #[test]
    fn what_amqp_cannot_carry_is_refused_before_the_driver_gets_it() {
        let long = "x".repeat(256);
        let header = |name: &str, value: &str| {
            let headers = [(name.to_owned(), value.to_owned())];
            published(|event| event.headers = headers.into_iter().collect())
        };
        assert!(published(|event| event.topic = long.clone()).unwrap_err().contains("255 bytes"));
        assert!(header(&long, "v").unwrap_err().contains("255 bytes"));
        assert!(header("own", &"v".repeat(131_072)).unwrap_err().contains("a frame"));
        assert!(header("CC", "q").unwrap_err().contains("command"));
        assert!(header("own", &"v".repeat(100_000)).is_ok());
        assert!(published(|event| event.content_type = Some(long.clone())).is_ok());
    }
}
