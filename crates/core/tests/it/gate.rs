//! The gate over the memory store, in a time that only the test moves.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use hapax_core::gate::{Attempt, Detail, Failure, Provenance, Reason, Refused, RunResult};
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Grant, Observed, Renewed, Settled};
use hapax_core::runtime::{BoxFuture, Runtime, Tokio};
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{
    Call, Error, ErrorKind, Gate, Identity, Key, OnLapse, Owner, Phase, RecordKey, Repeatable, Result, Rule, Scope,
    Seconds, Settings, State, Store, Token,
};
use tokio::sync::Notify;

use crate::stepped::{Stepped, settle};

pub(crate) const LEASE: Duration = Duration::from_secs(1);
const MAX_EXECUTION: Duration = Duration::from_secs(20);

pub(crate) type Run = std::result::Result<RunResult<String>, Refused<String>>;
pub(crate) type Handled = std::result::Result<String, Failure<String>>;

pub(crate) fn call() -> Call {
    let identity = Identity::plain();
    let scope = Scope::tenant("tests", "acme").unwrap();
    let fingerprint = identity.fingerprint(Rule(1), &[b"the payload"]);
    identity.call(&scope, &Key::new("order-7").unwrap()).fingerprint(fingerprint)
}

pub(crate) fn settings(on_lapse: OnLapse) -> Settings {
    let mut settings = Settings::default();
    settings.policy.lease = LEASE;
    settings.policy.max_execution = MAX_EXECUTION;
    settings.policy.on_lapse = on_lapse;
    settings
}

pub(crate) fn retry() -> OnLapse {
    OnLapse::Retry(Repeatable::declared("the handler only counts"))
}

/// A gate, the store behind it, and how often its handlers ran.
pub(crate) struct World {
    pub(crate) gate: Gate,
    pub(crate) store: Arc<Faulty>,
    pub(crate) time: Arc<Stepped>,
    pub(crate) runs: Arc<AtomicU32>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::under(OnLapse::Hold)
    }

    pub(crate) fn under(on_lapse: OnLapse) -> Self {
        let time = Stepped::new();
        let store = Arc::new(Faulty::over(Memory::with(Arc::clone(&time) as _, MemorySettings::default())));
        Self { gate: gate_over(&store, &time, settings(on_lapse)), store, time, runs: Arc::default() }
    }

    /// The same store and time, under other settings.
    pub(crate) fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(OnLapse::Hold);
        change(&mut settings);
        self.gate = gate_over(&self.store, &self.time, settings);
        self
    }

    /// Runs a handler, and counts it.
    pub(crate) fn run<H, F>(&self, handler: H) -> impl Future<Output = Run> + use<H, F>
    where
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Handled> + Send + 'static,
    {
        run_on(self.gate.clone(), Arc::clone(&self.runs), handler)
    }

    pub(crate) async fn answers(&self, answer: &'static str) -> Run {
        self.run(move |_| async move { Ok(String::from(answer)) }).await
    }

    /// Starts an attempt whose handler waits for the word, and leaves it alone.
    pub(crate) async fn leave(&self, go: &Arc<Notify>, answer: &'static str) {
        let go = Arc::clone(go);
        let run = self.run(move |_| async move {
            go.notified().await;
            Ok(String::from(answer))
        });
        dropped_at_once(run).await;
        settle().await;
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) async fn read(&self) -> Observed {
        self.store.inner.read(&call().record_key()).await.unwrap()
    }

    pub(crate) async fn state(&self) -> State {
        self.read().await.live().expect("the record lives").state.clone()
    }
}

fn gate_over(store: &Arc<Faulty>, time: &Arc<Stepped>, settings: Settings) -> Gate {
    let builder = Gate::builder(Arc::clone(store) as _, settings);
    builder.runtime(Arc::clone(time) as _).build().unwrap()
}

