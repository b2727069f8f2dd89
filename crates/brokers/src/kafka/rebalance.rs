//! The callback of the driver, on the thread that polls: assigns partitions, and waits for the worker before it lets
//! them go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Result;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::failures::ConnectionFailures;
use super::lanes::{Partition, SharedLanes};
use super::url::Start;
use crate::url::{not_applied, unknown, unusable};

/// How long the broker may take for a call that the callback waits for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the committed offsets are asked for.
const TRIES: usize = 6;

pub(super) struct Rebalancer {
    pub(super) lanes: Arc<SharedLanes>,
    pub(super) start: Start,
    /// One value for all messages of a topic.
    pub(super) topics: HashMap<String, Arc<str>>,
    pub(super) failures: ConnectionFailures,
}

impl Rebalancer {
    pub(super) fn partition(&self, topic: &str, partition: i32) -> Option<Partition> {
        self.topics.get(topic).map(|topic| (Arc::clone(topic), partition))
    }

    fn partitions(&self, list: &TopicPartitionList) -> Vec<Partition> {
        list.elements().iter().filter_map(|element| self.partition(element.topic(), element.partition())).collect()
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, given: &TopicPartitionList) -> KafkaResult<()> {
        let committed = committed(consumer, given)?;
        let (mut assigned, mut lanes) = (TopicPartitionList::new(), Vec::new());
        for element in committed.elements() {
            let begun = match element.offset() {
                Offset::Offset(offset) => Some(offset),
                Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
            };
            let start = match self.start {
                Start::Earliest => Offset::Beginning,
                Start::Latest => Offset::End,
            };
            let start = begun.map_or(start, Offset::Offset);
            assigned.add_partition_offset(element.topic(), element.partition(), start)?;
            lanes.extend(self.partition(element.topic(), element.partition()).map(|partition| (partition, begun)));
        }
        self.lanes.add(lanes);
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&assigned)?,
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(&assigned)?,
        }
        // A partition that was paused when it was taken away may still be.
        consumer.resume(&assigned)
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, taken: &TopicPartitionList) -> KafkaResult<()> {
        let partitions = self.partitions(taken);
        if consumer.assignment_lost() {
            self.lanes.lose(&partitions);
        } else {
            self.lanes.let_go(&partitions, |settled| commit(consumer, &settled));
        }
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(taken),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        }
    }
}

/// The committed offsets of these partitions. Without them the driver would report every new group as one whose offset
/// has expired.
fn committed(consumer: &BaseConsumer<Rebalancer>, given: &TopicPartitionList) -> KafkaResult<TopicPartitionList> {
    let ask = || {
        let committed = consumer.committed_offsets(given.clone(), PATIENCE)?;
        committed.elements().iter().try_for_each(TopicPartitionListElem::error)?;
        Ok(committed)
    };
    // The coordinator of the group may just be starting. The tries take less time than a member may stay silent.
    (1..TRIES).find_map(|_| ask().ok()).map_or_else(ask, Ok)
}

fn commit(consumer: &BaseConsumer<Rebalancer>, settled: &[(Partition, i64)]) -> Result<()> {
    let committed = consumer.commit(&list(settled), CommitMode::Sync);
    committed.map_err(|error| unknown("the Kafka broker does not confirm the last offsets").caused_by(error))
}

pub(super) fn list(offsets: &[(Partition, i64)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for ((topic, partition), offset) in offsets {
        // Fails only for an offset that no message has.
        let _ = list.add_partition_offset(topic, *partition, Offset::Offset(*offset));
    }
    list
}

impl ConsumerContext for Rebalancer {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let is_given = err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let done = if is_given { self.assign(consumer, partitions) } else { self.revoke(consumer, partitions) };
        let Err(error) = done else { return };
        if !is_given {
            self.lanes.fail(not_applied("cannot give up partitions of Kafka").caused_by(error));
            return;
        }
        self.lanes.lose(&self.partitions(partitions));
        // The driver expects an answer in any case. It does not ask again while the group stays as it is, so this
        // member would hold partitions that it never reads.
        let _ = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        };
        self.lanes.fail(unusable("cannot take up partitions of Kafka; start the worker again").caused_by(error));
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            // They are committed with the next ones, or their messages arrive again.
            debug!(%error, "offsets are not committed");
        }
    }
}

impl ClientContext for Rebalancer {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.failures.log(level, facility, text);
    }

    fn stats(&self, statistics: Statistics) {
        let mut state = self.lanes.state();
        for ((topic, partition), lane) in &mut state.lanes {
            let known = statistics.topics.get(&**topic).and_then(|topic| topic.partitions.get(partition));
            if let Some(known) = known.filter(|known| known.hi_offset >= 0) {
                lane.end = Some(known.hi_offset);
                lane.begun = lane.begun.or(Some(known.lo_offset).filter(|low| *low >= 0));
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.failures.error(error, reason);
    }
}
