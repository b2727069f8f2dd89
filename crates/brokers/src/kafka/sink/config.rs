use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;
use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, ServerUrl, UrlShape};

use crate::kafka::url::check_login;
use crate::sinks;

/// Where and how a [`KafkaSink`](super::KafkaSink) publishes. Read from a URL:
///
/// ```text
/// kafka://[USER:PASSWORD@]HOST[:9092][,HOST…][/TOPIC]
/// ```
///
/// The topic is a [`TopicTemplate`], `{topic}` by default.
///
/// | parameter | |
/// |---|---|
/// | `timeout=SECONDS` | how long a publication waits for its confirmation, 30 by default |
/// | `password-file=PATH`, `sasl=plain`, `tls=yes`, `ca=PATH`, `cert=PATH`, `key=PATH` | as in [`KafkaUrl`](crate::KafkaUrl) |
///
/// `Display` and `Debug` hide the password.
///
/// ```
/// use hapax::brokers::KafkaSinkConfig;
///
/// let config: KafkaSinkConfig = "kafka://relay:secret@kafka.example/orders.{topic}".parse()?;
/// assert_eq!(config.to_string(), "kafka://relay:***@kafka.example:9092/orders.{topic}");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaSinkConfig {
    pub(super) url: ServerUrl,
    pub(super) topic: TopicTemplate,
    pub(super) timeout: Duration,
}

const SHAPE: UrlShape = UrlShape {
    schemes: &["kafka"],
    port: 9092,
    what: "a sink",
    example: "kafka://HOST or kafka://HOST/TOPIC, kafka://user:password@host:9092/orders.{topic} for instance",
    hosts: HostCount::Several,
    login: Login::NamedUser,
    needs_path: false,
    parameters: &["timeout", "password-file", "sasl", "tls", "ca", "cert", "key"],
};

impl FromStr for KafkaSinkConfig {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of brokers, or has an unknown parameter or a wrong template.
    fn from_str(text: &str) -> Result<Self> {
        let url = SHAPE.parse(text)?;
        check_login(&url)?;
        let (topic, timeout) = sinks::parameters(&url)?;
        Ok(Self { url, topic, timeout })
    }
}

impl KafkaSinkConfig {
    /// Maps topics of events to topics of Kafka by another template than that of the URL.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.topic = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("kafka/{}", self.url.addresses())
    }

    /// How long a publication waits for its confirmation: 1 ms to 300 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(Duration::from_millis(1), Duration::from_secs(300));
        self
    }
}

impl fmt::Display for KafkaSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for KafkaSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KafkaSinkConfig({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_sink_needs_no_path_and_takes_a_template() {
        let config = |text: &str| text.parse::<KafkaSinkConfig>();
        let plain = config("kafka://a,b:7?timeout=5").unwrap();
        assert_eq!((plain.topic.to_string().as_str(), plain.timeout), ("{topic}", Duration::from_secs(5)));
        assert_eq!(config("kafka://a/").unwrap().topic, TopicTemplate::default());
        assert_eq!(config("kafka://me:secret@a/orders.{topic}").unwrap().topic.to_string(), "orders.{topic}");
        for text in ["kafka://", "kafka://a/{other}", "kafka://a?timeout=0", "kafka://a/x?group=g", "nats://a"] {
            let error = config(text).unwrap_err().to_string();
            assert!(!error.contains("a source"), "{text}: {error}");
        }
    }
}
