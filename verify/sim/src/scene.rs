//! What every actor of a world shares: the processes, the store, the clients' way to them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::journal::MemoryJournal;
use hapax_core::runtime::Runtime;
use hapax_core::{Call, Identity, Key, Rule, Scope};
use hapax_testkit::Process;
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::handler::Act;
use crate::oracle::Oracle;
use crate::outcome::{CallerOutcome, EffectPolicy};
use crate::plan::{KeyPlan, Plan};
use crate::site::Site;
use crate::store::Network;

/// A world as its actors see it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) plan: Arc<Plan>,
    pub(crate) dice: Dice,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) network: Arc<Network>,
    /// Where clients live, and whoever strikes.
    pub(crate) outside: Arc<Process>,
    /// For each key, the call under each of its payloads.
    pub(crate) calls: Vec<[Call; 2]>,
    sites: Mutex<Vec<Site>>,
    hung_up: Mutex<BTreeSet<usize>>,
    healed: AtomicBool,
}

/// One try of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) key: usize,
    pub(crate) payload: usize,
    pub(crate) act: Act,
    pub(crate) site: usize,
    /// After how long the caller hangs up.
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
        let scene = Arc::new(Self {
            plan: Arc::clone(&network.plan),
            dice,
            oracle: Arc::clone(&network.oracle),
            network,
            outside,
            calls,
            sites: Mutex::default(),
            hung_up: Mutex::default(),
            healed: AtomicBool::new(false),
        });
        for (number, has_journal) in scene.plan.journals.iter().enumerate() {
            let journal = has_journal.then(|| Arc::new(MemoryJournal::new()));
            let site = Site::start(&scene, number, journal);
            scene.sites().push(site);
        }
        scene
    }

    pub(crate) fn sites(&self) -> MutexGuard<'_, Vec<Site>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Acquire)
    }

    /// A process ends in the middle of everything.
    pub(crate) fn crash(&self, site: usize) {
        let process = {
            let mut sites = self.sites();
            if !std::mem::replace(&mut sites[site].up, false) {
                return;
            }
            self.oracle.crashes(sites[site].life);
            Arc::clone(&sites[site].process)
        };
        process.crash();
        // Its gates are gone with it.
        let gates = std::mem::take(&mut self.sites()[site].gates);
        drop(gates);
    }

    /// A process that ended starts again, over the journal that it left.
    pub(crate) fn restart(self: &Arc<Self>, site: usize) {
        let journal = {
            let sites = self.sites();
            if sites[site].up {
                return;
            }
            sites[site].journal.clone()
        };
        let started = Site::start(self, site, journal);
        self.sites()[site] = started;
    }

    /// Ends all that goes wrong.
    pub(crate) fn heal(self: &Arc<Self>) {
        self.healed.store(true, Ordering::Release);
        self.network.heal();
        self.oracle.is_healed();
        for site in 0..self.plan.journals.len() {
            self.restart(site);
            let process = Arc::clone(&self.sites()[site].process);
            crate::mishaps::resume(&process);
        }
    }

    /// Whether a probe can find out about a key.
    pub(crate) fn probes(&self, key: usize) -> bool {
        self.plan.route(key).effect == EffectPolicy::Resolve
    }

    pub(crate) fn hung_up(&self, call: usize) -> bool {
        self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).contains(&call)
    }

    /// Asks a process; what it says, or nothing if it is not there, crashes meanwhile, or the caller hangs up.
    pub(crate) async fn ask(self: &Arc<Self>, one: Try) -> Option<CallerOutcome> {
        let (call, started, told) = self.send(one)?;
        let Some(patience) = one.patience else {
            return told.await.ok();
        };
        match select(told, self.outside.sleep(patience)).await {
            Either::Left((told, _)) => told.ok(),
            Either::Right(((), _)) => {
                self.oracle.hangs_up(call);
                self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
                started.cancel();
                None
            }
        }
    }

    fn send(
        self: &Arc<Self>,
        one: Try,
    ) -> Option<(usize, hapax_testkit::TaskHandle<()>, oneshot::Receiver<CallerOutcome>)> {
        let (process, gate, life) = {
            let sites = self.sites();
            let site = sites.get(one.site).filter(|site| site.up)?;
            (Arc::clone(&site.process), site.gates[self.plan.keys[one.key].route].clone(), site.life)
        };
        let number = self.oracle.asks(one.key, one.payload, life);
        let (call, oracle, inside) = (self.calls[one.key][one.payload], Arc::clone(&self.oracle), Arc::clone(&process));
        let (tell, told) = oneshot::channel();
        let started = process.start(async move {
            let hears = Arc::clone(&oracle);
            let ran = gate.run(call, move |attempt| one.act.run(number, attempt, oracle, inside)).await;
            let told = CallerOutcome::from(ran);
            hears.told(number, &told);
            // The client may have ended.
            let _ = tell.send(told);
        });
        Some((number, started, told))
    }
}
