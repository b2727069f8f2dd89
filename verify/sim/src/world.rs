//! One run. Clients call while faults happen. The faults end. Each key that was called is called again until its final
//! outcome is known. The gates drain, and all processes are taken down. The run stops at the first broken rule.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::Journal;
use hapax_core::runtime::Runtime;
use hapax_testkit::{ChooseTask, VirtualTime};

use crate::dice::Dice;
use crate::oracle::Oracle;
use crate::plan::{Plan, PollingOrder};
use crate::scene::{self, Scene};
use crate::store::{Network, StoreServer};
use crate::trace::{Counts, Fnv};
use crate::{client, faults, rules, startup};

/// The result of one run.
#[derive(Clone, Debug)]
pub struct WorldRun {
    /// The seed of the world.
    pub seed: u64,
    /// The first rule that the world broke.
    pub violation: Option<String>,
    /// How often each kind of event happened.
    pub counts: Counts,
    /// How many times a task was polled.
    pub steps: u64,
    /// The virtual time that passed.
    pub time: Duration,
    /// A hash over every choice of the next task and every event.
    pub hash: u64,
    /// The events, one a line, if a trace was requested.
    pub trace: String,
}

/// Runs the world of a seed.
pub fn run(seed: u64, keeps_trace: bool) -> WorldRun {
    let dice = Dice::new(seed);
    let plan = Arc::new(Plan::draw(&dice));
    let choices = Arc::new(ChoiceCounter::default());
    let time = VirtualTime::choosing(dice.next(), choose(Dice::new(dice.next()), plan.order, Arc::clone(&choices)));
    let server = Arc::new(StoreServer::new(time.process()));
    let calls = scene::calls(&plan);
    let oracle = Oracle::new(Arc::clone(&plan), Arc::clone(&server), &calls, keeps_trace);
    oracle.note(format_args!("{plan:?}"));
    let network = Network::new(Arc::clone(&oracle), server, Arc::clone(&plan), dice.clone());
    let world = World { oracle: Arc::clone(&oracle), plan, time };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let scene = Scene::new(Arc::new(network), dice, world.time.process(), calls);
        startup::start_all(&scene);
        world.run(scene);
    }));
    if let Err(panic) = ended {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        oracle.fail(&format!("a panic: {}", said.unwrap_or_default()));
    }
    oracle.end();
    let time = world.time.now();
    drop(world);
    let verdict = oracle.verdict(choices.hash());
    let steps = choices.steps.load(Ordering::Relaxed);
    WorldRun {
        seed,
        violation: verdict.violation,
        counts: verdict.counts,
        steps,
        time,
        hash: verdict.hash,
        trace: verdict.trace,
    }
}

/// Counts and hashes which task was chosen to run next.
#[derive(Default)]
struct ChoiceCounter {
    steps: AtomicU64,
    hash: Mutex<Fnv>,
}

impl ChoiceCounter {
    fn count(&self, chosen: usize, of: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        hash.number((chosen as u64) << 32 | of as u64);
    }

    fn hash(&self) -> u64 {
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

fn choose(dice: Dice, order: PollingOrder, choices: Arc<ChoiceCounter>) -> ChooseTask {
    Box::new(move |of| {
        let any = dice.below(of);
        let mostly = dice.percent(90);
        let chosen = match order {
            PollingOrder::OldestFirst if mostly => 0,
            PollingOrder::NewestFirst if mostly => of - 1,
            PollingOrder::Even | PollingOrder::OldestFirst | PollingOrder::NewestFirst => any,
        };
        choices.count(chosen, of);
        chosen
    })
}

struct World {
    oracle: Arc<Oracle>,
    plan: Arc<Plan>,
    time: VirtualTime,
}

/// A rule is broken, and the run ends.
struct RuleBroken;

impl World {
    fn run(&self, scene: Arc<Scene>) {
        // The oracle keeps the rule that was broken.
        let _ = self.run_phases(scene);
    }

    fn run_phases(&self, scene: Arc<Scene>) -> Result<(), RuleBroken> {
        for _ in 0..self.plan.clients {
            scene.outside.spawn(Box::pin(client::run_client(Arc::clone(&scene))));
        }
        faults::start(&scene);
        self.run_for(self.plan.window)?;
        faults::heal_all(&scene);
        let lease = self.plan.longest_lease();
        self.run_until_clients_end(&scene, 200 * lease, rules::NO_OUTCOME_AT_ALL)?;
        // Requests in transit arrive or are lost within this time.
        self.run_for(2 * lease + 4 * self.plan.store_timeout)?;
        self.oracle.check_all_given_back();
        for key in self.oracle.called_keys() {
            scene.outside.spawn(Box::pin(client::finish_key(Arc::clone(&scene), key)));
        }
        self.run_until_clients_end(&scene, 100 * lease, "the final outcome of a key is never known")?;
        self.oracle.check_all_received(|call| scene.has_hung_up(call));
        self.drain(&scene)?;
        self.take_down(scene)
    }

    /// Drains each process through its first gate, because the gates of a process share their attempts. Checks that
    /// every journal is empty.
    fn drain(&self, scene: &Scene) -> Result<(), RuleBroken> {
        let limit = 4 * self.plan.longest_lease() + Duration::from_secs(10);
        self.run_for(limit / 2)?;
        let gates: Vec<_> =
            scene.processes().iter().map(|process| (Arc::clone(&process.process), process.gates[0].clone())).collect();
        for (process, gate) in gates {
            let drained = process.start(async move { gate.drain(limit).await });
            if self.run_until(2 * limit, || drained.output())? != Some(true) {
                return Err(self.fail(rules::TASK_NEVER_ENDS));
            }
        }
        let is_not_empty = |journal: &dyn Journal| {
            journal.replay().now_or_never().and_then(Result::ok).is_none_or(|entries| !entries.is_empty())
        };
        let mut journals: Vec<_> = scene.processes().iter().filter_map(|process| process.journal.clone()).collect();
        journals.retain(|journal| is_not_empty(&**journal));
        if journals.is_empty() {
            Ok(())
        } else {
            Err(self.fail("a journal is not empty or not readable after all gates drained"))
        }
    }

    fn take_down(&self, scene: Arc<Scene>) -> Result<(), RuleBroken> {
        let processes = std::mem::take(&mut *scene.processes());
        drop(processes);
        drop(scene);
        self.run_for(Duration::from_secs(10))?;
        if self.time.tasks() > 0 {
            return Err(self.fail(rules::TASK_OUTLIVES_GATE));
        }
        Ok(())
    }

    fn fail(&self, rule: &str) -> RuleBroken {
        self.oracle.fail(rule);
        RuleBroken
    }

    fn run_until_clients_end(&self, scene: &Scene, limit: Duration, rule: &str) -> Result<(), RuleBroken> {
        match self.run_until(limit, || (scene.outside.tasks() == 0).then_some(()))? {
            Some(()) => Ok(()),
            None => Err(self.fail(rule)),
        }
    }

    fn run_for(&self, time: Duration) -> Result<(), RuleBroken> {
        self.run_until(time, || None::<()>).map(drop)
    }

    /// Runs the world until `look` returns something, the time limit is reached, or a rule is broken.
    fn run_until<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<Option<T>, RuleBroken> {
        let found = self.time.run_until(limit, || {
            if self.oracle.step(self.time.now()) {
                return Some(Err(RuleBroken));
            }
            look().map(Ok)
        });
        found.transpose()
    }
}