/// Without a hold on the gate's store, so that what it gives can be dropped and awaited anywhere.
async fn run_on<F>(gate: Gate, runs: Arc<AtomicU32>, handler: impl FnOnce(Attempt) -> F + Send + 'static) -> Run
where
    F: Future<Output = Handled> + Send + 'static,
{
    let counted = move |attempt| {
        runs.fetch_add(1, Ordering::SeqCst);
        handler(attempt)
    };
    gate.run(call(), counted).await
}

/// Polls once, which starts the attempt, and drops the caller.
pub(crate) async fn dropped_at_once(run: impl Future<Output = Run>) {
    let mut run = Box::pin(run);
    let ended = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_ready())).await;
    assert!(!ended, "the attempt runs in a task of its own");
}

/// Waits for both; by the time that the second has ended, the attempt must have.
pub(crate) async fn beside(run: impl Future<Output = Run>, second: impl Future<Output = ()>) -> Run {
    let ended = AtomicBool::new(false);
    let run = async {
        let told = run.await;
        ended.store(true, Ordering::SeqCst);
        told
    };
    let second = async {
        second.await;
        settle().await;
        assert!(ended.load(Ordering::SeqCst), "the attempt still runs");
    };
    join(run, second).await.0
}

#[track_caller]
pub(crate) fn gave(run: Run, answer: &str, provenance: Provenance) {
    let ran = run.expect("it ran");
    assert_eq!((ran.answer.as_str(), ran.provenance), (answer, provenance));
}

/// A store that answers only in part.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) inner: Memory,
    /// So many begins are carried out, and their replies lost.
    pub(crate) lose_begins: AtomicU32,
    /// So many begins are answered with an error, and kept to be carried out later.
    pub(crate) delay_begins: AtomicU32,
    pub(crate) delayed: Mutex<Vec<Begin>>,
    pub(crate) refuse_completes: AtomicBool,
    pub(crate) refuse_renewals: AtomicBool,
    pub(crate) refuse_swaps: AtomicBool,
    /// Renewals wait for a word before they are carried out.
    pub(crate) hold_renewals: AtomicBool,
    pub(crate) go_on: Notify,
    pub(crate) renewals: AtomicU32,
    pub(crate) begins: AtomicU32,
    /// Nothing gets through.
    pub(crate) down: AtomicBool,
    /// Nothing new is taken.
    pub(crate) full: AtomicBool,
}

impl Faulty {
    pub(crate) fn over(inner: Memory) -> Self {
        Self {
            inner,
            lose_begins: AtomicU32::new(0),
            delay_begins: AtomicU32::new(0),
            delayed: Mutex::default(),
            refuse_completes: AtomicBool::new(false),
            refuse_renewals: AtomicBool::new(false),
            refuse_swaps: AtomicBool::new(false),
            hold_renewals: AtomicBool::new(false),
            go_on: Notify::new(),
            renewals: AtomicU32::new(0),
            begins: AtomicU32::new(0),
            down: AtomicBool::new(false),
            full: AtomicBool::new(false),
        }
    }

    pub(crate) fn refuse_all_after_begin(&self, refuse: bool) {
        for switch in [&self.refuse_completes, &self.refuse_renewals, &self.refuse_swaps] {
            switch.store(refuse, Ordering::SeqCst);
        }
    }

    pub(crate) async fn carry_out_delayed(&self) {
        let delayed = std::mem::take(&mut *self.delayed.lock().unwrap());
        for ask in delayed {
            self.inner.begin(&ask).await.unwrap();
        }
    }
}

impl Faulty {
    /// Carries delayed begins out as a store with a fast path and a swap does: a released record is granted again.
    pub(crate) async fn carry_out_delayed_by_protocol(&self) {
        let delayed = std::mem::take(&mut *self.delayed.lock().unwrap());
        for ask in delayed {
            Protocol::over(&self.inner).begin(&ask).await.unwrap();
        }
    }
}

pub(crate) fn one_less(counter: &AtomicU32) -> bool {
    let one_less = |count: u32| count.checked_sub(1);
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}

fn unknown<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unknown, "the reply was lost"))
}

