//! Ordering keys that wait after a dead letter, and letters that are redriven.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadLetterStore, DeadLetters, DeadReason, Headers, Job, KeptLetter,
    LetterChange, LetterWord, ListedLetter, MarkedLetter, MemoryDeadLetterStore, Message, Process, SeenLetter, Verdict,
};
use hapax_core::runtime::Runtime;
use hapax_core::worker::{MessageIdentity, RedriveSource, Worker, WorkerSettings};
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use hapax_testkit::{MemoryBroker, VirtualTime};
use parking_lot::Mutex;

/// Notes what it processes, in order. While it is broken, a message whose payload begins with `poison` is dead.
struct Recorder {
    is_broken: AtomicBool,
    done: Mutex<Vec<String>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

#[async_trait]
impl Process for Recorder {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdict = |job: &Job| {
            let payload = String::from_utf8_lossy(&job.message.payload).into_owned();
            if payload.starts_with("poison") && self.is_broken.load(Ordering::Acquire) {
                return Verdict::dead(DeadReason::AttemptsExhausted, 8);
            }
            self.done.lock().push(payload);
            Verdict::Done { caught: false }
        };
        jobs.iter().map(verdict).collect()
    }
}

struct Bench {
    time: VirtualTime,
    process: Arc<hapax_testkit::Process>,
    broker: MemoryBroker,
    letters: Arc<FailingLetters>,
    recorder: Arc<Recorder>,
}

impl Bench {
    fn new(broker: impl FnOnce(Arc<dyn Runtime>) -> MemoryBroker) -> Self {
        let time = VirtualTime::new(1);
        let process = time.process();
        let letters = MemoryDeadLetterStore::new(Arc::clone(&process) as _);
        Self {
            broker: broker(time.process()),
            letters: Arc::new(FailingLetters {
                letters,
                failing: AtomicUsize::new(0),
                failing_puts: AtomicUsize::new(0),
                failing_looks: AtomicUsize::new(0),
            }),
            recorder: Arc::new(Recorder { is_broken: AtomicBool::new(true), done: Mutex::default() }),
            process,
            time,
        }
    }

    fn start_worker(&self, parks: bool) {
        self.start_worker_with(parks, WorkerSettings::default());
    }

    fn start_worker_with(&self, parks: bool, settings: WorkerSettings) {
        let (runtime, letters) = (Arc::clone(&self.process) as Arc<dyn Runtime>, Arc::clone(&self.letters));
        let source = RedriveSource::new(self.broker.source(), Arc::clone(&letters) as _, Arc::clone(&runtime));
        let recorder = Arc::clone(&self.recorder);
        let worker = Worker::builder(Box::new(source), recorder, Arc::clone(&letters) as _)
            .identity(MessageIdentity::new("group").unwrap())
            .settings(settings)
            .runtime(runtime);
        let worker = if parks { worker.park(letters) } else { worker }.build().unwrap();
        self.process.spawn(Box::pin(async move { assert!(worker.run(std::future::pending()).await.is_ok()) }));
    }

    fn publish(&self, key: &'static str, payload: &'static str) {
        // `no-id`: without a usable key.
        let id = (!payload.starts_with("no-id")).then_some(("idempotency-key", payload));
        let headers: Headers = id.into_iter().collect();
        let ordering_key = Some(Bytes::from(key));
        self.broker.publish(0, Message { payload: payload.into(), headers, ordering_key, ..Message::default() });
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let held = self.time.run_until(Duration::from_secs(600), || holds().then_some(()));
        assert!(held.is_some(), "{what}: {:?}", self.done());
    }

    fn done(&self) -> Vec<String> {
        self.recorder.done.lock().clone()
    }

    fn listed(&self) -> Vec<ListedLetter> {
        self.letters.list(None, 10).now_or_never().unwrap().unwrap()
    }

    /// Marks the first letter.
    fn mark(&self) {
        let letter = &self.listed()[0];
        let change = self.letters.mark(letter.id, &letter.seen, None).now_or_never().unwrap().unwrap();
        assert_eq!(change, LetterChange::Yes);
    }

    /// Drops the first letter.
    fn drop_letter(&self) {
        let letter = &self.listed()[0];
        let change = self.letters.remove(letter.id, &letter.seen).now_or_never().unwrap().unwrap();
        assert_eq!(change, LetterChange::Yes);
    }

    fn mend(&self) {
        self.recorder.is_broken.store(false, Ordering::Release);
    }
}

/// Both kinds of sources.
fn benches() -> [Bench; 2] {
    let each = |runtime| MemoryBroker::each(runtime, Duration::from_secs(10));
    [Bench::new(|runtime| MemoryBroker::prefix(runtime, 1)), Bench::new(each)]
}

