//! Takes up partitions: at the offset of the group, where a group without one starts, or at the first message of a
//! topic that was created again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::lanes::{DoneOffset, TakenUp};
use super::progress::LaneProgress;
use super::rebalance::{Rebalancer, list, note_positions, number};
use super::topics::{self, FoundTopics, TopicId, differ};
use super::url::Start;
use crate::errors::not_applied;

/// How long the broker may take for a call that the callback waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the broker is asked again. A member may stay silent for longer.
const PATIENT_FOR: Duration = Duration::from_secs(60);

/// How long to wait before the broker is asked again.
const REST: Duration = Duration::from_millis(200);

/// How long the broker may take for a call for which messages wait.
const CHECKED_WITHIN: Duration = Duration::from_secs(2);

impl Rebalancer {
    /// Reads partitions from where they are to be taken up.
    pub(super) fn take_up(&self, consumer: &BaseConsumer<Self>, given: &TopicPartitionList) -> KafkaResult<()> {
        let committed = self.patiently(|| committed(consumer, given))?;
        let found = self.patiently(|| self.find_topics(consumer, PATIENCE))?;
        let mut known = self.known.lock().clone();
        let (mut assigned, mut taken) = (TopicPartitionList::new(), Vec::new());
        for element in committed.elements() {
            let Some(partition) = self.partition(element.topic(), element.partition()) else { continue };
            let mut start = Offset::Beginning;
            // A topic that was deleted since the group gave it away has no lane.
            if let Some(id) = found.get(element.topic()) {
                let unread = TakenUp { partition, topic: *id, progress: LaneProgress::new(None) };
                // A topic that was created while the group ran has nothing that `start=latest` is to skip.
                let is_renewed = differ(known.get(element.topic()).copied(), *id);
                let begun = self.begin(consumer, &element, unread, is_renewed)?;
                start = begun.progress.done().map_or(start, Offset::Offset);
                taken.push(begun);
            }
            assigned.add_partition_offset(element.topic(), element.partition(), start)?;
        }
        for (topic, id) in &found {
            if let Some(id) = id {
                known.entry(topic.clone()).or_insert(*id);
            }
        }
        *self.known.lock() = known;
        self.lanes.add(taken);
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&assigned)?,
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(&assigned)?,
        }
        // The driver has no position yet, or still that of an assignment before.
        note_positions(consumer, &self.lanes);
        // A partition that was paused when it was taken away may still be.
        consumer.resume(&assigned)
    }

    /// Where a partition is taken up.
    fn begin(
        &self,
        consumer: &BaseConsumer<Self>,
        committed: &TopicPartitionListElem<'_>,
        unread: TakenUp,
        is_renewed: bool,
    ) -> KafkaResult<TakenUp> {
        let is_of_another = differ(recorded_topic(committed), unread.topic);
        let offset = number(committed.offset()).filter(|_| !is_of_another);
        if offset.is_some() {
            return Ok(TakenUp { progress: LaneProgress::new(offset), ..unread });
        }
        if is_of_another {
            self.say_renewed(&unread.partition.0);
        }
        if is_of_another || is_renewed {
            let (topic, partition) = &unread.partition;
            let watermarks = consumer.fetch_watermarks(topic, *partition, CHECKED_WITHIN);
            let first = watermarks.map(|(first, _)| LaneProgress::uncommitted(first));
            return Ok(TakenUp { progress: first.unwrap_or(unread.progress), ..unread });
        }
        match self.start {
            Start::Earliest => Ok(unread),
            Start::Latest => self.skip(consumer, unread),
        }
    }

    /// Skips what is there. What comes from now on belongs to the group, also after a restart before the first message
    /// is settled.
    fn skip(&self, consumer: &BaseConsumer<Self>, unread: TakenUp) -> KafkaResult<TakenUp> {
        let (topic, partition) = &unread.partition;
        let (_, end) = self.patiently(|| consumer.fetch_watermarks(topic, *partition, PATIENCE))?;
        let skipped = list(&[DoneOffset { partition: unread.partition.clone(), topic: unread.topic, offset: end }]);
        self.patiently(|| consumer.commit(&skipped, CommitMode::Sync))?;
        Ok(TakenUp { progress: LaneProgress::new(Some(end)), ..unread })
    }

    /// Loses the lanes of topics that are gone or were created again. Returns whether there were any.
    pub(super) fn check_topics(&self, consumer: &BaseConsumer<Self>) -> KafkaResult<bool> {
        let asked_at = self.lanes.now();
        let found = self.find_topics(consumer, CHECKED_WITHIN)?;
        let lost = self.lanes.confirm(&found, asked_at);
        for topic in &lost {
            match found.contains_key(&**topic) {
                true => self.say_renewed(topic),
                false => self.lanes.fail(not_applied(format!(
                    "the Kafka broker has no topic `{topic}` any more; the worker commits nothing for it, and waits \
                     for another one"
                ))),
            }
        }
        Ok(!lost.is_empty() || self.is_outdated())
    }

    fn say_renewed(&self, topic: &str) {
        let message = "was deleted and created again; the worker reads it from its first message";
        self.lanes.fail(not_applied(format!("the topic `{topic}` {message}")));
    }

    fn find_topics(&self, consumer: &BaseConsumer<Self>, within: Duration) -> KafkaResult<FoundTopics> {
        let found = topics::find(consumer.client(), self.topics.keys().map(String::as_str), within);
        let found = found.map_err(KafkaError::MetadataFetch)?;
        self.seen.lock().note(self.topics.keys(), &found);
        Ok(found)
    }

    /// Commits the settled offsets of partitions that are let go, but none of a topic that is gone.
    pub(super) fn commit_last(&self, consumer: &BaseConsumer<Self>, mut done: Vec<DoneOffset>) -> KafkaResult<()> {
        // An offset whose topic cannot be checked names the topic, so that it counts for no other one.
        if let Ok(found) = self.find_topics(consumer, CHECKED_WITHIN) {
            done.retain(|done| found.get(&*done.partition.0).is_some_and(|id| !differ(done.topic, *id)));
        }
        if done.is_empty() { Ok(()) } else { consumer.commit(&list(&done), CommitMode::Sync) }
    }

    /// Asks the broker again while it refuses: the coordinator of the group may just be starting.
    fn patiently<T>(&self, ask: impl Fn() -> KafkaResult<T>) -> KafkaResult<T> {
        let until = self.lanes.now() + PATIENT_FOR;
        loop {
            let result = ask();
            let Err(error) = &result else { return result };
            debug!(%error, "the Kafka broker does not serve a request yet");
            if self.lanes.now() >= until || !self.lanes.rest(REST) {
                return result;
            }
        }
    }
}

/// The committed offsets of these partitions. Without them the driver would report every new group as one whose offset
/// has expired.
fn committed(consumer: &BaseConsumer<Rebalancer>, given: &TopicPartitionList) -> KafkaResult<TopicPartitionList> {
    let committed = consumer.committed_offsets(given.clone(), PATIENCE)?;
    committed.elements().iter().try_for_each(TopicPartitionListElem::error)?;
    Ok(committed)
}

/// The topic of which an offset was committed.
fn recorded_topic(committed: &TopicPartitionListElem<'_>) -> Option<TopicId> {
    // The driver panics if they are not UTF-8, and another program may have written them.
    catch_unwind(AssertUnwindSafe(|| TopicId::of_metadata(committed.metadata()))).ok().flatten()
}
