//! Letters that are redriven, by workers that stop, die and run beside each other.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::broker::{
    DeadLetterStore, DeadReason, Headers, Job, LetterChange, LetterWord, ListedLetter, MemoryDeadLetterStore, Message,
    Process, Verdict,
};
use hapax_core::gate::{Failure, Reason};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::{Memory, MemorySettings, Store};
use hapax_core::worker::{MessageIdentity, RecordReopener, RedriveSource, Worker, WorkerSettings};
use hapax_core::{Call, Gate, Policy, Settings};
use hapax_testkit::{MemoryBroker, ProcessPart, VirtualTime};

/// How each run of the handler ends, in order. The last one holds for all further runs.
#[derive(Clone, Copy, Debug)]
enum Run {
    /// Its outcome is unknown.
    Unknown,
    /// Nothing was applied, and the next attempt is a minute later.
    Refused,
    /// It never ends.
    Hangs,
    /// It ends well after this time.
    Takes(Duration),
}

/// Runs messages behind a gate, as a worker without a ledger does.
struct GatedHandler {
    gate: Gate,
    runtime: Arc<dyn Runtime>,
    runs: &'static [Run],
    begun: Arc<AtomicUsize>,
}

impl fmt::Debug for GatedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatedHandler")
    }
}

#[async_trait]
impl Process for GatedHandler {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for job in jobs {
            let call = Call::new(job.record_key).fingerprint(job.call.newest_fingerprint());
            let (begun, runtime, runs) = (Arc::clone(&self.begun), Arc::clone(&self.runtime), self.runs);
            let ran = self.gate.run(call, async move |_| {
                let number = begun.fetch_add(1, Ordering::AcqRel);
                match runs[number.min(runs.len() - 1)] {
                    Run::Unknown => Err(Failure::unknown("the answer was lost")),
                    Run::Refused => Err(Failure::not_applied("not now")),
                    Run::Hangs => std::future::pending().await,
                    Run::Takes(time) => {
                        timeout(&*runtime, time, std::future::pending::<()>()).await;
                        Ok(Bytes::from_static(b"applied"))
                    }
                }
            });
            verdicts.push(match ran.await.map_err(|refused| refused.reason) {
                Ok(_) => Verdict::Done { caught: false },
                Err(Reason::NotApplied { .. }) => Verdict::Retry { after: Duration::from_secs(60) },
                Err(Reason::Busy { retry_after }) => Verdict::Busy { after: retry_after },
                Err(_) => Verdict::dead(DeadReason::OutcomeUnknown, 1),
            });
        }
        verdicts
    }
}

fn one_slot() -> WorkerSettings {
    let mut settings = WorkerSettings::default();
    settings.concurrency = 1;
    settings
}

/// A store of records and letters, and the workers of two processes.
struct Bench {
    time: VirtualTime,
    processes: [Arc<hapax_testkit::Process>; 2],
    broker: MemoryBroker,
    store: Arc<dyn Store>,
    letters: Arc<MemoryDeadLetterStore>,
    runs: &'static [Run],
    begun: Arc<AtomicUsize>,
}

impl Bench {
    /// One message whose first run has an unknown outcome, and its dead letter. The first process has a worker.
    fn new(runs: &'static [Run]) -> Self {
        Self::with_broker(runs, |runtime| MemoryBroker::each(runtime, Duration::from_secs(10)))
    }

    fn with_broker(runs: &'static [Run], broker: impl FnOnce(Arc<dyn Runtime>) -> MemoryBroker) -> Self {
        let time = VirtualTime::new(1);
        let processes = [time.process(), time.process()];
        let server = || time.process() as Arc<dyn Runtime>;
        let bench = Self {
            broker: broker(server()),
            store: Arc::new(Memory::with(server(), MemorySettings::default())),
            letters: Arc::new(MemoryDeadLetterStore::new(server())),
            begun: Arc::default(),
            runs,
            processes,
            time,
        };
        bench.publish("order-1");
        bench.start_worker(0);
        bench.wait_for("there is a dead letter", || bench.is_dead() && bench.broker.unfinished() == 0);
        bench
    }

    fn publish(&self, key: &'static str) {
        let headers: Headers = [("idempotency-key", key)].into_iter().collect();
        self.broker.publish(0, Message { payload: "five".into(), headers, ..Message::default() });
    }

