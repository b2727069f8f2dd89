//! One run: calls arrive, something goes wrong, everything is well again, and the same call is repeated until its end is known.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::journal::{Journal, MemoryJournal};
use hapax_testkit::Fault;

use crate::act::Act;
use crate::oracle::{CUT_OFF, Told, Weather};
use crate::world::{Terms, World};

/// What is to happen when nothing goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) terms: Terms,
    /// What an earlier process did before it crashed and its lease ran out.
    pub(crate) earlier: Option<Act>,
    /// What the handler does; that of each later call applies its effect.
    pub(crate) act: Act,
    /// How many copies arrive at once in the same process.
    pub(crate) twins: usize,
    /// How many arrive in another process, whose handlers are always careful.
    pub(crate) rivals: usize,
    /// How much later.
    pub(crate) later: Duration,
    /// Whether the process where it arrives has a journal.
    pub(crate) journal: bool,
}

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mishap {
    /// Faults by calls to the store.
    pub(crate) faults: Vec<(usize, Fault)>,
    /// What becomes of the first process at a step of the world.
    pub(crate) blow: Option<(usize, Blow)>,
    /// Whether the callers come back only when everything is well again.
    pub(crate) patient: bool,
}

impl Mishap {
    pub(crate) fn of(faults: impl IntoIterator<Item = (usize, Fault)>) -> Self {
        Self { faults: faults.into_iter().collect(), ..Self::default() }
    }

