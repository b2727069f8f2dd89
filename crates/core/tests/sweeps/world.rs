//! One key, the store behind it, and the processes that work on it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::Runtime;
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Call, Gate, Identity, Journal, Key, OnBusy, OnLapse, Repeatable, Rule, Scope, Settings, Store};
use hapax_testkit::{Faulty, Process, Started, VirtualTime};

use crate::act::Act;
use crate::oracle::{Lapse, Oracle, Told, Weather};

/// How the gates of a world are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lapse: Lapse,
    pub(crate) lease: Duration,
    /// How long a call to the store may take.
    pub(crate) timeout: Duration,
    /// How long a copy waits.
    pub(crate) wait: Option<Duration>,
}

impl Terms {
    fn settings(self, oracle: &Arc<Oracle>) -> Settings {
        let mut settings = Settings::default();
        settings.store_timeout = self.timeout;
        settings.policy.lease = self.lease;
        settings.policy.on_lapse = match self.lapse {
            Lapse::Hold => OnLapse::Hold,
            Lapse::Retry => OnLapse::Retry(Repeatable::declared("the effect only counts")),
            Lapse::Resolve => OnLapse::Resolve(Arc::clone(oracle) as _),
        };
        settings.policy.on_busy = self.wait.map_or(OnBusy::Reject, OnBusy::Wait);
        settings
    }
}

/// One process with a gate.
pub(crate) struct Site {
    pub(crate) process: Arc<Process>,
    pub(crate) gate: Gate,
    pub(crate) crashed: bool,
}

pub(crate) struct World {
    pub(crate) time: VirtualTime,
    pub(crate) memory: Arc<Memory>,
    pub(crate) faulty: Arc<Faulty>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) sites: Vec<Site>,
    pub(crate) terms: Terms,
    calls: usize,
}

pub(crate) fn call() -> Call {
    let identity = Identity::plain();
    let scope = Scope::tenant("sweeps", "acme").expect("a valid scope");
    let key = Key::new("order-7").expect("a valid key");
    let fingerprint = identity.fingerprint(Rule(1), &[b"the payload"]);
    identity.call(&scope, &key).fingerprint(fingerprint)
}

impl World {
    pub(crate) fn new(terms: Terms, weather: Weather) -> Self {
        let time = VirtualTime::new(1);
        let server = time.process();
        let memory = Arc::new(Memory::new(Arc::clone(&server) as _, MemorySettings::default()));
        let oracle = Oracle::new(call().record_key(), Arc::clone(&memory), terms, weather);
        let faulty = Faulty::over(Arc::clone(&memory) as _, server, terms.lease);
        Self { time, memory, faulty, oracle, sites: Vec::new(), terms, calls: 0 }
    }

    /// Starts a process whose gate uses this store; its number.
    pub(crate) fn open(&mut self, store: Arc<dyn Store>, journal: Option<Arc<dyn Journal>>) -> usize {
        let process = self.time.process();
        let mut builder = Gate::builder(store, self.terms.settings(&self.oracle)).runtime(Arc::clone(&process) as _);
        if let Some(journal) = journal {
            builder = builder.journal(journal);
        }
        let gate = builder.build().expect("the settings of the sweeps are valid");
        self.sites.push(Site { process, gate, crashed: false });
        self.sites.len() - 1
    }

    /// Sends the call to a process, after a while.
    pub(crate) fn send(&mut self, site: usize, act: Act, delay: Duration) -> Started<()> {
        let Site { process, gate, .. } = &self.sites[site];
        let (gate, oracle) = (gate.clone(), Arc::clone(&self.oracle));
        let (inside, number) = (Arc::clone(process), self.calls);
        self.calls += 1;
        let sleep = process.sleep(delay);
        process.start(async move {
            sleep.await;
            let hears = Arc::clone(&oracle);
            let ran = gate.run(call(), move |attempt| act.run(number, attempt, oracle, inside)).await;
            hears.told(number, &Told::from(ran));
        })
    }

    /// Sends the call to a process and waits for what it is told.
    pub(crate) fn ask(&mut self, site: usize, limit: Duration) -> Option<Told> {
        let Site { process, gate, .. } = &self.sites[site];
        let (gate, oracle) = (gate.clone(), Arc::clone(&self.oracle));
        let (inside, number) = (Arc::clone(process), self.calls);
        self.calls += 1;
        let started = process.start(async move {
            let hears = Arc::clone(&oracle);
            let ran = gate.run(call(), move |attempt| Act::APPLIES.run(number, attempt, oracle, inside)).await;
            let told = Told::from(ran);
            hears.told(number, &told);
            told
        });
        self.run_until(limit, || started.output())
    }

    /// Lets the world go on until there is something to return, and holds each of its steps to the rules.
    pub(crate) fn run_until<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        self.time.run_until(limit, || {
            self.oracle.look(self.time.now());
            look()
        })
    }

    pub(crate) fn run_for(&self, time: Duration) {
        self.run_until(time, || None::<()>);
    }

    pub(crate) fn crash(&mut self, site: usize) {
        self.oracle.excuse("a process crashed");
        self.sites[site].crashed = true;
        self.sites[site].process.crash();
    }
}
