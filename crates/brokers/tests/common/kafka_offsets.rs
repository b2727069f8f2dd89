//! Where a group goes on: behind records that no consumer sees, at the end of a topic that it skips, and at the first
//! message of a topic that was created again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hapax_brokers::KafkaSource;
use hapax_core::ErrorKind;
use hapax_core::broker::{Event, Settlement, Source};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::Fixture;
use crate::common::{DEADLINE, event, room, settle, take, text, texts};

impl Fixture {
    pub(crate) fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", &self.hosts).create().unwrap()
    }

    /// Sends messages in a transaction, and ends it.
    fn transaction(&self, producer: &BaseProducer, payloads: &[&str], is_committed: bool) {
        producer.begin_transaction().unwrap();
        for payload in payloads {
            let record = BaseRecord::<(), _>::to(self.topic).partition(0).payload(*payload);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(DEADLINE).unwrap();
        match is_committed {
            true => producer.commit_transaction(DEADLINE).unwrap(),
            false => producer.abort_transaction(DEADLINE).unwrap(),
        }
    }

    fn transactional(&self) -> BaseProducer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts).set("transactional.id", self.topic);
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        producer
    }

    /// Lets the broker delete every message of the first partition, as retention does.
    async fn expire(&self) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(self.topic, 0, Offset::End).unwrap();
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        let deleted = self.admin().delete_records(&list, &options).await.unwrap();
        deleted.elements().iter().for_each(|element| element.error().unwrap());
    }

    /// Reads on until the group has committed this offset of the first partition. Nothing may arrive meanwhile.
    pub(crate) async fn until_committed(&self, source: &mut KafkaSource, offset: i64) {
        self.until_all_committed(source, &[offset]).await;
    }

    /// Reads on until the group has committed these offsets, one of each partition. Nothing may arrive meanwhile.
    pub(crate) async fn until_all_committed(&self, source: &mut KafkaSource, offsets: &[i64]) {
        let (begun, partitions) = (Instant::now(), i32::try_from(offsets.len()).unwrap());
        let committed = || self.committed(partitions).into_iter().flatten().collect::<Vec<_>>();
        while committed() != offsets {
            assert!(begun.elapsed() < DEADLINE, "{:?} and not {offsets:?}", committed());
            stay_quiet(source).await;
        }
    }

    pub(crate) async fn delete(&self) {
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        assert_eq!(self.admin().delete_topics(&[self.topic], &options).await.unwrap(), [Ok(self.topic.to_owned())]);
    }

    pub(crate) async fn create(&self, partitions: i32) {
        let (admin, options) = (self.admin(), AdminOptions::new().operation_timeout(Some(DEADLINE)));
        let (new, begun) = (NewTopic::new(self.topic, partitions, TopicReplication::Fixed(1)), Instant::now());
        loop {
            match &admin.create_topics([&new], &options).await.unwrap()[0] {
                Ok(_) => return,
                // The broker is still deleting the old one.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => assert!(begun.elapsed() < DEADLINE),
                Err((_, error)) => panic!("{error}"),
            }
            hapax_testkit::pause().await;
        }
    }

    /// Takes what arrives until each of these numbers has. Settles everything.
    pub(crate) async fn take_numbers(&self, source: &mut KafkaSource, numbers: std::ops::Range<usize>) {
        let (settler, mut seen) = (source.settler(), BTreeSet::new());
        while !numbers.clone().all(|number| seen.contains(&number.to_string())) {
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
        }
    }
}

/// Polls for a moment, in which nothing may arrive.
async fn stay_quiet(source: &mut KafkaSource) {
    match tokio::time::timeout(Duration::from_millis(50), source.next(room(100))).await {
        Ok(Ok(event)) => panic!("{event:?}"),
        // The source reconnects by itself.
        Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::NotApplied, "{error}"),
        Err(_) => {}
    }
}