/// Publishes a poisoned message, a later one of its key, and one of another key, and waits until the first is dead.
fn poison(bench: &Bench) {
    for (key, payload) in [("a", "poison"), ("a", "a-2"), ("b", "b-1"), ("a", "a-3")] {
        bench.publish(key, payload);
    }
    bench.wait_for("there is a dead letter, and the other key goes on", || {
        bench.listed().len() == 1 && bench.done().contains(&"b-1".to_owned())
    });
}

#[test]
fn later_messages_of_a_parked_key_wait_until_its_letter_is_dropped() {
    for bench in benches() {
        bench.start_worker(true);
        poison(&bench);
        bench.time.run_for(Duration::from_secs(120));
        assert_eq!(bench.done(), ["b-1"]);
        bench.drop_letter();
        bench.wait_for("the key goes on", || bench.broker.unfinished() == 0);
        assert_eq!(bench.done(), ["b-1", "a-2", "a-3"]);
    }
}

#[test]
fn a_redriven_letter_is_delivered_although_messages_that_wait_for_it_fill_the_room() {
    for bench in benches() {
        let mut settings = WorkerSettings::default();
        settings.max_held_bytes = 4 * 1024;
        bench.start_worker_with(true, settings);
        bench.publish("a", "poison");
        bench.wait_for("there is a dead letter", || bench.listed().len() == 1);
        for payload in ["a-1", "a-2", "a-3", "a-4", "a-5", "a-6", "a-7", "a-8"] {
            bench.publish("a", payload);
        }
        bench.time.run_for(Duration::from_secs(60));
        bench.mend();
        bench.mark();
        bench.wait_for("the key goes on", || bench.broker.unfinished() == 0 && bench.listed().is_empty());
        assert_eq!(bench.done(), ["poison", "a-1", "a-2", "a-3", "a-4", "a-5", "a-6", "a-7", "a-8"]);
    }
}

#[test]
fn a_parked_key_goes_on_after_its_redriven_message() {
    for bench in benches() {
        bench.start_worker(true);
        poison(&bench);
        bench.mark();
        bench.wait_for("it is dead again", || bench.listed().iter().all(|letter| letter.marked_at.is_none()));
        assert_eq!(bench.done(), ["b-1"]);
        bench.mend();
        bench.mark();
        bench.wait_for("the key goes on", || bench.broker.unfinished() == 0 && bench.listed().is_empty());
        assert_eq!(bench.done(), ["b-1", "poison", "a-2", "a-3"]);
    }
}

#[test]
fn a_message_without_a_usable_key_parks_its_ordering_key_as_well() {
    for bench in benches() {
        bench.start_worker(true);
        // Its letter is not written at once. Later messages do not overtake it meanwhile.
        bench.letters.failing_puts.store(3, Ordering::Release);
        for (key, payload) in [("a", "a-1"), ("a", "no-id"), ("a", "a-2"), ("b", "b-1")] {
            bench.publish(key, payload);
        }
        bench.wait_for("there is a dead letter, and the other key goes on", || {
            bench.listed().len() == 1 && bench.done().contains(&"b-1".to_owned())
        });
        bench.time.run_for(Duration::from_secs(120));
        let mut done = bench.done();
        done.sort();
        assert_eq!(done, ["a-1", "b-1"]);
        let letter = &bench.listed()[0];
        assert_eq!(letter.reason, DeadReason::KeyMissing);
        bench.drop_letter();
        bench.wait_for("the key goes on", || bench.broker.unfinished() == 0);
        assert_eq!(bench.done().last().map(String::as_str), Some("a-2"));
    }
}

#[test]
fn a_message_without_a_usable_key_waits_for_an_earlier_one_of_its_ordering_key() {
    for bench in benches() {
        bench.start_worker(true);
        for (key, payload) in [("a", "poison"), ("a", "no-id"), ("a", "a-2")] {
            bench.publish(key, payload);
        }
        bench.wait_for("there is a dead letter", || !bench.listed().is_empty());
        bench.time.run_for(Duration::from_secs(120));
        let reasons = || bench.listed().iter().map(|letter| letter.reason.clone()).collect::<Vec<_>>();
        assert_eq!(reasons(), [DeadReason::AttemptsExhausted]);
        bench.drop_letter();
        bench.wait_for("its own letter is written", || reasons() == [DeadReason::KeyMissing]);
        assert!(bench.done().is_empty());
    }
}

