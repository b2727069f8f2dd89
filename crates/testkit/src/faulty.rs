use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Completion, Error, ErrorKind, RecordKey, Result, Store};
use parking_lot::Mutex;

/// A fault of one store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The call is not applied and fails with this kind.
    FailBefore(ErrorKind),
    /// The call is applied and fails with this kind. Any kind but `Unknown` makes the error false.
    FailAfter(ErrorKind),
    /// The call is not applied and never returns.
    SwallowBefore,
    /// The call is applied and never returns.
    SwallowAfter,
    /// The call fails at once with `Unknown`, and is applied later.
    FailThenApply(CopyDelay),
    /// The call never returns, and is applied later.
    SwallowThenApply(CopyDelay),
    /// The call is applied after this time, and then returns.
    CarryOutLate(Duration),
    /// The call is applied, and returns after this time.
    AnswerLate(Duration),
    /// The call is applied and returns, and is applied once more later.
    ApplyTwice(CopyDelay),
}

/// When the late copy of a call is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDelay {
    /// After this many later calls.
    Calls(usize),
    /// After this time.
    Time(Duration),
}

/// The method of [`Store`] that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the methods of a store")]
pub enum StoreMethod {
    Begin,
    Renew,
    Complete,
    Read,
    Swap,
    Dedicated,
}

/// A store with injected faults. A fault is injected into the n-th call, counted from 0 over this store and its
/// dedicated handles.
///
/// Each call yields to the executor before and after it is applied, so that a test can drop it on either side.
pub struct Faulty {
    inner: Arc<dyn Store>,
    plan: Arc<FaultPlan>,
}

struct FaultPlan {
    /// Runs the late copies.
    runtime: Arc<dyn Runtime>,
    /// The age at which a late copy is dropped instead of applied.
    dies_after: Duration,
    state: Mutex<FaultState>,
}

#[derive(Default)]
struct FaultState {
    calls: Vec<StoreMethod>,
    faults: BTreeMap<usize, StoreFault>,
    /// The fault of this call and all later ones, unless a call has one of its own.
    lasting: Option<(usize, StoreFault)>,
    late: Vec<LateCopy>,
}

/// A copy of a call that is applied later.
struct LateCopy {
    request: StoreRequest,
    /// The copy is applied before the first call with a higher number.
    after: usize,
    /// From this time on, the copy is dropped instead of applied.
    dies: Duration,
}

#[derive(Clone)]
enum StoreRequest {
    Begin(Begin),
    Renew(RecordKey, Claim),
    Complete(RecordKey, Complete),
    Read,
    Swap(RecordKey, Box<(Observed, Change)>),
    Dedicated,
}

impl Faulty {
    /// Wraps a store, without faults yet. A late copy that reaches the age `dies_after` is dropped.
    pub fn new(inner: Arc<dyn Store>, runtime: Arc<dyn Runtime>, dies_after: Duration) -> Arc<Self> {
        let plan = Arc::new(FaultPlan { runtime, dies_after, state: Mutex::default() });
        Arc::new(Self { inner, plan })
    }

    /// Injects a fault into the n-th call.
    pub fn inject(&self, call: usize, fault: StoreFault) {
        self.plan.state.lock().faults.insert(call, fault);
    }

    /// Injects a fault into each of these calls.
    pub fn inject_all(&self, calls: Range<usize>, fault: StoreFault) {
        self.plan.state.lock().faults.extend(calls.map(|call| (call, fault)));
    }

    /// Injects a fault into the n-th call and all later ones.
    pub fn inject_from(&self, call: usize, fault: StoreFault) {
        self.plan.state.lock().lasting = Some((call, fault));
    }

    /// Removes all faults. Late copies are still applied.
    pub fn heal(&self) {
        let mut state = self.plan.state.lock();
        state.faults.clear();
        state.lasting = None;
    }

    /// The methods called so far, in order.
    pub fn calls(&self) -> Vec<StoreMethod> {
        self.plan.state.lock().calls.clone()
    }

    /// Applies now every late copy that waits for later calls.
    pub async fn apply_late(&self) {
        self.apply_late_before(usize::MAX).await;
    }

    async fn apply_late_before(&self, call: usize) {
        let now = self.plan.runtime.boottime_now();
        let due: Vec<_> = self.plan.state.lock().late.extract_if(.., |late| late.after < call).collect();
        for late in due {
            if now < late.dies {
                late.request.carry_out(&*self.inner).await;
            }
        }
    }

    /// Schedules a late copy of the n-th call.
    fn schedule_copy(&self, call: usize, request: StoreRequest, when: CopyDelay) {
        match when {
            CopyDelay::Calls(between) => {
                let dies = self.plan.runtime.boottime_now() + self.plan.dies_after;
                self.plan.state.lock().late.push(LateCopy { request, after: call + between, dies });
            }
            CopyDelay::Time(time) if time < self.plan.dies_after => {
                let (inner, sleep) = (Arc::clone(&self.inner), self.plan.runtime.sleep(time));
                self.plan.runtime.spawn(Box::pin(async move {
                    sleep.await;
                    request.carry_out(&*inner).await;
                }));
            }
            // The copy would be dropped before its time comes.
            CopyDelay::Time(_) => {}
        }
    }

