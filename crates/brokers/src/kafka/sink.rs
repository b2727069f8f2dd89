//! Publishes events to topics of Kafka.
//!
//! ```text
//! config.rs    the URL
//! producer.rs  the thread with the producer of the driver
//! limits.rs    what the brokers say of themselves
//! outcome.rs   what an error of Kafka says of an event
//! tests.rs     errors of brokers, from the driver's own mock of them
//! ```

mod config;
mod limits;
mod outcome;
mod producer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use parking_lot::Mutex;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::sync::oneshot;

pub use self::config::KafkaSinkConfig;
use self::limits::{BrokerFacts, DEFAULT_LIMIT};
use self::producer::{BATCH, RecordToSend, SharedProducer};
use crate::sinks::{InFlight, limit_finding, max_len, not_published, too_large, warning};
use crate::url::{not_applied, unknown};

/// Publishes events to topics of Kafka with an idempotent producer, and waits for all replicas in sync.
///
/// The topic of an event comes from a template. The topics must exist; an event waits for a missing one. The ordering
/// key is the key of the record, and the event id is in the headers `Idempotency-Key` and `ce_id`. Kafka recognizes
/// what the driver sends again, and no event that a relay publishes again: that arrives twice under one id.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{KafkaSink, KafkaSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let config: KafkaSinkConfig = "kafka://kafka.example/orders.{topic}".parse()?;
/// let sink = KafkaSink::open(config, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct KafkaSink {
    name: Arc<str>,
    config: KafkaSinkConfig,
    facts: BrokerFacts,
    producer: Arc<SharedProducer>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    /// The largest record of the brokers, in bytes.
    limit: AtomicUsize,
    in_flight: InFlight,
}

impl KafkaSink {
    /// Connects. A connection that breaks later comes back by itself.
    ///
    /// # Errors
    /// - `NotApplied`: no broker can be reached now.
    /// - `Unusable`: a file in the URL cannot be read, or the broker denies access.
    /// - `Invalid`: the driver refuses a setting.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn open(config: KafkaSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let facts = BrokerFacts::new(&config, Arc::clone(&runtime))?;
        let found = facts.find(&any_topic(&config)).await?;
        let limit = facts.limit_of_broker(&found).await.unwrap_or(DEFAULT_LIMIT);
        let (producer, ended) = SharedProducer::start(&config, limit, &*runtime)?;
        let name = format!("kafka/{}", config.url.hosts.join(",")).into();
        let (ended, limit) = (Mutex::new(Some(ended)), AtomicUsize::new(limit));
        Ok(Self { name, config, facts, producer, ended, limit, in_flight: InFlight::new() })
    }

    async fn send(&self, event: &OutgoingEvent) -> Published {
        let topic = match self.config.topic.checked_name(event, check_topic) {
            Ok(topic) => topic,
            Err(reason) => return Published::Refused(reason),
        };
        let mut headers = OwnedHeaders::new();
        for (key, value) in event.published_headers("ce_").iter() {
            if key.contains('\0') {
                return Published::Refused(format!("Kafka takes no header with the name {key:?}"));
            }
            headers = headers.insert(Header { key, value: Some(&value[..]) });
        }
        let (key, payload) = (event.ordering_key.as_deref(), &event.payload[..]);
        let told = match self.producer.send(RecordToSend { topic: &topic, key, headers, payload }) {
            Err(code) => Err(code),
            Ok(report) => match report.await {
                Ok(told) => told,
                Err(_) => return Published::Unknown(unknown("the producer of Kafka ended before a confirmation")),
            },
        };
        match told {
            Ok(()) => Published::Yes,
            Err(RDKafkaErrorCode::MessageSizeTooLarge) => self.judge_size(event, &topic).await,
            Err(code) => outcome::of(code, &topic),
        }
    }

    /// Tells an event that is too large from one that was in a batch with others that is too large.
    async fn judge_size(&self, event: &OutgoingEvent, topic: &str) -> Published {
        let size = event.size();
        // Such an event is alone in its batch.
        let is_alone = size > BATCH.min(self.limit.load(Ordering::Relaxed));
        let limit = if is_alone { None } else { self.facts.limit_of_topic(topic).await };
        if is_alone || limit.is_some_and(|limit| max_len(limit) < size) {
            return Published::Refused(format!(
                "the event has {size} bytes, and the topic `{topic}` takes fewer: see its max.message.bytes"
            ));
        }
        not_published(not_applied(format!("a batch of events is larger than the topic `{topic}` takes")))
    }
}

/// The only topic of the template, or any name: every reply names the brokers.
fn any_topic(config: &KafkaSinkConfig) -> String {
    config.topic.constant().unwrap_or_else(|| "hapax".to_owned())
}

fn check_topic(topic: &str) -> Result<(), &'static str> {
    let is_topic = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    match topic {
        "" => Err("is empty"),
        "." | ".." => Err("is none for a topic of Kafka"),
        _ if !topic.chars().all(is_topic) => Err("has other characters than letters, digits, `.`, `_` and `-`"),
        _ if topic.len() > 249 => Err("is longer than 249 bytes"),
        _ => Ok(()),
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        max_len(self.limit.load(Ordering::Relaxed))
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let topic = any_topic(&self.config);
        let found = self.facts.find(&topic).await?;
        let mut findings = Vec::new();
        if self.config.topic.constant().is_some() && !found.has_topic {
            findings.push(warning(format!("the Kafka broker has no topic `{topic}`: events wait until there is one")));
        }
        if let Some(limit) = self.facts.limit_of_broker(&found).await {
            self.limit.store(limit, Ordering::Relaxed);
        }
        let limit = self.limit.load(Ordering::Relaxed);
        findings.extend(limit_finding("the Kafka broker", limit, "set its message.max.bytes to 1048588"));
        Ok(findings)
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        if let Some(refused) = too_large(event, self.max_len()) {
            return refused;
        }
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
        self.producer.close();
        let ended = self.ended.lock().take();
        if let Some(ended) = ended {
            // An error means that it has ended early.
            let _ = ended.await;
        }
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.producer.close();
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").field("config", &self.config).finish_non_exhaustive()
    }
}
