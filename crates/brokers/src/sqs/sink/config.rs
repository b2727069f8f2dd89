use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;
use hapax_core::{Error, Result};

use crate::sinks;
use crate::sqs::url::{SqsPlace, SqsShape};

/// Where and how an [`SqsSink`](super::SqsSink) sends. Read from a URL:
///
/// ```text
/// sqs://REGION[/QUEUE]
/// sqs+http://HOST[:9324][/QUEUE]
/// ```
///
/// The name of the queue is a [`TopicTemplate`], `{topic}` by default. `{topic}.fifo` sends to FIFO queues.
///
/// | parameter | |
/// |---|---|
/// | `timeout=SECONDS` | how long a publication waits for its confirmation, 30 by default |
/// | `account=ID`, `region=NAME` | as in [`SqsUrl`](crate::SqsUrl) |
///
/// ```
/// use hapax::brokers::SqsSinkConfig;
///
/// let config: SqsSinkConfig = "sqs://eu-west-1/orders-{topic}.fifo".parse()?;
/// assert_eq!(config.to_string(), "sqs://eu-west-1/orders-{topic}.fifo");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SqsSinkConfig {
    pub(super) place: SqsPlace,
    pub(super) topic: TopicTemplate,
    pub(super) timeout: Duration,
}

const SHAPE: SqsShape = SqsShape {
    what: "a sink",
    example: "sqs://REGION or sqs://REGION/QUEUE, sqs://eu-west-1/orders-{topic} for instance",
    needs_path: false,
    parameters: &["account", "region", "timeout"],
};

impl FromStr for SqsSinkConfig {
    type Err = Error;

    /// # Errors
    /// `Invalid` if the text is not the URL of a region or a stand-in, or has an unknown parameter, credentials or a
    /// wrong template.
    fn from_str(text: &str) -> Result<Self> {
        let place = SqsPlace::parse(text, &SHAPE)?;
        let (topic, timeout) = sinks::parameters(&place.url)?;
        Ok(Self { place, topic, timeout })
    }
}

impl SqsSinkConfig {
    /// Maps topics to queues by another template than that of the URL.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.topic = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("sqs/{}", self.place.region())
    }

    /// How long a publication waits for its confirmation.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Display for SqsSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl fmt::Debug for SqsSinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqsSinkConfig({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_sink_needs_no_queue_and_takes_a_template() {
        let config = |text: &str| text.parse::<SqsSinkConfig>();
        let plain = config("sqs://eu-west-1?timeout=5").unwrap();
        assert_eq!((plain.topic.to_string().as_str(), plain.timeout), ("{topic}", Duration::from_secs(5)));
        assert_eq!(config("sqs+http://127.0.0.1/a-{topic}.fifo").unwrap().topic.to_string(), "a-{topic}.fifo");
        for text in ["sqs://", "sqs://eu-west-1/{other}", "sqs://a:b@eu-west-1", "sqs://eu-west-1?wait=1"] {
            assert!(config(text).is_err(), "{text}");
        }
    }
}
