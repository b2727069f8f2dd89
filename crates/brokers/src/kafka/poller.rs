//! The thread that polls: connects, reads messages, pauses and resumes partitions, and commits what is done. It never
//! waits for the worker, but in the callback that lets partitions go.

use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{Coordinates, Headers, Message, Position};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, Result, Timestamp};
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::metadata::{Metadata, MetadataTopic};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::failures::{ConnectionFailures, fetch_metadata};
use super::lanes::SharedLanes;
use super::rebalance::{KnownTopic, Rebalancer, bare_list, list, note_positions};
use super::{KafkaUrl, config};
use crate::errors::{not_applied, unusable};

/// How long a poll waits for a message. A partition with room again is resumed after this time at the latest.
const POLL: Duration = Duration::from_millis(20);

/// The worker is woken for so many messages together, or for fewer if no more have arrived.
const WOKEN_FOR: usize = 256;

/// As many messages are taken at once at most, so that commits go on.
const MOST_AT_ONCE: usize = 10_000;

/// How long the broker may take at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often settled offsets are committed.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// How often the topics are checked while nothing is to be committed.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// How long to wait before another driver is tried.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread. Returns what ends with it.
pub(super) async fn start(
    url: &KafkaUrl,
    lanes: &Arc<SharedLanes>,
    runtime: &dyn Runtime,
) -> Result<oneshot::Receiver<()>> {
    let (ready, is_ready) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let (url, lanes) = (url.clone(), Arc::clone(lanes));
    let body = move || {
        match connect(&url, &lanes, || !ready.is_closed()) {
            Err(error) => drop(ready.send(Err(error))),
            Ok((mut consumer, origins)) => {
                // A failed send means that nobody waits for the source any more.
                if ready.send(Ok(())).is_ok() {
                    fail_on_panic(&lanes, || run_renewed(&mut consumer, &url, &origins));
                }
                lanes.close();
                // Commits the settled offsets, and leaves the group.
                drop(consumer);
            }
        }
        // The source may be gone.
        let _ = end.send(());
    };
    let started = runtime.blocking("hapax-kafka", Box::new(body));
    started.map_err(|error| unusable("cannot start a thread for Kafka").caused_by(error))?;
    is_ready.await.map_err(|_| unusable("the thread for Kafka ended early"))??;
    Ok(ended)
}

/// The origin in the coordinates of messages, by topic.
type Origins = HashMap<Arc<str>, Arc<str>>;

/// Fails early once `is_awaited` is false.
fn connect(
    url: &KafkaUrl,
    lanes: &Arc<SharedLanes>,
    is_awaited: impl Fn() -> bool,
) -> Result<(BaseConsumer<Rebalancer>, Origins)> {
    let names: Vec<&str> = url.topics().iter().map(String::as_str).collect();
    let topics: HashMap<String, Arc<str>> = names.iter().map(|&topic| (topic.to_owned(), topic.into())).collect();
    let shared: Vec<Arc<str>> = topics.values().cloned().collect();
    let failures = ConnectionFailures::default();
    let (known, seen) = (Mutex::default(), Mutex::default());
    let context = Rebalancer { lanes: Arc::clone(lanes), start: url.start, topics, failures, known, seen };
    let consumer = create(url, context)?;
    for topic in &names {
        let metadata = fetch_metadata(&consumer, &consumer.context().failures, topic, &is_awaited)?;
        let partitions = check_topic(&metadata, topic)?;
        consumer.context().known.lock().insert((*topic).to_owned(), KnownTopic { id: None, partitions });
    }
    let cluster = consumer.client().fetch_cluster_id(PATIENCE);
    let cluster = cluster.ok_or_else(|| not_applied("the Kafka broker does not tell the id of its cluster"))?;
    let origin = |topic: Arc<str>| {
        let origin = format!("kafka/{cluster}/{topic}").into();
        (topic, origin)
    };
    subscribe(&consumer, url)?;
    Ok((consumer, shared.into_iter().map(origin).collect()))
}

fn create(url: &KafkaUrl, context: Rebalancer) -> Result<BaseConsumer<Rebalancer>> {
    config::config(url)?.create_with_context(context).map_err(|error| config::refused(&error))
}

fn subscribe(consumer: &BaseConsumer<Rebalancer>, url: &KafkaUrl) -> Result<()> {
    let names: Vec<&str> = url.topics().iter().map(String::as_str).collect();
    consumer.subscribe(&names).map_err(|error| unusable("cannot subscribe to topics of Kafka").caused_by(error))
}

