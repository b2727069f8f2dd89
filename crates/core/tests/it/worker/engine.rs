//! What only the engine decides: room, failures of the broker, and settings.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{Capability, Event, Headers, Job, Message, Process, Room, Settle, Source, Verdict};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, VirtualTime};

/// Takes 10 ms for each batch.
struct SlowCounter {
    runtime: Arc<dyn Runtime>,
    done: AtomicUsize,
}

impl fmt::Debug for SlowCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlowCounter")
    }
}

#[async_trait]
impl Process for SlowCounter {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        timeout(&*self.runtime, Duration::from_millis(10), pending::<()>()).await;
        self.done.fetch_add(jobs.len(), Ordering::AcqRel);
        jobs.iter().map(|_| Verdict::Done { caught: false }).collect()
    }
}

struct Bench {
    time: VirtualTime,
    broker: MemoryBroker,
    counter: Arc<SlowCounter>,
}

impl Bench {
    /// A worker on a topic with one partition.
    fn start(settings: WorkerSettings) -> Self {
        let time = VirtualTime::new(1);
        let process = time.process();
        let broker = MemoryBroker::prefix(time.process(), 1);
        let counter = Arc::new(SlowCounter { runtime: Arc::clone(&process) as _, done: AtomicUsize::new(0) });
        let worker = Worker::builder(broker.source(), Arc::clone(&counter) as _, Arc::new(MemoryDeadLetters::new()))
            .identity(MessageIdentity::new("group").unwrap())
            .settings(settings)
            .runtime(Arc::clone(&process) as _)
            .build()
            .unwrap();
        process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
        Self { time, broker, counter }
    }

    fn publish(&self, count: usize, payload: usize) {
        for n in 0..count {
            let headers: Headers = [("idempotency-key", n.to_string())].into_iter().collect();
            let payload = Bytes::from(vec![0; payload]);
            self.broker.publish(0, Message { payload, headers, ..Message::default() });
        }
    }

    fn finish(&self, count: usize) {
        let is_finished = || (self.broker.unfinished() == 0).then_some(());
        assert!(self.time.run_until(Duration::from_secs(600), is_finished).is_some(), "messages are left");
        assert_eq!(self.counter.done.load(Ordering::Acquire), count);
    }
}

#[test]
fn a_backlog_is_held_up_to_the_room_of_its_lane() {
    let mut settings = WorkerSettings::default();
    (settings.max_held, settings.batch, settings.concurrency) = (100, 8, 2);
    let bench = Bench::start(settings);
    bench.publish(2000, 10);
    bench.finish(2000);
    // Beside what is held, the ends of two batches that the broker has not confirmed.
    let most = bench.broker.most_in_hand();
    assert!((50..=100 + 2 * 8).contains(&most), "{most}");
}

#[test]
fn a_backlog_is_held_up_to_the_room_in_bytes() {
    let mut settings = WorkerSettings::default();
    // A message counts as 1 KiB more than its payload.
    (settings.max_held_bytes, settings.batch, settings.concurrency) = (10 * 2024, 4, 1);
    let bench = Bench::start(settings);
    bench.publish(200, 1000);
    bench.finish(200);
    let most = bench.broker.most_in_hand();
    assert!((5..=11 + 4).contains(&most), "{most}");
}

#[test]
fn a_message_larger_than_the_room_is_processed_alone() {
    let mut settings = WorkerSettings::default();
    settings.max_held_bytes = 100;
    let bench = Bench::start(settings);
    bench.publish(3, 1000);
    bench.finish(3);
    // One is held, and one may have an end that the broker has not confirmed.
    assert!(bench.broker.most_in_hand() <= 2);
}

#[test]
fn a_broker_that_confirms_nothing_for_a_while_gets_the_position_again() {
    let bench = Bench::start(WorkerSettings::default());
    bench.broker.fail_settlements(20);
    bench.publish(10, 1);
    bench.finish(10);
}

/// A source that cannot be used, and counts how often it is asked to read no more.
#[derive(Debug)]
struct BrokenSource {
    inner: Box<dyn Source>,
    stops: Arc<AtomicUsize>,
}

#[async_trait]
impl Source for BrokenSource {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn settler(&self) -> Arc<dyn Settle> {
        self.inner.settler()
    }

    async fn next(&mut self, _room: Room) -> Result<Event> {
        Err(Error::new(ErrorKind::Unusable, "the topic is gone"))
    }

    async fn stop_reading(&mut self) {
        self.stops.fetch_add(1, Ordering::AcqRel);
    }

    async fn close(&mut self) -> Result<()> {
        self.inner.close().await
    }
}

#[test]
fn a_source_that_cannot_be_used_is_asked_to_read_no_more_before_the_worker_ends() {
    let time = VirtualTime::new(1);
    let process = time.process();
    let counter = Arc::new(SlowCounter { runtime: Arc::clone(&process) as _, done: AtomicUsize::new(0) });
    let (inner, stops) = (MemoryBroker::prefix(time.process(), 1).source(), Arc::new(AtomicUsize::new(0)));
    let source = BrokenSource { inner, stops: Arc::clone(&stops) };
    let worker = Worker::builder(Box::new(source), counter, Arc::new(MemoryDeadLetters::new()))
        .identity(MessageIdentity::new("group").unwrap())
        .runtime(Arc::clone(&process) as _)
        .build()
        .unwrap();
    let has_ended = Arc::new(AtomicUsize::new(0));
    let ended = Arc::clone(&has_ended);
    process.spawn(Box::pin(async move {
        assert_eq!(worker.run(pending()).await.map_err(|error| error.kind()), Err(ErrorKind::Unusable));
        ended.store(1, Ordering::Release);
    }));
    let ended = time.run_until(Duration::from_secs(60), || (has_ended.load(Ordering::Acquire) == 1).then_some(()));
    assert!(ended.is_some(), "the worker does not end");
    assert_eq!(stops.load(Ordering::Acquire), 1);
}

#[test]
fn a_worker_with_nothing_to_run_at_once_is_refused() {
    let time = VirtualTime::new(1);
    let process = time.process();
    let counter = Arc::new(SlowCounter { runtime: Arc::clone(&process) as _, done: AtomicUsize::new(0) });
    let broker = MemoryBroker::prefix(Arc::clone(&process) as _, 1);
    let mut settings = WorkerSettings::default();
    settings.concurrency = 0;
    let builder = || Worker::builder(broker.source(), Arc::clone(&counter) as _, Arc::new(MemoryDeadLetters::new()));
    let builder = || builder().runtime(Arc::clone(&process) as _);
    assert!(builder().build().is_err(), "without a namespace");
    let identity = MessageIdentity::new("group").unwrap();
    assert!(builder().identity(identity).settings(settings).build().is_err());
}
