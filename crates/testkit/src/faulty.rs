use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result, Store};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out and fails like this.
    FailBefore(ErrorKind),
    /// It is carried out and fails like this: `Unknown`, if the store is not to lie.
    FailAfter(ErrorKind),
    /// It is not carried out and never answered.
    SwallowBefore,
    /// It is carried out and never answered.
    SwallowAfter,
    /// It fails as `Unknown` at once and is carried out later.
    FailThenApply(When),
    /// It is never answered and is carried out later.
    SwallowThenApply(When),
    /// It is carried out after this time, and answered.
    CarryOutLate(Duration),
    /// It is carried out, and answered after this time.
    AnswerLate(Duration),
    /// It is carried out and answered, and later carried out once more.
    ApplyTwice(When),
}

/// When a late copy of a call arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the next call, but for so many in between.
    Calls(usize),
    /// After this time.
    Time(Duration),
}

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations of a store")]
pub enum Operation {
    Begin,
    Renew,
    Complete,
    Read,
    Swap,
    Dedicated,
}

/// A store with faults, each met by the n-th call, counted from 0 over this store and every handle that is dedicated of it.
///
/// A call takes two turns of the executor, one before it is carried out and one after, so that it can be dropped on either side.
pub struct Faulty {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Where late copies come from.
    runtime: Arc<dyn Runtime>,
    /// How old a late copy can get before it is lost.
    dies_after: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<Operation>,
    script: BTreeMap<usize, Fault>,
    late: Vec<Late>,
}

/// A copy of a call that is under way.
struct Late {
    request: Request,
    /// The last call that it lets pass.
    after: usize,
    dies: Duration,
}

#[derive(Clone)]
enum Request {
    Begin(Begin),
    Renew(RecordKey, Claim),
    Complete(RecordKey, Complete),
    Read,
    Swap(RecordKey, Box<(Observed, Change)>),
    Dedicated,
}

impl Faulty {
    /// A store without faults as yet. A late copy of a call that gets as old as `dies_after` is lost.
    pub fn over(inner: Arc<dyn Store>, runtime: Arc<dyn Runtime>, dies_after: Duration) -> Arc<Self> {
        let shared = Arc::new(Shared { runtime, dies_after, state: Mutex::default() });
        Arc::new(Self { inner, shared })
    }

    /// Lets the n-th call meet this fault.
    pub fn meet(&self, call: usize, fault: Fault) {
        self.shared.lock().script.insert(call, fault);
    }

    /// Lets all of these calls meet this fault.
    pub fn meet_all(&self, calls: Range<usize>, fault: Fault) {
        self.shared.lock().script.extend(calls.map(|call| (call, fault)));
    }

    /// Ends all faults. Late copies are still under way.
    pub fn heal(&self) {
        self.shared.lock().script.clear();
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Operation> {
        self.shared.lock().calls.clone()
    }

    /// Lets every late copy that waits for a call arrive now.
    pub async fn apply_late(&self) {
        self.apply_late_before(usize::MAX).await;
    }

    async fn apply_late_before(&self, call: usize) {
        let now = self.shared.runtime.boottime_now();
        let due: Vec<_> = self.shared.lock().late.extract_if(.., |late| late.after < call).collect();
        for late in due {
            if now < late.dies {
                late.request.carry_out(&*self.inner).await;
            }
        }
    }

    /// Sends a copy of the n-th call that arrives later.
    fn send_late(&self, call: usize, request: Request, when: When) {
        match when {
            When::Calls(between) => {
                let dies = self.shared.runtime.boottime_now() + self.shared.dies_after;
                self.shared.lock().late.push(Late { request, after: call + between, dies });
            }
            When::Time(time) if time < self.shared.dies_after => {
                let (inner, sleep) = (Arc::clone(&self.inner), self.shared.runtime.sleep(time));
                self.shared.runtime.spawn(Box::pin(async move {
                    sleep.await;
                    request.carry_out(&*inner).await;
                }));
            }
            When::Time(_) => {}
        }
    }

    /// One call: what is late comes before it, and then it meets its fault.
    async fn call<T>(&self, request: Request, carry_out: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let (call, fault) = self.shared.arrived(request.operation());
        self.apply_late_before(call).await;
        turn().await;
        let answer = match fault {
            Some(fault) => self.meet_now(fault, call, request, carry_out).await,
            None => carry_out.await,
        };
        turn().await;
        answer
    }

    async fn meet_now<T>(
        &self,
        fault: Fault,
        call: usize,
        request: Request,
        carry_out: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if let Some(when) = fault.copy() {
            self.send_late(call, request, when);
        }
        match fault {
            Fault::FailBefore(kind) => Err(failed(kind)),
            Fault::FailThenApply(_) => Err(failed(ErrorKind::Unknown)),
            Fault::SwallowBefore | Fault::SwallowThenApply(_) => pending().await,
            Fault::ApplyTwice(_) => carry_out.await,
            Fault::CarryOutLate(time) => {
                self.shared.runtime.sleep(time).await;
                carry_out.await
            }
            Fault::AnswerLate(time) => {
                let answer = carry_out.await;
                self.shared.runtime.sleep(time).await;
                answer
            }
            Fault::FailAfter(kind) => {
                carry_out.await?;
                Err(failed(kind))
            }
            Fault::SwallowAfter => {
                carry_out.await?;
                pending().await
            }
        }
    }
}

impl Fault {
    /// When a copy of the call arrives later.
    fn copy(self) -> Option<When> {
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self, operation: Operation) -> (usize, Option<Fault>) {
        let mut state = self.lock();
        let call = state.calls.len();
        state.calls.push(operation);
        (call, state.script.get(&call).copied())
    }
}

impl Request {
    fn operation(&self) -> Operation {
        match self {
            Self::Begin(_) => Operation::Begin,
            Self::Renew(..) => Operation::Renew,
            Self::Complete(..) => Operation::Complete,
            Self::Read => Operation::Read,
            Self::Swap(..) => Operation::Swap,
            Self::Dedicated => Operation::Dedicated,
        }
    }

    /// Nobody hears the answer.
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
    Error::new(kind, "a fault of the test")
}

/// Lets every other task have a turn.
///
/// # Cancel safety
/// Safe to drop.
pub async fn turn() {
    let mut had = false;
    poll_fn(|cx| {
        if had {
            return Poll::Ready(());
        }
        had = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for Faulty {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.call(Request::Begin(*ask), self.inner.begin(ask)).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.call(Request::Renew(*rk, *claim), self.inner.renew(rk, claim)).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.call(Request::Complete(*rk, ask.clone()), self.inner.complete(rk, ask)).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.call(Request::Read, self.inner.read(rk)).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let inner = self.call(Request::Dedicated, Arc::clone(&self.inner).dedicated()).await?;
        Ok(Arc::new(Self { inner, shared: Arc::clone(&self.shared) }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let request = Request::Swap(*rk, Box::new((seen.clone(), next.clone())));
        self.call(request, self.inner.swap(rk, seen, next)).await
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        write!(f, "Faulty({} calls, {:?}, {:?})", state.calls.len(), state.script, self.inner)
    }
}
