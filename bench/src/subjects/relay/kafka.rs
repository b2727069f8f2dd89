use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use async_trait::async_trait;
use hapax_brokers::KafkaSink;
use hapax_core::outbox::Sink;
use hapax_core::runtime::Tokio;
use hapax_testkit::servers::KafkaServer;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, ProducerContext};
use tokio::runtime::Runtime;

use super::brokers::{BareEvent, BenchBroker};
use crate::subjects::worker::unpack;

const PARTITIONS: i32 = 4;

/// How long the broker may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A broker, and the producer of the bare loop with the settings of the sink.
pub(super) struct KafkaBroker {
    server: KafkaServer,
    producer: BaseProducer<ConfirmedCount>,
    confirmed: ConfirmedCount,
}

/// Counts what the broker has confirmed.
#[derive(Clone, Default)]
struct ConfirmedCount {
    events: Arc<AtomicUsize>,
    failures: Arc<AtomicUsize>,
}

impl ClientContext for ConfirmedCount {}

impl ProducerContext for ConfirmedCount {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let counted = if result.is_ok() { &self.events } else { &self.failures };
        counted.fetch_add(1, Ordering::SeqCst);
    }
}

impl KafkaBroker {
    pub(super) fn start(runtime: &Runtime) -> anyhow::Result<Self> {
        unpack("kafka")?;
        let server = runtime.block_on(KafkaServer::start(&[]))?;
        let confirmed = ConfirmedCount::default();
        let mut config = config(&server);
        config.set("enable.idempotence", "true").set("acks", "all").set("partitioner", "murmur2_random");
        config.set("linger.ms", "1").set("batch.size", "65536");
        let producer = config.create_with_context(confirmed.clone())?;
        Ok(Self { server, producer, confirmed })
    }

    fn admin(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        Ok(config(&self.server).create()?)
    }
}

fn config(server: &KafkaServer) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", server.address().to_string());
    config
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(PATIENCE))
}

#[async_trait(?Send)]
impl BenchBroker for KafkaBroker {
    async fn create(&self, topic: &str) -> anyhow::Result<()> {
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let created = self.admin()?.create_topics([&new], &options()).await?;
        ensure!(created.iter().all(Result::is_ok), "{created:?}");
        Ok(())
    }

    async fn remove(&self, topic: &str) -> anyhow::Result<()> {
        let removed = self.admin()?.delete_topics(&[topic], &options()).await?;
        ensure!(removed.iter().all(Result::is_ok), "{removed:?}");
        Ok(())
    }

    async fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        let url = format!("kafka://{}", self.server.address());
        Ok(Arc::new(KafkaSink::open(url.parse()?, Arc::new(Tokio::current())).await?))
    }

    async fn publish(&self, topic: &str, events: Vec<BareEvent>) -> anyhow::Result<()> {
        let expected = self.confirmed.events.load(Ordering::SeqCst) + events.len();
        for event in &events {
            let mut headers = OwnedHeaders::new();
            for (key, value) in &event.headers("ce_") {
                headers = headers.insert(Header { key, value: Some(value) });
            }
            let record = BaseRecord::to(topic).key(&event.key).payload(&event.payload).headers(headers);
            self.producer.send(record).map_err(|(error, _)| error)?;
        }
        let begun = Instant::now();
        while self.confirmed.events.load(Ordering::SeqCst) < expected {
            let failures = self.confirmed.failures.load(Ordering::SeqCst);
            ensure!(failures == 0 && begun.elapsed() < PATIENCE, "{failures} events failed, or the broker is silent");
            // A longer poll would go on after the last confirmation.
            self.producer.poll(Duration::from_millis(1));
        }
        Ok(())
    }
}
