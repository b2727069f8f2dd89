//! The store as gates meet it: a server of its own, behind a network that fails as the seed says.

mod network;

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result, Store};
use hapax_testkit::Process;
use tokio::sync::oneshot;

use network::Fate;

pub(crate) use network::{Network, Outage};

/// What the server keeps, and may forget.
#[derive(Debug)]
pub(crate) struct Shelf {
    server: Arc<Process>,
    memory: Mutex<Arc<Memory>>,
}

impl Shelf {
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

    /// What is there, without any fault.
    pub(crate) fn observed(&self, rk: &RecordKey) -> Observed {
        let seen = self.memory().read(rk).now_or_never();
        seen.expect("memory answers at once").expect("memory always answers")
    }
}

fn empty(server: &Arc<Process>) -> Arc<Memory> {
    Arc::new(Memory::with(Arc::clone(server) as _, MemorySettings::default()))
}

/// The operation of a request, and who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Begin,
    Renew(Claim),
    Complete,
    Read,
    Swap,
    Dedicated,
}

impl Request {
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

/// A step that the server carries out. A begin that comes late is carried out as by a store that grants all that can be granted, not
/// only what is absent.
type Step<T> = Arc<dyn Fn(Arc<Memory>, When) -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// Whether somebody still waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    InTime,
    /// Nobody knows what became of it.
    Late,
    /// It was carried out before.
    Again,
}

/// The handle that the gate of one process has on the store.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    network: Arc<Network>,
    /// The life of the process that asks.
    life: usize,
}

impl Remote {
    pub(crate) fn new(network: Arc<Network>, life: usize) -> Self {
        Self { network, life }
    }

    /// Sends a request, and waits for the reply, for ever if there is none. Dropped, the request is still under way.
    async fn call<T: Send + 'static>(&self, rk: RecordKey, request: Request, step: Step<T>) -> Result<T> {
        let fate = self.network.fate(request);
        if !matches!(fate, Fate::Fine { there, back } if there.max(back) <= self.network.plan.latency) {
            self.network.oracle.troubles(self.life, rk, &request, &format_args!("{fate:?}"));
        }
        let (tell, told) = oneshot::channel();
        let visit = Visit { network: Arc::clone(&self.network), rk, request, step };
        self.network.server.spawn(Box::pin(visit.meet(fate, tell)));
        match told.await {
            Ok(reply) => reply,
            Err(_lost) => pending().await,
        }
    }
}

/// One request on its way.
struct Visit<T> {
    network: Arc<Network>,
    rk: RecordKey,
    request: Request,
    step: Step<T>,
}

impl<T: Send + 'static> Visit<T> {
    async fn meet(self, fate: Fate, tell: oneshot::Sender<Result<T>>) {
        let server = Arc::clone(&self.network.server);
        match fate {
            Fate::Fine { there, back } => {
                server.sleep(there).await;
                let reply = self.carry_out(When::InTime).await;
                server.sleep(back).await;
                answer(tell, reply);
            }
            Fate::Refused => answer(tell, Err(failed(ErrorKind::NotApplied))),
            Fate::Cut { carried_out } => {
                self.carry_out_if(carried_out).await;
                answer(tell, Err(failed(ErrorKind::Unknown)));
            }
            Fate::Lost { carried_out } => {
                self.carry_out_if(carried_out).await;
                drop(tell);
            }
            Fate::Late { after, cut } => {
                if cut {
                    answer(tell, Err(failed(ErrorKind::Unknown)));
                }
                server.sleep(after).await;
                drop(self.carry_out(When::Late).await);
            }
            Fate::Twice { again } => {
                let reply = self.carry_out(When::InTime).await;
                // What was refused is not applied, and that is a promise.
                let refused = reply.is_err();
                answer(tell, reply);
                server.sleep(again).await;
                if !refused {
                    drop(self.carry_out(When::Again).await);
                }
            }
        }
    }

    /// Nobody hears the reply.
    async fn carry_out_if(&self, gets_there: bool) {
        if gets_there {
            drop(self.carry_out(When::InTime).await);
        }
    }

    async fn carry_out(&self, when: When) -> Result<T> {
        let network = &self.network;
        let before = network.shelf.observed(&self.rk);
        if network.is_full() && matches!(self.request, Request::Begin) && before.live().is_none() {
            return Err(failed(ErrorKind::NotApplied));
        }
        let reply = (self.step)(network.shelf.memory(), when).await;
        let after = network.shelf.observed(&self.rk);
        network.oracle.carried_out(&self.rk, (self.request, when), &before, &after);
        reply
    }
}

/// Whoever asked may have gone.
fn answer<T>(tell: oneshot::Sender<Result<T>>, reply: Result<T>) {
    drop(tell.send(reply));
}

fn failed(kind: ErrorKind) -> Error {
    Error::new(kind, "a fault of the simulation")
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for Remote {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let ask = *ask;
        let step: Step<_> = Arc::new(move |memory, when| {
            Box::pin(async move {
                let inserted = memory.begin(&ask).await;
                if when == When::Late && matches!(inserted, Ok(Inserted::Found(_))) {
                    drop(Protocol::over(&*memory).begin(&ask).await);
                }
                inserted
            })
        });
        self.network.oracle.begins(self.life, ask.owner);
        self.call(ask.call.record_key(), Request::Begin, step).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let (rk, claim) = (*rk, *claim);
        let step: Step<_> = Arc::new(move |memory, _| Box::pin(async move { memory.renew(&rk, &claim).await }));
        let _under_way = self.network.oracle.renews(self.life, claim.owner);
        let renewed = self.call(rk, Request::Renew(claim), step).await;
        if matches!(renewed, Ok(Renewed::Lost)) {
            self.network.oracle.loses(claim.owner);
        }
        renewed
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let (rk, ask) = (*rk, Arc::new(ask.clone()));
        let step: Step<_> = Arc::new(move |memory, _| {
            let ask = Arc::clone(&ask);
            Box::pin(async move { memory.complete(&rk, &ask).await })
        });
        self.call(rk, Request::Complete, step).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        let rk = *rk;
        let step: Step<_> = Arc::new(move |memory, _| Box::pin(async move { memory.read(&rk).await }));
        self.call(rk, Request::Read, step).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let handle: Arc<dyn Store> = Arc::clone(&self) as _;
        let step: Step<Arc<dyn Store>> = Arc::new(move |_, _| {
            let handle = Arc::clone(&handle);
            Box::pin(async move { Ok(handle) })
        });
        self.call(RecordKey::from_bytes([0; 16]), Request::Dedicated, step).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let (rk, change) = (*rk, Arc::new((seen.clone(), next.clone())));
        self.network.oracle.gives_back(self.life, &rk, &next.record.state);
        let step: Step<_> = Arc::new(move |memory, _| {
            let change = Arc::clone(&change);
            Box::pin(async move { memory.swap(&rk, &change.0, &change.1).await })
        });
        self.call(rk, Request::Swap, step).await
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
