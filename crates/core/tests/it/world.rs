//! A gate over a memory store that can fail, with a clock that only the test moves.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use hapax_core::gate::{Attempt, Failure, Provenance, Refused, RunResult};
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::BoxFuture;
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{
    Call, Error, ErrorKind, Gate, Identity, Key, OnLapse, RecordKey, Repeatable, Result, Rule, Scope, Settings, State,
    Store,
};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::{Stepped, settle};

pub(crate) const LEASE: Duration = Duration::from_secs(1);
pub(crate) const MAX_EXECUTION: Duration = Duration::from_secs(20);

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

/// A gate, its store and clock, and the number of handler runs.
pub(crate) struct GateWorld {
    pub(crate) gate: Gate,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) time: Arc<Stepped>,
    pub(crate) runs: Arc<AtomicU32>,
}

impl GateWorld {
    pub(crate) fn new() -> Self {
        Self::with_on_lapse(OnLapse::Hold)
    }

    pub(crate) fn with_on_lapse(on_lapse: OnLapse) -> Self {
        let time = Stepped::new();
        let store = Arc::new(FaultyStore::over(Memory::with(Arc::clone(&time) as _, MemorySettings::default())));
        Self { gate: gate_over(&store, &time, settings(on_lapse)), store, time, runs: Arc::default() }
    }

    /// Replaces the gate by one with other settings, over the same store and clock.
    pub(crate) fn with_settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(OnLapse::Hold);
        change(&mut settings);
        self.gate = gate_over(&self.store, &self.time, settings);
        self
    }

    /// Runs a handler and counts the run.
    pub(crate) fn run<H, F>(&self, handler: H) -> impl Future<Output = Run> + use<H, F>
    where
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Handled> + Send + 'static,
    {
        run_on(self.gate.clone(), Arc::clone(&self.runs), handler)
    }

    pub(crate) async fn run_with_answer(&self, answer: &'static str) -> Run {
        self.run(move |_| async move { Ok(String::from(answer)) }).await
    }

    /// Starts an attempt whose handler waits for the notification, and drops its caller.
    pub(crate) async fn start_and_leave(&self, go: &Arc<Notify>, answer: &'static str) {
        let go = Arc::clone(go);
        let run = self.run(move |_| async move {
            go.notified().await;
            Ok(String::from(answer))
        });
        poll_once_and_drop(run).await;
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

pub(crate) fn gate_over(store: &Arc<FaultyStore>, time: &Arc<Stepped>, settings: Settings) -> Gate {
    let builder = Gate::builder(Arc::clone(store) as _, settings);
    builder.runtime(Arc::clone(time) as _).build().unwrap()
}

/// Borrows nothing of the world, so that the future can be moved anywhere.
pub(crate) async fn run_on<F>(
    gate: Gate,
    runs: Arc<AtomicU32>,
    handler: impl FnOnce(Attempt) -> F + Send + 'static,
) -> Run
where
    F: Future<Output = Handled> + Send + 'static,
{
    let counted = move |attempt| {
        runs.fetch_add(1, Ordering::SeqCst);
        handler(attempt)
    };
    gate.run(call(), counted).await
}

/// Polls once, which starts the attempt, and drops the future of the caller.
pub(crate) async fn poll_once_and_drop(run: impl Future<Output = Run>) {
    let mut run = Box::pin(run);
    let ended = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_ready())).await;
    assert!(!ended, "the attempt must run in a task of its own");
}

/// Waits for both futures, and checks that the attempt ends no later than the second one.
pub(crate) async fn run_beside(run: impl Future<Output = Run>, second: impl Future<Output = ()>) -> Run {
    let ended = AtomicBool::new(false);
    let run = async {
        let result = run.await;
        ended.store(true, Ordering::SeqCst);
        result
    };
    let second = async {
        second.await;
        settle().await;
        assert!(ended.load(Ordering::SeqCst), "the attempt must have ended");
    };
    join(run, second).await.0
}

