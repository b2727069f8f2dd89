//! What only the engine decides: room, failures of the broker, and settings.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    Capability, DeliveryId, Event, Headers, Job, Lane, Message, Process, Room, Settle, Settlement, Source, Verdict,
};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::telemetry::names;
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, VirtualTime};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

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
        Self::start_on(1, settings)
    }

    fn start_on(partitions: u32, settings: WorkerSettings) -> Self {
        let time = VirtualTime::new(1);
        let process = time.process();
        let broker = MemoryBroker::prefix(time.process(), partitions);
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
        self.publish_to(0, count, payload);
    }

    fn publish_to(&self, partition: u32, count: usize, payload: usize) {
        for n in 0..count {
            let headers: Headers = [("idempotency-key", n.to_string())].into_iter().collect();
            let payload = Bytes::from(vec![0; payload]);
            self.broker.publish(partition, Message { payload, headers, ..Message::default() });
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

#[test]
fn each_partition_gets_its_position_again_after_calls_that_failed() {
    let bench = Bench::start_on(2, WorkerSettings::default());
    bench.broker.fail_settlements(20);
    (0..2).for_each(|partition| bench.publish_to(partition, 10, 1));
    bench.finish(20);
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

/// A source whose broker tells this lag.
#[derive(Debug)]
struct LaggingSource {
    inner: Box<dyn Source>,
    lag: Option<u64>,
}

#[async_trait]
impl Source for LaggingSource {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::new(LaggingSettler { inner: self.inner.settler(), lag: self.lag })
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        self.inner.next(room).await
    }

    async fn close(&mut self) -> Result<()> {
        self.inner.close().await
    }
}

#[derive(Debug)]
struct LaggingSettler {
    inner: Arc<dyn Settle>,
    lag: Option<u64>,
}

#[async_trait]
impl Settle for LaggingSettler {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        self.inner.settle(settlements).await
    }

    async fn leave(&self, lanes: &[Lane]) -> Result<()> {
        self.inner.leave(lanes).await
    }

    async fn lag(&self) -> Result<Option<u64>> {
        Ok(self.lag)
    }
}

/// The gauges of a worker by name, as the bits of their values.
#[derive(Debug, Default)]
struct GaugeRecorder(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl GaugeRecorder {
    fn value(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap().get(name).map(|bits| f64::from_bits(bits.load(Ordering::Acquire)))
    }
}

impl Recorder for GaugeRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::clone(self.0.lock().unwrap().entry(key.name().to_owned()).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_lag_is_shown_as_the_broker_tells_it_and_an_unknown_one_is_not_shown() {
    for lag in [None, Some(0), Some(7)] {
        let recorder = GaugeRecorder::default();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let time = VirtualTime::new(1);
        let process = time.process();
        let counter = Arc::new(SlowCounter { runtime: Arc::clone(&process) as _, done: AtomicUsize::new(0) });
        let source = LaggingSource { inner: MemoryBroker::prefix(time.process(), 1).source(), lag };
        let worker = Worker::builder(Box::new(source), counter, Arc::new(MemoryDeadLetters::new()))
            .identity(MessageIdentity::new("group").unwrap())
            .runtime(Arc::clone(&process) as _)
            .build()
            .unwrap();
        process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
        // The gauges are set every five seconds.
        assert_eq!(time.run_until(Duration::from_secs(12), || None::<()>), None);
        assert!(recorder.value(names::WORKER_IN_FLIGHT).is_some(), "{recorder:?}");
        assert_eq!(recorder.value(names::WORKER_LAG), lag.map(|lag| lag as f64), "{recorder:?}");
    }
}

#[test]
fn a_worker_with_a_number_of_0_is_refused() {
    let time = VirtualTime::new(1);
    let process = time.process();
    let counter = Arc::new(SlowCounter { runtime: Arc::clone(&process) as _, done: AtomicUsize::new(0) });
    let broker = MemoryBroker::prefix(Arc::clone(&process) as _, 1);
    let builder = || Worker::builder(broker.source(), Arc::clone(&counter) as _, Arc::new(MemoryDeadLetters::new()));
    let builder = || builder().runtime(Arc::clone(&process) as _);
    assert!(builder().build().is_err(), "without a namespace");
    let build = |settings| builder().identity(MessageIdentity::new("group").unwrap()).settings(settings).build();
    assert!(build(WorkerSettings::default()).is_ok());
    let with = |set: fn(&mut WorkerSettings)| {
        let mut settings = WorkerSettings::default();
        set(&mut settings);
        settings
    };
    let numbers = [
        ("concurrency", with(|settings| settings.concurrency = 0)),
        ("batch", with(|settings| settings.batch = 0)),
        ("max_held", with(|settings| settings.max_held = 0)),
        ("max_held_bytes", with(|settings| settings.max_held_bytes = 0)),
        ("max_panics", with(|settings| settings.max_panics = 0)),
    ];
    for (name, settings) in numbers {
        let error = build(settings).expect_err(name);
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}
