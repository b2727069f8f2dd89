use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hapax_brokers::{KafkaSource, KafkaUrl};
use hapax_core::runtime::Tokio;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::KafkaServer;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::loops::{LoopBody, ReceivedMessage};
use super::{LoopPlan, PAYLOAD, random, unpack};
use crate::harness::{BatchResult, own_seconds_of_cpu};

const PARTITIONS: i32 = 4;

/// The ordering keys of the messages.
const ACCOUNTS: usize = 10_000;

/// How long the broker may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A broker, with a topic for each measurement.
pub(super) struct KafkaTopics {
    server: KafkaServer,
    created: Cell<usize>,
}

/// A topic with messages.
pub(super) struct Topic {
    hosts: String,
    name: String,
}

impl KafkaTopics {
    pub(super) fn start(runtime: &Runtime) -> anyhow::Result<Self> {
        unpack("kafka")?;
        let server = runtime.block_on(KafkaServer::start(&[]))?;
        Ok(Self { server, created: Cell::new(0) })
    }

    /// A new topic with this many messages. Each has a key of its own, and one of some accounts as its record key.
    pub(super) fn topic(&self, runtime: &Runtime, messages: usize) -> anyhow::Result<Topic> {
        self.created.set(self.created.get() + 1);
        let topic = Topic { hosts: self.server.address().to_string(), name: format!("topic-{}", self.created.get()) };
        let plan = TopicPlan { partitions: PARTITIONS, ..TopicPlan::new("", &topic.name) };
        runtime.block_on(self.server.url().parse::<BrokerUrl>()?.create(&plan))?;
        topic.fill(messages)?;
        Ok(topic)
    }
}

impl Topic {
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts);
        config
    }

    fn fill(&self, messages: usize) -> anyhow::Result<()> {
        let producer: BaseProducer = self.config().set("linger.ms", "20").create()?;
        for number in 0..messages {
            let (key, account) = (Uuid::from_bytes(random()?).to_string(), format!("account-{}", number % ACCOUNTS));
            let headers = OwnedHeaders::new().insert(Header { key: "Idempotency-Key", value: Some(&key) });
            let mut record = BaseRecord::to(&self.name).key(&account).payload(PAYLOAD).headers(headers);
            while let Err((error, unsent)) = producer.send(record) {
                let is_full = matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
                ensure!(is_full, "{error}");
                producer.poll(Duration::from_millis(10));
                record = unsent;
            }
        }
        Ok(producer.flush(PATIENCE)?)
    }

    pub(super) fn url(&self, group: &str) -> String {
        format!("kafka://{}/{}?group={group}", self.hosts, self.name)
    }

    /// The messages from the first one on.
    pub(super) async fn source(&self, group: &str) -> anyhow::Result<KafkaSource> {
        source(&self.url(group).parse()?).await
    }

    /// Reads the topic in loops, each with a thread, partitions and connections of its own. The rate counts from the
    /// first message to the last commit.
    pub(super) fn drain_in_loops(
        &self,
        runtime: &Runtime,
        plan: LoopPlan,
        open: impl Fn() -> anyhow::Result<LoopBody>,
    ) -> anyhow::Result<BatchResult> {
        let progress = LoopProgress::new(plan.messages);
        let before = own_seconds_of_cpu()?;
        let bodies = (0..plan.loops).map(|place| Ok((place, open()?))).collect::<anyhow::Result<Vec<_>>>()?;
        thread::scope(|scope| {
            let run = |(place, body)| {
                let progress = &progress;
                scope.spawn(move || self.run_loop(runtime, (plan, place), body, progress))
            };
            let threads: Vec<_> = bodies.into_iter().map(run).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no loop panics"))
        })?;
        let cpu = (own_seconds_of_cpu()? - before) / plan.messages as f64;
        let (begun, ended) = progress.begun.get().zip(progress.ended.get()).context("no message was processed")?;
        let rate = plan.messages as f64 / ended.duration_since(*begun).as_secs_f64();
        Ok(BatchResult { rate, note: format!("{:.0} us of CPU each in this process", cpu * 1e6) })
    }

    fn run_loop(
        &self,
        runtime: &Runtime,
        (plan, place): (LoopPlan, usize),
        mut body: LoopBody,
        progress: &LoopProgress,
    ) -> anyhow::Result<()> {
        let consumer = self.consumer(plan, place)?;
        let begun = Instant::now();
        while progress.left.load(Ordering::SeqCst) > 0 {
            ensure!(begun.elapsed() < Duration::from_secs(600), "messages are missing");
            let received = self.receive(&consumer, plan.batch, progress)?;
            if received.messages.is_empty() {
                continue;
            }
            runtime.block_on(body.handle(&received.messages))?;
            progress.note(received.messages.len());
            for (partition, offset) in (0..).zip(received.last) {
                if let Some(offset) = offset {
                    consumer.store_offset(&self.name, partition, offset)?;
                }
            }
        }
        Ok(())
    }

    /// A consumer of the partitions of a loop. The driver commits what is stored, every second.
    fn consumer(&self, plan: LoopPlan, place: usize) -> anyhow::Result<BaseConsumer> {
        let mut config = self.config();
        config.set("group.id", "loops").set("enable.auto.offset.store", "false").set("auto.commit.interval.ms", "1000");
        let consumer: BaseConsumer = config.set("queued.max.messages.kbytes", "8192").create()?;
        let mut own = TopicPartitionList::new();
        for partition in (0..PARTITIONS).skip(place).step_by(plan.loops) {
            own.add_partition_offset(&self.name, partition, Offset::Beginning)?;
        }
        consumer.assign(&own)?;
        Ok(consumer)
    }

    /// Waits for a message, and takes what has arrived behind it.
    fn receive(&self, consumer: &BaseConsumer, batch: usize, progress: &LoopProgress) -> anyhow::Result<ReceivedBatch> {
        let mut received = ReceivedBatch { messages: Vec::with_capacity(batch), last: [None; PARTITIONS as usize] };
        let mut patience = Duration::from_millis(50);
        while received.messages.len() < batch
            && let Some(message) = consumer.poll(patience)
        {
            progress.begun.get_or_init(Instant::now);
            received.push(&message?)?;
            // As long as a worker lets messages wait for others.
            patience = Duration::from_millis(2);
        }
        Ok(received)
    }
}

