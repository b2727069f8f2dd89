//! The state that all actors of a world share: the processes, the network, the oracle, and how clients call a process.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::Runtime;
use hapax_core::{Call, Identity, Key, Rule, Scope};
use hapax_testkit::Process;
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::handler::HandlerPlan;
use crate::oracle::Oracle;
use crate::outcome::{CallerOutcome, EffectPolicy};
use crate::plan::{KeyPlan, Plan};
use crate::process::SimProcess;
use crate::store::Network;

/// A world as its actors see it. Every actor holds it in an `Arc`.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) plan: Arc<Plan>,
    pub(crate) dice: Dice,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) network: Arc<Network>,
    /// Runs the clients, the operator and the tasks that cause faults.
    pub(crate) outside: Arc<Process>,
    /// For each key, the call under each of its payloads.
    pub(crate) calls: Vec<[Call; 2]>,
    processes: Mutex<Vec<SimProcess>>,
    hung_up: Mutex<BTreeSet<usize>>,
    healed: AtomicBool,
}

/// One call of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) key: usize,
    pub(crate) payload: usize,
    pub(crate) handler: HandlerPlan,
    pub(crate) process: usize,
    /// How long the caller waits before it hangs up.
    pub(crate) patience: Option<Duration>,
}

/// For each key, the call under each of its payloads.
pub(crate) fn calls(plan: &Plan) -> Vec<[Call; 2]> {
    let identity = Identity::plain();
    let call = |key: &KeyPlan, payload: usize| {
        let scope = Scope::tenant("simulation", format!("tenant-{}", key.tenant)).expect("a valid scope");
        let name = Key::new(format!("order-{}", key.name)).expect("a valid key");
        let fingerprint = identity.fingerprint(Rule(1), &[&payload.to_be_bytes()]);
        identity.call(&scope, &name).fingerprint(fingerprint)
    };
    plan.keys.iter().map(|key| [call(key, 0), call(key, 1)]).collect()
}

impl Scene {
    /// A world in which no process runs yet.
    pub(crate) fn new(network: Arc<Network>, dice: Dice, outside: Arc<Process>, calls: Vec<[Call; 2]>) -> Arc<Self> {
        Arc::new(Self {
            plan: Arc::clone(&network.plan),
            dice,
            oracle: Arc::clone(&network.oracle),
            network,
            outside,
            calls,
            processes: Mutex::default(),
            hung_up: Mutex::default(),
            healed: AtomicBool::new(false),
        })
    }

    pub(crate) fn processes(&self) -> MutexGuard<'_, Vec<SimProcess>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Acquire)
    }

    /// Ends a process without any clean-up.
    pub(crate) fn crash(&self, number: usize) {
        let process = {
            let mut processes = self.processes();
            if !std::mem::replace(&mut processes[number].up, false) {
                return;
            }
            self.oracle.record_crash(processes[number].life);
            Arc::clone(&processes[number].process)
        };
        process.crash();
        // The lock must not be held while gates are dropped: they may drop tasks that use the scene.
        let gates = std::mem::take(&mut self.processes()[number].gates);
        drop(gates);
    }

    /// Ends all faults of the network.
    pub(crate) fn heal(&self) {
        self.healed.store(true, Ordering::Release);
        self.network.heal();
        self.oracle.heal();
    }

    /// Whether the route of a key has a probe.
    pub(crate) fn has_probe(&self, key: usize) -> bool {
        self.plan.route(key).effect == EffectPolicy::Resolve
    }

    pub(crate) fn has_hung_up(&self, call: usize) -> bool {
        self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).contains(&call)
    }

    /// Calls a process. Returns none if the process is down or crashes, or if the caller hangs up.
    pub(crate) async fn call(self: &Arc<Self>, one: ClientRequest) -> Option<CallerOutcome> {
        let (call, started, receiver) = self.send(one)?;
        let Some(patience) = one.patience else {
            return receiver.await.ok();
        };
        match select(receiver, self.outside.sleep(patience)).await {
            Either::Left((outcome, _)) => outcome.ok(),
            Either::Right(((), _)) => {
                self.oracle.hang_up(call);
                self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
                started.cancel();
                None
            }
        }
    }

    fn send(
        self: &Arc<Self>,
        one: ClientRequest,
    ) -> Option<(usize, hapax_testkit::TaskHandle<()>, oneshot::Receiver<CallerOutcome>)> {
        let (process, gate, life) = {
            let processes = self.processes();
            let up = processes.get(one.process).filter(|process| process.up)?;
            (Arc::clone(&up.process), up.gates[self.plan.keys[one.key].route].clone(), up.life)
        };
        let number = self.oracle.start_call(one.key, one.payload, life);
        let (call, oracle, inside) = (self.calls[one.key][one.payload], Arc::clone(&self.oracle), Arc::clone(&process));
        let (sender, receiver) = oneshot::channel();
        let started = process.start(async move {
            let caller = Arc::clone(&oracle);
            let ran = gate.run(call, move |attempt| one.handler.run(number, attempt, oracle, inside)).await;
            let outcome = CallerOutcome::from(ran);
            caller.receive(number, &outcome);
            // The client may have hung up.
            let _ = sender.send(outcome);
        });
        Some((number, started, receiver))
    }
}