#[async_trait]
impl Store for Faulty {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.begins.fetch_add(1, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::NotApplied, "the store is down"));
        }
        if self.full.load(Ordering::SeqCst) && self.inner.read(&ask.call.record_key()).await?.live().is_none() {
            return Err(Error::new(ErrorKind::Full, "the store has no room"));
        }
        if one_less(&self.delay_begins) {
            self.delayed.lock().unwrap().push(*ask);
            return unknown();
        }
        let inserted = self.inner.begin(ask).await;
        if one_less(&self.lose_begins) { unknown() } else { inserted }
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        if self.hold_renewals.load(Ordering::SeqCst) {
            self.go_on.notified().await;
        }
        if self.refuse_renewals.load(Ordering::SeqCst) { unknown() } else { self.inner.renew(rk, claim).await }
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        if self.refuse_completes.load(Ordering::SeqCst) { unknown() } else { self.inner.complete(rk, ask).await }
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.inner.read(rk).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        if self.refuse_swaps.load(Ordering::SeqCst) { unknown() } else { self.inner.swap(rk, seen, next).await }
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

#[tokio::test]
async fn a_call_runs_once_and_is_replayed() {
    let world = World::new();
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    for _ in 0..3 {
        gave(world.answers("another").await, "the answer", Provenance::Replayed);
    }
    assert_eq!(world.runs(), 1);
    assert!(world.gate.drain(Duration::ZERO).await);
}

#[tokio::test]
async fn every_copy_is_told_the_same_expiry() {
    let world = World::new();
    let fresh = world.answers("the answer").await.expect("it ran").expiry;
    world.time.pass(LEASE).await;
    let replayed = world.answers("another").await.expect("it is replayed").expiry;
    assert!(fresh.is_some() && fresh == replayed, "{fresh:?} {replayed:?}");
}

#[tokio::test]
async fn an_attempt_knows_its_grant_and_its_ids() {
    let world = World::new();
    let run = world.run(|attempt| async move {
        assert_eq!(attempt.number(), 1);
        assert_eq!(attempt.record_key(), call().record_key());
        assert_eq!(attempt.operation(), call().record_key().operation());
        assert_eq!(attempt.event_id(3), attempt.operation().event(3));
        Ok(attempt.grant().unwrap().token.0.to_string())
    });
    let answer = run.await.expect("it ran").answer;
    assert_eq!(answer, world.read().await.record.unwrap().token.0.to_string());
}

#[tokio::test]
async fn fifty_twins_run_the_handler_once() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    let twins = (0..50).map(|_| {
        let go = Arc::clone(&go);
        world.run(move |_| async move {
            go.notified().await;
            Ok(String::from("the answer"))
        })
    });
    let release = async {
        settle().await;
        go.notify_one();
    };
    let (told, ()) = join(join_all(twins), release).await;

    assert_eq!(world.runs(), 1);
    let mut fresh = 0;
    for told in told {
        if let Err(Refused { reason: Reason::Busy { retry_after }, .. }) = told {
            assert!(retry_after <= LEASE, "{retry_after:?}");
        } else {
            gave(told, "the answer", Provenance::Fresh);
            fresh += 1;
        }
    }
    assert_eq!(fresh, 1);
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
}

#[test]
fn fifty_twins_on_two_threads_run_the_handler_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let store = Memory::new();
        let gate = Gate::builder(Arc::new(store), Settings::default()).build().unwrap();
        let runs = Arc::<AtomicU32>::default();
        let answer = |_| async { Ok(String::from("the answer")) };
        let told = join_all((0..50).map(|_| run_on(gate.clone(), Arc::clone(&runs), answer))).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        for told in told {
            let twin = matches!(&told, Ok(ran) if ran.answer == "the answer");
            assert!(twin || matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
        }
    });
}

