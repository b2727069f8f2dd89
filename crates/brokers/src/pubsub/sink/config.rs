use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;
use hapax_core::{Error, Result};
use hapax_net::url::{HostCount, Login, UrlShape};

use crate::pubsub::url::PubSubPlace;
use crate::sinks;

/// Where and how a [`PubSubSink`](super::PubSubSink) publishes. Read from a URL:
///
/// ```text
/// pubsub://PROJECT[/TOPIC]
/// ```
///
/// The name of the topic is a [`TopicTemplate`], `{topic}` by default.
///
/// | parameter | |
/// |---|---|
/// | `timeout=SECONDS` | how long a publication waits for its confirmation, 30 by default |
/// | `endpoint=URL`, `plain=yes` | as in [`PubSubUrl`](crate::PubSubUrl). Events keep the order of their keys only if all are published in one region |
///
/// ```
/// use hapax::brokers::PubSubSinkConfig;
///
/// let config: PubSubSinkConfig = "pubsub://shop-4711/orders-{topic}".parse()?;
/// assert_eq!(config.to_string(), "pubsub://shop-4711/orders-{topic}");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PubSubSinkConfig {
    pub(super) place: PubSubPlace,
    pub(super) topic: TopicTemplate,
    pub(super) timeout: Duration,
}

const SHAPE: UrlShape = UrlShape {
    schemes: &["pubsub"],
    port: 443,
    what: "a sink",
    example: "pubsub://PROJECT or pubsub://PROJECT/TOPIC, pubsub://shop-4711/orders-{topic} for instance",
    hosts: HostCount::Several,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["endpoint", "plain", "timeout"],
};

impl FromStr for PubSubSinkConfig {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a project or a topic, or has an unknown parameter, credentials or a
    /// wrong template.
    fn from_str(text: &str) -> Result<Self> {
        let place = PubSubPlace::parse(text, &SHAPE)?;
        let (topic, timeout) = sinks::parameters(&place.url)?;
        Ok(Self { place, topic, timeout })
    }
}

impl PubSubSinkConfig {
    /// Maps topics to topics of Pub/Sub by another template than that of the URL.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.topic = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("pubsub/{}", self.place.project())
    }

    /// How long a publication waits for its confirmation.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Display for PubSubSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl fmt::Debug for PubSubSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PubSubSinkConfig({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_sink_needs_no_topic_and_takes_a_template() {
        let config = |text: &str| text.parse::<PubSubSinkConfig>();
        let plain = config("pubsub://shop?timeout=5").unwrap();
        assert_eq!((plain.topic.to_string().as_str(), plain.timeout), ("{topic}", Duration::from_secs(5)));
        assert_eq!(plain.name(), "pubsub/shop");
        let template = config("pubsub://shop/a-{topic}?endpoint=http://127.0.0.1:8085").unwrap();
        assert_eq!(template.topic.to_string(), "a-{topic}");
        for text in ["pubsub://", "pubsub://shop/{other}", "pubsub://a:b@shop", "pubsub://shop?deadline=10"] {
            assert!(config(text).is_err(), "{text}");
        }
    }
}
