//! Streams of NATS JetStream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream::{self, consumer, stream};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{NatsSink, NatsSinkConfig, NatsSource, NatsUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

use crate::broker::{NamedBroker, TopicPlan};
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "nats://HOST/STREAM?durable=NAME", read: |url| Ok(Arc::new(url.parse::<NatsUrl>()?)) }),
    sink: Some(Offer { form: "nats://HOST[/SUBJECT]", read: |url| Ok(Arc::new(url.parse::<NatsSinkConfig>()?)) }),
    broker: Some(Offer { form: "nats://HOST", read: |url| Ok(Arc::new(RunStreams(url.to_owned()))) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for NatsUrl {
    fn group(&self) -> &str {
        self.durable()
    }

    fn ordered_by_header(&self, name: &str) -> Result<Arc<dyn NamedSource>> {
        Ok(Arc::new(self.clone().ordered_by_header(name)))
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(NatsSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for NatsSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(NatsSink::open(config, runtime).await?))
    }
}

/// The streams of runs at the server of this URL, which may have a password.
struct RunStreams(String);

impl fmt::Debug for RunStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStreams").finish_non_exhaustive()
    }
}

/// A message without an acknowledgement is delivered again after this time.
const LOST_AFTER: Duration = Duration::from_secs(2);

impl RunStreams {
    async fn jetstream(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(async_nats::connect(&self.0).await?))
    }
}

#[async_trait]
impl NamedBroker for RunStreams {
    async fn create(&self, topic: &TopicPlan) -> Result<()> {
        let name = topic.name();
        let subject = if topic.parts == 0 { name.clone() } else { format!("{name}.*") };
        let mut config = stream::Config { name: name.clone(), subjects: vec![subject], ..Default::default() };
        config.duplicate_window = topic.window.unwrap_or_default();
        let stream = self.jetstream().await?.create_stream(config).await?;
        for part in 0..topic.parts {
            // One message at a time: a later one never overtakes one that its reader lost, as it died.
            let config = consumer::pull::Config {
                durable_name: Some(durable(part)),
                filter_subject: format!("{name}.{part}"),
                ack_wait: LOST_AFTER,
                max_ack_pending: 1,
                ..Default::default()
            };
            stream.create_consumer(config).await?;
        }
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        self.jetstream().await?.delete_stream(topic).await?;
        Ok(())
    }

    fn sink(&self, topic: &TopicPlan) -> String {
        let url = &self.0;
        if topic.parts == 0 {
            return format!("{url}/{}?timeout=4", topic.name());
        }
        format!("{url}/{}{{topic}}?timeout=4", topic.prefix)
    }

    fn source(&self, topic: &TopicPlan, reader: usize) -> String {
        let stream = format!("{}/{}", self.0, topic.name());
        if topic.parts == 0 {
            return format!("{stream}?durable=workers&ack-wait={}", LOST_AFTER.as_secs());
        }
        format!("{stream}?durable={}&order=header:ce-partitionkey", durable(reader))
    }
}

/// The name of the consumer of a part.
fn durable(part: usize) -> String {
    format!("consumer-{part}")
}