/// Two transactions: one is committed and one is aborted. Each ends with a record that no consumer sees.
pub(crate) async fn a_group_passes_records_that_no_consumer_sees() {
    let fixture = Fixture::new("transactions", 1).await;
    let producer = fixture.transactional();
    fixture.transaction(&producer, &["0", "1", "2"], true);
    fixture.transaction(&producer, &["aborted"], false);
    let mut source = fixture.source("").await;
    let (settler, deliveries) = (source.settler(), take(&mut source, 3).await);
    assert_eq!(texts(&deliveries), ["0", "1", "2"]);
    settle(&settler, &deliveries[1].id, Settlement::UpTo).await;
    // An open message holds the committed offset back.
    fixture.until_committed(&mut source, 2).await;
    settle(&settler, &deliveries[2].id, Settlement::UpTo).await;
    fixture.until_committed(&mut source, 6).await;
    let begun = Instant::now();
    while settler.lag().await.unwrap() != Some(0) {
        assert!(begun.elapsed() < DEADLINE, "{:?}", settler.lag().await);
        stay_quiet(&mut source).await;
    }
    // Nothing of this one is to be processed at all.
    fixture.transaction(&producer, &["aborted"], false);
    fixture.until_committed(&mut source, 8).await;
    source.close().await.unwrap();
    fixture.expire().await;
    let mut next = fixture.source("").await;
    fixture.transaction(&producer, &["3"], true);
    assert_eq!(texts(&take(&mut next, 1).await), ["3"]);
}

/// The last position is committed at the end, too.
pub(crate) async fn a_group_passes_what_no_consumer_sees_as_it_ends() {
    let fixture = Fixture::new("transactions-at-the-end", 1).await;
    let producer = fixture.transactional();
    fixture.transaction(&producer, &["0"], true);
    let mut source = fixture.source("").await;
    let (settler, deliveries) = (source.settler(), take(&mut source, 1).await);
    let begun = Instant::now();
    while settler.lag().await.unwrap() != Some(2) {
        assert!(begun.elapsed() < DEADLINE, "{:?}", settler.lag().await);
        stay_quiet(&mut source).await;
    }
    settle(&settler, &deliveries[0].id, Settlement::UpTo).await;
    source.close().await.unwrap();
    assert_eq!(fixture.committed(1), [Some(2)]);
}

pub(crate) async fn a_group_that_starts_at_the_end_misses_nothing_after_it() {
    skip_existing(Fixture::new("latest", 1).await, "").await;
}

pub(crate) async fn a_group_of_the_consumer_protocol_that_starts_at_the_end_misses_nothing_after_it() {
    skip_existing(Fixture::new("latest-consumer", 1).await, "&protocol=consumer").await;
}

async fn skip_existing(fixture: Fixture, parameters: &str) {
    let parameters = format!("&start=latest&skip-existing=yes{parameters}");
    fixture.send(0..5, 1);
    let mut source = fixture.source(&parameters).await;
    fixture.until_committed(&mut source, 5).await;
    source.close().await.unwrap();
    fixture.send(5..8, 1);
    let mut next = fixture.source(&parameters).await;
    assert_eq!(texts(&take(&mut next, 3).await), ["5", "6", "7"]);
}

pub(crate) async fn a_running_worker_starts_a_topic_again_that_was_created_again() {
    let fixture = Fixture::new("recreated", 1).await;
    fixture.send(0..100, 1);
    let mut source = fixture.source("").await;
    fixture.take_numbers(&mut source, 0..100).await;
    fixture.until_committed(&mut source, 100).await;
    fixture.delete().await;
    fixture.create(1).await;
    // The position of the old topic is in the middle of the new one.
    fixture.send(1000..1150, 1);
    fixture.take_numbers(&mut source, 1000..1150).await;
    // Some of them arrive a second time: they came before the worker knew of the new topic.
    fixture.send(1150..1151, 1);
    fixture.take_numbers(&mut source, 1150..1151).await;
    fixture.until_committed(&mut source, 151).await;
}

