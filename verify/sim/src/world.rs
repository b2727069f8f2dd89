//! One run: clients come, things go wrong, all is well again, every key is asked for its end, and everything is taken down.

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
use crate::plan::{Plan, Turns};
use crate::scene::{self, Scene};
use crate::store::{Network, Shelf};
use crate::trace::{Counts, Fnv};
use crate::{client, mishaps, rules};

/// What became of a world.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it was made from.
    pub seed: u64,
    /// The rule that it broke.
    pub violation: Option<String>,
    /// How often each thing happened.
    pub counts: Counts,
    /// How many times a task went on.
    pub steps: u64,
    /// How much time passed in it.
    pub time: Duration,
    /// Over every choice and every event.
    pub hash: u64,
    /// What happened, line by line, if that was asked for.
    pub trace: String,
}

/// Runs the world of a seed.
pub fn run(seed: u64, keeps_trace: bool) -> Run {
    let dice = Dice::new(seed);
    let plan = Arc::new(Plan::draw(&dice));
    let turns = Arc::new(Counted::default());
    let time = VirtualTime::choosing(dice.next(), choose(Dice::new(dice.next()), plan.turns, Arc::clone(&turns)));
    let shelf = Arc::new(Shelf::new(time.process()));
    let calls = scene::calls(&plan);
    let oracle = Oracle::new(Arc::clone(&plan), Arc::clone(&shelf), &calls, keeps_trace);
    oracle.note(format_args!("{plan:?}"));
    let network = Network::new(Arc::clone(&oracle), shelf, Arc::clone(&plan), dice.clone());
    let world = World { oracle: Arc::clone(&oracle), plan, time };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let scene = Scene::new(Arc::new(network), dice, world.time.process(), calls);
        world.live(scene);
    }));
    if let Err(panic) = ended {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        oracle.breaks(&format!("a panic: {}", said.unwrap_or_default()));
    }
    oracle.is_over();
    let time = world.time.now();
    drop(world);
    let verdict = oracle.verdict(turns.hash());
    let steps = turns.steps.load(Ordering::Relaxed);
    Run {
        seed,
        violation: verdict.violation,
        counts: verdict.counts,
        steps,
        time,
        hash: verdict.hash,
        trace: verdict.trace,
    }
}

/// How many choices there were, and a hash over them.
#[derive(Default)]
struct Counted {
    steps: AtomicU64,
    hash: Mutex<Fnv>,
}

impl Counted {
    fn count(&self, chosen: usize, of: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        hash.number((chosen as u64) << 32 | of as u64);
    }

    fn hash(&self) -> u64 {
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

fn choose(dice: Dice, turns: Turns, counted: Arc<Counted>) -> ChooseTask {
    Box::new(move |of| {
        let any = dice.below(of);
        let mostly = dice.percent(90);
        let chosen = match turns {
            Turns::OldestFirst if mostly => 0,
            Turns::NewestFirst if mostly => of - 1,
            Turns::Even | Turns::OldestFirst | Turns::NewestFirst => any,
        };
        counted.count(chosen, of);
        chosen
    })
}

struct World {
    oracle: Arc<Oracle>,
    plan: Arc<Plan>,
    time: VirtualTime,
}

/// The run is over: a rule is broken.
struct Broken;

impl World {
    fn live(&self, scene: Arc<Scene>) {
        // The verdict says why.
        let _ = self.go_through(scene);
    }

    fn go_through(&self, scene: Arc<Scene>) -> Result<(), Broken> {
        for _ in 0..self.plan.clients {
            scene.outside.spawn(Box::pin(client::runs(Arc::clone(&scene))));
        }
        mishaps::start(&scene);
        self.passes(self.plan.window)?;
        scene.heal();
        let lease = self.plan.longest_lease();
        self.until_outside_is_empty(&scene, 200 * lease, rules::NO_OUTCOME_AT_ALL)?;
        // What is still under way arrives or dies.
        self.passes(2 * lease + 4 * self.plan.store_timeout)?;
        self.oracle.all_is_given_back();
        for key in self.oracle.keys_asked() {
            scene.outside.spawn(Box::pin(client::closes(Arc::clone(&scene), key)));
        }
        self.until_outside_is_empty(&scene, 100 * lease, "a key never comes to its end")?;
        self.oracle.all_were_told(|call| scene.hung_up(call));
        self.drains(&scene)?;
        self.comes_down(scene)
    }

    /// Every gate drains, and no journal holds anything.
    fn drains(&self, scene: &Scene) -> Result<(), Broken> {
        let limit = 4 * self.plan.longest_lease() + Duration::from_secs(10);
        self.passes(limit / 2)?;
        let gates: Vec<_> =
            scene.sites().iter().map(|site| (Arc::clone(&site.process), site.gates[0].clone())).collect();
        for (process, gate) in gates {
            let drained = process.start(async move { gate.drain(limit).await });
            if self.until(2 * limit, || drained.output())? != Some(true) {
                return Err(self.breaks(rules::TASK_NEVER_ENDS));
            }
        }
        let left = |journal: &dyn Journal| {
            journal.replay().now_or_never().and_then(Result::ok).is_none_or(|left| !left.is_empty())
        };
        let holds = scene.sites().iter().any(|site| site.journal.as_ref().is_some_and(|journal| left(&**journal)));
        if holds { Err(self.breaks("a journal is not empty in the end")) } else { Ok(()) }
    }

    fn comes_down(&self, scene: Arc<Scene>) -> Result<(), Broken> {
        let sites = std::mem::take(&mut *scene.sites());
        drop(sites);
        drop(scene);
        self.passes(Duration::from_secs(10))?;
        if self.time.tasks() > 0 {
            return Err(self.breaks(rules::TASK_OUTLIVES_GATE));
        }
        Ok(())
    }

    fn breaks(&self, rule: &str) -> Broken {
        self.oracle.breaks(rule);
        Broken
    }

    fn until_outside_is_empty(&self, scene: &Scene, limit: Duration, rule: &str) -> Result<(), Broken> {
        match self.until(limit, || (scene.outside.tasks() == 0).then_some(()))? {
            Some(()) => Ok(()),
            None => Err(self.breaks(rule)),
        }
    }

    fn passes(&self, time: Duration) -> Result<(), Broken> {
        self.until(time, || None::<()>).map(drop)
    }

    /// Lets the world go on until there is something to return, or time is up, or a rule is broken.
    fn until<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<Option<T>, Broken> {
        let found = self.time.run_until(limit, || {
            if self.oracle.step(self.time.now()) {
                return Some(Err(Broken));
            }
            look().map(Ok)
        });
        found.transpose()
    }
}
