//! Topics of Kafka.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::broker::{NamedBroker, TopicPlan};
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "kafka://HOST/TOPIC?group=NAME", read: |url| Ok(Arc::new(url.parse::<KafkaUrl>()?)) }),
    sink: Some(Offer { form: "kafka://HOST[/TOPIC]", read: |url| Ok(Arc::new(url.parse::<KafkaSinkConfig>()?)) }),
    broker: Some(Offer { form: "kafka://HOST", read: |url| Ok(Arc::new(RunTopics(url.to_owned()))) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for KafkaUrl {
    fn group(&self) -> &str {
        self.group()
    }

    fn ordered_by_header(&self, _name: &str) -> Result<Arc<dyn NamedSource>> {
        bail!("Kafka orders by the key of a record; remove the setting")
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(KafkaSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for KafkaSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(KafkaSink::open(config, runtime).await?))
    }
}

/// The topics of runs at the broker of this URL.
struct RunTopics(String);

impl fmt::Debug for RunTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunTopics").finish_non_exhaustive()
    }
}

/// How long the broker may take to create or remove a topic.
const PATIENCE: Duration = Duration::from_secs(60);

impl RunTopics {
    fn admin(&self) -> Result<(AdminClient<DefaultClientContext>, AdminOptions)> {
        let hosts = self.0.strip_prefix("kafka://").unwrap_or(&self.0);
        let admin = ClientConfig::new().set("bootstrap.servers", hosts).create()?;
        Ok((admin, AdminOptions::new().operation_timeout(Some(PATIENCE))))
    }
}

#[async_trait]
impl NamedBroker for RunTopics {
    async fn create(&self, topic: &TopicPlan) -> Result<()> {
        let (name, (admin, options)) = (topic.name(), self.admin()?);
        // One copy is enough where the broker is alone, so the broker decides.
        let copies = TopicReplication::Fixed(topic.copies.unwrap_or(-1));
        let created = admin.create_topics([&NewTopic::new(&name, topic.partitions, copies)], &options).await;
        for result in created.context("cannot create topics")? {
            result.map_err(|(name, error)| anyhow!("cannot create the topic {name}: {error}"))?;
        }
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        let (admin, options) = self.admin()?;
        for result in admin.delete_topics(&[topic], &options).await.context("cannot delete topics")? {
            result.map_err(|(name, error)| anyhow!("cannot delete the topic {name}: {error}"))?;
        }
        Ok(())
    }

    fn sink(&self, topic: &TopicPlan) -> String {
        format!("{}/{}?timeout=4", self.0, topic.name())
    }

    /// Each process has a static membership: it goes on without a rebalance when it is back after a crash.
    fn source(&self, topic: &TopicPlan, reader: usize) -> String {
        let (url, name) = (&self.0, topic.name());
        format!("{url}/{name}?group={name}&member=member-{reader}&session-timeout=6")
    }
}
