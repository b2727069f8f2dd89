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

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, mem};

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
use self::producer::{BatchLimit, RecordToSend, Report, SharedProducer};
use crate::errors::{not_applied, unknown};
use crate::sinks::{InFlight, limit_finding, max_len, not_published, too_large, warning};

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
    /// For records that were in a batch that was too large.
    alone: OnceLock<Arc<SharedProducer>>,
    /// The ends of the producers.
    ended: Mutex<Vec<oneshot::Receiver<()>>>,
    /// The largest record of the brokers, in bytes.
    limit: AtomicUsize,
    in_flight: InFlight,
    runtime: Arc<dyn Runtime>,
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
        let found = facts.find(config.topic.constant()).await?;
        let limit = facts.limit_of_broker(&found).await.unwrap_or(DEFAULT_LIMIT);
        let (producer, ended) = SharedProducer::start(&config, BatchLimit::Bytes(limit), &runtime)?;
        let name = config.name().into();
        let (alone, ended, limit) = (OnceLock::new(), Mutex::new(vec![ended]), AtomicUsize::new(limit));
        Ok(Self { name, config, facts, producer, alone, ended, limit, in_flight: InFlight::new(), runtime })
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
        let (topic, key, payload) = (&*topic, event.ordering_key.as_deref(), &event.payload[..]);
        let record = || RecordToSend { topic, key, headers: headers.clone(), payload };
        let told = match told_by(&self.producer, record()).await {
            // Its batch may have been too large.
            Ok(Err(RDKafkaErrorCode::MessageSizeTooLarge)) => match self.alone() {
                Ok(producer) => told_by(producer, record()).await,
                Err(error) => return not_published(error),
            },
            told => told,
        };
        match told {
            Ok(Ok(())) => Published::Yes { caught: false },
            Ok(Err(RDKafkaErrorCode::MessageSizeTooLarge)) => Published::Refused(format!(
                "the event has {} bytes, and the topic `{topic}` takes fewer: see its max.message.bytes",
                event.size()
            )),
            Ok(Err(code)) => outcome::of(code, topic),
            Err(error) => Published::Unknown(error),
        }
    }

    fn close_producers(&self) {
        self.producer.close();
        if let Some(alone) = self.alone.get() {
            alone.close();
        }
    }

    /// The producer that sends each record in a batch of its own. It starts when it is needed.
    fn alone(&self) -> Result<&SharedProducer> {
        let mut ended = self.ended.lock();
        if let Some(producer) = self.alone.get() {
            return Ok(producer);
        }
        let started = SharedProducer::start(&self.config, BatchLimit::OneRecord, &self.runtime);
        let (producer, end) = started.map_err(|error| not_applied("a producer does not start").caused_by(error))?;
        ended.push(end);
        Ok(self.alone.get_or_init(|| producer))
    }
}

/// What the brokers say of a record.
///
/// # Errors
/// If the producer has ended before they said anything.
async fn told_by(producer: &SharedProducer, record: RecordToSend<'_>) -> Result<Report> {
    match producer.send(record) {
        Err(code) => Ok(Err(code)),
        Ok(report) => report.await.map_err(|_| unknown("the producer of Kafka ended before a confirmation")),
    }
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
        let topic = self.config.topic.constant();
        let found = self.facts.find(topic.clone()).await?;
        let mut findings = Vec::new();
        if let Some(topic) = topic.filter(|_| !found.has_topic) {
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
        if let Some(refused) = too_large(event, self.limit.load(Ordering::Relaxed)) {
            return refused;
        }
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
        self.close_producers();
        let ended = mem::take(&mut *self.ended.lock());
        for ended in ended {
            // An error means that it has ended early.
            let _ = ended.await;
        }
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.close_producers();
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").field("config", &self.config).finish_non_exhaustive()
    }
}
