//! A process with its gate, one for each route, and perhaps a journal that survives it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::journal::MemoryJournal;
use hapax_core::runtime::Runtime;
use hapax_core::settings::{Found, OnStoreDown, Probe};
use hapax_core::{BoxError, Gate, Journal, OnBusy, OnLapse, OperationId, Policy, Repeatable, Settings};
use hapax_testkit::{ClockOffsets, Process};

use crate::outcome::EffectPolicy;
use crate::plan::{Class, Route};
use crate::scene::Scene;
use crate::store::Remote;

/// One process, as it is now.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) process: Arc<Process>,
    pub(crate) life: usize,
    /// That of each route.
    pub(crate) gates: Vec<Gate>,
    pub(crate) journal: Option<Arc<MemoryJournal>>,
    pub(crate) up: bool,
}

impl Site {
    /// Starts the process with this number.
    pub(crate) fn start(scene: &Arc<Scene>, number: usize, journal: Option<Arc<MemoryJournal>>) -> Self {
        let process = scene.outside.sibling();
        process.set_clocks(clocks(scene));
        let life = scene.oracle.is_born(number, journal.clone());
        let left = journal.as_ref().and_then(|journal| journal.replay().now_or_never()).and_then(Result::ok);
        if left.is_some_and(|left| !left.is_empty()) {
            scene.oracle.adopts();
        }
        let mut settings = Settings::default();
        settings.store_timeout = scene.plan.store_timeout;
        settings.max_in_flight = scene.plan.max_in_flight;
        settings.max_twins = scene.plan.max_twins;
        let policies: Vec<_> = scene.plan.routes.iter().map(|route| policy(*route, scene, &process)).collect();
        settings.policy = policies[0].clone();
        let remote = Arc::new(Remote::new(Arc::clone(&scene.network), life));
        let mut builder = Gate::builder(remote, settings).runtime(Arc::clone(&process) as _);
        if let Some(journal) = &journal {
            builder = builder.journal(Arc::clone(journal) as _);
        }
        let gate = builder.build().expect("the settings of a plan are valid");
        let gates =
            policies.iter().map(|policy| gate.with(policy).expect("the policies of a plan are valid")).collect();
        Self { process, life, gates, journal, up: true }
    }

    /// Moves its clocks, if that may happen.
    pub(crate) fn clocks_step(&self, scene: &Scene) {
        let ClockOffsets { wall_ahead, .. } = clocks(scene);
        self.process.step_wall(wall_ahead);
    }
}

fn clocks(scene: &Scene) -> ClockOffsets {
    if !scene.plan.may(Class::Clocks) {
        return ClockOffsets::default();
    }
    let hour = 3_600_000_000;
    ClockOffsets {
        wall_ahead: i64::try_from(scene.dice.below(2 * hour)).expect("small") - i64::try_from(hour).expect("small"),
        boot_ahead: scene.dice.up_to(Duration::from_secs(3600)),
        drift: i32::try_from(scene.dice.below(20_000)).expect("small") - 10_000,
    }
}

fn policy(route: Route, scene: &Arc<Scene>, process: &Arc<Process>) -> Policy {
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
            OnLapse::Resolve(Arc::new(Seer { scene: Arc::downgrade(scene), process: Arc::clone(process) }))
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

/// A probe that knows the whole world, and takes its time; while things go wrong it may fail, or not know.
#[derive(Debug)]
struct Seer {
    scene: std::sync::Weak<Scene>,
    process: Arc<Process>,
}

#[async_trait]
impl Probe for Seer {
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
        let Some(scene) = self.scene.upgrade() else { return Ok(Found::Unknown) };
        let mood = if scene.is_healed() { 99 } else { scene.dice.below(100) };
        match mood {
            0..5 => self.process.sleep(2 * scene.plan.longest_lease()).await,
            5..15 => return Err("the probe cannot be asked".into()),
            15..25 => return Ok(Found::Unknown),
            _ => self.process.sleep(scene.dice.up_to(scene.plan.latency)).await,
        }
        let found = scene.oracle.finds_out(operation);
        self.process.sleep(scene.dice.up_to(scene.plan.probe_takes)).await;
        Ok(found)
    }
}
