//! Publishes events to topics of Pub/Sub.
//!
//! ```text
//! config.rs   the URL
//! message.rs  from an event to a message
//! ```

mod config;
mod message;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::Result;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::{BoxFuture, Runtime, timeout};
use hapax_core::store::Finding;
use parking_lot::Mutex;

pub use self::config::PubSubSinkConfig;
use super::answers::PubSubFailure;
use super::api::{PubSubApi, PubSubResult};
use super::messages::TopicMessage;
use super::url::check_name;
use crate::batch::{BatchLimits, Batcher};
use crate::errors::unknown;
use crate::sinks::{InFlight, max_len};

/// The largest request, and so the largest message, in bytes.
const MAX_BYTES: usize = 10_000_000;

/// How much of a request is not its messages: the name of the topic, and the lengths of fields.
const FRAME: usize = 4096;

/// The largest batch. One request has one fate for all of its messages, so it is far from what the service takes.
const BATCH: BatchLimits = BatchLimits { entries: 100, bytes: 5_000_000 };

/// The topic that is asked for where the template names none. It need not exist.
const ANY_TOPIC: &str = "hapax";

/// Publishes events to topics of Google Cloud Pub/Sub.
///
/// The name of the topic comes from a template. The topics must exist; an event waits for a missing one. An event with
/// an ordering key has a request of its own, because a request has only one ordering key. Others are gathered into
/// requests of up to 100 events. Pub/Sub recognizes no repetition: an event that is published twice arrives twice, with
/// the same attribute `Idempotency-Key`, by which a worker handles it once.
///
/// Headers that the 100 attributes of a message do not hold are in the attributes `hapax-headers`, `hapax-headers-2`
/// and so on, as JSON. A [`PubSubSource`](crate::PubSubSource) reads them.
///
/// The credentials need the right `pubsub.topics.publish`, which the role `roles/pubsub.publisher` has. With
/// `pubsub.topics.get`, the sink knows at its start whether the topic exists.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{PubSubSink, PubSubSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let config: PubSubSinkConfig = "pubsub://shop-4711/orders-{topic}".parse()?;
/// let sink = PubSubSink::open(config, Arc::new(Tokio::current()))?;
/// # Ok(())
/// # }
/// ```
pub struct PubSubSink {
    name: Arc<str>,
    config: PubSubSinkConfig,
    api: PubSubApi,
    /// Those of events without an ordering key, by their topic.
    batches: Mutex<BTreeMap<String, Arc<TopicBatcher>>>,
    in_flight: InFlight,
    runtime: Arc<dyn Runtime>,
}

type TopicBatcher = Batcher<TopicMessage, PubSubResult<()>>;

impl PubSubSink {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS. What is missing or denied, `check` reports.
    pub fn open(config: PubSubSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let api = PubSubApi::new(&config.place, &runtime)?;
        let name = config.name().into();
        Ok(Self { name, config, api, batches: Mutex::default(), in_flight: InFlight::new(), runtime })
    }

    async fn send(&self, event: &OutgoingEvent) -> Published {
        let topic = match self.config.topic.checked_name(event, check_name) {
            Ok(topic) => topic,
            Err(reason) => return Published::Refused(reason),
        };
        let message = match message::of(event) {
            Ok(message) => message,
            Err(reason) => return Published::Refused(format!("the topic `{topic}` cannot take the event: {reason}")),
        };
        let (size, limit) = (message::size(&message), MAX_BYTES - FRAME);
        if size > limit {
            return Published::Refused(format!(
                "the event has {size} bytes with its attributes, and Pub/Sub takes {limit}"
            ));
        }
        let sent = timeout(&*self.runtime, self.config.timeout, self.request(&topic, message)).await;
        match sent.flatten() {
            Some(Ok(())) => Published::Yes { caught: false },
            Some(Err(failure)) => failure.published(&topic),
            None => {
                Published::Unknown(unknown(format!("Pub/Sub did not confirm an event for the topic `{topic}` in time")))
            }
        }
    }

    /// None if a request ended without a result.
    async fn request(&self, topic: &str, message: TopicMessage) -> Option<PubSubResult<()>> {
        if message.ordering_key.is_empty() {
            return self.batcher(topic).send(message).await;
        }
        publish_all(vec![message], self.publishing(topic)).await.pop()
    }

    fn batcher(&self, topic: &str) -> Arc<TopicBatcher> {
        let mut batches = self.batches.lock();
        if let Some(batcher) = batches.get(topic) {
            return Arc::clone(batcher);
        }
        let publish = Arc::new(self.publishing(topic));
        let send = move |messages: Vec<TopicMessage>| -> BoxFuture<'static, Vec<PubSubResult<()>>> {
            let publish = Arc::clone(&publish);
            Box::pin(async move { publish_all(messages, &*publish).await })
        };
        let batcher = Arc::new(Batcher::start(&self.runtime, BATCH, message::size, Box::new(send)));
        batches.insert(topic.to_owned(), Arc::clone(&batcher));
        batcher
    }

    /// Sends a request.
    fn publishing(
        &self,
        topic: &str,
    ) -> impl Fn(Vec<TopicMessage>) -> BoxFuture<'static, PubSubResult<Vec<String>>> + Send + Sync + 'static {
        let (api, topic, limit) = (self.api.clone(), topic.to_owned(), self.config.timeout);
        move |messages| {
            let (api, topic) = (api.clone(), topic.clone());
            Box::pin(async move { api.publish(&topic, messages, limit).await })
        }
    }
}

/// Publishes messages in one request. If the service refuses it because of one of them, it publishes each alone.
async fn publish_all(
    messages: Vec<TopicMessage>,
    publish: impl Fn(Vec<TopicMessage>) -> BoxFuture<'static, PubSubResult<Vec<String>>> + Send + Sync,
) -> Vec<PubSubResult<()>> {
    let count = messages.len();
    let failure = match publish(messages.clone()).await {
        Ok(ids) if ids.len() == count => return vec![Ok(()); count],
        Ok(_) => PubSubFailure::without_result(),
        Err(failure) => failure,
    };
    if count == 1 || !failure.is_about_content() {
        return vec![Err(failure); count];
    }
    let alone = messages.into_iter().map(|message| async {
        let ids = publish(vec![message]).await?;
        if ids.len() == 1 { Ok(()) } else { Err(PubSubFailure::without_result()) }
    });
    join_all(alone).await
}

#[async_trait]
impl Sink for PubSubSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        max_len(MAX_BYTES)
    }

    fn window(&self) -> Option<Duration> {
        // Pub/Sub recognizes no repeated publication.
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let constant = self.config.topic.constant();
        let topic = constant.as_deref().unwrap_or(ANY_TOPIC);
        match self.api.find_topic(topic).await {
            Ok(()) => {}
            // The right to publish may be there all the same.
            Err(failure) if failure.is_denied() => {}
            // The topic may not exist.
            Err(failure) if failure.is_missing() && constant.is_none() => {}
            Err(failure) => return Err(failure.asked(&format!("the topic `{topic}`"))),
        }
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
    }
}

impl fmt::Debug for PubSubSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSink").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
