//! Starts processes with the clocks, settings and probes of the plan.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::journal::MemoryJournal;
use hapax_core::runtime::Runtime;
use hapax_core::settings::{Found, OnStoreDown, Probe};
use hapax_core::{BoxError, Gate, Journal, OnBusy, OnLapse, OperationId, Policy, Repeatable, Settings};
use hapax_testkit::{ClockOffsets, Process};

use crate::outcome::EffectPolicy;
use crate::plan::{FaultClass, RoutePlan};
use crate::process::SimProcess;
use crate::scene::Scene;
use crate::store::NetworkStore;

/// Starts every process of the plan.
pub(crate) fn start_all(scene: &Arc<Scene>) {
    for (number, has_journal) in scene.plan.journals.iter().enumerate() {
        let journal = has_journal.then(|| Arc::new(MemoryJournal::new()));
        let process = start_process(scene, number, journal);
        scene.processes().push(process);
    }
}

/// Starts a process again, with the journal that it left. Does nothing if the process is up.
pub(crate) fn restart(scene: &Arc<Scene>, number: usize) {
    let journal = {
        let processes = scene.processes();
        if processes[number].up {
            return;
        }
        processes[number].journal.clone()
    };
    let started = start_process(scene, number, journal);
    scene.processes()[number] = started;
}

/// Starts the process with this number.
fn start_process(scene: &Arc<Scene>, number: usize, journal: Option<Arc<MemoryJournal>>) -> SimProcess {
    let process = scene.outside.sibling();
    process.set_clocks(clocks(scene));
    let life = scene.oracle.start_life(number, journal.clone());
    let left = journal.as_ref().and_then(|journal| journal.replay().now_or_never()).and_then(Result::ok);
    if left.is_some_and(|left| !left.is_empty()) {
        scene.oracle.adopt_journal();
    }
    let mut settings = Settings::default();
    settings.store_timeout = scene.plan.store_timeout;
    settings.max_in_flight = scene.plan.max_in_flight;
    settings.max_followers = scene.plan.max_twins;
    let policies: Vec<_> = scene.plan.routes.iter().map(|route| policy(*route, scene, &process)).collect();
    settings.policy = policies[0].clone();
    let remote = Arc::new(NetworkStore::new(Arc::clone(&scene.network), life));
    let mut builder = Gate::builder(remote, settings).runtime(Arc::clone(&process) as _);
    if let Some(journal) = &journal {
        builder = builder.journal(Arc::clone(journal) as _);
    }
    let gate = builder.build().expect("the settings of a plan are valid");
    let gates = policies.iter().map(|policy| gate.with(policy).expect("the policies of a plan are valid")).collect();
    SimProcess { process, life, gates, journal, up: true }
}

/// Steps the wall clock of a process.
pub(crate) fn step_clock(scene: &Scene, process: &Process) {
    let ClockOffsets { wall_ahead, .. } = clocks(scene);
    process.step_wall(wall_ahead);
}

fn clocks(scene: &Scene) -> ClockOffsets {
    if !scene.plan.allows(FaultClass::Clocks) {
        return ClockOffsets::default();
    }
    let hour = 3_600_000_000;
    ClockOffsets {
        wall_ahead: i64::try_from(scene.dice.below(2 * hour)).expect("small") - i64::try_from(hour).expect("small"),
        boot_ahead: scene.dice.up_to(Duration::from_secs(3600)),
        drift: i32::try_from(scene.dice.below(20_000)).expect("small") - 10_000,
    }
}

fn policy(route: RoutePlan, scene: &Arc<Scene>, process: &Arc<Process>) -> Policy {
    let mut policy = Policy::default();
    policy.lease = route.lease;
    policy.retention = route.retention;
    policy.unknown_retention = route.unknown_retention;
    policy.released_retention = route.released_retention;
    policy.max_execution = route.max_execution;
    policy.on_busy = route.wait.map_or(OnBusy::Reject, OnBusy::Wait);
    let repeatable = || Repeatable::declared("the simulation counts what it does");
    policy.on_lapse = match route.effect {
        EffectPolicy::Hold => OnLapse::Hold,
        EffectPolicy::Resolve => {
            OnLapse::Resolve(Arc::new(TruthfulProbe { scene: Arc::downgrade(scene), process: Arc::clone(process) }))
        }
        EffectPolicy::Ledger { .. } | EffectPolicy::Repeatable => OnLapse::Retry(repeatable()),
    };
    policy.on_store_down = match route.effect {
        EffectPolicy::Ledger { pass: true } => OnStoreDown::Pass(repeatable()),
        EffectPolicy::Ledger { pass: false }
        | EffectPolicy::Hold
        | EffectPolicy::Resolve
        | EffectPolicy::Repeatable => OnStoreDown::Reject,
    };
    policy
}

/// A probe that observes the whole world and is never wrong. While faults happen it may be slow, fail, or find nothing
/// out.
#[derive(Debug)]
struct TruthfulProbe {
    scene: Weak<Scene>,
    process: Arc<Process>,
}

#[async_trait]
impl Probe for TruthfulProbe {
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
        let Some(scene) = self.scene.upgrade() else { return Ok(Found::Unknown) };
        let mood = if scene.is_healed() { 99 } else { scene.dice.below(100) };
        match mood {
            0..5 => self.process.sleep(2 * scene.plan.longest_lease()).await,
            5..15 => return Err("the probe is unavailable".into()),
            15..25 => return Ok(Found::Unknown),
            _ => self.process.sleep(scene.dice.up_to(scene.plan.latency)).await,
        }
        let found = scene.oracle.find_out(operation);
        self.process.sleep(scene.dice.up_to(scene.plan.probe_takes)).await;
        Ok(found)
    }
}