#[test]
fn a_worker_that_starts_later_keeps_a_parked_key() {
    let bench = Bench::new(|runtime| MemoryBroker::prefix(runtime, 1));
    bench.start_worker(true);
    poison(&bench);
    bench.wait_for("its letter is acknowledged", || bench.broker.unfinished() <= 3);
    bench.process.abort_tasks();
    bench.publish("a", "a-4");
    bench.publish("b", "b-2");
    bench.start_worker(true);
    bench.wait_for("the other key goes on", || bench.done().contains(&"b-2".to_owned()));
    bench.time.run_for(Duration::from_secs(120));
    assert_eq!(bench.done().iter().filter(|payload| payload.starts_with('a')).count(), 0);
    bench.drop_letter();
    bench.wait_for("the key goes on", || bench.broker.unfinished() == 0);
    let of_key: Vec<String> = bench.done().into_iter().filter(|payload| payload.starts_with('a')).collect();
    assert_eq!(of_key, ["a-2", "a-3", "a-4"]);
}

#[test]
fn a_parked_key_waits_while_the_dead_letters_cannot_be_read() {
    for bench in benches() {
        bench.start_worker(true);
        poison(&bench);
        bench.letters.failing_looks.store(60, Ordering::Release);
        bench.time.run_for(Duration::from_secs(30));
        assert_eq!(bench.done(), ["b-1"], "nobody knows whether the key has a letter");
        assert!((1..60).contains(&bench.letters.failing_looks.load(Ordering::Acquire)), "the worker looks on");
        // A message of a key that was free waits as well.
        bench.publish("c", "c-1");
        bench.time.run_for(Duration::from_secs(10));
        assert_eq!(bench.done(), ["b-1"]);
        bench.letters.failing_looks.store(0, Ordering::Release);
        bench.wait_for("the free key goes on", || bench.done() == ["b-1", "c-1"]);
        bench.time.run_for(Duration::from_secs(30));
        assert_eq!(bench.done(), ["b-1", "c-1"]);
        bench.drop_letter();
        bench.wait_for("the key goes on", || bench.broker.unfinished() == 0);
        assert_eq!(bench.done(), ["b-1", "c-1", "a-2", "a-3"]);
    }
}

#[test]
fn without_parking_a_key_goes_on_after_a_dead_letter() {
    for bench in benches() {
        bench.start_worker(false);
        poison(&bench);
        bench.wait_for("all end", || bench.broker.unfinished() == 0);
        assert_eq!(bench.listed().len(), 1);
    }
}

#[test]
fn a_redriven_letter_whose_end_is_not_confirmed_for_long_goes_away_all_the_same() {
    for bench in benches() {
        bench.start_worker(false);
        poison(&bench);
        bench.mend();
        // More often than the worker itself tries.
        bench.letters.failing.store(25, Ordering::Release);
        bench.mark();
        bench.wait_for("the letter is gone", || bench.listed().is_empty());
        assert_eq!(bench.letters.failing.load(Ordering::Acquire), 0);
        assert_eq!(bench.done().iter().filter(|payload| *payload == "poison").count(), 1);
    }
}

/// Letters whose ends the store does not confirm for a while.
#[derive(Debug)]
struct FailingLetters {
    letters: MemoryDeadLetterStore,
    failing: AtomicUsize,
    failing_puts: AtomicUsize,
    failing_looks: AtomicUsize,
}

fn fail_next(calls: &AtomicUsize) -> Result<()> {
    match calls.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)) {
        Ok(_) => Err(Error::new(ErrorKind::Unknown, "the test lets this call fail")),
        Err(_) => Ok(()),
    }
}

#[async_trait]
impl DeadLetters for FailingLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        match fail_next(&self.failing_puts) {
            Ok(()) => self.letters.put(letters).await,
            Err(_) => letters.iter().map(|_| Err(Error::new(ErrorKind::NotApplied, "nothing is written"))).collect(),
        }
    }
}

#[async_trait]
impl DeadLetterStore for FailingLetters {
    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>> {
        self.letters.list(after, limit).await
    }

    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>> {
        self.letters.find(id).await
    }

    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange> {
        self.letters.mark(id, seen, word).await
    }

    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>> {
        self.letters.use_up_word(id, marked_at).await
    }

    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange> {
        self.letters.remove(id, seen).await
    }

    fn tells_ordering_keys(&self) -> bool {
        self.letters.tells_ordering_keys()
    }

    async fn keys_with_letters(&self, source: &str, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        fail_next(&self.failing_looks)?;
        self.letters.keys_with_letters(source, keys).await
    }

    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>> {
        self.letters.take_marked(source, limit, lease).await
    }

    async fn extend(&self, ids: &[DeadLetterId], lease: Duration) -> Result<()> {
        self.letters.extend(ids, lease).await
    }

    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()> {
        self.letters.postpone(ids, by).await
    }

    async fn finish(&self, redriven: &[(DeadLetterId, Timestamp)]) -> Result<()> {
        fail_next(&self.failing)?;
        self.letters.finish(redriven).await
    }
}