#[tokio::test]
async fn another_payload_is_a_mismatch() {
    let world = World::new();
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    let other = call().fingerprint(Identity::plain().fingerprint(Rule(1), &[b"another payload"]));
    let told = world.gate.run(other, |_| async { Ok(String::from("another")) }).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Mismatch, .. })), "{told:?}");
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_nothing() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    assert!(!world.gate.drain(Duration::ZERO).await, "the attempt is tracked");
    go.notify_one();
    settle().await;
    assert!(world.gate.drain(Duration::ZERO).await);
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_panic_is_unknown_and_held() {
    let world = World::new();
    let told = world.run(|_| async { panic!("a panic that a test asked for") }).await;
    assert!(
        matches!(told, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{told:?}"
    );
    let told = world.answers("another").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_panic_before_the_first_await_is_unknown_too() {
    let world = World::new();
    let panics = |_| -> std::future::Ready<Handled> { panic!("a panic that a test asked for") };
    let told = world.run(panics).await;
    assert!(
        matches!(told, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{told:?}"
    );
    assert!(matches!(world.answers("another").await, Err(Refused { reason: Reason::Indeterminate { .. }, .. })));
}

async fn fails_by_question_mark() -> Handled {
    Err(io::Error::other("the line went dead"))?;
    Ok(String::from("never"))
}

#[tokio::test]
async fn a_plain_question_mark_is_unknown_and_held() {
    let world = World::new();
    let told = world.run(|_| fails_by_question_mark()).await;
    let Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(error)), .. }) = told else {
        panic!("unknown was expected, not {told:?}")
    };
    assert_eq!(error.to_string(), "the line went dead");
    let told = world.answers("another").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_runs_again_under_retry_at_once() {
    let world = World::under(retry());
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    let told = world.run(move |attempt| async move {
        *seen.lock().unwrap() = attempt.grant().copied();
        fails_by_question_mark().await
    });
    assert!(matches!(told.await, Err(Refused { reason: Reason::Unknown { .. }, .. })));

    let first: Grant = first.lock().unwrap().expect("the first attempt ran");
    let again = world.run(move |attempt| async move {
        let grant = attempt.grant().unwrap();
        assert!(grant.token > first.token && grant.takeover, "{grant:?}");
        assert_eq!(attempt.number(), 2);
        assert_eq!(attempt.operation(), first.rk.operation());
        Ok(String::from("the answer"))
    });
    gave(again.await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn not_applied_frees_the_key() {
    let world = World::new();
    let told = world.run(|_| async { Err(Failure::not_applied(io::Error::other("no funds"))) }).await;
    let Err(Refused { reason: Reason::NotApplied { .. }, detail: Some(Detail::Error(error)), .. }) = told else {
        panic!("not applied was expected, not {told:?}")
    };
    assert_eq!(error.to_string(), "no funds");
    let again = world.run(|attempt| async move {
        assert_eq!((attempt.number(), attempt.grant().unwrap().takeover), (2, false));
        Ok(String::from("the answer"))
    });
    gave(again.await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn what_a_failure_tells_travels_to_the_caller_unchanged() {
    let world = World::new();
    let told = world.run(|_| async { Err(Failure::NotApplied(Detail::Answer(String::from("later")))) }).await;
    assert!(
        matches!(&told, Err(Refused { reason: Reason::NotApplied { .. }, detail: Some(Detail::Answer(told)), .. }) if told == "later"),
        "{told:?}"
    );
    let told = world.run(|_| async { Err(Failure::Unknown(Detail::Answer(String::from("perhaps")))) }).await;
    assert!(
        matches!(&told, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Answer(told)), .. }) if told == "perhaps"),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_final_failure_is_replayed() {
    let world = World::new();
    let told = world.run(|_| async { Err(Failure::finally(String::from("refused for ever"))) }).await;
    gave(told, "refused for ever", Provenance::Fresh);
    gave(world.answers("another").await, "refused for ever", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_aborted_handler_is_abandoned_and_not_released() {
    let world = World::new();
    world.leave(&Arc::new(Notify::new()), "never").await;
    world.time.abort_all().await;
    let State::Open(Phase::InProgress, holding) = world.state().await else {
        panic!("a record in progress was expected")
    };
    assert!(holding.is_abandoned(), "{holding:?}");
    let told = world.answers("another").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
    assert_eq!(world.runs(), 1);
}

#[test]
fn a_runtime_that_ends_releases_nothing() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outer = runtime();
    let _in_outer = outer.enter();
    let time = Stepped::new();
    let store = Arc::new(Memory::with(Arc::clone(&time) as _, MemorySettings::default()));
    let gate = |runtime: Arc<dyn Runtime>| {
        let store = Arc::clone(&store);
        Gate::builder(store as _, settings(OnLapse::Hold)).runtime(runtime).build().unwrap()
    };

    let inner = runtime();
    inner.block_on(async {
        let gate = gate(Arc::new(Tokio::current()));
        dropped_at_once(run_on(gate, Arc::default(), |_| pending())).await;
        settle().await;
    });
    drop(inner);

    outer.block_on(async {
        let seen = store.read(&call().record_key()).await.unwrap();
        let state = &seen.live().expect("the record lives").state;
        assert!(matches!(state, State::Open(Phase::InProgress, _)), "{state:?}");
        time.pass(LEASE).await;
        let runs = Arc::<AtomicU32>::default();
        let answer = |_| async { Ok(String::from("a second run")) };
        let told = run_on(gate(Arc::clone(&time) as _), Arc::clone(&runs), answer).await;
        assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 0);
    });
}

#[tokio::test]
async fn a_begin_whose_reply_is_lost_runs_once() {
    let world = World::new();
    world.store.lose_begins.store(1, Ordering::SeqCst);
    let run = world.run(|attempt| async move {
        assert_eq!(attempt.number(), 1);
        Ok(String::from("the answer"))
    });
    gave(run.await, "the answer", Provenance::Fresh);
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_that_stays_ambiguous_runs_nothing_and_is_cancelled() {
    let world = World::new();
    world.store.lose_begins.store(2, Ordering::SeqCst);
    let told = world.answers("never").await;
    let Err(refused) = told else { panic!("a store error was expected, not {told:?}") };
    assert_eq!(refused.reason, Reason::Store(ErrorKind::Unknown));
    settle().await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_carried_out_after_its_cancellation_is_cancelled_again() {
    let world = World::new();
    world.store.delay_begins.store(2, Ordering::SeqCst);
    assert!(matches!(world.answers("never").await, Err(Refused { reason: Reason::Store(_), .. })));
    // The last request of a begin is sent a store timeout after the begin, and dies in the network a lease later: not before.
    world.time.pass(LEASE * 3 / 2).await;
    world.store.carry_out_delayed().await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, _)));
    world.time.pass(LEASE / 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_answer_that_no_store_takes_is_unrecorded_after_the_lease() {
    let world = World::new();
    world.store.refuse_all_after_begin(true);
    let run = world.answers("the answer");
    let told = beside(run, world.time.pass(LEASE * 3)).await;
    let Err(refused) = told else { panic!("unrecorded was expected, not {told:?}") };
    assert_eq!(refused.reason, Reason::Unrecorded);
    let Some(Detail::Error(error)) = refused.detail else { panic!("the cause was expected, not {:?}", refused.detail) };
    assert_eq!(error.downcast_ref::<Error>().map(Error::kind), Some(ErrorKind::Unknown));

    world.store.refuse_all_after_begin(false);
    for _ in 0..3 {
        let told = world.answers("a second run").await;
        assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
        world.time.pass(LEASE).await;
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_answer_is_tried_until_the_store_takes_it() {
    let world = World::new();
    world.store.refuse_all_after_begin(true);
    let heal = async {
        world.time.pass(LEASE / 2).await;
        world.store.refuse_all_after_begin(false);
        world.time.pass(LEASE).await;
    };
    let told = beside(world.answers("the answer"), heal).await;
    gave(told, "the answer", Provenance::Fresh);
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn while_only_completions_fail_they_are_tried_for_a_lease() {
    let world = World::new();
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    let run = world.answers("the answer");
    let meanwhile = async {
        world.time.pass(LEASE / 2).await;
        let told = world.answers("a second run").await;
        assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
        world.time.pass(LEASE * 2).await;
    };
    let told = beside(run, meanwhile).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Unrecorded, .. })), "{told:?}");
    world.time.pass(LEASE).await;
    let told = world.answers("a second run").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_heartbeat_keeps_a_handler_alive_that_is_longer_than_its_lease() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let before = world.read().await.record;
    for _ in 0..10 {
        world.time.pass(LEASE / 2).await;
        let told = world.answers("a second run").await;
        assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
    }
    assert_eq!(world.read().await.record, before);
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    assert!((12..=17).contains(&renewals), "{renewals} renewals in 5 leases");

    go.notify_one();
    settle().await;
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
    world.time.pass(LEASE * 3).await;
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), renewals, "it has stopped");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_heartbeat_outlives_renewals_that_fail() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    world.store.refuse_renewals.store(true, Ordering::SeqCst);
    world.time.pass(LEASE * 2).await;
    world.store.refuse_renewals.store(false, Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    let told = world.answers("a second run").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
    go.notify_one();
    settle().await;
    gave(world.answers("another").await, "the answer", Provenance::Replayed);
}

/// A handler that ends when it is told to stop, and then gives an answer all the same.
fn until_told(told: &Arc<AtomicBool>) -> impl FnOnce(Attempt) -> BoxFuture<'static, Handled> + use<> {
    let told = Arc::clone(told);
    move |attempt| {
        Box::pin(async move {
            attempt.cancelled().await;
            told.store(true, Ordering::SeqCst);
            Ok(String::from("its own answer"))
        })
    }
}

#[tokio::test]
async fn a_lost_grant_tells_the_handler_and_its_answer_is_not_given() {
    let world = World::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(until_told(&stopped));
    let lose = async {
        settle().await;
        let record = world.read().await.record.unwrap();
        let owner = record.state.holding().unwrap().owner;
        let claim = Claim { owner, token: record.token };
        let buried = Protocol::over(&world.store.inner).bury(&call().record_key(), &claim, Seconds(60)).await;
        assert_eq!(buried.unwrap(), Settled::Yes);
        assert!(!stopped.load(Ordering::SeqCst));
        world.time.pass(LEASE / 2).await;
        assert!(stopped.load(Ordering::SeqCst), "the next renewal tells");
    };
    let told = beside(run, lose).await;
    assert!(
        matches!(told, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{told:?}"
    );
    assert!(matches!(world.answers("another").await, Err(Refused { reason: Reason::Dead, .. })));
}

#[tokio::test]
async fn a_handler_that_lost_to_a_recorded_answer_gives_that_one() {
    let world = World::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(until_told(&stopped));
    let lose = async {
        settle().await;
        let record = world.read().await.record.unwrap();
        let other = Claim { owner: Owner([7; 16]), token: Token(record.token.0 - 1) };
        let answer = bytes::Bytes::from_static(b"the canonical answer");
        let fingerprint = record.fingerprint;
        let ask = Complete { claim: other, fingerprint, answer, retention: Seconds(60), age: Duration::ZERO };
        let completed = Protocol::over(&world.store.inner).complete(&call().record_key(), &ask).await;
        assert_eq!(completed.unwrap(), Completed::Done);
        world.time.pass(LEASE / 2).await;
    };
    let told = beside(run, lose).await;
    gave(told, "the canonical answer", Provenance::Canonical);
    assert!(stopped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_handler_that_lost_to_another_payload_does_not_give_its_answer() {
    let world = World::new().set(|settings| settings.policy.unknown_retention = LEASE * 2);
    let go = Arc::new(Notify::new());
    let waits = Arc::clone(&go);
    let run = world.run(move |_| async move {
        waits.notified().await;
        Ok(String::from("the answer"))
    });
    let lose = async {
        settle().await;
        let fingerprint = Identity::plain().fingerprint(Rule(1), &[b"another payload"]);
        world.store.refuse_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE * 3).await;
        let elsewhere = gate_over(&world.store, &world.time, settings(OnLapse::Hold));
        let other = elsewhere.run(call().fingerprint(fingerprint), |_| async { Ok(String::from("another answer")) });
        gave(other.await, "another answer", Provenance::Fresh);
        go.notify_one();
    };
    let told = beside(run, lose).await;
    assert!(
        matches!(told, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_handler_is_told_to_stop_at_max_execution_and_still_completes() {
    let world = World::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(until_told(&stopped));
    let wait = async {
        world.time.pass(MAX_EXECUTION - LEASE).await;
        assert!(!stopped.load(Ordering::SeqCst));
        world.time.pass(LEASE * 2).await;
    };
    let told = beside(run, wait).await;
    gave(told, "its own answer", Provenance::Fresh);
    gave(world.answers("another").await, "its own answer", Provenance::Replayed);
}

#[tokio::test]
async fn an_abandonment_that_fails_goes_on_in_the_background() {
    let world = World::new();
    world.store.refuse_swaps.store(true, Ordering::SeqCst);
    assert!(matches!(
        world.run(|_| fails_by_question_mark()).await,
        Err(Refused { reason: Reason::Unknown { .. }, .. })
    ));
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if !holding.is_abandoned()));
    world.store.refuse_swaps.store(false, Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if holding.is_abandoned()));
    assert!(world.gate.drain(Duration::ZERO).await);
}

#[tokio::test]
async fn a_renewal_under_way_is_awaited_before_the_grant_is_given_up() {
    let unknown: fn() -> Failure<String> = || Failure::unknown(io::Error::other("who knows"));
    let not_applied: fn() -> Failure<String> = || Failure::not_applied(io::Error::other("no funds"));
    for failure in [unknown, not_applied] {
        let world = World::new();
        let go = Arc::new(Notify::new());
        let word = Arc::clone(&go);
        let run = world.run(move |_| async move {
            word.notified().await;
            Err(failure())
        });
        dropped_at_once(run).await;
        world.store.hold_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE / 2).await;
        assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1);

        go.notify_one();
        settle().await;
        assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if !holding.is_abandoned()));
        world.store.go_on.notify_one();
        settle().await;
        let given_up = match world.state().await {
            State::Open(Phase::InProgress, holding) => holding.is_abandoned(),
            State::Open(Phase::Released, _) => true,
            State::Completed(_) | State::Open(Phase::Indeterminate | Phase::Dead, _) => false,
        };
        assert!(given_up && world.gate.drain(Duration::ZERO).await);
    }
}

