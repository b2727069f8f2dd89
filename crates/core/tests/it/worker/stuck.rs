//! A handler that does not return, and a source that fails while its lanes are revoked.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    Acknowledges, Capability, Delivery, DeliveryId, Event, Headers, Job, Lane, Message, Process, Room, Settle,
    Settlement, Source, Verdict,
};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result, telemetry};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, VirtualTime};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use tracing::Level;

use crate::journal_folder::collect_logs;

/// Runs each batch for as long as it says.
struct Sleeper {
    runtime: Arc<dyn Runtime>,
    length: Option<Duration>,
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleeper")
    }
}

#[async_trait]
impl Process for Sleeper {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        timeout(&*self.runtime, self.length.unwrap_or(Duration::from_secs(86_400)), pending::<()>()).await;
        jobs.iter().map(|_| Verdict::Done { caught: false }).collect()
    }
}

fn message() -> Message {
    let headers: Headers = [("idempotency-key", "1")].into_iter().collect();
    Message { payload: "five".into(), headers, ..Message::default() }
}

fn start(time: &VirtualTime, source: Box<dyn Source>, length: Option<Duration>) {
    let process = time.process();
    let sleeper = Sleeper { runtime: Arc::clone(&process) as _, length };
    let worker = Worker::builder(source, Arc::new(sleeper), Arc::new(MemoryDeadLetters::new()))
        .identity(MessageIdentity::new("group").unwrap())
        .settings(WorkerSettings::default())
        .runtime(Arc::clone(&process) as _)
        .build()
        .unwrap();
    process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
}

/// Keeps the gauge of the batch that runs longest.
#[derive(Default)]
struct LongestRunning(Arc<AtomicU64>);

impl Recorder for LongestRunning {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let is_ours = key.name() == telemetry::names::WORKER_RUNNING_SECONDS;
        if is_ours { Gauge::from_arc(Arc::clone(&self.0)) } else { Gauge::noop() }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_handler_that_does_not_return_is_measured_and_logged_once_a_minute() {
    let recorder = LongestRunning::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let ((), lines) = collect_logs(Level::WARN, || {
        let time = VirtualTime::new(1);
        let broker = MemoryBroker::prefix(time.process(), 1);
        start(&time, broker.source(), None);
        broker.publish(0, message());
        time.run_until(Duration::from_secs(250), || None::<()>);
    });
    let seconds = f64::from_bits(recorder.0.load(Ordering::Relaxed));
    assert!((240.0..=250.0).contains(&seconds), "{seconds}");
    // From 2 minutes on.
    let lines: Vec<&String> = lines.iter().filter(|line| line.contains("has not returned")).collect();
    assert!(lines.len() == 3 && lines[0].contains("topic"), "{lines:?}");
    assert!(!lines[0].contains("five"), "{lines:?}");
}

#[test]
fn a_handler_that_returns_is_not_logged() {
    let ((), lines) = collect_logs(Level::WARN, || {
        let time = VirtualTime::new(1);
        let broker = MemoryBroker::prefix(time.process(), 1);
        start(&time, broker.source(), Some(Duration::from_secs(100)));
        broker.publish(0, message());
        time.run_until(Duration::from_secs(250), || None::<()>);
    });
    assert!(!lines.iter().any(|line| line.contains("has not returned")), "{lines:?}");
}

/// When lanes are revoked, since the start.
const REVOKED_AT: Duration = Duration::from_secs(30);

/// Delivers one message, then fails, and takes the lane away at its time.
struct FailingSource {
    name: Arc<str>,
    runtime: Arc<dyn Runtime>,
    message: Option<Delivery>,
    seen: Arc<Seen>,
}

/// When things happened.
struct Seen {
    runtime: Arc<dyn Runtime>,
    learned: Mutex<Option<Duration>>,
    acknowledged: Mutex<Option<Duration>>,
    left: Mutex<Option<Duration>>,
}

impl fmt::Debug for FailingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailingSource")
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seen")
    }
}

#[async_trait]
impl Source for FailingSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        let acknowledges = Acknowledges::Prefix;
        Capability {
            acknowledges,
            redelivers: false,
            delays: false,
            lease: None,
            keeps_order: false,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.seen) as _
    }

    async fn next(&mut self, _room: Room) -> Result<Event> {
        if let Some(message) = self.message.take() {
            return Ok(Event::Deliveries(vec![message]));
        }
        let now = self.runtime.boottime_now();
        if now < REVOKED_AT {
            return Err(Error::new(ErrorKind::NotApplied, "the broker is away"));
        }
        if self.seen.learned.lock().is_some() {
            pending::<()>().await;
        }
        *self.seen.learned.lock() = Some(now);
        Ok(Event::Revoking { lanes: vec![lane()], until: REVOKED_AT + Duration::from_secs(10) })
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Settle for Seen {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        *self.acknowledged.lock() = Some(self.runtime.boottime_now());
        settlements.iter().map(|_| Ok(())).collect()
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        *self.left.lock() = Some(self.runtime.boottime_now());
        Ok(())
    }

    async fn lag(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

fn lane() -> Lane {
    Lane { topic: "topic".into(), partition: 0, generation: 1 }
}

#[test]
fn a_revocation_in_the_pause_after_failures_is_learned_soon_and_what_runs_is_committed() {
    let time = VirtualTime::new(1);
    let runtime: Arc<dyn Runtime> = time.process();
    let begun = runtime.boottime_now();
    assert!(begun < Duration::from_secs(5), "{begun:?}");
    let (learned, acknowledged, left) = (Mutex::default(), Mutex::default(), Mutex::default());
    let seen = Arc::new(Seen { runtime: Arc::clone(&runtime), learned, acknowledged, left });
    let id = DeliveryId { lane: lane(), number: 0, handle: Bytes::new() };
    let delivery = Delivery { id, message: Arc::new(message()), attempt: None, leased_until: None };
    let source = FailingSource { name: "source".into(), runtime, message: Some(delivery), seen: Arc::clone(&seen) };
    // It ends eight seconds after the revocation.
    start(&time, Box::new(source), Some(REVOKED_AT + Duration::from_secs(8)));
    let left = time.run_until(Duration::from_secs(60), || *seen.left.lock()).expect("the lane is left");
    let learned = seen.learned.lock().unwrap();
    assert!(learned <= REVOKED_AT + Duration::from_secs(1), "{learned:?}");
    let acknowledged = seen.acknowledged.lock().expect("an acknowledgement");
    assert!(acknowledged <= left && left < REVOKED_AT + Duration::from_secs(10), "{acknowledged:?} {left:?}");
}
