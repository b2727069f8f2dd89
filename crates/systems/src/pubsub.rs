//! Topics and subscriptions of Google Cloud Pub/Sub.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{PubSubSink, PubSubSinkConfig, PubSubSource, PubSubUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::{Runtime, Tokio};

use crate::broker::{NamedBroker, TopicPlan};
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "pubsub://PROJECT/SUBSCRIPTION", read: |url| Ok(Arc::new(url.parse::<PubSubUrl>()?)) }),
    sink: Some(Offer { form: "pubsub://PROJECT[/TOPIC]", read: |url| Ok(Arc::new(url.parse::<PubSubSinkConfig>()?)) }),
    broker: Some(Offer { form: "pubsub://PROJECT", read: |url| Ok(Arc::new(ProjectTopics::of(url)?)) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for PubSubUrl {
    fn group(&self) -> &str {
        self.subscription()
    }

    fn ordered_by_header(&self, _name: &str) -> Result<Arc<dyn NamedSource>> {
        bail!("Pub/Sub orders by the ordering key, in a subscription with message ordering; remove the setting")
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(PubSubSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for PubSubSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(PubSubSink::open(config, runtime)?))
    }
}

/// The topics of runs in the project of this URL. Each has a subscription of its name, which keeps the order of keys.
struct ProjectTopics {
    /// Without the parameters.
    project: String,
    /// `?endpoint=` and a URL, or nothing.
    endpoint: String,
}

impl fmt::Debug for ProjectTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProjectTopics").finish_non_exhaustive()
    }
}

/// A message without an acknowledgement is delivered again after this time, the shortest that the service takes.
const LOST_AFTER: Duration = Duration::from_secs(10);

impl ProjectTopics {
    fn of(url: &str) -> Result<Self> {
        url.parse::<PubSubSinkConfig>()?;
        if url.contains("timeout=") {
            bail!("the broker of a run has no timeout: remove the parameter");
        }
        let (project, endpoint) = url.split_once('?').unwrap_or((url, ""));
        let endpoint = if endpoint.is_empty() { String::new() } else { format!("&{endpoint}") };
        Ok(Self { project: project.trim_end_matches('/').to_owned(), endpoint })
    }

    /// The URL of a topic or a subscription with this parameter.
    fn url(&self, name: &str, parameter: &str) -> String {
        format!("{}/{name}?{parameter}{}", self.project, self.endpoint)
    }

    fn subscription(&self, topic: &str) -> String {
        self.url(topic, &format!("deadline={}", LOST_AFTER.as_secs()))
    }
}

#[async_trait]
impl NamedBroker for ProjectTopics {
    async fn create(&self, topic: &TopicPlan) -> Result<()> {
        let (name, runtime) = (topic.name(), Arc::new(Tokio::current()));
        Ok(self.subscription(&name).parse::<PubSubUrl>()?.create_subscription(&name, runtime).await?)
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        let runtime = Arc::new(Tokio::current());
        Ok(self.subscription(topic).parse::<PubSubUrl>()?.delete_subscription(topic, runtime).await?)
    }

    fn sink(&self, topic: &TopicPlan) -> String {
        self.url(&topic.name(), "timeout=4")
    }

    /// All readers share the subscription.
    fn source(&self, topic: &TopicPlan, _reader: usize) -> String {
        self.subscription(&topic.name())
    }

    fn takes_parameters(&self) -> bool {
        true
    }
}
