//! A topic of its own for each case, and a group of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::Message;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::KafkaServer;
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceCase, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
};
use parking_lot::Mutex;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::DEADLINE;

const PARTITIONS: i32 = 4;

/// In seconds. Long enough for a machine that is busy: a member that is taken for dead while it lives fails a case.
const SESSION: u32 = 5;

pub(crate) fn backend() -> SourceBackend {
    const NO_LEASE: &str = "a message of Kafka has no lease, it belongs to the member with its partition";
    SourceBackend::new("kafka", |case| run_source_case(case, async || KafkaSetup::new(case).await))
        .requiring("kafka")
        .at_once(12)
        .lacking(&[(SourceCapability::LongestLease, NO_LEASE)])
}

struct KafkaSetup {
    server: Arc<KafkaServer>,
    topic: &'static str,
    producer: BaseProducer,
    observer: BaseConsumer,
    admin: AdminClient<DefaultClientContext>,
    /// The partition and the offset of each message.
    published: Mutex<Vec<(i32, i64)>>,
    /// The processes that were started.
    members: Mutex<Vec<Arc<SourceProcess>>>,
    runtime: Arc<dyn Runtime>,
}

impl KafkaSetup {
    async fn new(case: SourceCase) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SourceCapability::Restart) => Arc::new(KafkaServer::start(&[]).await.unwrap()),
            _ => KafkaServer::shared().await.unwrap(),
        };
        let topic = case.name;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", server.address().to_string());
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        assert_eq!(admin.create_topics([&new], &options).await.unwrap(), [Ok(topic.to_owned())]);
        let producer = config.clone().set("acks", "all").set("enable.idempotence", "true").create().unwrap();
        let observer: BaseConsumer = config.clone().set("group.id", topic).create().unwrap();
        wait_for_leaders(&observer, topic).await;
        let runtime = Arc::new(Tokio::current());
        let (published, members) = (Mutex::default(), Mutex::default());
        Self { server, topic, producer, observer, admin, published, members, runtime }
    }

    fn send(&self, message: &Message) {
        let mut published = self.published.lock();
        let of_key = |key: &Bytes| key.iter().map(|byte| usize::from(*byte)).sum();
        let spread = message.ordering_key.as_ref().map_or(published.len(), of_key);
        let partition = i32::try_from(spread).unwrap() % PARTITIONS;
        // The only producer of the topic, so offsets have no gap.
        let offset = published.iter().filter(|(other, _)| *other == partition).count();
        let mut headers = OwnedHeaders::new();
        for (key, value) in message.headers.iter() {
            headers = headers.insert(Header { key, value: Some(&value[..]) });
        }
        let record = BaseRecord::to(self.topic).partition(partition).payload(&message.payload[..]).headers(headers);
        let record = match &message.ordering_key {
            Some(key) => record.key(&key[..]),
            None => record,
        };
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        published.push((partition, i64::try_from(offset).unwrap()));
    }

    /// The offsets that the group has committed. None while the broker does not tell.
    fn committed(&self) -> Option<BTreeMap<i32, i64>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(self.topic, 0, PARTITIONS - 1);
        let committed = self.observer.committed_offsets(list, Duration::from_secs(5)).ok()?;
        let mut offsets = BTreeMap::new();
        for element in committed.elements() {
            element.error().ok()?;
            if let Offset::Offset(offset) = element.offset() {
                offsets.insert(element.partition(), offset);
            }
        }
        Some(offsets)
    }

    fn count_members(&self) -> Option<usize> {
        let groups = self.observer.fetch_group_list(Some(self.topic), Duration::from_secs(5)).ok()?;
        groups.groups().first().map(|group| group.members().len())
    }
}

/// A new topic has no leader for a moment.
async fn wait_for_leaders(observer: &BaseConsumer, topic: &str) {
    let begun = Instant::now();
    let count = usize::try_from(PARTITIONS).unwrap();
    let is_led = || {
        let metadata = observer.fetch_metadata(Some(topic), Duration::from_secs(5)).ok()?;
        let found = metadata.topics().first()?;
        let led = found.partitions().iter().filter(|partition| partition.leader() >= 0).count();
        (found.error().is_none() && led == count).then_some(())
    };
    while is_led().is_none() {
        assert!(begun.elapsed() < DEADLINE, "the topic {topic} has no leader");
        hapax_testkit::pause().await;
    }
}

#[async_trait]
impl SourceSetup for KafkaSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        SourceTimes {
            // Shorter than what a rebalance waits for: the second member of a group takes lanes from the first.
            slow: Duration::from_secs(7),
            settle: Duration::from_secs(3),
            backoff: Duration::from_millis(10),
            look: Duration::from_millis(60),
        }
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        let (url, topic) = (self.server.url(), self.topic);
        let process = SourceProcess::start(format!("{url}/{topic}?group={topic}&session-timeout={SESSION}"));
        let process = Arc::new(process);
        self.members.lock().push(Arc::clone(&process));
        process
    }

    async fn publish(&self, messages: Vec<Message>) {
        messages.iter().for_each(|message| self.send(message));
        self.producer.flush(DEADLINE).unwrap();
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let begun = Instant::now();
        let committed = loop {
            if let Some(committed) = self.committed() {
                break committed;
            }
            assert!(begun.elapsed() < DEADLINE, "the broker does not tell the committed offsets");
            hapax_testkit::pause().await;
        };
        let published = self.published.lock();
        let is_open =
            |(partition, offset): &(i32, i64)| committed.get(partition).is_none_or(|committed| offset >= committed);
        let open = published.iter().enumerate().filter(|(_, message)| is_open(message));
        open.map(|(place, _)| place).collect()
    }

    /// The only way to take a lane away without asking: the member is silent for longer than the group waits. The
    /// worker itself goes on.
    async fn lose_lanes(&self) {
        let members = self.members.lock().clone();
        members.iter().for_each(|member| member.stop_source());
        let begun = Instant::now();
        while self.count_members() != Some(0) {
            assert!(begun.elapsed() < DEADLINE, "the group keeps a silent member");
            hapax_testkit::pause().await;
        }
        members.iter().for_each(|member| member.continue_source());
    }

    async fn restart_broker(&self) {
        self.server.kill();
        self.server.restart().await.unwrap();
    }

    async fn expire_messages(&self) {
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition_offset(self.topic, partition, Offset::End).unwrap();
        }
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        let deleted = self.admin.delete_records(&list, &options).await.unwrap();
        deleted.elements().iter().for_each(|element| element.error().unwrap());
    }
}
