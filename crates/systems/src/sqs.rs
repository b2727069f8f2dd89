//! Queues of AWS SQS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{SqsSink, SqsSinkConfig, SqsSource, SqsUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::{Runtime, Tokio};

use crate::broker::{NamedBroker, TopicPlan};
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "sqs://REGION/QUEUE", read: |url| Ok(Arc::new(url.parse::<SqsUrl>()?)) }),
    sink: Some(Offer { form: "sqs://REGION[/QUEUE]", read: |url| Ok(Arc::new(url.parse::<SqsSinkConfig>()?)) }),
    broker: Some(Offer { form: "sqs://REGION", read: |url| Ok(Arc::new(RegionQueues(url.to_owned()))) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for SqsUrl {
    fn group(&self) -> &str {
        self.queue()
    }

    fn ordered_by_header(&self, _name: &str) -> Result<Arc<dyn NamedSource>> {
        bail!("SQS orders by the message group of a FIFO queue, and nothing in a standard queue; remove the setting")
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(SqsSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for SqsSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(SqsSink::open(config, runtime).await?))
    }
}

/// The queues of runs in the region of this URL, or at its stand-in. All are FIFO queues: they keep the order of a key
/// also among several readers.
struct RegionQueues(String);

impl fmt::Debug for RegionQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionQueues").finish_non_exhaustive()
    }
}

/// A message without an acknowledgement is delivered again after this time.
const LOST_AFTER: Duration = Duration::from_secs(2);

impl RegionQueues {
    fn queue(&self, topic: &str) -> String {
        format!("{}/{topic}.fifo", self.0)
    }
}

#[async_trait]
impl NamedBroker for RegionQueues {
    async fn create(&self, topic: &TopicPlan) -> Result<()> {
        Ok(self.queue(&topic.name()).parse::<SqsUrl>()?.create_queue(Arc::new(Tokio::current())).await?)
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        Ok(self.queue(topic).parse::<SqsUrl>()?.delete_queue(Arc::new(Tokio::current())).await?)
    }

    fn sink(&self, topic: &TopicPlan) -> String {
        format!("{}?timeout=4", self.queue(&topic.name()))
    }

    /// All readers share the queue.
    fn source(&self, topic: &TopicPlan, _reader: usize) -> String {
        format!("{}?visibility={}&wait=1", self.queue(&topic.name()), LOST_AFTER.as_secs())
    }
}