    fn start_worker(&self, process: usize) {
        let process = &self.processes[process];
        let runtime = Arc::clone(process) as Arc<dyn Runtime>;
        let (policy, identity) = (Policy::default(), MessageIdentity::new("group").unwrap());
        let gate = Gate::builder(Arc::clone(&self.store), Settings::default()).runtime(Arc::clone(&runtime));
        let handler = GatedHandler {
            gate: gate.build().unwrap(),
            runtime: Arc::clone(&runtime),
            runs: self.runs,
            begun: Arc::clone(&self.begun),
        };
        let processed = Bytes::from_static(b"applied");
        let reopen = RecordReopener::new(Arc::clone(&self.store), identity.clone(), &policy, processed);
        let letters = Arc::clone(&self.letters);
        let source = RedriveSource::reopening(
            self.broker.source(),
            Arc::clone(&letters) as _,
            Arc::clone(&runtime),
            Arc::new(reopen),
        );
        let worker = Worker::builder(Box::new(source), Arc::new(handler), letters)
            .identity(identity)
            .settings(one_slot())
            .runtime(runtime)
            .build()
            .unwrap();
        process.spawn(Box::pin(async move { assert!(worker.run(std::future::pending()).await.is_ok()) }));
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let held = self.time.run_until(Duration::from_secs(600), || holds().then_some(()));
        assert!(held.is_some(), "{what}: {:?}", self.listed());
    }

    fn listed(&self) -> Vec<ListedLetter> {
        self.letters.list(None, 10).now_or_never().unwrap().unwrap()
    }

    /// Whether the only letter waits for an operator.
    fn is_dead(&self) -> bool {
        let listed = self.listed();
        let [letter] = &listed[..] else { return false };
        letter.marked_at.is_none() && letter.reason == DeadReason::OutcomeUnknown
    }

    fn redrive(&self, word: Option<LetterWord>) {
        let letter = &self.listed()[0];
        let change = self.letters.mark(letter.id, &letter.seen, word).now_or_never().unwrap().unwrap();
        assert_eq!(change, LetterChange::Yes);
    }

    /// Drops the only letter, as its list shows it now.
    fn drop_letter(&self) -> LetterChange {
        let letter = self.listed().remove(0);
        self.letters.remove(letter.id, &letter.seen).now_or_never().unwrap().unwrap()
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Acquire)
    }
}

#[test]
fn the_word_of_an_operator_is_used_up_although_the_worker_dies_in_the_redriven_attempt() {
    let bench = Bench::new(&[Run::Unknown, Run::Hangs]);
    bench.redrive(Some(LetterWord::NotDone));
    bench.wait_for("the message runs again", || bench.begun() == 2);
    bench.processes[0].crash();
    bench.start_worker(1);
    bench.wait_for("the message is dead again", || bench.is_dead());
    bench.time.run_for(Duration::from_secs(600));
    assert_eq!(bench.begun(), 2, "it ran once more without a new word");
    assert!(bench.is_dead());
    bench.redrive(Some(LetterWord::NotDone));
    bench.wait_for("the message runs again", || bench.begun() == 3);
}

#[test]
fn without_a_record_an_unknown_outcome_is_dead_again_and_its_mark_is_gone() {
    const RUNS: &[Run] = &[Run::Unknown, Run::Takes(Duration::from_secs(1))];
    let bench = Bench::new(RUNS);
    let unknown_retention = Policy::default().unknown_retention;
    bench.processes[0].crash();
    bench.time.run_for(unknown_retention + Duration::from_secs(1));
    bench.start_worker(1);
    let before = bench.listed().remove(0);
    bench.redrive(None);
    bench.wait_for("the message is dead again", || bench.is_dead());
    assert_ne!(bench.listed()[0].seen, before.seen);
    assert_eq!((bench.begun(), bench.listed()[0].attempts), (1, before.attempts));
    bench.redrive(Some(LetterWord::NotDone));
    bench.wait_for("the letter is gone", || bench.listed().is_empty());
    assert_eq!(bench.begun(), 2);
}

#[test]
fn a_letter_that_is_done_goes_away_and_does_not_run() {
    let bench = Bench::new(&[Run::Unknown]);
    bench.redrive(Some(LetterWord::Done));
    bench.wait_for("the letter is gone", || bench.listed().is_empty());
    bench.publish("order-1");
    bench.wait_for("a copy is caught", || bench.broker.unfinished() == 0);
    assert_eq!((bench.begun(), bench.listed().len()), (1, 0));
}

