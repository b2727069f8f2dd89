//! Takes up partitions: at the offset of the group, where a group without one starts, or at the first message of a
//! topic that was created again.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::lanes::{DoneOffset, Partition, TakenUp};
use super::note::OffsetNote;
use super::progress::LaneProgress;
use super::rebalance::{Rebalancer, bare_list, list, note_positions, number};
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
        let found = self.patiently(|| self.find_topics(consumer, PATIENCE))?;
        let of_group = self.patiently(|| committed(consumer, &self.with_others(given)))?;
        let began_with: HashMap<&str, i32> =
            found.iter().map(|(topic, id)| (&**topic, self.began_with(&of_group, topic, *id))).collect();
        let (mut assigned, mut taken) = (TopicPartitionList::new(), Vec::new());
        for element in given.elements() {
            let (topic, number) = (element.topic(), element.partition());
            let Some(partition) = self.partition(topic, number) else { continue };
            let mut start = Offset::Beginning;
            // A topic that was deleted since the group gave it away has no lane.
            if let (Some(id), Some(committed)) = (found.get(topic), of_group.find_partition(topic, number)) {
                let began_with = began_with.get(topic).copied();
                let note = id.map(|topic| OffsetNote { topic, began_with });
                let unread = TakenUp { partition, note, progress: LaneProgress::new(None) };
                let is_added = began_with.is_some_and(|began_with| number >= began_with);
                let begun = self.begin(consumer, &committed, unread, is_added)?;
                start = begun.progress.done().map_or(start, Offset::Offset);
                taken.push(begun);
            }
            assigned.add_partition_offset(topic, number, start)?;
        }
        self.note_ids(&found);
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

    /// These partitions, and the others of their topics.
    fn with_others(&self, given: &TopicPartitionList) -> TopicPartitionList {
        let known = self.known.lock();
        let mut all: BTreeSet<Partition> = BTreeSet::new();
        for (topic, partition) in self.partitions(given) {
            let count = known.get(&*topic).map_or(0, |known| known.partitions);
            all.extend((0..count).chain([partition]).map(|partition| (Arc::clone(&topic), partition)));
        }
        bare_list(&all.into_iter().collect::<Vec<_>>())
    }

    /// How many partitions a topic had as the group began to read it. One that was created again while the group ran
    /// had none.
    fn began_with(&self, of_group: &TopicPartitionList, topic: &str, id: Option<TopicId>) -> i32 {
        let known = self.known.lock().get(topic).copied();
        if differ(known.and_then(|known| known.id), id) {
            return 0;
        }
        let notes = of_group.elements_for_topic(topic).iter().filter_map(note).collect::<Vec<_>>();
        if notes.iter().any(|note| differ(Some(note.topic), id)) {
            return 0;
        }
        let recorded = notes.iter().filter_map(|note| note.began_with);
        // Of two members that begin at the same time one may have found fewer.
        recorded.chain(known.map(|known| known.partitions)).min().unwrap_or(i32::MAX)
    }

    fn note_ids(&self, found: &FoundTopics) {
        for (topic, known) in self.known.lock().iter_mut() {
            known.id = known.id.or(found.get(topic).copied().flatten());
        }
    }

    /// Where a partition is taken up. What is in one that was added while the group ran belongs to the group.
    fn begin(
        &self,
        consumer: &BaseConsumer<Self>,
        committed: &TopicPartitionListElem<'_>,
        unread: TakenUp,
        is_added: bool,
    ) -> KafkaResult<TakenUp> {
        let topic_of = |note: Option<OffsetNote>| note.map(|note| note.topic);
        let is_of_another = differ(topic_of(note(committed)), topic_of(unread.note));
        let offset = number(committed.offset()).filter(|_| !is_of_another);
        if offset.is_some() {
            return Ok(TakenUp { progress: LaneProgress::new(offset), ..unread });
        }
        if is_of_another {
            self.say_renewed(&unread.partition.0);
        }
        if is_added {
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
        let skipped = list(&[DoneOffset { partition: unread.partition.clone(), note: unread.note, offset: end }]);
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
            done.retain(|done| {
                found.get(&*done.partition.0).is_some_and(|id| !differ(done.note.map(|note| note.topic), *id))
            });
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

fn note(committed: &TopicPartitionListElem<'_>) -> Option<OffsetNote> {
    // The driver panics if they are not UTF-8, and another program may have written them.
    catch_unwind(AssertUnwindSafe(|| OffsetNote::of_metadata(committed.metadata()))).ok().flatten()
}