/// The number of partitions of a topic.
fn check_topic(metadata: &Metadata, topic: &str) -> Result<i32> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let partitions = found.map_or(0, |found| found.partitions().len());
    match found.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from) {
        Some(RDKafkaErrorCode::LeaderNotAvailable) => {
            Err(not_applied(format!("the topic `{topic}` has no leader yet")))
        }
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            Err(unusable(format!("the Kafka broker denies access to the topic `{topic}`")))
        }
        None if partitions > 0 => Ok(i32::try_from(partitions).unwrap_or(i32::MAX)),
        Some(_) | None => Err(unusable(format!("the Kafka broker has no topic `{topic}`: create it first"))),
    }
}

/// Reports a panic to the worker, which would otherwise wait for messages for ever.
fn fail_on_panic(lanes: &SharedLanes, run: impl FnOnce()) {
    // Unwind safe: after a panic the lanes are forgotten, and the thread ends.
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        lanes.lose_all();
        lanes.fail(unusable("the thread that reads from Kafka has panicked; start the worker again"));
    }
}

/// Runs until the source is closed. A driver that knows an earlier topic of some name leaves the group, and a new one
/// joins it.
fn run_renewed(consumer: &mut BaseConsumer<Rebalancer>, url: &KafkaUrl, origins: &Origins) {
    let lanes = Arc::clone(&consumer.context().lanes);
    loop {
        run(consumer, &lanes, origins);
        if lanes.state().is_closed {
            return;
        }
        if let Err(error) = renew(consumer, url) {
            lanes.fail(error);
            lanes.rest(RENEW_EVERY);
        }
    }
}

/// Replaces the driver.
fn renew(consumer: &mut BaseConsumer<Rebalancer>, url: &KafkaUrl) -> Result<()> {
    let new = create(url, consumer.context().renewed())?;
    // The old one lets its partitions go, and leaves the group.
    drop(mem::replace(consumer, new));
    consumer.context().lanes.lose_all();
    subscribe(consumer, url)
}

/// Returns as the source is closed, or as the driver is outdated.
fn run(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes, origins: &Origins) {
    let (mut commit_at, mut check_at) = (lanes.now(), lanes.now());
    while !lanes.state().is_closed && !consumer.context().is_outdated() {
        poll(consumer, lanes, origins);
        resume(consumer, lanes);
        let now = lanes.now();
        if now < commit_at {
            continue;
        }
        note_positions(consumer, lanes);
        let must_check = consumer.context().has_missing() || lanes.is_doubtful() || !lanes.unsent().is_empty();
        // An offset must not be committed for a topic that is gone.
        if (now >= check_at || must_check) && check(consumer) {
            check_at = now + CHECK_EVERY;
            commit(consumer, lanes);
        }
        // After the check: a broker that is slow or away blocks it, and messages are to be read in between.
        commit_at = lanes.now() + COMMIT_EVERY;
    }
    note_positions(consumer, lanes);
}

/// Whether the topics could be checked.
fn check(consumer: &BaseConsumer<Rebalancer>) -> bool {
    let checked = consumer.context().check_topics(consumer);
    if let Err(error) = &checked {
        debug!(%error, "the Kafka broker does not tell the ids of topics");
    }
    checked.is_ok()
}

/// Sends the settled offsets to the broker. An offset that it does not confirm is sent again.
fn commit(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes) {
    let unsent = lanes.unsent();
    if unsent.is_empty() {
        return;
    }
    match consumer.commit(&list(&unsent), CommitMode::Async) {
        Ok(()) => lanes.sent(&unsent),
        Err(error) => debug!(%error, "offsets are not committed"),
    }
}

/// Waits for a message, and takes those that have arrived behind it. It costs more to wake the worker than to take a
/// message, and more still to ask about a topic: messages that wait for that are all taken before it.
fn poll(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes, origins: &Origins) {
    let mut added = 0;
    while added < WOKEN_FOR || (lanes.is_doubtful() && added < MOST_AT_ONCE) {
        match consumer.poll(if added == 0 { POLL } else { Duration::ZERO }) {
            None => break,
            Some(Ok(message)) => receive(consumer, lanes, origins, &message),
            Some(Err(error)) => {
                report(consumer, lanes, error);
                break;
            }
        }
        added += 1;
    }
    if added > 0 {
        if lanes.is_doubtful() {
            // If the broker does not tell, it is asked again within a second.
            check(consumer);
        }
        lanes.wake();
    }
}

/// Resumes partitions that have room again. What fails is tried again at the next turn.
fn resume(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes) {
    let resumable = lanes.resumable();
    if resumable.is_empty() {
        return;
    }
    match consumer.resume(&bare_list(&resumable)) {
        Ok(()) => lanes.resumed(&resumable),
        Err(error) => warn!(%error, "cannot resume partitions of Kafka"),
    }
}

