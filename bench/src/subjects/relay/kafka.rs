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
use rdkafka::client::ClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, ProducerContext};
use tokio::runtime::Runtime;

use super::brokers::{BareEvent, BenchBroker};
use crate::subjects::worker::unpack;

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
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", server.address().to_string());
        config.set("enable.idempotence", "true").set("acks", "all").set("partitioner", "murmur2_random");
        config.set("linger.ms", "1").set("batch.size", "65536");
        let producer = config.create_with_context(confirmed.clone())?;
        Ok(Self { server, producer, confirmed })
    }
}

#[async_trait(?Send)]
impl BenchBroker for KafkaBroker {
    fn url(&self) -> String {
        self.server.url()
    }

    async fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        Ok(Arc::new(KafkaSink::open(self.url().parse()?, Arc::new(Tokio::current())).await?))
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
