//! Deliveries whose lease ends while they wait in the worker.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    Acknowledges, Capability, Delivery, DeliveryId, Event, Headers, Job, Lane, Message, Process, Room, Settle,
    Settlement, Source, Verdict,
};
use hapax_core::runtime::Runtime;
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result};
use hapax_testkit::{MemoryDeadLetters, VirtualTime};

/// The first delivery. Its lease has ended when the worker asks.
const LAPSED: u64 = 1;

/// A queue that keeps the order of a key: while one message is given back, no later one is delivered.
///
/// It delivers "first" and "second". When "second" has come back, it delivers both again.
#[derive(Debug)]
struct LeasedQueue {
    name: Arc<str>,
    delivered: u64,
    settler: Arc<LeasedSettler>,
}

#[derive(Debug, Default)]
struct LeasedSettler(Mutex<Vec<(u64, Settlement)>>);

impl LeasedQueue {
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
            lease: None,
            keeps_order: false,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settler) as _
    }

    async fn next(&mut self, _room: Room) -> Result<Event> {
        let is_given_back = self.settler.settled().contains(&(2, Settlement::Retry(Duration::ZERO)));
        if self.delivered == 0 || (self.delivered == 2 && is_given_back) {
            return Ok(Event::Deliveries(vec![self.deliver("first"), self.deliver("second")]));
        }
        pending().await
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

impl LeasedSettler {
    fn settled(&self) -> Vec<(u64, Settlement)> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Settle for LeasedSettler {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let numbered = settlements.iter().map(|(id, settlement)| (id.number, *settlement));
        self.0.lock().unwrap().extend(numbered);
        settlements.iter().map(|_| Ok(())).collect()
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        Ok(())
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        delivery.number != LAPSED
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

#[test]
fn a_later_message_of_a_key_does_not_overtake_one_whose_lease_has_ended() {
    for batch in [1, 8] {
        let time = VirtualTime::new(1);
        let process = time.process();
        let (settler, log) = (Arc::<LeasedSettler>::default(), Arc::<RunLog>::default());
        let queue = LeasedQueue { name: "queue".into(), delivered: 0, settler: Arc::clone(&settler) };
        let mut settings = WorkerSettings::default();
        settings.batch = batch;
        let worker = Worker::builder(Box::new(queue), Arc::clone(&log) as _, Arc::new(MemoryDeadLetters::new()))
            .identity(MessageIdentity::new("group").unwrap())
            .settings(settings)
            .runtime(Arc::clone(&process) as _)
            .build()
            .unwrap();
        process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
        let has_ended = || settler.settled().contains(&(4, Settlement::Ack)).then_some(());
        let ended = time.run_until(Duration::from_secs(60), has_ended);
        let ran = log.0.lock().unwrap().clone();
        assert_eq!((ended, ran), (Some(()), vec![Bytes::from("first"), Bytes::from("second")]), "batches of {batch}");
        assert_eq!(settler.settled().iter().filter(|(number, _)| *number == LAPSED).count(), 0);
    }
}
