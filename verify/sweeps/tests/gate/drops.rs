//! Each future of a gate dropped at each step of the world.

use hapax_sweeps::{Interruption, Sweep};

use crate::faults::{HOLD, RESOLVE, RETRY, faults, scenarios};
use crate::scenario::{FaultPlan, RunScenario, Scenario};

const INTERRUPTIONS: [Interruption; 3] = [Interruption::HangUp, Interruption::Abort, Interruption::Crash];

fn interrupt_at_every_step(name: &'static str, interruption: Interruption) {
    let mut sweep = Sweep::new(name);
    for scenario in [HOLD, RETRY, RESOLVE].into_iter().flat_map(scenarios) {
        for step in 0..=sweep.points(&scenario, |coverage| coverage.steps) {
            for retries_late in [false, true] {
                let interruption = Some((step, interruption));
                sweep.run(&scenario, &FaultPlan { interruption, retries_late, ..FaultPlan::default() });
            }
        }
    }
    sweep.finish(3000, 6000);
}

#[test]
fn the_callers_future_is_dropped_at_every_step() {
    interrupt_at_every_step("the caller's future is dropped at every step", Interruption::HangUp);
}

#[test]
fn every_task_is_dropped_at_every_step() {
    interrupt_at_every_step("every task is dropped at every step", Interruption::Abort);
}

#[test]
fn the_process_crashes_at_every_step() {
    interrupt_at_every_step("the process crashes at every step", Interruption::Crash);
}

/// The fault may come before the interruption or after it.
#[test]
fn an_interruption_at_every_step_and_a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("an interruption at every step and a fault at every store call");
    let is_paired = |scenario: &Scenario| PAIRED.contains(&scenario.name);
    for scenario in scenarios(HOLD).into_iter().filter(is_paired) {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for fault in faults(HOLD) {
                let plan = FaultPlan::of([(call, fault)]);
                let steps = sweep.run(&scenario, &plan).map_or(0, |coverage| coverage.steps);
                for (step, kind) in (0..=steps).flat_map(|step| INTERRUPTIONS.map(|kind| (step, kind))) {
                    sweep.run(&scenario, &FaultPlan { interruption: Some((step, kind)), ..plan.clone() });
                }
            }
        }
    }
    sweep.finish(20, 30_000);
}

const PAIRED: [&str; 3] = ["fresh", "not applied", "unknown after the effect"];