    /// Runs one call: first the late copies that are due, then the call with its fault.
    async fn call<T>(&self, request: StoreRequest, carry_out: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let (call, fault) = self.plan.record_call(request.method());
        self.apply_late_before(call).await;
        yield_now().await;
        let answer = match fault {
            Some(fault) => self.apply_fault(fault, call, request, carry_out).await,
            None => carry_out.await,
        };
        yield_now().await;
        answer
    }

    async fn apply_fault<T>(
        &self,
        fault: StoreFault,
        call: usize,
        request: StoreRequest,
        carry_out: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if let Some(when) = fault.copy_delay() {
            self.schedule_copy(call, request, when);
        }
        match fault {
            StoreFault::FailBefore(kind) => Err(failed(kind)),
            StoreFault::FailThenApply(_) => Err(failed(ErrorKind::Unknown)),
            StoreFault::SwallowBefore | StoreFault::SwallowThenApply(_) => pending().await,
            StoreFault::ApplyTwice(_) => carry_out.await,
            StoreFault::CarryOutLate(time) => {
                self.plan.runtime.sleep(time).await;
                carry_out.await
            }
            StoreFault::AnswerLate(time) => {
                let answer = carry_out.await;
                self.plan.runtime.sleep(time).await;
                answer
            }
            StoreFault::FailAfter(kind) => {
                carry_out.await?;
                Err(failed(kind))
            }
            StoreFault::SwallowAfter => {
                carry_out.await?;
                pending().await
            }
        }
    }
}

impl StoreFault {
    /// When a late copy of the call is applied, if the fault has one.
    fn copy_delay(self) -> Option<CopyDelay> {
        match self {
            Self::FailThenApply(when) | Self::SwallowThenApply(when) | Self::ApplyTwice(when) => Some(when),
            Self::FailBefore(_)
            | Self::FailAfter(_)
            | Self::SwallowBefore
            | Self::SwallowAfter
            | Self::CarryOutLate(_)
            | Self::AnswerLate(_) => None,
        }
    }
}

impl FaultPlan {
    /// Counts a call and returns its number and fault.
    fn record_call(&self, method: StoreMethod) -> (usize, Option<StoreFault>) {
        let mut state = self.state.lock();
        let call = state.calls.len();
        state.calls.push(method);
        let lasting = state.lasting.filter(|(first, _)| call >= *first).map(|(_, fault)| fault);
        (call, state.faults.get(&call).copied().or(lasting))
    }
}

impl StoreRequest {
    fn method(&self) -> StoreMethod {
        match self {
            Self::Begin(_) => StoreMethod::Begin,
            Self::Renew(..) => StoreMethod::Renew,
            Self::Complete(..) => StoreMethod::Complete,
            Self::Read => StoreMethod::Read,
            Self::Swap(..) => StoreMethod::Swap,
            Self::Dedicated => StoreMethod::Dedicated,
        }
    }

    /// Applies a late copy and drops its result.
    async fn carry_out(self, store: &dyn Store) {
        match self {
            Self::Begin(ask) => drop(store.begin(&ask).await),
            Self::Renew(rk, claim) => drop(store.renew(&rk, &claim).await),
            Self::Complete(rk, ask) => drop(store.complete(&rk, &ask).await),
            Self::Swap(rk, swap) => drop(store.swap(&rk, &swap.0, &swap.1).await),
            Self::Read | Self::Dedicated => {}
        }
    }
}

fn failed(kind: ErrorKind) -> Error {
    Error::new(kind, "an injected fault")
}

/// Yields once to the executor, so that every other task can run.
///
/// # Cancel safety
/// Safe to drop.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for Faulty {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.call(StoreRequest::Begin(*ask), self.inner.begin(ask)).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.call(StoreRequest::Renew(*rk, *claim), self.inner.renew(rk, claim)).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.call(StoreRequest::Complete(*rk, ask.clone()), self.inner.complete(rk, ask)).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.call(StoreRequest::Read, self.inner.read(rk)).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let inner = self.call(StoreRequest::Dedicated, Arc::clone(&self.inner).dedicated()).await?;
        Ok(Arc::new(Self { inner, plan: Arc::clone(&self.plan) }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let request = StoreRequest::Swap(*rk, Box::new((seen.clone(), next.clone())));
        self.call(request, self.inner.swap(rk, seen, next)).await
    }

    /// Never fails by itself: an answer outside of the store has faults of its own.
    async fn fetch(&self, completion: Completion) -> Result<Completion> {
        self.inner.fetch(completion).await
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.plan.state.lock();
        write!(f, "Faulty({} calls, {:?}, {:?})", state.calls.len(), state.faults, self.inner)
    }
}
