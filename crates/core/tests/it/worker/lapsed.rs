//! Deliveries whose leases end while they wait in the worker.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    Acknowledges, BrokerLease, Capability, DeadReason, Delivery, DeliveryId, Event, Headers, Job, Lane,
    MemoryDeadLetterStore, Message, Process, Room, Settle, Settlement, Source, Verdict,
};
use hapax_core::runtime::Runtime;
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result};
use hapax_testkit::VirtualTime;

/// So often a message is delivered that waits.
const AGAIN: u64 = 50;

/// A queue whose messages have one ordering key.
#[derive(Debug)]
struct LeasedQueue {
    name: Arc<str>,
    delivered: u64,
    script: QueueScript,
    settler: Arc<LeasedSettler>,
}

#[derive(Clone, Copy, Debug)]
enum QueueScript {
    /// It delivers "first" and "second". When "second" has come back, it delivers both again.
    DeliversAgainInOrder,
    /// It delivers "first", and after its end "second", which comes again and again.
    DeliversTheSecondAgain,
}

#[derive(Debug, Default)]
struct LeasedSettler {
    settled: Mutex<Vec<(u64, Settlement)>>,
    /// The leases of these deliveries and of all before have ended.
    lapsed: AtomicU64,
}

impl LeasedQueue {
    fn new(script: QueueScript) -> Self {
        Self { name: "queue".into(), delivered: 0, script, settler: Arc::default() }
    }

    fn deliver(&mut self, payload: &'static str) -> Delivery {
        self.delivered += 1;
        let lane = Lane { topic: "queue".into(), partition: 0, generation: 0 };
        let headers: Headers = [("idempotency-key", payload.to_owned())].into_iter().collect();
        let ordering_key = Some(Bytes::from_static(b"account"));
        let payload = Bytes::from_static(payload.as_bytes());
        Delivery {
            id: DeliveryId { lane, number: self.delivered, handle: Bytes::new() },
            message: Arc::new(Message { payload, headers, ordering_key, ..Message::default() }),
            attempt: None,
            leased_until: None,
        }
    }
}

#[async_trait]
impl Source for LeasedQueue {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: Duration::from_secs(3600), longest: None }),
            keeps_order: false,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settler) as _
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        let has_settled = |settled| self.settler.settled().contains(&settled);
        let payloads: &[&'static str] = match (self.script, self.delivered) {
            (QueueScript::DeliversAgainInOrder, 0) => &["first", "second"],
            (QueueScript::DeliversAgainInOrder, 2) if has_settled((2, Settlement::Retry(Duration::ZERO))) => {
                &["first", "second"]
            }
            (QueueScript::DeliversTheSecondAgain, 0) => &["first"],
            (QueueScript::DeliversTheSecondAgain, 1) if has_settled((1, Settlement::Ack)) => &["second"],
            (QueueScript::DeliversTheSecondAgain, 2..) if room.closed.is_empty() && self.delivered < AGAIN => {
                self.settler.lapsed.store(self.delivered, Ordering::Release);
                &["second"]
            }
            _ => &[],
        };
        if payloads.is_empty() {
            return pending().await;
        }
        Ok(Event::Deliveries(payloads.iter().map(|payload| self.deliver(payload)).collect()))
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

impl LeasedSettler {
    fn settled(&self) -> Vec<(u64, Settlement)> {
        self.settled.lock().unwrap().clone()
    }
}

#[async_trait]
impl Settle for LeasedSettler {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let numbered = settlements.iter().map(|(id, settlement)| (id.number, *settlement));
        self.settled.lock().unwrap().extend(numbered);
        settlements.iter().map(|_| Ok(())).collect()
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        Ok(())
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        delivery.number > self.lapsed.load(Ordering::Acquire)
    }

    async fn lag(&self) -> Result<Option<u64>> {
        Err(Error::new(ErrorKind::NotApplied, "the queue does not count"))
    }
}

/// Notes what runs, in order.
#[derive(Default)]
struct RunLog(Mutex<Vec<Bytes>>);

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunLog")
    }
}

#[async_trait]
impl Process for RunLog {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        self.0.lock().unwrap().extend(jobs.iter().map(|job| job.message.payload.clone()));
        jobs.iter().map(|_| Verdict::Done { caught: false }).collect()
    }
}

/// A worker that keeps later messages of a key back after a dead letter, if the second one is delivered again.
fn start(queue: LeasedQueue, process: Arc<dyn Process>, settings: WorkerSettings) -> VirtualTime {
    let parks = matches!(queue.script, QueueScript::DeliversTheSecondAgain);
    let time = VirtualTime::new(1);
    let runtime = time.process();
    let letters = Arc::new(MemoryDeadLetterStore::new(Arc::clone(&runtime) as _));
    let worker = Worker::builder(Box::new(queue), process, Arc::clone(&letters) as _)
        .identity(MessageIdentity::new("group").unwrap())
        .settings(settings)
        .runtime(Arc::clone(&runtime) as _);
    let worker = if parks { worker.park(letters) } else { worker }.build().unwrap();
    runtime.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
    time
}

#[test]
fn a_later_message_of_a_key_does_not_overtake_one_whose_lease_has_ended() {
    for batch in [1, 8] {
        let queue = LeasedQueue::new(QueueScript::DeliversAgainInOrder);
        let (settler, log) = (Arc::clone(&queue.settler), Arc::<RunLog>::default());
        settler.lapsed.store(1, Ordering::Release);
        let mut settings = WorkerSettings::default();
        settings.batch = batch;
        let time = start(queue, Arc::clone(&log) as _, settings);
        let has_ended = || settler.settled().contains(&(4, Settlement::Ack)).then_some(());
        let ended = time.run_until(Duration::from_secs(60), has_ended);
        let ran = log.0.lock().unwrap().clone();
        assert_eq!((ended, ran), (Some(()), vec![Bytes::from("first"), Bytes::from("second")]), "batches of {batch}");
        assert!(settler.settled().iter().all(|(number, _)| *number > 1), "nothing is settled without its lease");
    }
}

/// Refuses every message for good.
#[derive(Debug)]
struct Refusing;

#[async_trait]
impl Process for Refusing {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        vec![Verdict::dead(DeadReason::Rejected, 1); jobs.len()]
    }
}

#[test]
fn a_message_that_waits_for_a_dead_letter_is_held_once_although_it_arrives_again() {
    let queue = LeasedQueue::new(QueueScript::DeliversTheSecondAgain);
    let settler = Arc::clone(&queue.settler);
    let mut settings = WorkerSettings::default();
    settings.max_held = 10;
    let time = start(queue, Arc::new(Refusing), settings);
    let is_delivered = || (settler.lapsed.load(Ordering::Acquire) == AGAIN - 1).then_some(());
    assert!(time.run_until(Duration::from_secs(600), is_delivered).is_some(), "{settler:?}");
}