#[test]
fn a_letter_in_processing_belongs_to_one_worker_for_as_long_as_it_runs() {
    const RUNS: &[Run] = &[Run::Unknown, Run::Takes(Duration::from_secs(200))];
    let bench = Bench::new(RUNS);
    bench.start_worker(1);
    bench.redrive(Some(LetterWord::NotDone));
    bench.wait_for("the message runs again", || bench.begun() == 2);
    for _ in 0..18 {
        bench.time.run_for(Duration::from_secs(10));
        let letter = bench.listed().remove(0);
        let dropped = bench.letters.remove(letter.id, &letter.seen).now_or_never().unwrap().unwrap();
        assert!(matches!(dropped, LetterChange::Taken(_)), "{dropped:?}");
        let source = "memory/topic/group";
        let free = bench.letters.take_marked(source, 10, Duration::ZERO).now_or_never().unwrap().unwrap();
        assert!(free.is_empty(), "another worker may take it: {free:?}");
    }
    bench.wait_for("the letter is gone", || bench.listed().is_empty());
    assert_eq!(bench.begun(), 2);
}

#[test]
fn a_letter_that_waits_for_its_next_attempt_can_be_dropped() {
    const RUNS: &[Run] = &[Run::Unknown, Run::Refused];
    let each = Bench::new(RUNS);
    let prefix = Bench::with_broker(RUNS, |runtime| MemoryBroker::prefix(runtime, 1));
    for bench in [each, prefix] {
        bench.redrive(Some(LetterWord::NotDone));
        bench.wait_for("the message runs again", || bench.begun() == 2);
        bench.time.run_for(Duration::from_secs(5));
        let letter = bench.listed().remove(0);
        let dropped = bench.letters.remove(letter.id, &letter.seen).now_or_never().unwrap().unwrap();
        assert_eq!(dropped, LetterChange::Yes, "nobody processes it");
        bench.time.run_for(Duration::from_secs(600));
        assert_eq!((bench.begun(), bench.listed().len()), (2, 0), "it ran although it was dropped");
    }
}

#[test]
fn a_letter_that_was_dropped_while_its_worker_was_paused_does_not_run() {
    const RUNS: &[Run] = &[Run::Unknown, Run::Takes(Duration::from_secs(20)), Run::Takes(Duration::from_secs(1))];
    for is_dropped in [true, false] {
        let bench = Bench::new(RUNS);
        bench.publish("order-2");
        bench.wait_for("the only slot is taken", || bench.begun() == 2);
        bench.redrive(Some(LetterWord::NotDone));
        bench.time.run_for(Duration::from_secs(5));
        assert!(matches!(bench.drop_letter(), LetterChange::Taken(_)), "it waits for the slot");
        let parts = [ProcessPart::Tasks, ProcessPart::Threads];
        parts.into_iter().for_each(|part| bench.processes[0].pause(part));
        bench.time.run_for(Duration::from_secs(40));
        if is_dropped {
            assert_eq!(bench.drop_letter(), LetterChange::Yes, "its lease has ended");
        }
        parts.into_iter().for_each(|part| bench.processes[0].resume(part));
        bench.wait_for("the slot is free", || bench.broker.unfinished() == 0);
        bench.time.run_for(Duration::from_secs(120));
        // One that was not dropped is taken again, and runs once.
        assert_eq!((bench.begun(), bench.listed().len()), (if is_dropped { 2 } else { 3 }, 0));
    }
}

#[test]
fn a_letter_ends_although_an_earlier_one_waits_for_its_next_attempt() {
    const RUNS: &[Run] = &[Run::Unknown, Run::Unknown, Run::Refused, Run::Takes(Duration::from_secs(1))];
    let bench = Bench::with_broker(RUNS, |runtime| MemoryBroker::prefix(runtime, 1));
    bench.publish("order-2");
    bench.wait_for("there are two dead letters", || bench.listed().len() == 2 && bench.broker.unfinished() == 0);
    let second = bench.listed().remove(1).id;
    bench.redrive(Some(LetterWord::NotDone));
    bench.wait_for("the first one is refused", || bench.begun() == 3);
    let seen = bench.letters.find(second).now_or_never().unwrap().unwrap().unwrap().seen;
    let marked = bench.letters.mark(second, &seen, Some(LetterWord::NotDone)).now_or_never().unwrap().unwrap();
    assert_eq!(marked, LetterChange::Yes);
    bench.time.run_for(Duration::from_secs(20));
    let listed = bench.listed();
    assert!(listed.len() == 1 && listed[0].id != second, "{listed:?}");
    bench.wait_for("both are gone", || bench.listed().is_empty());
    assert_eq!(bench.begun(), 5);
}
