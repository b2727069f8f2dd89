//! Every future of a gate dropped at every step of the world.

use crate::faults::{HOLD, RESOLVE, RETRY, faults, scenarios};
use crate::scenario::{Blow, Mishap, Scenario};
use crate::sweep::Sweep;

const BLOWS: [Blow; 3] = [Blow::Hangup, Blow::Abort, Blow::Crash];

fn a_blow_at_every_step(name: &'static str, blow: Blow) {
    let mut sweep = Sweep::new(name);
    for scenario in [HOLD, RETRY, RESOLVE].into_iter().flat_map(scenarios) {
        for step in 0..=sweep.points(&scenario, |covered| covered.steps) {
            for patient in [false, true] {
                sweep.run(&scenario, &Mishap { blow: Some((step, blow)), patient, ..Mishap::default() });
            }
        }
    }
    sweep.ends(3000, 6000);
}

#[test]
fn the_callers_future_dropped_at_every_step() {
    a_blow_at_every_step("the caller's future dropped at every step", Blow::Hangup);
}

#[test]
fn every_task_dropped_at_every_step() {
    a_blow_at_every_step("every task dropped at every step", Blow::Abort);
}

#[test]
fn the_process_crashed_at_every_step() {
    a_blow_at_every_step("the process crashed at every step", Blow::Crash);
}

/// The fault may come before the blow or after it.
#[test]
fn a_blow_at_every_step_and_a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("a blow at every step and a fault at every store call");
    let paired = |scenario: &Scenario| PAIRED.contains(&scenario.name);
    for scenario in scenarios(HOLD).into_iter().filter(paired) {
        for call in 0..sweep.points(&scenario, |covered| covered.calls) {
            for fault in faults(HOLD) {
                let mishap = Mishap::of([(call, fault)]);
                let steps = sweep.run(&scenario, &mishap).map_or(0, |covered| covered.steps);
                for (step, blow) in (0..=steps).flat_map(|step| BLOWS.map(|blow| (step, blow))) {
                    let blow = Some((step, blow));
                    sweep.run(&scenario, &Mishap { blow, ..mishap.clone() });
                }
            }
        }
    }
    sweep.ends(20, 30_000);
}

const PAIRED: [&str; 3] = ["fresh", "not applied", "unknown after the effect"];
