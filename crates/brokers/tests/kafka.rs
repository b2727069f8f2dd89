//! A source on real brokers of Kafka.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

#[path = "common/kafka_added.rs"]
mod added;
#[cfg(feature = "kafka-tls")]
#[path = "common/authority.rs"]
mod authority;
mod common;
#[path = "common/kafka_logins.rs"]
mod logins;
#[path = "common/kafka_offsets.rs"]
mod offsets;
#[path = "common/kafka_renewed.rs"]
mod renewed;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hapax_brokers::{KafkaSource, KafkaUrl};
use hapax_core::ErrorKind;
use hapax_core::broker::{Acknowledges, Delivery, DeliveryId, Event, Lane, Position, Room, Settlement, Source};
use hapax_testkit::servers::{self, KafkaServer};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use added::{
    a_group_of_the_consumer_protocol_skips_nothing_in_a_partition_that_is_added,
    a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_is_added,
    a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_was_added_while_it_was_away,
    of_two_workers_that_start_at_the_end_none_reads_what_was_there,
};
use common::{DEADLINE, closed, event, is_quiet, room, runtime, settle, some, take, text, texts};
#[cfg(feature = "kafka-tls")]
use logins::a_broker_with_a_private_authority_is_trusted_and_sees_the_client;
use logins::a_user_logs_in_and_a_wrong_password_is_refused_at_once;
use offsets::{
    a_group_of_the_consumer_protocol_that_starts_at_the_end_misses_nothing_after_it,
    a_group_passes_records_that_no_consumer_sees, a_group_passes_what_no_consumer_sees_as_it_ends,
    a_group_starts_a_topic_again_that_was_created_again, a_group_that_starts_at_the_end_misses_nothing_after_it,
    a_running_worker_of_the_consumer_protocol_starts_a_topic_again_that_was_created_again,
    a_running_worker_starts_a_shorter_topic_again_that_was_created_again,
    a_running_worker_starts_a_topic_again_that_was_created_again, a_running_worker_waits_for_a_topic_that_is_gone,
    nothing_is_committed_for_a_topic_that_is_gone,
};
use renewed::{
    a_topic_that_was_created_again_after_restarts_of_the_broker_is_read,
    a_topic_that_was_created_again_arrives_in_order,
    a_topic_that_was_created_again_arrives_in_order_at_a_static_member,
};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($name:ident),* $(,)?) => { [$(servers::test(stringify!($name), "kafka", $name)),*] };
    }
    #[cfg(feature = "kafka-tls")]
    let tls = tests![a_broker_with_a_private_authority_is_trusted_and_sees_the_client];
    #[cfg(not(feature = "kafka-tls"))]
    let tls: [servers::Trial; 0] = [];
    let tests = tests![
        a_message_arrives_with_headers_ordering_key_and_coordinates,
        a_header_whose_name_is_not_utf_8_is_left_out,
        only_what_is_settled_is_committed_and_the_rest_arrives_again,
        a_missing_topic_is_refused,
        a_committed_offset_that_the_broker_does_not_have_is_refused,
        a_rebalance_waits_for_the_worker_and_commits_what_it_settled,
        a_rebalance_of_the_consumer_protocol_waits_for_the_worker_too,
        a_member_whose_name_another_process_takes_loses_its_lanes,
        no_more_arrives_than_there_is_room_for,
        a_backlog_beyond_the_room_pauses_and_arrives_whole,
        a_restart_of_the_broker_loses_nothing,
        the_death_of_a_cluster_member_loses_nothing,
        a_user_logs_in_and_a_wrong_password_is_refused_at_once,
        a_group_passes_records_that_no_consumer_sees,
        a_group_passes_what_no_consumer_sees_as_it_ends,
        a_group_that_starts_at_the_end_misses_nothing_after_it,
        a_group_of_the_consumer_protocol_that_starts_at_the_end_misses_nothing_after_it,
        a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_is_added,
        a_group_of_the_consumer_protocol_skips_nothing_in_a_partition_that_is_added,
        a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_was_added_while_it_was_away,
        of_two_workers_that_start_at_the_end_none_reads_what_was_there,
        a_running_worker_starts_a_topic_again_that_was_created_again,
        a_running_worker_starts_a_shorter_topic_again_that_was_created_again,
        a_running_worker_of_the_consumer_protocol_starts_a_topic_again_that_was_created_again,
        a_running_worker_waits_for_a_topic_that_is_gone,
        a_group_starts_a_topic_again_that_was_created_again,
        nothing_is_committed_for_a_topic_that_is_gone,
        a_topic_that_was_created_again_arrives_in_order,
        a_topic_that_was_created_again_arrives_in_order_at_a_static_member,
        a_topic_that_was_created_again_after_restarts_of_the_broker_is_read,
    ];
    servers::main(tests.into_iter().chain(tls))
}

