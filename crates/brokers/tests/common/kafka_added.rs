//! A group with `start=latest` skips the messages that were there as it began. In a partition that was added later, it
//! skips none.

use hapax_core::broker::Source;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::consumer::{CommitMode, Consumer};

use crate::Fixture;
use crate::common::{DEADLINE, take, texts};

const LATEST: &str = "&start=latest&skip-existing=yes";

impl Fixture {
    /// Gives the topic this many partitions. The fixture then has a producer that knows them.
    async fn grow(self, partitions: usize) -> Self {
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        let grown = self.admin().create_partitions([&NewPartitions::new(self.topic, partitions)], &options).await;
        assert_eq!(grown.unwrap(), [Ok(self.topic.to_owned())]);
        self.with_another_producer()
    }

    /// Another group, which has only the offset that the group before has committed for the first partition.
    fn with_first_offset_only(self, group: &'static str) -> Self {
        let mut list = TopicPartitionList::new();
        list.add_partition(self.topic, 0);
        let committed = self.observer().committed_offsets(list, DEADLINE).unwrap();
        let fixture = Self { group, ..self };
        fixture.observer().commit(&committed, CommitMode::Sync).unwrap();
        fixture
    }
}

pub(crate) async fn a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_is_added() {
    read_added(Fixture::new("grows", 1).await, LATEST).await;
}

pub(crate) async fn a_group_of_the_consumer_protocol_skips_nothing_in_a_partition_that_is_added() {
    read_added(Fixture::new("grows-consumer", 1).await, &format!("{LATEST}&protocol=consumer")).await;
}

async fn read_added(fixture: Fixture, parameters: &str) {
    fixture.send(0..5, 1);
    let mut source = fixture.source(parameters).await;
    fixture.until_committed(&mut source, 5).await;
    let fixture = fixture.grow(2).await;
    // The driver does not know the second partition yet.
    fixture.send(10..20, 2);
    fixture.take_numbers(&mut source, 10..20).await;
}

pub(crate) async fn a_group_that_starts_at_the_end_skips_nothing_in_a_partition_that_was_added_while_it_was_away() {
    let fixture = Fixture::new("grew", 1).await;
    fixture.send(0..5, 1);
    let mut source = fixture.source(LATEST).await;
    fixture.until_committed(&mut source, 5).await;
    source.close().await.unwrap();
    let fixture = fixture.grow(2).await;
    fixture.send(10..20, 2);
    let mut source = fixture.source(LATEST).await;
    fixture.take_numbers(&mut source, 10..20).await;
    // The later offset tells it, too.
    fixture.until_committed(&mut source, 10).await;
    let mut other = fixture.with_first_offset_only("grew-other").source(LATEST).await;
    assert_eq!(texts(&take(&mut other, 5).await), ["11", "13", "15", "17", "19"]);
}

/// One worker has taken the first partition up, and the other one comes later to the second partition.
pub(crate) async fn of_two_workers_that_start_at_the_end_none_reads_what_was_there() {
    let fixture = Fixture::new("began-with-two", 2).await;
    fixture.send(0..10, 2);
    let mut source = fixture.source(LATEST).await;
    fixture.until_all_committed(&mut source, &[5, 5]).await;
    let fixture = fixture.with_first_offset_only("began-with-two-other");
    let mut later = fixture.source(LATEST).await;
    fixture.until_all_committed(&mut later, &[5, 5]).await;
}