#[track_caller]
pub(crate) fn assert_answer(run: Run, answer: &str, provenance: Provenance) {
    let ran = run.expect("the call has an answer");
    assert_eq!((ran.answer.as_str(), ran.provenance), (answer, provenance));
}

/// A memory store with switches for faults.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) inner: Memory,
    /// The number of begins that are carried out and whose reply is lost.
    pub(crate) lose_begins: AtomicU32,
    /// The number of begins that fail and are kept in `delayed`.
    pub(crate) delay_begins: AtomicU32,
    pub(crate) delayed: Mutex<Vec<Begin>>,
    pub(crate) refuse_completes: AtomicBool,
    pub(crate) refuse_renewals: AtomicBool,
    pub(crate) refuse_swaps: AtomicBool,
    /// Renewals wait for `renewals_may_go_on` before they are carried out.
    pub(crate) hold_renewals: AtomicBool,
    pub(crate) renewals_may_go_on: Notify,
    pub(crate) renewals: AtomicU32,
    pub(crate) begins: AtomicU32,
    /// Every begin fails.
    pub(crate) down: AtomicBool,
    /// Begins without a record fail.
    pub(crate) full: AtomicBool,
    /// Renewals find no record.
    pub(crate) forgets: AtomicBool,
    /// Completions of this record fail with this kind.
    pub(crate) damaged: Mutex<Option<(RecordKey, ErrorKind)>>,
    pub(crate) may_go_on: Notify,
    /// What happens to every call of a method.
    faults: Mutex<Vec<(StoreMethod, CallFault)>>,
}

/// What happens to a call instead of being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallFault {
    Fail(ErrorKind),
    /// It never returns.
    Hang,
    /// It waits for `may_go_on`, and is then carried out.
    Wait,
}

impl FaultyStore {
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
            renewals_may_go_on: Notify::new(),
            renewals: AtomicU32::new(0),
            begins: AtomicU32::new(0),
            down: AtomicBool::new(false),
            full: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            damaged: Mutex::default(),
            may_go_on: Notify::new(),
            faults: Mutex::default(),
        }
    }

    /// Makes every completion, renewal and swap fail, or ends that. Begins and reads still work.
    pub(crate) fn refuse_all_after_begin(&self, refuse: bool) {
        for switch in [&self.refuse_completes, &self.refuse_renewals, &self.refuse_swaps] {
            switch.store(refuse, Ordering::SeqCst);
        }
    }

    /// From now on this happens to every call of the method.
    pub(crate) fn inject(&self, method: StoreMethod, fault: CallFault) {
        self.heal(method);
        self.faults.lock().unwrap().push((method, fault));
    }

    /// From now on every call of the method is carried out.
    pub(crate) fn heal(&self, method: StoreMethod) {
        self.faults.lock().unwrap().retain(|(other, _)| *other != method);
    }

    async fn apply_fault(&self, method: StoreMethod) -> Result<()> {
        let fault = self.faults.lock().unwrap().iter().find(|(other, _)| *other == method).map(|(_, fault)| *fault);
        match fault {
            None => Ok(()),
            Some(CallFault::Fail(kind)) => Err(Error::new(kind, "an injected fault")),
            Some(CallFault::Hang) => pending().await,
            Some(CallFault::Wait) => {
                self.may_go_on.notified().await;
                Ok(())
            }
        }
    }

    /// Carries out delayed begins as the store's own step, which grants only where no live record exists.
    pub(crate) async fn carry_out_delayed(&self) {
        let delayed = std::mem::take(&mut *self.delayed.lock().unwrap());
        for ask in delayed {
            self.inner.begin(&ask).await.unwrap();
        }
    }
}

