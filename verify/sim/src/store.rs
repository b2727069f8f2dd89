//! The store as the gates use it: a server behind a network whose faults come from the seed.

mod network;

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Completion, Error, ErrorKind, RecordKey, Result, Store};
use hapax_testkit::Process;
use tokio::sync::oneshot;

use network::CallFate;

pub(crate) use network::{Network, Outage, Room};

/// The server of the store. It can forget everything.
#[derive(Debug)]
pub(crate) struct StoreServer {
    server: Arc<Process>,
    memory: Mutex<Arc<Memory>>,
}

impl StoreServer {
    pub(crate) fn new(server: Arc<Process>) -> Self {
        Self { memory: Mutex::new(empty(&server)), server }
    }

    fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = empty(&self.server);
    }

    /// Reads a record without any fault.
    pub(crate) fn observed(&self, rk: &RecordKey) -> Observed {
        let seen = self.memory().read(rk).now_or_never();
        seen.expect("memory answers at once").expect("memory always answers")
    }
}

fn empty(server: &Arc<Process>) -> Arc<Memory> {
    Arc::new(Memory::with(Arc::clone(server) as _, MemorySettings::default()))
}

/// The operation of a store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreCall {
    Begin,
    Renew(Claim),
    Complete,
    Read,
    Swap,
    Dedicated,
}

impl StoreCall {
    /// Whether the call may write a record.
    fn writes(self) -> bool {
        match self {
            Self::Begin | Self::Renew(_) | Self::Complete | Self::Swap => true,
            Self::Read | Self::Dedicated => false,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Renew(_) => "renew",
            Self::Complete => "complete",
            Self::Read => "read",
            Self::Swap => "swap",
            Self::Dedicated => "dedicated",
        }
    }
}

/// The step that the server carries out for a call. For a late begin the server runs the whole protocol, because other
/// stores may grant in their one step more than an absent record.
type ServerStep<T> = Arc<dyn Fn(Arc<Memory>, Arrival) -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// When a request arrives at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The caller still waits for the reply.
    InTime,
    /// The caller has given up.
    Late,
    /// The server has carried the same request out before.
    Duplicate,
}

/// The store handle of one process.
#[derive(Clone, Debug)]
pub(crate) struct NetworkStore {
    network: Arc<Network>,
    /// The life of the process that calls.
    life: usize,
    /// Whether its calls meet no fault.
    is_sure: bool,
}

impl NetworkStore {
    pub(crate) fn new(network: Arc<Network>, life: usize) -> Self {
        Self { network, life, is_sure: false }
    }

    /// A handle on the machine of the store: its calls meet no fault.
    pub(crate) fn sure(network: Arc<Network>, life: usize) -> Self {
        Self { network, life, is_sure: true }
    }

    /// Sends a request and waits for the reply; if the reply is lost, it waits for ever. Dropping the future does not
    /// stop the request.
    async fn call<T: Send + 'static>(&self, rk: RecordKey, request: StoreCall, step: ServerStep<T>) -> Result<T> {
        let fate = if self.is_sure { CallFate::FINE } else { self.network.fate(request) };
        if !matches!(fate, CallFate::Fine { there, back } if there.max(back) <= self.network.plan.latency) {
            self.network.oracle.record_call_fault(self.life, rk, &request, &format_args!("{fate:?}"));
            if !matches!(fate, CallFate::Refused(_)) {
                self.network.oracle.record_unavailable(self.life);
            }
        }
        let (sender, reply) = oneshot::channel();
        let in_transit = InTransit { network: Arc::clone(&self.network), rk, request, is_sure: self.is_sure, step };
        self.network.server.spawn(Box::pin(in_transit.travel(fate, sender)));
        let Ok(reply) = reply.await else { return pending().await };
        if let Err(error) = &reply {
            self.network.oracle.record_refused_call(self.life, rk, &request, error.kind());
        }
        reply
    }
}

/// One request on its way to the server.
struct InTransit<T> {
    network: Arc<Network>,
    rk: RecordKey,
    request: StoreCall,
    is_sure: bool,
    step: ServerStep<T>,
}

