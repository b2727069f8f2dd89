//! The callback of the driver, on the thread that polls: takes partitions up, and waits for the worker before it lets
//! them go.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::failures::ConnectionFailures;
use super::lanes::{DoneOffset, Partition, SharedLanes};
use super::topics::{SeenTopics, TopicId};
use super::url::Start;
use crate::errors::{not_applied, unknown, unusable};

/// A topic as this member found it first.
#[derive(Clone, Copy)]
pub(super) struct KnownTopic {
    /// A topic with another one was created while the group ran.
    pub(super) id: Option<TopicId>,
    /// The number of its partitions. Those behind them were added while the group ran.
    pub(super) partitions: i32,
}

pub(super) struct Rebalancer {
    pub(super) lanes: Arc<SharedLanes>,
    pub(super) start: Start,
    /// One value for all messages of a topic.
    pub(super) topics: HashMap<String, Arc<str>>,
    pub(super) failures: ConnectionFailures,
    pub(super) known: Mutex<HashMap<String, KnownTopic>>,
    /// The topics that this driver has found, and those that were missing.
    pub(super) seen: Mutex<SeenTopics>,
}

impl Rebalancer {
    /// For another driver of this member.
    pub(super) fn renewed(&self) -> Self {
        Self {
            lanes: Arc::clone(&self.lanes),
            start: self.start,
            topics: self.topics.clone(),
            failures: ConnectionFailures::default(),
            known: Mutex::new(self.known.lock().clone()),
            seen: Mutex::default(),
        }
    }

    /// Whether another driver is needed.
    pub(super) fn is_outdated(&self) -> bool {
        self.seen.lock().is_outdated()
    }

    /// Whether there is no topic of some name.
    pub(super) fn has_missing(&self) -> bool {
        self.seen.lock().has_missing()
    }

    pub(super) fn partition(&self, topic: &str, partition: i32) -> Option<Partition> {
        self.topics.get(topic).map(|topic| (Arc::clone(topic), partition))
    }

    pub(super) fn partitions(&self, list: &TopicPartitionList) -> Vec<Partition> {
        list.elements().iter().filter_map(|element| self.partition(element.topic(), element.partition())).collect()
    }

    /// Answers the driver although partitions cannot be taken up.
    fn give_up(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList, error: KafkaError) {
        self.lanes.lose(&self.partitions(partitions));
        // The driver expects an answer in any case. It does not ask again while the group stays as it is, so this
        // member would hold partitions that it never reads.
        let _ = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        };
        self.lanes.fail(unusable("cannot take up partitions of Kafka; start the worker again").caused_by(error));
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, taken: &TopicPartitionList) -> KafkaResult<()> {
        let partitions = self.partitions(taken);
        if consumer.assignment_lost() {
            self.lanes.lose(&partitions);
        } else {
            self.lanes.let_go(&partitions, |done| {
                let committed = self.commit_last(consumer, done);
                committed
                    .map_err(|error| unknown("the Kafka broker does not confirm the last offsets").caused_by(error))
            });
        }
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(taken),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        }
    }
}

pub(super) fn number(offset: Offset) -> Option<i64> {
    if let Offset::Offset(number) = offset { Some(number) } else { None }
}

/// Notes the positions of the driver. Only the thread may: all that the driver has handed over must be among the lanes.
pub(super) fn note_positions(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes) {
    let positions = match consumer.position() {
        Ok(positions) => positions,
        Err(error) => return debug!(%error, "the Kafka driver does not tell its positions"),
    };
    let mut state = lanes.state();
    for element in positions.elements() {
        let Some(partition) = consumer.context().partition(element.topic(), element.partition()) else { continue };
        let Some(lane) = state.lanes.get_mut(&partition) else { continue };
        lane.progress.note_position(number(element.offset()));
    }
}

pub(super) fn list(offsets: &[DoneOffset]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for DoneOffset { partition: (topic, partition), note, offset } in offsets {
        let mut element = list.add_partition(topic, *partition);
        // Fails only for an offset that no message has.
        let _ = element.set_offset(Offset::Offset(*offset));
        if let Some(note) = note {
            element.set_metadata(note.to_string());
        }
    }
    list
}

pub(super) fn bare_list(partitions: &[Partition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

impl ConsumerContext for Rebalancer {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let is_given = err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let done = if is_given { self.take_up(consumer, partitions) } else { self.revoke(consumer, partitions) };
        match done {
            Ok(()) => {}
            Err(error) if is_given => self.give_up(consumer, partitions, error),
            Err(error) => self.lanes.fail(not_applied("cannot give up partitions of Kafka").caused_by(error)),
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
            let Some(known) = known else { continue };
            let [committed, first, end] =
                [known.committed_offset, known.lo_offset, known.hi_offset].map(|at| Some(at).filter(|at| *at >= 0));
            lane.progress.note_statistics(committed, first, end);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.failures.error(error, reason);
    }
}
