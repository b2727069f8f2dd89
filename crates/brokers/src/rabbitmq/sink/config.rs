use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;
use hapax_core::{Error, Result};
use hapax_net::url::ServerUrl;

use crate::errors::invalid;
use crate::rabbitmq::url::{SHORT, UrlUse};

/// The limit of a broker of 4.x for the body of a message.
const MAX_SIZE: usize = 16 * 1024 * 1024;

/// Where and how a [`RabbitMqSink`](super::RabbitMqSink) publishes. Read from a URL:
///
/// ```text
/// amqp://[USER:PASSWORD@]HOST[:5672][,HOST…][/VHOST][?exchange=NAME]       amqps:// is the same over TLS, at port 5671
/// ```
///
/// | parameter | |
/// |---|---|
/// | `exchange=NAME` | a [`TopicTemplate`]. Without it the default exchange takes the events, where the routing key is the name of a queue |
/// | `routing-key=KEY` | a [`TopicTemplate`], `{topic}` by default |
/// | `max-size=BYTES` | the `max_message_size` of the broker, which it does not tell; 16777216 by default |
/// | `timeout=SECONDS` | how long a publication waits for its confirmation, 30 by default |
/// | `heartbeat=SECONDS`, `password-file=PATH`, `ca=PATH`, `cert=PATH`, `key=PATH` | as in [`RabbitMqUrl`](crate::RabbitMqUrl) |
///
/// `Display` and `Debug` hide the password.
///
/// ```
/// use hapax::brokers::RabbitMqSinkConfig;
///
/// let config: RabbitMqSinkConfig = "amqp://relay:secret@mq.example/shop?exchange=events".parse()?;
/// assert_eq!(config.to_string(), "amqp://relay:***@mq.example:5672/shop?exchange=events");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RabbitMqSinkConfig {
    pub(super) url: ServerUrl,
    /// None: the default exchange.
    pub(super) exchange: Option<TopicTemplate>,
    pub(super) routing_key: TopicTemplate,
    pub(super) max_size: usize,
    pub(super) timeout: Duration,
}

const EXCHANGE: UrlUse = UrlUse {
    what: "a sink",
    example: "amqp://HOST/VHOST?exchange=NAME, amqp://user:password@host:5672/shop?exchange=events for instance",
    parameters: &["exchange", "routing-key", "max-size", "timeout", "heartbeat", "password-file", "ca", "cert", "key"],
};

impl FromStr for RabbitMqSinkConfig {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a broker, or has an unknown parameter or a wrong template.
    fn from_str(text: &str) -> Result<Self> {
        let url = EXCHANGE.parse(text)?;
        let exchange: Option<TopicTemplate> = url.parameter("exchange").map(str::parse).transpose()?;
        if exchange.as_ref().and_then(TopicTemplate::constant).is_some_and(|name| name.len() > SHORT) {
            return Err(invalid("the name of an exchange has at most 255 bytes"));
        }
        let routing_key = url.parameter("routing-key").map(str::parse).transpose()?.unwrap_or_default();
        let max_size = url.number("max-size", 1..=usize::MAX)?.unwrap_or(MAX_SIZE);
        let timeout = url.seconds("timeout", 1..=300)?.unwrap_or(Duration::from_secs(30));
        Ok(Self { url, exchange, routing_key, max_size, timeout })
    }
}

impl RabbitMqSinkConfig {
    /// Maps topics to routing keys by another template than that of the URL.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.routing_key = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("amqp/{}", self.url.addresses())
    }

    /// How long a publication waits for its confirmation.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Display for RabbitMqSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for RabbitMqSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RabbitMqSinkConfig({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_sink_takes_templates_for_exchange_and_routing_key() {
        let config = |text: &str| text.parse::<RabbitMqSinkConfig>();
        let plain = config("amqp://a,b:7?timeout=5").unwrap();
        assert_eq!((plain.exchange, plain.routing_key.to_string().as_str()), (None, "{topic}"));
        assert_eq!((plain.timeout, plain.max_size), (Duration::from_secs(5), 16_777_216));
        let both = config("amqp://me:secret@a/shop?exchange=e.{namespace}&routing-key=k.{topic}").unwrap();
        assert_eq!(both.exchange.unwrap().to_string(), "e.{namespace}");
        assert_eq!(both.routing_key.to_string(), "k.{topic}");
        let long = format!("amqp://a?exchange={}", "e".repeat(256));
        for text in
            ["amqp://", "amqp://a?exchange={other}", "amqp://a?timeout=0", "amqp://a?queue=q", "kafka://a", &long]
        {
            let error = config(text).unwrap_err().to_string();
            assert!(!error.contains("a source"), "{text}: {error}");
        }
    }
}
