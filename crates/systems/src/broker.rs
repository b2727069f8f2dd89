use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;

use crate::table::UrlRole;

/// A broker that a URL names, on which a run creates topics of its own. It is not connected.
#[async_trait]
pub(crate) trait NamedBroker: fmt::Debug + Send + Sync {
    /// As [`BrokerUrl::create`].
    async fn create(&self, topic: &TopicPlan) -> Result<()>;

    /// As [`BrokerUrl::remove`].
    async fn remove(&self, topic: &str) -> Result<()>;

    /// As [`BrokerUrl::sink`].
    fn sink(&self, topic: &TopicPlan) -> String;

    /// As [`BrokerUrl::source`].
    fn source(&self, topic: &TopicPlan, reader: usize) -> String;

    /// Whether the URL may have parameters.
    fn takes_parameters(&self) -> bool {
        false
    }
}

/// A parsed URL of a broker, without a topic.
#[derive(Clone, Debug)]
pub struct BrokerUrl(Arc<dyn NamedBroker>);

const ROLE: UrlRole<dyn NamedBroker> = UrlRole { name: "broker", offer: |offers| offers.broker.as_ref() };

impl BrokerUrl {
    /// The URLs of brokers in this build, for help and errors.
    pub fn forms() -> String {
        ROLE.forms()
    }

    /// Creates a topic, or a stream with its consumers.
    ///
    /// # Errors
    /// If the broker does not create it.
    pub async fn create(&self, topic: &TopicPlan) -> Result<()> {
        self.0.create(topic).await
    }

    /// Removes the topic with this name and its messages.
    ///
    /// # Errors
    /// If the broker does not remove it.
    pub async fn remove(&self, topic: &str) -> Result<()> {
        self.0.remove(topic).await
    }

    /// The URL of the sink that publishes to this topic. It counts a confirmation as lost after 4 s.
    pub fn sink(&self, topic: &TopicPlan) -> String {
        self.0.sink(topic)
    }

    /// The URL of the source from which the reader with this number gets messages.
    pub fn source(&self, topic: &TopicPlan, reader: usize) -> String {
        self.0.source(topic, reader)
    }
}

impl FromStr for BrokerUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let broker = ROLE.read(url)?;
        let (place, parameters) = url.split_once('?').map_or((url, None), |(place, rest)| (place, Some(rest)));
        let has_path = place.split_once("://").is_none_or(|(_, host)| host.trim_end_matches('/').contains('/'));
        if has_path || parameters.is_some() && !broker.takes_parameters() {
            bail!("write {}: each run has topics or streams of its own", ROLE.forms());
        }
        Ok(Self(broker))
    }
}

/// A topic or a stream of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlan {
    /// The first part of the name.
    pub prefix: String,
    /// The topic of the events. The name ends with it.
    pub topic: String,
    /// The number of ordered parts, one for each reader. Events of part 3 have the topic `TOPIC.3`. 0: the readers
    /// share the topic.
    pub parts: usize,
    /// The number of partitions, where the broker has them.
    pub partitions: i32,
    /// On how many brokers of Kafka each partition is. None: as many as is usual there.
    pub copies: Option<i32>,
    /// How long the broker recognizes a repeated event, where it can. None: as long as is usual there.
    pub window: Option<Duration>,
}

impl TopicPlan {
    /// A topic that all readers share, with 4 partitions.
    pub fn new(prefix: impl Into<String>, topic: impl Into<String>) -> Self {
        let (prefix, topic) = (prefix.into(), topic.into());
        Self { prefix, topic, parts: 0, partitions: 4, copies: None, window: None }
    }

    /// The name at the broker.
    pub fn name(&self) -> String {
        format!("{}{}", self.prefix, self.topic)
    }
}
