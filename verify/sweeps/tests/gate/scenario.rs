//! One run: calls arrive, faults happen, the faults end, and the same call is repeated until its final outcome is
//! known.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::ErrorKind;
use hapax_core::journal::{Journal, MemoryJournal};
use hapax_sim::outcome::CallerOutcome;
use hapax_sim::rules;
use hapax_sweeps::{Interruption, Sweep};
use hapax_testkit::{StoreFault, StoreMethod};

use crate::handler::HandlerScript;
use crate::oracle::{FaultLevel, TASKS_DROPPED};
use crate::setup::GateSetup;
use crate::world::World;

/// The calls of a run and their handlers, without any fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) setup: GateSetup,
    /// The handler of an earlier process, which crashed and whose lease expired.
    pub(crate) earlier: Option<HandlerScript>,
    /// The handler of the first call; the handler of each retry applies its effect.
    pub(crate) handler: HandlerScript,
    /// How many followers arrive at once in the same process.
    pub(crate) followers: usize,
    /// How many calls arrive in another process. Their handlers are always careful.
    pub(crate) rivals: usize,
    /// How much later the rivals arrive.
    pub(crate) rival_delay: Duration,
    /// Whether the first process has a journal.
    pub(crate) journal: bool,
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultPlan {
    /// Faults, each with the number of the store call that it happens to.
    pub(crate) faults: Vec<(usize, StoreFault)>,
    /// An interruption of the first process, with the step of the world at which it happens.
    pub(crate) interruption: Option<(usize, Interruption)>,
    /// Whether the callers retry only after all faults have ended.
    pub(crate) retries_late: bool,
}

impl FaultPlan {
    pub(crate) fn of(faults: impl IntoIterator<Item = (usize, StoreFault)>) -> Self {
        Self { faults: faults.into_iter().collect(), ..Self::default() }
    }

    fn level(&self, setup: GateSetup) -> FaultLevel {
        let retry_fits_into_lease = 2 * setup.timeout < setup.lease;
        // The gate does not repeat a call whose error is definite.
        let is_definite = |fault| matches!(fault, StoreFault::FailBefore(kind) if kind != ErrorKind::Unknown);
        match (&*self.faults, self.interruption) {
            (_, Some((_, Interruption::Abort))) => FaultLevel::Many,
            ([], _) => FaultLevel::None,
            ([(_, fault)], _) if retry_fits_into_lease && !is_definite(*fault) => FaultLevel::OneCall,
            _ => FaultLevel::Many,
        }
    }
}

/// How many points a run had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coverage {
    /// How many calls the store got.
    pub(crate) calls: usize,
    /// How many steps passed until each caller had an outcome.
    pub(crate) steps: usize,
    /// How many handlers broke off.
    pub(crate) broken_off: usize,
}

const LIMIT: Duration = Duration::from_secs(300);

/// Runs scenarios and counts them in a sweep.
pub(crate) trait RunScenario {
    /// Runs a scenario without faults and counts the points of that run.
    fn points(&mut self, scenario: &Scenario, of: impl Fn(Coverage) -> usize) -> usize;

    fn run(&mut self, scenario: &Scenario, plan: &FaultPlan) -> Option<Coverage>;

    /// Runs the first call of a scenario against a store that meets the fault at this call and all later ones.
    fn run_without_recovery(&mut self, scenario: &Scenario, call: usize, fault: StoreFault);
}

impl RunScenario for Sweep {
    fn points(&mut self, scenario: &Scenario, of: impl Fn(Coverage) -> usize) -> usize {
        let points = self.run(scenario, &FaultPlan::default()).map_or(0, of);
        self.add_points(points);
        points
    }

    fn run(&mut self, scenario: &Scenario, plan: &FaultPlan) -> Option<Coverage> {
        self.add_run(run_scenario(scenario, plan))
    }

    fn run_without_recovery(&mut self, scenario: &Scenario, call: usize, fault: StoreFault) {
        self.add_run(run_without_recovery(scenario, call, fault));
    }
}