fn receive(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes, origins: &Origins, message: &BorrowedMessage<'_>) {
    let Some(partition) = consumer.context().partition(message.topic(), message.partition()) else { return };
    let Some(origin) = origins.get(&partition.0) else { return };
    let must_pause = lanes.push(&partition, message.offset(), read(message, origin));
    if must_pause && let Err(error) = consumer.pause(&bare_list(&[partition])) {
        warn!(%error, "cannot pause a partition of Kafka");
    }
}

fn read(message: &BorrowedMessage<'_>, origin: &Arc<str>) -> Message {
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    Message {
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers: read_headers(message),
        ordering_key: message.key().map(Bytes::copy_from_slice),
        coordinates: Some(Coordinates {
            origin: Arc::clone(origin),
            partition: u32::try_from(message.partition()).unwrap_or_default(),
            position: Position::Number(u64::try_from(message.offset()).unwrap_or_default()),
        }),
        timestamp: millis.map(|millis| Timestamp(millis.saturating_mul(1000))),
        damage: None,
    }
}

fn read_headers(message: &BorrowedMessage<'_>) -> Headers {
    let (mut headers, mut unreadable) = (Headers::default(), 0);
    let Some(borrowed) = message.headers() else { return headers };
    for index in 0..borrowed.count() {
        // The driver panics if a name is not UTF-8, and any producer can write such a name.
        match catch_unwind(AssertUnwindSafe(|| borrowed.try_get(index))) {
            Ok(Some(header)) => headers.push(header.key, Bytes::copy_from_slice(header.value.unwrap_or_default())),
            Ok(None) => {}
            Err(_panic) => unreadable += 1,
        }
    }
    if unreadable > 0 {
        warn!(
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            unreadable,
            "a record of Kafka has headers whose names are not UTF-8; they are left out"
        );
    }
    headers
}

fn report(consumer: &BaseConsumer<Rebalancer>, lanes: &SharedLanes, error: KafkaError) {
    use RDKafkaErrorCode as Code;
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    let told: Error = match &error {
        KafkaError::MessageConsumptionFatal(Code::FencedInstanceId) => {
            unusable("another process of the group has the same `member` name")
        }
        KafkaError::MessageConsumptionFatal(_) => unusable("the Kafka driver cannot go on"),
        KafkaError::MessageConsumption(Code::AutoOffsetReset) => {
            match consumer.context().check_topics(consumer) {
                Ok(true) => return,
                Ok(false) => {}
                // Perhaps it is another topic. A new driver takes up the partitions once the broker tells.
                Err(_) => return consumer.context().seen.lock().doubt(),
            }
            unusable(
                "the broker no longer has the committed offset of a partition, so messages are lost; set the offset \
                 of the group, then start again",
            )
        }
        KafkaError::MessageConsumption(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed) => {
            unusable("the Kafka broker denies access")
        }
        KafkaError::MessageConsumption(Code::Authentication) => unusable("the Kafka broker refuses the credentials"),
        KafkaError::MessageConsumption(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            if is_about_topics(consumer) {
                return;
            }
            not_applied("the Kafka broker has no such topic or partition now")
        }
        _ => not_applied("the Kafka broker cannot be reached or does not serve a request"),
    };
    if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
        // The driver takes no partition away after that.
        lanes.lose_all();
    }
    lanes.fail(told.caused_by(error));
}

/// Whether the cause of an error is a topic that was deleted or created again. If so, its lanes are lost.
fn is_about_topics(consumer: &BaseConsumer<Rebalancer>) -> bool {
    consumer.context().check_topics(consumer).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use hapax_core::ErrorKind;
    use hapax_core::broker::{Event, Room};
    use hapax_core::runtime::Tokio;

    use super::super::lanes::TakenUp;
    use super::super::progress::LaneProgress;
    use super::*;

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]
    async fn a_panic_of_the_thread_takes_the_lanes_away_and_ends_the_source() {
        let lanes = SharedLanes::new(Arc::new(Tokio::current()));
        let progress = LaneProgress::new(None);
        lanes.add(vec![TakenUp { partition: ("orders".into(), 0), note: None, progress }]);
        fail_on_panic(&lanes, || panic!("in the driver"));
        let room = Room { messages: 1, bytes: 1, closed: Arc::default() };
        assert!(matches!(lanes.next(&room), Ok(Some(Event::Lost { lanes })) if lanes.len() == 1));
        assert_eq!(lanes.next(&room).unwrap_err().kind(), ErrorKind::Unusable);
        tokio::time::timeout(POLL, lanes.changed()).await.expect("the worker is woken");
    }
}