fn client_config(hosts: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts).set("acks", "all").set("enable.idempotence", "true");
    config
}

/// A topic of its own, and a group, of the same name at first.
struct Fixture {
    hosts: String,
    topic: &'static str,
    group: &'static str,
    producer: BaseProducer,
}

impl Fixture {
    async fn new(topic: &'static str, partitions: i32) -> Self {
        let server = KafkaServer::shared().await.unwrap();
        Self::on(server.address().to_string(), topic, partitions, 1).await
    }

    async fn on(hosts: String, topic: &'static str, partitions: i32, copies: i32) -> Self {
        let config = client_config(&hosts);
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(copies));
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        let created = admin.create_topics([&new], &options).await.unwrap();
        assert_eq!(created, [Ok(topic.to_owned())]);
        Self { hosts, topic, group: topic, producer: config.create().unwrap() }
    }

    /// The producer knows the leader epochs of an earlier topic.
    fn with_another_producer(self) -> Self {
        Self { producer: client_config(&self.hosts).create().unwrap(), ..self }
    }

    /// Sends numbers to the partitions in turn, and waits until the broker has them.
    fn send(&self, numbers: std::ops::Range<usize>, partitions: usize) {
        for number in numbers {
            let (key, payload) = (format!("key-{}", number % 10), number.to_string());
            let partition = i32::try_from(number % partitions).unwrap();
            let mut record = BaseRecord::to(self.topic).partition(partition).key(&key).payload(&payload);
            while let Err((_, unsent)) = self.producer.send(record) {
                // The queue of the driver is full.
                self.producer.poll(Duration::from_millis(10));
                record = unsent;
            }
        }
        self.producer.flush(DEADLINE).unwrap();
    }

    fn url(&self, parameters: &str) -> KafkaUrl {
        format!("kafka://{}/{}?group={}{parameters}", self.hosts, self.topic, self.group).parse().unwrap()
    }

    async fn source(&self, parameters: &str) -> KafkaSource {
        connect(&self.url(parameters)).await
    }

    fn observer(&self) -> BaseConsumer {
        ClientConfig::new().set("bootstrap.servers", &self.hosts).set("group.id", self.group).create().unwrap()
    }

    /// The offsets that the group has committed, as an administrator reads them.
    fn committed(&self, partitions: i32) -> Vec<Option<i64>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(self.topic, 0, partitions - 1);
        let (observer, begun) = (self.observer(), Instant::now());
        let committed = loop {
            match observer.committed_offsets(list.clone(), DEADLINE) {
                Ok(committed) => break committed,
                // A new group has no coordinator for a moment.
                Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
            }
        };
        let offset = |partition| {
            let known = committed.find_partition(self.topic, partition).unwrap().offset();
            if let Offset::Offset(offset) = known { Some(offset) } else { None }
        };
        (0..partitions).map(offset).collect()
    }
}

async fn connect(url: &KafkaUrl) -> KafkaSource {
    let begun = Instant::now();
    loop {
        match KafkaSource::connect(url, runtime()).await {
            Ok(source) => return source,
            // A new topic has no leader for a moment.
            Err(error) => assert!(begun.elapsed() < DEADLINE, "{error:?}"),
        }
        hapax_testkit::pause().await;
    }
}

fn lanes_of(deliveries: &[Delivery]) -> BTreeSet<Lane> {
    deliveries.iter().map(|delivery| delivery.id.lane.clone()).collect()
}