impl FaultyStore {
    /// Carries out delayed begins through the protocol, which grants a released record again.
    pub(crate) async fn carry_out_delayed_by_protocol(&self) {
        let delayed = std::mem::take(&mut *self.delayed.lock().unwrap());
        for ask in delayed {
            Protocol::over(&self.inner).begin(&ask).await.unwrap();
        }
    }
}

/// Returns whether the counter was above zero, and lowers it then.
pub(crate) fn decrement(counter: &AtomicU32) -> bool {
    let decrement = |count: u32| count.checked_sub(1);
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok()
}

pub(crate) fn unknown<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unknown, "the reply was lost"))
}

#[async_trait]
impl Store for FaultyStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.begins.fetch_add(1, Ordering::SeqCst);
        self.apply_fault(StoreMethod::Begin).await?;
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::NotApplied, "the store is down"));
        }
        if self.full.load(Ordering::SeqCst) && self.inner.read(&ask.call.record_key()).await?.live().is_none() {
            return Err(Error::new(ErrorKind::Full, "the store has no room"));
        }
        if decrement(&self.delay_begins) {
            self.delayed.lock().unwrap().push(*ask);
            return unknown();
        }
        let inserted = self.inner.begin(ask).await;
        if decrement(&self.lose_begins) { unknown() } else { inserted }
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        if self.hold_renewals.load(Ordering::SeqCst) {
            self.renewals_may_go_on.notified().await;
        }
        self.apply_fault(StoreMethod::Renew).await?;
        if self.forgets.load(Ordering::SeqCst) {
            return Ok(Renewed::Gone);
        }
        if self.refuse_renewals.load(Ordering::SeqCst) { unknown() } else { self.inner.renew(rk, claim).await }
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.apply_fault(StoreMethod::Complete).await?;
        if let Some((damaged, kind)) = *self.damaged.lock().unwrap()
            && damaged == *rk
        {
            return Err(Error::new(kind, "the record is damaged"));
        }
        if self.refuse_completes.load(Ordering::SeqCst) { unknown() } else { self.inner.complete(rk, ask).await }
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.apply_fault(StoreMethod::Read).await?;
        self.inner.read(rk).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.apply_fault(StoreMethod::Swap).await?;
        if self.refuse_swaps.load(Ordering::SeqCst) { unknown() } else { self.inner.swap(rk, seen, next).await }
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

pub(crate) fn call_of(tenant: &str, key: &str) -> Call {
    let identity = Identity::plain();
    let fingerprint = identity.fingerprint(Rule(1), &[b"the payload"]);
    identity.call(&Scope::tenant("tests", tenant).unwrap(), &Key::new(key).unwrap()).fingerprint(fingerprint)
}

pub(crate) async fn run_call_with_answer(gate: &Gate, call: Call) -> Run {
    gate.run(call, |_| async { Ok(String::from("the answer")) }).await
}

pub(crate) fn count_begins(world: &GateWorld) -> u32 {
    world.store.begins.load(Ordering::SeqCst)
}

pub(crate) async fn fail_by_question_mark() -> Handled {
    Err(io::Error::other("the connection broke"))?;
    Ok(String::from("never"))
}

/// A gate with this journal, over the same store and clock.
pub(crate) fn with_journal(world: &GateWorld, journal: &Arc<MemoryJournal>) -> Gate {
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let builder = Gate::builder(store as _, settings(OnLapse::Hold)).runtime(time as _);
    builder.journal(Arc::clone(journal) as _).build().unwrap()
}

/// A handler that waits until it is cancelled, and then returns an answer all the same.
pub(crate) fn wait_for_cancellation(
    is_cancelled: &Arc<AtomicBool>,
) -> impl FnOnce(Attempt) -> BoxFuture<'static, Handled> + use<> {
    let is_cancelled = Arc::clone(is_cancelled);
    move |attempt| {
        Box::pin(async move {
            attempt.cancelled().await;
            is_cancelled.store(true, Ordering::SeqCst);
            Ok(String::from("its own answer"))
        })
    }
}