pub(crate) async fn a_running_worker_of_the_consumer_protocol_starts_a_topic_again_that_was_created_again() {
    let fixture = Fixture::new("recreated-consumer", 1).await;
    fixture.send(0..100, 1);
    let mut source = fixture.source("&protocol=consumer").await;
    fixture.take_numbers(&mut source, 0..100).await;
    fixture.delete().await;
    fixture.create(1).await;
    fixture.send(1000..1150, 1);
    fixture.take_numbers(&mut source, 1000..1150).await;
}

/// The topic is away for so long that the driver knows it.
pub(crate) async fn a_running_worker_waits_for_a_topic_that_is_gone() {
    let fixture = Fixture::new("gone-for-a-while", 1).await;
    fixture.send(0..10, 1);
    let mut source = fixture.source("").await;
    fixture.take_numbers(&mut source, 0..10).await;
    fixture.delete().await;
    let begun = Instant::now();
    loop {
        match tokio::time::timeout(Duration::from_millis(100), source.next(room(10))).await {
            Ok(Err(error)) if error.to_string().contains("no topic `gone-for-a-while` any more") => break,
            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::NotApplied, "{error}"),
            Ok(Ok(event)) => assert!(matches!(event, Event::Lost { .. }), "{event:?}"),
            Err(_) => assert!(begun.elapsed() < DEADLINE, "the worker does not learn of it"),
        }
    }
    fixture.create(1).await;
    fixture.send(1000..1010, 1);
    fixture.take_numbers(&mut source, 1000..1010).await;
}

/// The topic that was created again ends before the position of the old one.
pub(crate) async fn a_running_worker_starts_a_shorter_topic_again_that_was_created_again() {
    let fixture = Fixture::new("recreated-shorter", 2).await;
    fixture.send(0..100, 2);
    let mut source = fixture.source("").await;
    fixture.take_numbers(&mut source, 0..100).await;
    fixture.delete().await;
    fixture.create(2).await;
    fixture.send(1000..1010, 2);
    fixture.take_numbers(&mut source, 1000..1010).await;
    fixture.send(1010..1020, 2);
    fixture.take_numbers(&mut source, 1010..1020).await;
}

/// The group may hold an offset of the old topic: it was committed after the broker had forgotten the others.
pub(crate) async fn a_group_starts_a_topic_again_that_was_created_again() {
    let fixture = Fixture::new("restarted", 1).await;
    fixture.send(0..100, 1);
    let mut source = fixture.source("").await;
    fixture.take_numbers(&mut source, 0..100).await;
    fixture.until_committed(&mut source, 100).await;
    source.close().await.unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(fixture.topic, 0);
    let committed = fixture.observer().committed_offsets(list, DEADLINE).unwrap();
    fixture.delete().await;
    fixture.create(1).await;
    fixture.send(1000..1150, 1);
    fixture.observer().commit(&committed, CommitMode::Sync).unwrap();
    for parameters in ["", "&start=latest&skip-existing=yes"] {
        let mut source = fixture.source(parameters).await;
        assert_eq!(text(&take(&mut source, 1).await[0]), "1000", "{parameters}");
        // The offset of the new topic is in the place of the old one.
        let begun = Instant::now();
        while fixture.committed(1) != [Some(0)] {
            assert!(begun.elapsed() < DEADLINE, "{:?}", fixture.committed(1));
            hapax_testkit::pause().await;
        }
        source.close().await.unwrap();
    }
}

pub(crate) async fn nothing_is_committed_for_a_topic_that_is_gone() {
    let fixture = Fixture::new("gone", 1).await;
    fixture.send(0..100, 1);
    let mut source = fixture.source("").await;
    let (settler, deliveries) = (source.settler(), take(&mut source, 100).await);
    fixture.delete().await;
    fixture.create(1).await;
    for delivery in &deliveries {
        settle(&settler, &delivery.id, Settlement::UpTo).await;
    }
    source.close().await.unwrap();
    let begun = Instant::now();
    while !matches!(fixture.committed(1)[0], None | Some(0)) {
        assert!(begun.elapsed() < DEADLINE, "{:?}", fixture.committed(1));
        hapax_testkit::pause().await;
    }
}