#[tokio::test]
async fn a_store_that_never_answers_runs_nothing() {
    let time = Stepped::new();
    let builder = Gate::builder(Arc::new(Silent), settings(OnLapse::Hold)).runtime(Arc::clone(&time) as _);
    let gate = builder.build().unwrap();
    let runs = Arc::<AtomicU32>::default();
    let answer = |_| async { Ok(String::from("never")) };
    let run = run_on(gate, Arc::clone(&runs), answer);
    let told = beside(run, time.pass(Duration::from_secs(3))).await;
    let Err(refused) = told else { panic!("a store error was expected, not {told:?}") };
    assert_eq!(refused.reason, Reason::Store(ErrorKind::Unknown));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

/// A store that never answers.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Store for Silent {
    async fn begin(&self, _: &Begin) -> Result<Inserted> {
        pending().await
    }

    async fn renew(&self, _: &RecordKey, _: &Claim) -> Result<Renewed> {
        pending().await
    }

    async fn complete(&self, _: &RecordKey, _: &Complete) -> Result<Completed> {
        pending().await
    }

    async fn read(&self, _: &RecordKey) -> Result<Observed> {
        pending().await
    }

    async fn swap(&self, _: &RecordKey, _: &Observed, _: &Change) -> Result<Swapped> {
        pending().await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let store = || Arc::new(Memory::with(Stepped::new(), MemorySettings::default()));
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        let error = Gate::builder(store(), settings).runtime(Stepped::new()).build().expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    };
    refused(|settings| settings.store_timeout = Duration::ZERO);
    refused(|settings| settings.policy.lease = Duration::from_millis(999));
    refused(|settings| settings.policy.unknown_retention = settings.policy.lease);
    refused(|settings| settings.policy.retention = Duration::from_millis(999));
    refused(|settings| settings.policy.released_retention = Duration::ZERO);
    refused(|settings| settings.policy.retention = settings.policy.lease - Duration::from_millis(1));
    refused(|settings| settings.policy.released_retention = settings.policy.lease - Duration::from_millis(1));
    refused(|settings| settings.policy.unknown_retention = Duration::MAX);
}
