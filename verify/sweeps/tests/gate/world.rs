//! One key, the store that has its record, and the processes that call it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::Runtime;
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Call, Gate, Identity, Journal, Key, Rule, Scope, Store};
use hapax_sim::outcome::CallerOutcome;
use hapax_testkit::{Faulty, Process, TaskHandle, VirtualTime};

use crate::handler::HandlerScript;
use crate::oracle::{FaultLevel, KeyOracle};
use crate::setup::GateSetup;

/// One process with a gate.
pub(crate) struct GateProcess {
    pub(crate) process: Arc<Process>,
    pub(crate) gate: Gate,
    pub(crate) crashed: bool,
}

pub(crate) struct World {
    pub(crate) time: VirtualTime,
    pub(crate) memory: Arc<Memory>,
    pub(crate) faulty: Arc<Faulty>,
    pub(crate) oracle: Arc<KeyOracle>,
    pub(crate) processes: Vec<GateProcess>,
    pub(crate) setup: GateSetup,
    calls: usize,
}

/// The call that all callers make.
pub(crate) fn call() -> Call {
    let identity = Identity::plain();
    let scope = Scope::tenant("sweeps", "acme").expect("a valid scope");
    let key = Key::new("order-7").expect("a valid key");
    let fingerprint = identity.fingerprint(Rule(1), &[b"the payload"]);
    identity.call(&scope, &key).fingerprint(fingerprint)
}

impl World {
    pub(crate) fn new(setup: GateSetup, level: FaultLevel) -> Self {
        let time = VirtualTime::new(1);
        let server = time.process();
        let memory = Arc::new(Memory::with(Arc::clone(&server) as _, MemorySettings::default()));
        let oracle = KeyOracle::new(call().record_key(), Arc::clone(&memory), setup, level);
        let faulty = Faulty::new(Arc::clone(&memory) as _, server, setup.lease);
        Self { time, memory, faulty, oracle, processes: Vec::new(), setup, calls: 0 }
    }

    /// Starts a process whose gate uses this store, and returns its number.
    pub(crate) fn start_process(&mut self, store: Arc<dyn Store>, journal: Option<Arc<dyn Journal>>) -> usize {
        let process = self.time.process();
        let settings = self.setup.settings(Arc::clone(&self.oracle) as _);
        let mut builder = Gate::builder(store, settings).runtime(Arc::clone(&process) as _);
        if let Some(journal) = journal {
            builder = builder.journal(journal);
        }
        let gate = builder.build().expect("the settings of the sweeps are valid");
        self.processes.push(GateProcess { process, gate, crashed: false });
        self.processes.len() - 1
    }

    /// Calls a process after a delay.
    pub(crate) fn send(
        &mut self,
        process: usize,
        handler: HandlerScript,
        delay: Duration,
    ) -> TaskHandle<CallerOutcome> {
        let GateProcess { process, gate, .. } = &self.processes[process];
        let (gate, oracle) = (gate.clone(), Arc::clone(&self.oracle));
        let (inside, number) = (Arc::clone(process), self.calls);
        self.calls += 1;
        let sleep = (!delay.is_zero()).then(|| process.sleep(delay));
        process.start(async move {
            if let Some(sleep) = sleep {
                sleep.await;
            }
            let caller = Arc::clone(&oracle);
            let ran = gate.run(call(), move |attempt| handler.run(number, attempt, oracle, inside)).await;
            let outcome = CallerOutcome::from(ran);
            caller.receive(number, &outcome);
            outcome
        })
    }

    /// Calls a process and waits for the outcome.
    pub(crate) fn call(&mut self, process: usize, limit: Duration) -> Option<CallerOutcome> {
        let started = self.send(process, HandlerScript::APPLIES, Duration::ZERO);
        self.run_until(limit, || started.output())
    }

    /// Runs the world until `look` returns something. The oracle checks each step.
    pub(crate) fn run_until<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        self.time.run_until(limit, || {
            self.oracle.step(self.time.now());
            look()
        })
    }

    pub(crate) fn run_for(&self, time: Duration) {
        self.run_until(time, || None::<()>);
    }

    pub(crate) fn crash(&mut self, process: usize) {
        self.oracle.excuse("a process crashed");
        self.processes[process].crashed = true;
        self.processes[process].process.crash();
    }
}