/// Fails if the gate still calls the store, or keeps a task or a journal entry, when every record must have expired.
fn run_without_recovery(scenario: &Scenario, call: usize, fault: StoreFault) -> Result<(), String> {
    let mut world = World::new(scenario.setup, FaultLevel::Many);
    world.faulty.inject_from(call, fault);
    let journal: Option<Arc<dyn Journal>> = scenario.journal.then(|| Arc::new(MemoryJournal::new()) as _);
    let process = world.start_process(Arc::clone(&world.faulty) as _, journal.clone());
    let caller = world.send(process, scenario.handler, Duration::ZERO);
    let outcome = world.time.run_until(LIMIT, || caller.output());
    // A cancellation is sent twice, and each of them is repeated for this long.
    let retention = scenario.setup.unknown_retention.unwrap_or_default();
    world.time.run_for(3 * retention + scenario.setup.lease);
    let requests =
        |world: &World| world.faulty.calls().into_iter().filter(|method| *method != StoreMethod::Dedicated).count();
    let before = requests(&world);
    world.time.run_for(scenario.setup.lease);
    let running = &world.processes[process];
    let gate = running.gate.clone();
    let drained = running.process.start(async move { gate.drain(Duration::ZERO).await });
    let is_idle = world.time.run_until(LIMIT, || drained.output()) == Some(true);
    let entries =
        journal.map_or(0, |journal| journal.replay().now_or_never().and_then(Result::ok).map_or(1, |all| all.len()));
    let broken = match (outcome.is_some(), requests(&world) == before, is_idle, entries) {
        (false, ..) => rules::NO_OUTCOME_AT_ALL,
        (true, false, ..) => "the store is called although every record must have expired",
        (true, true, false, _) => "a task runs on although every record must have expired",
        (true, true, true, 1..) => "the journal keeps an answer although its record must have expired",
        (true, true, true, 0) => return Ok(()),
    };
    Err(format!("{broken}\n  {}, call {call} and all later ones: {fault:?}", scenario.name))
}

/// Fails with the broken rule and the trace.
fn run_scenario(scenario: &Scenario, plan: &FaultPlan) -> Result<Coverage, String> {
    let mut world = World::new(scenario.setup, plan.level(scenario.setup));
    let coverage = play(&mut world, scenario, plan);
    let Some(rule) = world.oracle.violation() else {
        return Ok(coverage);
    };
    let (trace, calls) = (world.oracle.trace(), world.faulty.calls());
    let faulty_calls: Vec<_> = plan.faults.iter().filter_map(|(call, _)| calls.get(*call)).take(2).collect();
    Err(format!("{rule} ({faulty_calls:?})\n  {}, {plan:?}\n  calls: {calls:?}\n{trace}", scenario.name))
}

fn play(world: &mut World, scenario: &Scenario, plan: &FaultPlan) -> Coverage {
    if let Some(handler) = scenario.earlier {
        crash_earlier_process(world, handler);
    }
    for (call, fault) in &plan.faults {
        world.faulty.inject(*call, *fault);
        if let StoreFault::FailBefore(kind) = fault {
            world.oracle.expect_error(*kind);
            if *kind == ErrorKind::Unusable && plan.interruption.is_some() && !scenario.journal {
                world.oracle.excuse("an answer without a journal is lost, and its caller may have hung up");
            }
        }
        if *fault == StoreFault::FailBefore(ErrorKind::Damaged) {
            world.oracle.excuse("the store reports a damaged record");
        }
    }
    let journal: Option<Arc<dyn Journal>> = scenario.journal.then(|| Arc::new(MemoryJournal::new()) as _);
    let here = world.start_process(Arc::clone(&world.faulty) as _, journal.clone());
    let there = world.start_process(Arc::clone(&world.faulty) as _, None);
    let steps = run_first_calls(world, scenario, plan.interruption, [here, there]);
    let processes = match (world.processes[here].crashed, &journal) {
        (false, _) => [here, there],
        (true, None) => [there, there],
        // The journal outlives the crash, so a new process adopts it.
        (true, Some(_)) => [world.start_process(Arc::clone(&world.faulty) as _, journal), there],
    };
    if !plan.retries_late {
        for process in processes {
            world.call(process, LIMIT);
        }
    }
    let calls = world.faulty.calls().len();
    world.oracle.note("all faults end");
    world.faulty.heal();
    world.run_for(scenario.setup.lease + 3 * scenario.setup.timeout);
    let last = processes.map(|process| final_outcome(world, process));
    take_down(world, last);
    Coverage { calls, steps, broken_off: world.oracle.broken_off() }
}

