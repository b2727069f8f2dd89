//! The layer around a service with several awaits, stopped at every step: the response future dropped, every task dropped, the
//! process crashed, and each fault at each call to the store. Afterwards a retry gets the recorded answer, or 409, and the service
//! had its effect at most once.
//!
//! A sweep enumerates its points and prints how many it covered. Nothing in here waits: time is virtual.

mod service;
mod world;

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_testkit::{Fault, When};

use crate::service::Act;
use crate::world::{Blow, LEASE, Mishap, run};

const ACTS: [Act; 8] = [
    Act::Creates,
    Act::CreatesInPieces,
    Act::CreatesTooMuch,
    Act::Streams,
    Act::Refuses,
    Act::TriesLater,
    Act::FailsAfterIts { effect: true },
    Act::FailsAfterIts { effect: false },
];

struct Sweep {
    name: &'static str,
    points: usize,
    runs: usize,
    found: Vec<String>,
}

impl Sweep {
    fn new(name: &'static str) -> Self {
        Self { name, points: 0, runs: 0, found: Vec::new() }
    }

    fn run(&mut self, act: Act, mishap: &Mishap) -> (usize, usize) {
        self.runs += 1;
        let covered = run(act, mishap);
        if let Some(violation) = covered.violation {
            self.found.push(format!("{violation}\n  {act:?}, {mishap:?}\n{}", covered.trace.join("\n")));
        }
        (covered.calls, covered.steps)
    }

    fn ends(self, least_points: usize, least_runs: usize) {
        let Self { name, points, runs, found } = self;
        println!("sweep: {name}: {points} points, {runs} runs");
        let shown = found.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(found.is_empty(), "{name}: {} of {runs} runs broke a rule\n{shown}", found.len());
        assert!(points >= least_points && runs >= least_runs, "{name}: only {points} points, {runs} runs");
    }
}

fn a_blow_at_every_step(name: &'static str, blow: Blow) {
    let mut sweep = Sweep::new(name);
    for act in ACTS {
        let (_, steps) = sweep.run(act, &Mishap::default());
        sweep.points += steps + 1;
        for step in 0..=steps {
            for patient in [false, true] {
                sweep.run(act, &Mishap { blow: Some((step, blow)), patient, ..Mishap::default() });
            }
        }
    }
    sweep.ends(80, 160);
}

#[test]
fn the_response_future_dropped_at_every_step() {
    a_blow_at_every_step("the response future dropped at every step", Blow::Hangup);
}

#[test]
fn every_task_dropped_at_every_step() {
    a_blow_at_every_step("every task of a server dropped at every step", Blow::Abort);
}

#[test]
fn the_server_crashed_at_every_step() {
    a_blow_at_every_step("the server crashed at every step", Blow::Crash);
}

#[test]
fn a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("a fault at every store call of a request");
    for act in ACTS {
        let (calls, _) = sweep.run(act, &Mishap::default());
        sweep.points += calls;
        for (call, fault) in (0..calls).flat_map(|call| faults().map(|fault| (call, fault))) {
            for patient in [false, true] {
                sweep.run(act, &Mishap { fault: Some((call, fault)), patient, ..Mishap::default() });
            }
        }
    }
    sweep.ends(30, 600);
}

#[test]
fn a_blow_at_every_step_and_a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("the server crashed at every step, after a fault at every store call");
    let act = Act::Creates;
    let (calls, _) = sweep.run(act, &Mishap::default());
    for fault in (0..calls).flat_map(|call| faults().map(|fault| Some((call, fault)))) {
        let (_, steps) = sweep.run(act, &Mishap { fault, ..Mishap::default() });
        sweep.points += steps + 1;
        for (step, blow) in (0..=steps).flat_map(|step| [(step, Blow::Crash), (step, Blow::Hangup)]) {
            sweep.run(act, &Mishap { fault, blow: Some((step, blow)), patient: false });
        }
    }
    sweep.ends(500, 1000);
}

fn faults() -> [Fault; 10] {
    [
        Fault::FailBefore(ErrorKind::NotApplied),
        Fault::FailBefore(ErrorKind::Unknown),
        Fault::FailAfter(ErrorKind::Unknown),
        Fault::SwallowBefore,
        Fault::SwallowAfter,
        Fault::FailThenApply(When::Calls(0)),
        Fault::FailThenApply(When::Time(LEASE / 2)),
        Fault::SwallowThenApply(When::Calls(1)),
        Fault::ApplyTwice(When::Calls(0)),
        Fault::ApplyTwice(When::Time(LEASE - Duration::from_millis(1))),
    ]
}