async fn a_message_arrives_with_headers_ordering_key_and_coordinates() {
    let fixture = Fixture::new("arrives", 1).await;
    let headers = OwnedHeaders::new().insert(Header { key: "Idempotency-Key", value: Some("k-1") });
    let record =
        BaseRecord::to("arrives").key("account-7").payload("hello").headers(headers).timestamp(1_700_000_000_123);
    fixture.producer.send(record).unwrap();
    fixture.producer.flush(DEADLINE).unwrap();
    let mut source = fixture.source("").await;
    assert_eq!(&**source.name(), "kafka/arrives/arrives");
    let capability = source.capability();
    assert_eq!(capability.acknowledges, Acknowledges::Prefix);
    assert!(!capability.redelivers && capability.lease.is_none());
    let delivery = take(&mut source, 1).await.remove(0);
    let message = &delivery.message;
    assert_eq!(&message.payload[..], b"hello");
    assert_eq!(message.headers.all("idempotency-key").collect::<Vec<_>>(), ["k-1"]);
    assert_eq!(message.ordering_key.as_deref(), Some(&b"account-7"[..]));
    let coordinates = message.coordinates.clone().unwrap();
    assert!(coordinates.origin.starts_with("kafka/") && coordinates.origin.ends_with("/arrives"), "{coordinates:?}");
    assert_eq!((coordinates.partition, coordinates.position), (0, Position::Number(0)));
    assert_eq!(message.timestamp.unwrap().0, 1_700_000_000_123_000);
    assert_eq!((delivery.id.number, delivery.attempt), (0, None));
    let acks = source.settler().settle(vec![(delivery.id, Settlement::Ack)]).await;
    assert_eq!(acks[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
}

/// Headers with a name of these bytes, which the safe functions of the driver do not write.
#[expect(unsafe_code, reason = "the C library takes any bytes for a name, as other producers do")]
fn headers_with_name(name: &[u8]) -> OwnedHeaders {
    use rdkafka::bindings::{rd_kafka_header_add, rd_kafka_headers_t};
    let headers = OwnedHeaders::new().insert(Header { key: "before", value: Some("1") });
    // A borrow of headers has the address of the C library's headers.
    let native = std::ptr::from_ref(headers.as_borrowed()).cast_mut().cast::<rd_kafka_headers_t>();
    let length = name.len().cast_signed();
    // SAFETY: the headers are alive, nothing else uses them, and the library copies the name and the value.
    let error = unsafe { rd_kafka_header_add(native, name.as_ptr().cast(), length, name.as_ptr().cast(), length) };
    assert_eq!(error as i32, 0, "{error:?}");
    headers.insert(Header { key: "after", value: Some("2") })
}

async fn a_header_whose_name_is_not_utf_8_is_left_out() {
    let fixture = Fixture::new("not-utf-8", 1).await;
    let record = BaseRecord::<(), _>::to("not-utf-8").payload("five").headers(headers_with_name(b"na\xefve"));
    fixture.producer.send(record).map_err(|(error, _)| error).unwrap();
    fixture.send(0..1, 1);
    let mut source = fixture.source("").await;
    let arrived = take(&mut source, 2).await;
    assert_eq!(texts(&arrived), ["five", "0"]);
    let headers: Vec<&str> = arrived[0].message.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(headers, ["before", "after"]);
    source.close().await.unwrap();
}

async fn only_what_is_settled_is_committed_and_the_rest_arrives_again() {
    let fixture = Fixture::new("settled", 1).await;
    fixture.send(0..10, 1);
    let mut source = fixture.source("").await;
    let settler = source.settler();
    let deliveries = take(&mut source, 10).await;
    assert_eq!(texts(&deliveries), (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    settle(&settler, &deliveries[3].id, Settlement::UpTo).await;
    // Neither a lower number nor another generation changes anything.
    settle(&settler, &deliveries[1].id, Settlement::UpTo).await;
    let old = Lane { generation: deliveries[0].id.lane.generation - 1, ..deliveries[0].id.lane.clone() };
    settle(&settler, &DeliveryId { lane: old, ..deliveries[9].id.clone() }, Settlement::UpTo).await;
    let begun = Instant::now();
    while fixture.committed(1) != [Some(4)] {
        assert!(begun.elapsed() < DEADLINE, "{:?}", fixture.committed(1));
        hapax_testkit::pause().await;
    }
    while settler.lag().await.unwrap() != Some(6) {
        assert!(begun.elapsed() < DEADLINE, "{:?}", settler.lag().await);
        assert!(is_quiet(&mut source, Duration::from_millis(50)).await);
    }
    source.close().await.unwrap();
    let late = settler.settle(vec![(deliveries[9].id.clone(), Settlement::UpTo)]).await;
    assert_eq!(late[0].as_ref().unwrap_err().kind(), ErrorKind::NotApplied);
    assert_eq!(fixture.committed(1), [Some(4)]);
    let mut next = fixture.source("").await;
    assert_eq!(texts(&take(&mut next, 6).await), ["4", "5", "6", "7", "8", "9"]);
}

async fn a_missing_topic_is_refused() {
    let server = KafkaServer::shared().await.unwrap();
    let url: KafkaUrl = format!("kafka://{}/nowhere?group=g", server.address()).parse().unwrap();
    let error = KafkaSource::connect(&url, runtime()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("no topic `nowhere`"), "{error}");
}

async fn a_committed_offset_that_the_broker_does_not_have_is_refused() {
    let fixture = Fixture::new("expired", 1).await;
    fixture.send(0..3, 1);
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("expired", 0, Offset::Offset(1000)).unwrap();
    fixture.observer().commit(&list, CommitMode::Sync).unwrap();
    let mut source = fixture.source("").await;
    let begun = Instant::now();
    let error = loop {
        match source.next(room(10)).await {
            Err(error) if error.kind() == ErrorKind::NotApplied => assert!(begun.elapsed() < DEADLINE),
            Err(error) => break error,
            Ok(event) => panic!("{event:?}"),
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("messages are lost"), "{error}");
}

async fn a_rebalance_waits_for_the_worker_and_commits_what_it_settled() {
    rebalance(Fixture::new("rebalanced", 4).await, "").await;
}

async fn a_rebalance_of_the_consumer_protocol_waits_for_the_worker_too() {
    rebalance(Fixture::new("reconciled", 4).await, "&protocol=consumer").await;
}

async fn rebalance(fixture: Fixture, parameters: &str) {
    fixture.send(0..40, 4);
    let mut first = fixture.source(parameters).await;
    let settler = first.settler();
    let deliveries = take(&mut first, 40).await;
    assert_eq!(lanes_of(&deliveries).len(), 4);
    let mut second = fixture.source(parameters).await;
    let Event::Revoking { lanes, until } = event(&mut first, room(100)).await else { panic!("nothing is revoked") };
    assert!(until > runtime().boottime_now() && !lanes.is_empty() && lanes.len() < 4, "{lanes:?}");
    // The sixth message of each lane is the last one that was processed.
    for lane in &lanes {
        let sixth = deliveries.iter().filter(|delivery| delivery.id.lane == *lane).nth(5).unwrap();
        settle(&settler, &sixth.id, Settlement::UpTo).await;
    }
    settler.leave(&lanes).await.unwrap();
    let committed = fixture.committed(4);
    for lane in &lanes {
        assert_eq!(committed[lane.partition as usize], Some(6), "{lane:?}");
    }
    // Too late: another member has them.
    for delivery in deliveries.iter().filter(|delivery| lanes.contains(&delivery.id.lane)) {
        settle(&settler, &delivery.id, Settlement::UpTo).await;
    }
    let again = take(&mut second, 4 * lanes.len()).await;
    assert!(again.iter().all(|delivery| delivery.id.number >= 6), "{:?}", texts(&again));
    let of = |lanes: &BTreeSet<Lane>| lanes.iter().map(|lane| lane.partition).collect::<BTreeSet<_>>();
    assert_eq!(of(&lanes_of(&again)), of(&lanes.iter().cloned().collect()));
    assert_eq!(fixture.committed(4), committed);
    // The rest comes back to the one that stays, in a new generation.
    second.close().await.unwrap();
    let back = take(&mut first, 4 * lanes.len()).await;
    assert!(lanes_of(&back).iter().all(|lane| lane.generation > 4), "{:?}", lanes_of(&back));
}

async fn a_member_whose_name_another_process_takes_loses_its_lanes() {
    let fixture = Fixture::new("fenced", 2).await;
    fixture.send(0..4, 2);
    let mut first = fixture.source("&member=one").await;
    let lanes = lanes_of(&take(&mut first, 4).await);
    let mut second = fixture.source("&member=one").await;
    let begun = Instant::now();
    let (mut lost, mut has_failed) = (BTreeSet::new(), false);
    while lost.is_empty() || !has_failed {
        assert!(begun.elapsed() < DEADLINE, "{lost:?} {has_failed}");
        match tokio::time::timeout(Duration::from_millis(100), first.next(room(10))).await {
            Ok(Ok(Event::Lost { lanes })) => lost.extend(lanes),
            Ok(Ok(event)) => panic!("{event:?}"),
            Ok(Err(error)) => has_failed |= error.kind() == ErrorKind::Unusable,
            Err(_) => {}
        }
    }
    assert_eq!(lost, lanes);
    assert_eq!(take(&mut second, 4).await.len(), 4);
}

async fn no_more_arrives_than_there_is_room_for() {
    let fixture = Fixture::new("room", 1).await;
    fixture.send(100..120, 1);
    let mut source = fixture.source("").await;
    let mut arrived = some(&mut source, room(3)).await;
    assert!((1..=3).contains(&arrived.len()), "{}", arrived.len());
    // Key and payload take eight bytes.
    let few = some(&mut source, Room { messages: 10, bytes: 20, closed: Default::default() }).await;
    assert!((1..=2).contains(&few.len()), "{}", few.len());
    arrived.extend(few);
    let lane = arrived[0].id.lane.clone();
    for room in [room(0), Room { bytes: 0, ..room(5) }, Room { closed: closed(&lane), ..room(5) }] {
        assert!(tokio::time::timeout(Duration::from_millis(100), source.next(room)).await.is_err());
    }
    while arrived.len() < 20 {
        arrived.extend(some(&mut source, room(7)).await);
    }
    assert_eq!(texts(&arrived), (100..120).map(|number| number.to_string()).collect::<Vec<_>>());
}

async fn a_backlog_beyond_the_room_pauses_and_arrives_whole() {
    let fixture = Fixture::new("backlog", 2).await;
    fixture.send(0..30_000, 2);
    let mut source = fixture.source("").await;
    let mut next = [0, 1];
    while next != [30_000, 30_001] {
        for delivery in some(&mut source, room(500)).await {
            let number: usize = text(&delivery).parse().unwrap();
            let lane = delivery.id.lane.partition as usize;
            assert_eq!(number, next[lane], "a message of partition {lane} is missing or repeated");
            next[lane] += 2;
        }
    }
}

/// A broker that is away for longer than this waits as long for the member that it knew, before it gives the partitions
/// to the one that has joined again. With the usual session of 45 s an event may then come too late for a test.
const SHORT_SESSION: &str = "&session-timeout=6";

/// Takes and settles until every number has arrived, and calls `disturb` half-way.
async fn consume_through(source: &mut KafkaSource, count: usize, disturb: impl AsyncFnOnce()) {
    let (settler, mut seen, mut disturb) = (source.settler(), BTreeSet::new(), Some(disturb));
    while seen.len() < count {
        match event(source, room(50)).await {
            Event::Deliveries(deliveries) => {
                for delivery in deliveries {
                    settle(&settler, &delivery.id, Settlement::UpTo).await;
                    seen.insert(text(&delivery));
                }
            }
            Event::Revoking { lanes, .. } => drop(settler.leave(&lanes).await),
            Event::Lost { .. } => {}
        }
        if seen.len() >= count / 2
            && let Some(disturb) = disturb.take()
        {
            disturb().await;
        }
    }
}

async fn a_restart_of_the_broker_loses_nothing() {
    let server = KafkaServer::start(&[]).await.unwrap();
    let fixture = Fixture::on(server.address().to_string(), "restart", 2, 1).await;
    fixture.send(0..200, 2);
    let mut source = fixture.source(SHORT_SESSION).await;
    consume_through(&mut source, 300, async || {
        server.kill();
        server.restart().await.unwrap();
        fixture.send(200..300, 2);
    })
    .await;
}

async fn the_death_of_a_cluster_member_loses_nothing() {
    let servers = KafkaServer::start_cluster(3).await.unwrap();
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    let fixture = Fixture::on(hosts.join(","), "cluster", 3, 3).await;
    fixture.send(0..200, 3);
    let mut source = fixture.source(SHORT_SESSION).await;
    consume_through(&mut source, 300, async || {
        // It leads one of the three partitions.
        servers[0].kill();
        fixture.send(200..300, 3);
    })
    .await;
}