/// A process begins and crashes in the middle of its attempt; then its lease expires.
fn crash_earlier_process(world: &mut World, handler: HandlerScript) {
    let process = world.start_process(Arc::clone(&world.memory) as _, None);
    let _caller = world.send(process, handler, Duration::ZERO);
    world.run_for(Duration::from_secs(1));
    world.crash(process);
    world.run_for(world.setup.lease);
}

/// Makes the calls of the scenario. Returns how many steps pass until each caller has an outcome.
fn run_first_calls(
    world: &mut World,
    scenario: &Scenario,
    interruption: Option<(usize, Interruption)>,
    processes: [usize; 2],
) -> usize {
    let callers: Vec<_> = [1 + scenario.followers, scenario.rivals]
        .into_iter()
        .zip(processes)
        .flat_map(|(copies, process)| vec![process; copies])
        .map(|process| {
            let (handler, delay) = if process == processes[0] {
                (scenario.handler, Duration::ZERO)
            } else {
                (HandlerScript { careful: true, ..scenario.handler }, scenario.rival_delay)
            };
            (process, world.send(process, handler, delay))
        })
        .collect();
    let (mut done, mut steps) = (vec![false; callers.len()], 0);
    loop {
        let mut due = None;
        let paused = world.run_until(LIMIT, || {
            steps += 1;
            due = interruption.filter(|(step, _)| step + 1 == steps);
            for (done, (_, caller)) in done.iter_mut().zip(&callers) {
                *done |= caller.output().is_some();
            }
            (due.is_some() || done.iter().all(|done| *done)).then_some(())
        });
        if paused.is_none() {
            world.oracle.fail(rules::NO_OUTCOME_AT_ALL);
        }
        let Some((_, interruption)) = due else {
            return steps - 1;
        };
        if interruption == Interruption::HangUp {
            callers[0].1.cancel();
            done[0] = true;
            continue;
        }
        interrupt(world, processes[0], interruption);
        for (done, (process, _)) in done.iter_mut().zip(&callers) {
            // The callers of the interrupted process receive nothing any more.
            *done |= *process == processes[0];
        }
    }
}

fn interrupt(world: &mut World, process: usize, interruption: Interruption) {
    match interruption {
        Interruption::Crash => world.crash(process),
        Interruption::Abort | Interruption::HangUp => {
            world.oracle.excuse(TASKS_DROPPED);
            world.processes[process].process.abort_tasks();
        }
    }
}

/// Repeats the call until its final outcome is known.
fn final_outcome(world: &mut World, process: usize) -> CallerOutcome {
    for _ in 0..20 {
        let pause = match world.call(process, LIMIT) {
            Some(outcome @ (CallerOutcome::Answer { .. } | CallerOutcome::Indeterminate)) => return outcome,
            Some(CallerOutcome::Busy(retry_after)) => retry_after,
            Some(
                CallerOutcome::Unknown
                | CallerOutcome::Unrecorded
                | CallerOutcome::NotApplied
                | CallerOutcome::Store(_),
            ) => Duration::from_secs(1),
            Some(outcome @ (CallerOutcome::Mismatch | CallerOutcome::Dead | CallerOutcome::Overloaded)) => {
                world.oracle.fail("a caller received an outcome that no scenario can lead to");
                return outcome;
            }
            None => break,
        };
        world.run_for(pause);
    }
    world.oracle.fail(rules::NOT_SETTLED);
    CallerOutcome::Unknown
}

fn take_down(world: &mut World, [here, there]: [CallerOutcome; 2]) {
    let limit = Duration::from_secs(60);
    for running in world.processes.iter().filter(|process| !process.crashed) {
        let gate = running.gate.clone();
        let drained = running.process.start(async move { gate.drain(limit).await });
        if world.run_until(2 * limit, || drained.output()) != Some(true) {
            world.oracle.fail(rules::TASK_NEVER_ENDS);
        }
    }
    if here.answer() != there.answer() {
        world.oracle.fail(rules::PROCESSES_DISAGREE);
    }
    world.oracle.finish(&there);
    world.processes.clear();
    world.time.run_for(Duration::from_secs(3));
    if world.time.tasks() > 0 {
        world.oracle.fail(rules::TASK_OUTLIVES_GATE);
    }
}