    fn weather(&self, terms: Terms) -> Weather {
        // One more try fits into the lease.
        let in_time = 2 * terms.timeout < terms.lease;
        let said_something = |fault| matches!(fault, Fault::FailBefore(ErrorKind::NotApplied | ErrorKind::Damaged));
        match (&*self.faults, self.blow) {
            (_, Some((_, Blow::Abort))) => Weather::Storm,
            ([], _) => Weather::Fair,
            ([(_, fault)], _) if in_time && !said_something(*fault) => Weather::OneGust,
            _ => Weather::Storm,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The caller's future is dropped.
    Hangup,
    /// All of its tasks are dropped while it lives on.
    Abort,
    /// The process ends.
    Crash,
}

/// How many points a run had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) calls: usize,
    pub(crate) steps: usize,
    /// How many handlers broke off.
    pub(crate) broken_off: usize,
}

const LIMIT: Duration = Duration::from_secs(300);

/// Runs the scenario.
///
/// # Errors
/// The rule that was broken, with the history.
pub(crate) fn run(scenario: &Scenario, mishap: &Mishap) -> Result<Covered, String> {
    let mut world = World::new(scenario.terms, mishap.weather(scenario.terms));
    let covered = go_through(&mut world, scenario, mishap);
    let Some(rule) = world.oracle.violation() else {
        return Ok(covered);
    };
    let (trace, calls) = (world.oracle.trace(), world.faulty.calls());
    let met: Vec<_> = mishap.faults.iter().filter_map(|(call, _)| calls.get(*call)).take(2).collect();
    Err(format!("{rule} ({met:?})\n  {}, {mishap:?}\n  calls: {calls:?}\n{trace}", scenario.name))
}

fn go_through(world: &mut World, scenario: &Scenario, mishap: &Mishap) -> Covered {
    if let Some(act) = scenario.earlier {
        happen_earlier(world, act);
    }
    for (call, fault) in &mishap.faults {
        world.faulty.meet(*call, *fault);
        if *fault == Fault::FailBefore(ErrorKind::Damaged) {
            world.oracle.excuse("the store says that a record is damaged");
        }
    }
    let journal: Option<Arc<dyn Journal>> = scenario.journal.then(|| Arc::new(MemoryJournal::new()) as _);
    let here = world.open(Arc::clone(&world.faulty) as _, journal.clone());
    let there = world.open(Arc::clone(&world.faulty) as _, None);
    let steps = first_calls(world, scenario, mishap.blow, [here, there]);
    let sites = match (world.sites[here].crashed, &journal) {
        (false, _) => [here, there],
        (true, None) => [there, there],
        (true, Some(_)) => [world.open(Arc::clone(&world.faulty) as _, journal), there],
    };
    if !mishap.patient {
        for site in sites {
            world.ask(site, LIMIT);
        }
    }
    let calls = world.faulty.calls().len();
    world.oracle.note("everything is well again");
    world.faulty.heal();
    world.run_for(scenario.terms.lease + 3 * scenario.terms.timeout);
    let last = sites.map(|site| last_word(world, site));
    close(world, last);
    Covered { calls, steps, broken_off: world.oracle.broken_off() }
}

/// A process begins, and ends in the middle of it; then its lease runs out.
fn happen_earlier(world: &mut World, act: Act) {
    let site = world.open(Arc::clone(&world.memory) as _, None);
    let _caller = world.send(site, act, Duration::ZERO);
    world.run_for(Duration::from_secs(1));
    world.crash(site);
    world.run_for(world.terms.lease);
}

/// The calls of the scenario, until every caller is told; how many steps that took.
fn first_calls(world: &mut World, scenario: &Scenario, blow: Option<(usize, Blow)>, sites: [usize; 2]) -> usize {
    let callers: Vec<_> = [1 + scenario.twins, scenario.rivals]
        .into_iter()
        .zip(sites)
        .flat_map(|(copies, site)| vec![site; copies])
        .map(|site| {
            let (act, delay) = if site == sites[0] {
                (scenario.act, Duration::ZERO)
            } else {
                (Act { careful: true, ..scenario.act }, scenario.later)
            };
            (site, world.send(site, act, delay))
        })
        .collect();
    let (mut heard, mut steps) = (vec![false; callers.len()], 0);
    loop {
        let mut strike = None;
        let paused = world.run_until(LIMIT, || {
            steps += 1;
            strike = blow.filter(|(step, _)| step + 1 == steps);
            for (heard, (_, caller)) in heard.iter_mut().zip(&callers) {
                *heard |= caller.output().is_some();
            }
            (strike.is_some() || heard.iter().all(|heard| *heard)).then_some(())
        });
        if paused.is_none() {
            world.oracle.breaks("a caller is told nothing");
        }
        let Some((_, blow)) = strike else {
            return steps - 1;
        };
        if blow == Blow::Hangup {
            callers[0].1.cancel();
            heard[0] = true;
            continue;
        }
        strike_down(world, sites[0], blow);
        for (heard, (site, _)) in heard.iter_mut().zip(&callers) {
            // Whoever called from there hears nothing any more.
            *heard |= *site == sites[0];
        }
    }
}

fn strike_down(world: &mut World, site: usize, blow: Blow) {
    match blow {
        Blow::Crash => world.crash(site),
        Blow::Abort | Blow::Hangup => {
            world.oracle.excuse(CUT_OFF);
            world.sites[site].process.abort_tasks();
        }
    }
}

/// Repeats the call until its end is known.
fn last_word(world: &mut World, site: usize) -> Told {
    for _ in 0..20 {
        let pause = match world.ask(site, LIMIT) {
            Some(told @ (Told::Answer(..) | Told::Indeterminate)) => return told,
            Some(Told::Busy(retry_after)) => retry_after,
            Some(Told::Unknown | Told::Unrecorded | Told::NotApplied | Told::Store(_)) => Duration::from_secs(1),
            Some(told @ (Told::Mismatch | Told::Dead | Told::Overloaded)) => {
                world.oracle.breaks("nobody said such a thing");
                return told;
            }
            None => break,
        };
        world.run_for(pause);
    }
    world.oracle.breaks("the end is not known after 20 tries");
    Told::Unknown
}

fn close(world: &mut World, [here, there]: [Told; 2]) {
    let limit = Duration::from_secs(60);
    for site in world.sites.iter().filter(|site| !site.crashed) {
        let gate = site.gate.clone();
        let drained = site.process.start(async move { gate.drain(limit).await });
        if world.run_until(2 * limit, || drained.output()) != Some(true) {
            world.oracle.breaks("a task does not end");
        }
    }
    if here.answer() != there.answer() {
        world.oracle.breaks("two processes have different last words");
    }
    world.oracle.closes(&there);
    world.sites.clear();
    world.time.run_for(Duration::from_secs(3));
    if world.time.tasks() > 0 {
        world.oracle.breaks("a task outlives its gate");
    }
}
