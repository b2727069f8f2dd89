//! What a source learns of the pauses of its worker, and the end of a message before its broker drops it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{
    Acknowledges, BrokerLease, Capability, DeadReason, Event, Headers, Job, MemoryDeadLetterStore, Message, Pause,
    Process, Room, Settle, Source, Verdict,
};
use hapax_core::runtime::Runtime;
use hapax_core::worker::{MessageIdentity, RedriveSource, Worker};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, VirtualTime};
use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_secs(5);

/// Keeps each change of the pause.
#[derive(Debug)]
struct WatchedSource {
    inner: Box<dyn Source>,
    pauses: Arc<Mutex<Vec<Option<Pause>>>>,
}

#[async_trait]
impl Source for WatchedSource {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn settler(&self) -> Arc<dyn Settle> {
        self.inner.settler()
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        self.inner.next(room).await
    }

    fn note_pause(&mut self, pause: Option<Pause>) {
        let mut pauses = self.pauses.lock();
        if pauses.last() != Some(&pause) {
            pauses.push(pause);
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.inner.close().await
    }
}

/// Ends the jobs of each batch with the next verdict, and all later ones with the last.
#[derive(Debug)]
struct Scripted(Mutex<Vec<Verdict>>);

#[async_trait]
impl Process for Scripted {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let mut verdicts = self.0.lock();
        let verdict = if verdicts.len() > 1 { verdicts.remove(0) } else { verdicts[0].clone() };
        vec![verdict; jobs.len()]
    }
}

struct Bench {
    time: VirtualTime,
    broker: MemoryBroker,
    dead: Arc<MemoryDeadLetters>,
    pauses: Arc<Mutex<Vec<Option<Pause>>>>,
}

impl Bench {
    /// A worker on a queue with one message.
    fn start(delivery_limit: Option<u32>, verdicts: Vec<Verdict>) -> Self {
        let time = VirtualTime::new(1);
        let process = time.process();
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: Duration::from_secs(600), longest: None }),
            keeps_order: false,
            delivery_limit,
        };
        let broker = MemoryBroker::queue(time.process(), capability);
        let (dead, pauses) = (Arc::new(MemoryDeadLetters::new()), Arc::default());
        let source = Box::new(WatchedSource { inner: broker.source(), pauses: Arc::clone(&pauses) });
        // As in `hapax worker`.
        let letters = Arc::new(MemoryDeadLetterStore::new(time.process()));
        let source = RedriveSource::new(source, letters, Arc::clone(&process) as _);
        let worker =
            Worker::builder(Box::new(source), Arc::new(Scripted(Mutex::new(verdicts))), Arc::clone(&dead) as _)
                .identity(MessageIdentity::new("group").unwrap())
                .runtime(Arc::clone(&process) as _)
                .build()
                .unwrap();
        process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
        let headers: Headers = [("idempotency-key", "order-1")].into_iter().collect();
        broker.publish(0, Message { headers, ..Message::default() });
        Self { time, broker, dead, pauses }
    }

    fn finish(&self) {
        let is_finished = || (self.broker.unfinished() == 0).then_some(());
        assert!(self.time.run_until(Duration::from_secs(600), is_finished).is_some(), "the message is left");
    }
}

#[test]
fn a_source_learns_the_beginning_of_pauses_that_follow_each_other_and_their_end() {
    let (pause, done) = (Verdict::Pause { after: PAUSE }, Verdict::Done { caught: false });
    let bench = Bench::start(None, vec![pause.clone(), pause.clone(), pause, done]);
    bench.finish();
    let pauses = bench.pauses.lock().clone();
    let [None, Some(first), Some(second), Some(third), None] = &pauses[..] else { panic!("{pauses:?}") };
    assert_eq!((second.since, third.since), (first.since, first.since), "{pauses:?}");
    assert_eq!(first.until, first.since + PAUSE);
    assert!(second.until >= first.until + PAUSE && third.until >= second.until + PAUSE, "{pauses:?}");
}

#[test]
fn a_message_that_its_broker_would_drop_soon_is_a_dead_letter() {
    let bench = Bench::start(Some(5), vec![Verdict::Retry { after: Duration::from_secs(1) }]);
    bench.finish();
    let letters = bench.dead.letters();
    let reasons: Vec<_> = letters.iter().map(|letter| (letter.reason, letter.operation.is_some())).collect();
    assert_eq!(reasons, [(DeadReason::DeliveriesExhausted, true)], "a redrive finds its record");
}