/// Messages, and the last offset of each partition.
struct ReceivedBatch {
    messages: Vec<ReceivedMessage>,
    last: [Option<i64>; PARTITIONS as usize],
}

impl ReceivedBatch {
    fn push(&mut self, message: &BorrowedMessage<'_>) -> anyhow::Result<()> {
        let headers = message.headers().context("a message has no headers")?;
        let key = headers.iter().find(|header| header.key == "Idempotency-Key").and_then(|header| header.value);
        let key = Uuid::try_parse_ascii(key.context("a message has no key")?)?;
        self.messages.push(ReceivedMessage { key, payload: message.payload().unwrap_or_default().to_vec() });
        self.last[usize::try_from(message.partition())?] = Some(message.offset());
        Ok(())
    }
}

/// How far all loops together are.
struct LoopProgress {
    begun: OnceLock<Instant>,
    left: AtomicUsize,
    ended: OnceLock<Instant>,
}

impl LoopProgress {
    fn new(messages: usize) -> Self {
        Self { begun: OnceLock::new(), left: AtomicUsize::new(messages), ended: OnceLock::new() }
    }

    fn note(&self, processed: usize) {
        if self.left.fetch_sub(processed, Ordering::SeqCst) == processed {
            self.ended.get_or_init(Instant::now);
        }
    }
}

/// Connects, and tries again while a new topic has no leader.
pub(super) async fn source(url: &KafkaUrl) -> anyhow::Result<KafkaSource> {
    let begun = Instant::now();
    loop {
        match KafkaSource::connect(url, Arc::new(Tokio::current())).await {
            Ok(source) => return Ok(source),
            Err(error) if begun.elapsed() > PATIENCE => bail!(error),
            Err(_) => {}
        }
    }
}
