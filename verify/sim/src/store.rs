//! The store as gates meet it: a server of its own, behind a network that fails as the seed says.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result, Store};
use hapax_testkit::Process;
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::oracle::Oracle;
use crate::plan::{Class, Plan};

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
    Arc::new(Memory::new(Arc::clone(server) as _, MemorySettings::default()))
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

/// The weather between gates and the store.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) server: Arc<Process>,
    pub(crate) oracle: Arc<Oracle>,
    plan: Arc<Plan>,
    dice: Dice,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    healed: bool,
    outage: Option<Outage>,
    full: bool,
}

/// How a store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// It takes its time with every reply, as many a store does before it fails.
    Slow,
    /// It refuses every call at once.
    Refuses,
    /// No request gets to it.
    Swallows,
    /// Requests get to it, replies do not get back.
    Mute,
    /// No completion gets to it; all else does.
    LosesAnswers,
    /// No renewal gets to it; all else does.
    LosesRenewals,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is carried out and answered, each after this time.
    Fine {
        there: Duration,
        back: Duration,
    },
    Refused,
    Cut {
        carried_out: bool,
    },
    Lost {
        carried_out: bool,
    },
    /// It is carried out after this time; meanwhile it is cut, or not answered.
    Late {
        after: Duration,
        cut: bool,
    },
    /// It is carried out once more after this time.
    Twice {
        again: Duration,
    },
}

impl Network {
    pub(crate) fn new(
        server: Arc<Process>,
        oracle: Arc<Oracle>,
        shelf: Arc<Shelf>,
        plan: Arc<Plan>,
        dice: Dice,
    ) -> Self {
        Self { shelf, server, oracle, plan, dice, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all faults. Late requests are still under way.
    pub(crate) fn heal(&self) {
        *self.lock() = State { healed: true, outage: None, full: false };
    }

    pub(crate) fn outage(&self, outage: Option<Outage>) {
        let mut state = self.lock();
        state.outage = outage.filter(|_| !state.healed);
    }

    pub(crate) fn full(&self, full: bool) {
        let mut state = self.lock();
        state.full = full && !state.healed;
    }

    fn fate(&self, request: Request) -> Fate {
        let (healed, outage) = {
            let state = self.lock();
            (state.healed, state.outage)
        };
        let latency = || self.dice.up_to(self.plan.latency);
        match outage {
            Some(Outage::Slow) => {
                return Fate::Fine { there: latency(), back: self.dice.up_to(self.plan.store_timeout) };
            }
            Some(Outage::Refuses) => return Fate::Refused,
            Some(Outage::Swallows) => return Fate::Lost { carried_out: false },
            Some(Outage::Mute) => return Fate::Lost { carried_out: true },
            Some(Outage::LosesAnswers) if request == Request::Complete => return Fate::Lost { carried_out: false },
            Some(Outage::LosesRenewals) if matches!(request, Request::Renew(_)) => {
                return Fate::Lost { carried_out: false };
            }
            Some(Outage::LosesAnswers | Outage::LosesRenewals) | None => {}
        }
        let fine = Fate::Fine { there: latency(), back: latency() };
        if healed || !self.dice.percent(self.plan.fault_percent) {
            return fine;
        }
        let possible: Vec<_> = FAULTS.iter().filter(|(class, _)| self.plan.may(*class)).copied().collect();
        if possible.is_empty() {
            return fine;
        }
        let (class, make) = self.dice.pick(&possible);
        self.oracle.counts(class);
        make(self)
    }

    /// How long a request can be under way: less than any lease.
    fn dies_after(&self) -> Duration {
        self.plan.shortest_lease() - Duration::from_millis(1)
    }
}

type Make = fn(&Network) -> Fate;

const FAULTS: &[(Class, Make)] = &[
    // Slow, and too slow.
    (Class::Slow, |net| Fate::Fine {
        there: net.dice.up_to(net.dies_after().min(2 * net.plan.store_timeout)),
        back: net.dice.up_to(2 * net.plan.store_timeout),
    }),
    (Class::Slow, |net| Fate::Fine { there: Duration::ZERO, back: net.dice.up_to(net.plan.store_timeout) }),
    (Class::Refused, |_| Fate::Refused),
    (Class::Cut, |net| Fate::Cut { carried_out: net.dice.percent(50) }),
    (Class::Lost, |net| Fate::Lost { carried_out: net.dice.percent(50) }),
    (Class::Late, |net| Fate::Late { after: net.dice.up_to(net.dies_after()), cut: net.dice.percent(50) }),
    (Class::Twice, |net| Fate::Twice { again: net.dice.up_to(net.dies_after()) }),
];

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
        if !matches!(fate, Fate::Fine { back, .. } if back <= self.network.plan.latency) {
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
        // Whoever asked may have gone.
        let answer = |tell: oneshot::Sender<Result<T>>, reply| drop(tell.send(reply));
        match fate {
            Fate::Fine { there, back } => {
                server.sleep(there).await;
                let reply = self.carry_out(When::InTime).await;
                server.sleep(back).await;
                answer(tell, reply);
            }
            Fate::Refused => answer(tell, Err(failed(ErrorKind::NotApplied))),
            Fate::Cut { carried_out } => {
                if carried_out {
                    drop(self.carry_out(When::InTime).await);
                }
                answer(tell, Err(failed(ErrorKind::Unknown)));
            }
            Fate::Lost { carried_out } => {
                if carried_out {
                    drop(self.carry_out(When::InTime).await);
                }
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

    async fn carry_out(&self, when: When) -> Result<T> {
        let network = &self.network;
        let before = network.shelf.observed(&self.rk);
        if network.lock().full && matches!(self.request, Request::Begin) && before.live().is_none() {
            return Err(failed(ErrorKind::NotApplied));
        }
        let reply = (self.step)(network.shelf.memory(), when).await;
        let after = network.shelf.observed(&self.rk);
        network.oracle.carried_out(&self.rk, (self.request, when), &before, &after);
        reply
    }
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
        self.call(RecordKey::from_bytes([0; 32]), Request::Dedicated, step).await
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