impl<T: Send + 'static> InTransit<T> {
    async fn travel(self, fate: CallFate, sender: oneshot::Sender<Result<T>>) {
        let server = Arc::clone(&self.network.server);
        match fate {
            CallFate::Fine { there, back } => {
                server.sleep(there).await;
                let reply = self.carry_out(Arrival::InTime).await;
                server.sleep(back).await;
                reply_to(sender, reply);
            }
            CallFate::Refused(kind) => reply_to(sender, Err(failed(kind))),
            CallFate::Cut { carried_out } => {
                self.carry_out_when(carried_out).await;
                reply_to(sender, Err(failed(ErrorKind::Unknown)));
            }
            CallFate::Lost { carried_out } => {
                self.carry_out_when(carried_out).await;
                drop(sender);
            }
            CallFate::Late { after, cut } => {
                if cut {
                    reply_to(sender, Err(failed(ErrorKind::Unknown)));
                }
                server.sleep(after).await;
                drop(self.carry_out(Arrival::Late).await);
            }
            CallFate::Twice { again } => {
                let reply = self.carry_out(Arrival::InTime).await;
                // A refused call must never be applied, so its copy is not carried out either.
                let refused = reply.is_err();
                reply_to(sender, reply);
                server.sleep(again).await;
                if !refused {
                    drop(self.carry_out(Arrival::Duplicate).await);
                }
            }
        }
    }

    /// Carries the request out if it arrives, and drops the reply.
    async fn carry_out_when(&self, gets_there: bool) {
        if gets_there {
            drop(self.carry_out(Arrival::InTime).await);
        }
    }

    async fn carry_out(&self, when: Arrival) -> Result<T> {
        let network = &self.network;
        let before = network.shelf.observed(&self.rk);
        if !self.is_sure
            && let Some(kind) = network.refusal(&self.rk, self.request, before.live().is_some())
        {
            return Err(failed(kind));
        }
        let reply = (self.step)(network.shelf.memory(), when).await;
        let after = network.shelf.observed(&self.rk);
        network.oracle.carried_out(&self.rk, (self.request, when), &before, &after);
        reply
    }
}

/// Sends a reply. The caller may have stopped waiting.
fn reply_to<T>(sender: oneshot::Sender<Result<T>>, reply: Result<T>) {
    drop(sender.send(reply));
}

fn failed(kind: ErrorKind) -> Error {
    Error::new(kind, "a fault of the simulation")
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for NetworkStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let ask = *ask;
        let step: ServerStep<_> = Arc::new(move |memory, when| {
            Box::pin(async move {
                let inserted = memory.begin(&ask).await;
                if when == Arrival::Late && matches!(inserted, Ok(Inserted::Found(_))) {
                    drop(Protocol::over(&*memory).begin(&ask).await);
                }
                inserted
            })
        });
        self.network.oracle.record_begin(self.life, ask.owner);
        let begin = self.network.oracle.start_begin(self.life);
        let inserted = self.call(ask.call.record_key(), StoreCall::Begin, step).await;
        begin.end(&inserted);
        inserted
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (rk, claim) = (*rk, *claim);
        let step: ServerStep<_> = Arc::new(move |memory, _| Box::pin(async move { memory.renew(&rk, &claim).await }));
        let _under_way = self.network.oracle.start_renewal(self.life, claim.owner);
        let renewed = self.call(rk, StoreCall::Renew(claim), step).await;
        if matches!(renewed, Ok(Renewed::Lost)) {
            self.network.oracle.lose_grant(claim.owner);
        }
        renewed
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (rk, claim, age, ask) = (*rk, ask.claim, ask.age, Arc::new(ask.clone()));
        let step: ServerStep<_> = Arc::new(move |memory, _| {
            let ask = Arc::clone(&ask);
            Box::pin(async move { memory.complete(&rk, &ask).await })
        });
        self.network.oracle.check_completion_sent(self.life, &rk, claim, age);
        self.call(rk, StoreCall::Complete, step).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let rk = *rk;
        let step: ServerStep<_> = Arc::new(move |memory, _| Box::pin(async move { memory.read(&rk).await }));
        self.call(rk, StoreCall::Read, step).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let handle: Arc<dyn Store> = Arc::clone(&self) as _;
        let step: ServerStep<Arc<dyn Store>> = Arc::new(move |_, _| {
            let handle = Arc::clone(&handle);
            Box::pin(async move { Ok(handle) })
        });
        self.call(RecordKey::from_bytes([0; 16]), StoreCall::Dedicated, step).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (rk, change) = (*rk, Arc::new((seen.clone(), next.clone())));
        self.network.oracle.check_give_back(self.life, &rk, &next.record.state);
        let step: ServerStep<_> = Arc::new(move |memory, _| {
            let change = Arc::clone(&change);
            Box::pin(async move { memory.swap(&rk, &change.0, &change.1).await })
        });
        let swapped = self.call(rk, StoreCall::Swap, step).await;
        self.network.oracle.record_swap(self.life, &swapped);
        swapped
    }

    /// Every answer of a world lies in its record.
    async fn fetch(&self, completion: Completion) -> Result<Completion> {
        Ok(completion)
    }
}

impl fmt::Display for StoreCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
