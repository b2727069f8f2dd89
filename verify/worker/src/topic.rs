use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hapax_systems::{BrokerUrl, TopicPlan};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::order::WorkerOrder;

const TOPIC: &str = "transfers";
const PARTITIONS: i32 = 8;
const DEADLINE: Duration = Duration::from_secs(60);

fn producer(config: &ClientConfig) -> Result<ThreadedProducer<DefaultProducerContext>> {
    let mut config = config.clone();
    // Without an end: a broker may be down for long.
    config.set("acks", "all").set("enable.idempotence", "true").set("message.timeout.ms", "0");
    Ok(config.create()?)
}

fn observer(config: &ClientConfig) -> Result<BaseConsumer> {
    Ok(config.clone().set("group.id", "bank").set("enable.auto.commit", "false").create()?)
}

/// The topic, from the side of its producer and of an administrator.
pub(crate) struct TransferTopic {
    config: ClientConfig,
    broker: BrokerUrl,
    producer: ThreadedProducer<DefaultProducerContext>,
    observer: BaseConsumer,
    /// On how many brokers each partition is.
    copies: i32,
    /// The keys of all messages of each partition that were read so far, by offset.
    pub(crate) seen: Vec<BTreeMap<i64, String>>,
}

impl TransferTopic {
    pub(crate) async fn create(hosts: &str, copies: usize) -> Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", hosts);
        let (observer, producer) = (observer(&config)?, producer(&config)?);
        let (broker, copies) = (format!("kafka://{hosts}").parse()?, i32::try_from(copies)?);
        let mut topic = Self { config, broker, producer, observer, copies, seen: Vec::new() };
        topic.create_empty().await?;
        Ok(topic)
    }

    async fn create_empty(&mut self) -> Result<()> {
        let copies = Some(self.copies);
        self.broker.create(&TopicPlan { partitions: PARTITIONS, copies, ..TopicPlan::new("", TOPIC) }).await?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(TOPIC, partition, Offset::Beginning)?;
        }
        self.observer.assign(&all)?;
        self.seen = (0..PARTITIONS).map(|_| BTreeMap::new()).collect();
        Ok(())
    }

    /// Deletes the topic, and creates it again. Nothing may be on the way.
    pub(crate) async fn recreate(&mut self) -> Result<()> {
        self.broker.remove(TOPIC).await?;
        let begun = Instant::now();
        while block_in_place(|| self.exists())? {
            ensure!(begun.elapsed() < DEADLINE, "the topic is not deleted");
            sleep(Duration::from_millis(50)).await;
        }
        // Those of the old topic know its leader epochs, and the producer would go on with the numbers of its messages.
        (self.observer, self.producer) = (observer(&self.config)?, producer(&self.config)?);
        self.create_empty().await
    }

    fn exists(&self) -> Result<bool> {
        let metadata = self.observer.fetch_metadata(None, DEADLINE)?;
        Ok(metadata.topics().iter().any(|topic| topic.name() == TOPIC))
    }

    pub(crate) fn send(&self, order: &WorkerOrder) -> Result<()> {
        let headers = OwnedHeaders::new().insert(Header { key: "Idempotency-Key", value: Some(&order.key) });
        let payload = order.payload();
        let mut record = BaseRecord::to(TOPIC).key(&order.payer).payload(&payload).headers(headers);
        while let Err((error, unsent)) = self.producer.send(record) {
            ensure!(error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), error);
            std::thread::sleep(Duration::from_millis(10));
            record = unsent;
        }
        Ok(())
    }

    /// Waits until the brokers have everything.
    pub(crate) fn flush(&self) -> Result<()> {
        Ok(self.producer.flush(DEADLINE)?)
    }

    /// The offset of each partition up to which the group has committed. An error while a broker is down.
    pub(crate) fn committed(&self) -> Result<Vec<i64>> {
        let mut all = TopicPartitionList::new();
        all.add_partition_range(TOPIC, 0, PARTITIONS - 1);
        let found = self.observer.committed_offsets(all, Duration::from_secs(2))?;
        let offset = |partition| match found.find_partition(TOPIC, partition).map(|found| found.offset()) {
            Some(Offset::Offset(offset)) => offset,
            _ => 0,
        };
        Ok((0..PARTITIONS).map(offset).collect())
    }

    /// The end of each partition. An error while a broker is down.
    pub(crate) fn ends(&self) -> Result<Vec<i64>> {
        let end = |partition| Ok(self.observer.fetch_watermarks(TOPIC, partition, Duration::from_secs(2))?.1);
        (0..PARTITIONS).map(end).collect()
    }

    /// Waits until the brokers serve the topic and its group.
    pub(crate) async fn wait_until_served(&self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = block_in_place(|| self.committed().and_then(|_| self.ends())) {
            ensure!(begun.elapsed() < DEADLINE, "the brokers do not serve the topic: {error}");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Reads the messages below these offsets. Returns the keys of all of them.
    pub(crate) fn read_until(&mut self, offsets: &[i64]) -> Result<Vec<&str>> {
        let begun = Instant::now();
        let is_read = |seen: &[BTreeMap<i64, String>]| {
            let mut parts = seen.iter().zip(offsets);
            parts.all(|(seen, end)| *end == 0 || seen.last_key_value().is_some_and(|(last, _)| last + 1 >= *end))
        };
        while !is_read(&self.seen) {
            ensure!(begun.elapsed() < DEADLINE, "messages below the committed offsets cannot be read");
            let Some(Ok(message)) = self.observer.poll(Duration::from_millis(100)) else { continue };
            let header = message.headers().and_then(|headers| headers.iter().next()).and_then(|header| header.value);
            let key = String::from_utf8_lossy(header.unwrap_or_default()).into_owned();
            self.seen[usize::try_from(message.partition())?].insert(message.offset(), key);
        }
        let below = self.seen.iter().zip(offsets).flat_map(|(seen, end)| seen.range(..*end));
        Ok(below.map(|(_, key)| key.as_str()).collect())
    }
}
