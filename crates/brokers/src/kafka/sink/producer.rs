//! The thread with the producer of the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::Result;
use hapax_core::runtime::Runtime;
use parking_lot::RwLock;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use tokio::sync::oneshot;
use tracing::{error, warn};

use super::KafkaSinkConfig;
use crate::errors::unusable;
use crate::kafka::config;

/// The largest batch of several events, in bytes. A larger one has one event.
const BATCH: usize = 64 * 1024;

/// How long a producer that was just created is given, although it cannot go on either.
const REPLACED_EVERY: Duration = Duration::from_secs(1);

/// How long a poll waits for a confirmation.
const POLL: Duration = Duration::from_millis(100);

/// How long the brokers may take at the start.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What fits into a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchLimit {
    /// Records up to so many bytes, and up to the driver's own limit.
    Bytes(usize),
    OneRecord,
}

/// What the brokers said of an event.
pub(super) type Report = Result<(), RDKafkaErrorCode>;

/// An event for the driver.
pub(super) struct RecordToSend<'r> {
    pub(super) topic: &'r str,
    pub(super) key: Option<&'r [u8]>,
    pub(super) headers: OwnedHeaders,
    pub(super) payload: &'r [u8],
}

/// Sends each report to who waits for it.
pub(super) struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Report>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let told = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(code_of(error)),
        };
        // A failed send means that the publication was dropped.
        let _ = report.send(told);
    }
}

pub(super) type SinkProducer = BaseProducer<Reports>;

/// The producer that the thread polls. It is replaced after an error that ends one for good.
pub(super) struct SharedProducer {
    settings: ClientConfig,
    current: RwLock<Option<Arc<SinkProducer>>>,
    is_closed: AtomicBool,
    runtime: Arc<dyn Runtime>,
}

impl SharedProducer {
    fn settings(config: &KafkaSinkConfig, batch: BatchLimit) -> Result<ClientConfig> {
        let mut settings = ClientConfig::new();
        settings
            .set("bootstrap.servers", config.url.addresses())
            .set("client.id", "hapax")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // Records of a key go to the partition to which producers in Java send them.
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", config.timeout.as_millis().to_string())
            .set("linger.ms", "1")
            // The brokers decide what is too large, and they judge whole batches: no event is refused for its
            // neighbours.
            .set("message.max.bytes", "1000000000")
            // A missing topic is an operator's to create, with the right number of partitions.
            .set("allow.auto.create.topics", "false")
            .set("topic.metadata.propagation.max.ms", "1000")
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set("reconnect.backoff.max.ms", "2000");
        match batch {
            BatchLimit::Bytes(limit) => settings.set("batch.size", limit.clamp(1024, BATCH).to_string()),
            BatchLimit::OneRecord => settings.set("batch.num.messages", "1"),
        };
        config::log_in(&config.url, &mut settings)?;
        Ok(settings)
    }

    /// Starts the thread. The receiver gets its end.
    pub(super) fn start(
        config: &KafkaSinkConfig,
        batch: BatchLimit,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<(Arc<Self>, oneshot::Receiver<()>)> {
        let settings = Self::settings(config, batch)?;
        let producer = create(&settings)?;
        let (current, is_closed) = (RwLock::new(Some(producer)), AtomicBool::new(false));
        let shared = Self { settings, current, is_closed, runtime: Arc::clone(runtime) };
        let (shared, (end, ended)) = (Arc::new(shared), oneshot::channel());
        let thread = Arc::clone(&shared);
        let body = move || {
            thread.run();
            // The sink may be gone.
            let _ = end.send(());
        };
        let started = runtime.blocking("hapax-kafka-sink", Box::new(body));
        started.map_err(|error| unusable("cannot start a thread for Kafka").caused_by(error))?;
        Ok((shared, ended))
    }

    /// Hands a record to the driver, which never blocks.
    ///
    /// # Errors
    /// Why the driver does not take it.
    pub(super) fn send(&self, record: RecordToSend<'_>) -> Result<oneshot::Receiver<Report>, RDKafkaErrorCode> {
        let (sender, receiver) = oneshot::channel();
        let current = self.current.read();
        let producer = current.as_ref().ok_or(RDKafkaErrorCode::PurgeQueue)?;
        let mut base = BaseRecord::with_opaque_to(record.topic, Box::new(sender));
        base = base.payload(record.payload).headers(record.headers);
        if let Some(key) = record.key {
            base = base.key(key);
        }
        producer.send(base).map_err(|(error, _)| code_of(&error))?;
        Ok(receiver)
    }

    /// Tells the thread to send what it has, and to end.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn run(&self) {
        let mut replace_at = Duration::ZERO;
        loop {
            let Some(producer) = self.current.read().clone() else { return };
            producer.poll(POLL);
            if self.is_closed.load(Ordering::Acquire) {
                *self.current.write() = None;
                // Each record has its own time limit.
                if let Err(error) = producer.flush(PATIENCE) {
                    warn!(%error, "the sink of Kafka is closed before all events are confirmed; their rows stay open");
                }
            } else if let Some((code, why)) = producer.client().fatal_error()
                && self.runtime.boottime_now() >= replace_at
            {
                self.replace(code, &why);
                replace_at = self.runtime.boottime_now() + REPLACED_EVERY;
            }
        }
    }

    /// Puts a new producer in the place of one that can send no more. Its events are reported as the old one is
    /// dropped.
    fn replace(&self, code: RDKafkaErrorCode, why: &str) {
        match create(&self.settings) {
            Ok(new) => {
                error!(?code, why, "the producer of Kafka cannot go on; the sink goes on with a new one");
                *self.current.write() = Some(new);
            }
            Err(error) => warn!(%error, "cannot create a new producer of Kafka; the sink tries again"),
        }
    }
}

fn create(settings: &ClientConfig) -> Result<Arc<SinkProducer>> {
    let producer: SinkProducer = settings.create_with_context(Reports).map_err(|error| config::refused(&error))?;
    Ok(Arc::new(producer))
}

/// The code in an error of the driver.
fn code_of(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)
}
