//! A topic of its own for each case.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use hapax_brokers::{KafkaSink, KafkaSinkConfig, KafkaSource};
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::KafkaServer;
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkCase, SinkOptions, SinkSetup, run_sink_case};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::DEADLINE;

const PARTITIONS: i32 = 3;

pub(crate) fn backend() -> SinkBackend {
    const NO_ROUTE: &str =
        "a broker tells its clients an address that leads past a proxy; the tests of the sink use a mock";
    SinkBackend::new("kafka", |case| run_sink_case(case, async || KafkaSetup::new(case).await))
        .requiring("kafka")
        .at_once(8)
        .lacking(&[(SinkCapability::Network, NO_ROUTE)])
}

struct KafkaSetup {
    server: Arc<KafkaServer>,
    name: &'static str,
    runtime: Arc<dyn Runtime>,
}

impl KafkaSetup {
    async fn new(case: SinkCase) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SinkCapability::Restart) => Arc::new(KafkaServer::start(&[]).await.unwrap()),
            Some(SinkCapability::SmallLimit) => {
                Arc::new(KafkaServer::start(&["message.max.bytes=20000"]).await.unwrap())
            }
            _ => KafkaServer::shared().await.unwrap(),
        };
        let setup = Self { server, name: case.name, runtime: Arc::new(Tokio::current()) };
        if case.needs != Some(SinkCapability::MissingTopic) {
            setup.create_topic().await;
        }
        setup
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.server.address().to_string());
        config
    }

    /// Everything, from the first record to the last one.
    fn read(&self) -> Result<Vec<ArrivedEvent>, KafkaError> {
        let mut config = self.client();
        config.set("group.id", "reader").set("enable.auto.commit", "false").set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create()?;
        let (mut list, mut left) = (TopicPartitionList::new(), 0);
        for partition in 0..PARTITIONS {
            let (first, end) = consumer.fetch_watermarks(&self.topic(), partition, DEADLINE)?;
            left += end - first;
            list.add_partition_offset(&self.topic(), partition, Offset::Beginning)?;
        }
        consumer.assign(&list)?;
        let (mut arrived, begun) = (Vec::new(), Instant::now());
        while left > 0 {
            assert!(begun.elapsed() < DEADLINE, "{left} records are not read");
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                arrived.push(event(&message?));
                left -= 1;
            }
        }
        Ok(arrived)
    }
}

fn event(message: &BorrowedMessage<'_>) -> ArrivedEvent {
    let pairs = message.headers().into_iter().flat_map(|headers| headers.iter());
    let pairs = pairs.map(|header| (header.key.to_owned(), Bytes::copy_from_slice(header.value.unwrap_or_default())));
    let headers: Headers = pairs.collect();
    ArrivedEvent {
        id: String::from_utf8_lossy(headers.all("ce_id").next().unwrap()).into_owned(),
        name: message.topic().to_owned(),
        ordering_key: message.key().map(Bytes::copy_from_slice),
        headers: headers.clone(),
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
    }
}

#[async_trait]
impl SinkSetup for KafkaSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        format!("{}.suite", self.name)
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or(self.server.address());
        let config: KafkaSinkConfig = format!("kafka://{address}").parse().unwrap();
        let config = config.topic(options.topic).timeout(options.timeout);
        Arc::new(KafkaSink::open(config, self.runtime()).await.unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        // A broker that has just started may have no leader for a moment.
        self.read().unwrap_or_default()
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        (format!("{}.{{topic}}", self.name).parse().unwrap(), "suite".into())
    }

    fn invalid_topic(&self) -> String {
        "orders of today".into()
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn kill_broker(&self) {
        self.server.kill();
    }

    async fn restart_broker(&self) {
        self.server.restart().await.unwrap();
    }

    async fn create_topic(&self) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let topic = self.topic();
        let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        assert_eq!(admin.create_topics([&new], &options).await.unwrap(), [Ok(topic.clone())]);
    }

    async fn source(&self) -> Box<dyn Source> {
        let url = format!("{}/{}?group={}", self.server.url(), self.topic(), self.name);
        Box::new(KafkaSource::connect(&url.parse().unwrap(), self.runtime()).await.unwrap())
    }
}
