//! Sweeps over the HTTP layer around a service: the response future dropped, every task dropped and the server crashed
//! at each step, and each fault at each store call. Afterwards a retry gets the recorded answer or 409, and the effect
//! happened at most once.

mod service;
mod world;

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_sweeps::{Interruption, Sweep};
use hapax_testkit::{CopyDelay, StoreFault};

use crate::service::ServiceScript;
use crate::world::{LEASE, RequestFaults, RunRequest};

const SCRIPTS: [ServiceScript; 8] = [
    ServiceScript::Creates,
    ServiceScript::CreatesInChunks,
    ServiceScript::CreatesTooMuch,
    ServiceScript::Streams,
    ServiceScript::Rejects,
    ServiceScript::IsUnavailable,
    ServiceScript::Fails { after_effect: true },
    ServiceScript::Fails { after_effect: false },
];

fn interrupt_at_every_step(name: &'static str, interruption: Interruption) {
    let mut sweep = Sweep::new(name);
    for script in SCRIPTS {
        let (_, steps) = sweep.run(script, &RequestFaults::default());
        sweep.add_points(steps + 1);
        for step in 0..=steps {
            for retries_late in [false, true] {
                let interruption = Some((step, interruption));
                sweep.run(script, &RequestFaults { interruption, retries_late, ..RequestFaults::default() });
            }
        }
    }
    sweep.finish(80, 160);
}

#[test]
fn the_response_future_is_dropped_at_every_step() {
    interrupt_at_every_step("the response future is dropped at every step", Interruption::HangUp);
}

#[test]
fn every_task_is_dropped_at_every_step() {
    interrupt_at_every_step("every task of a server is dropped at every step", Interruption::Abort);
}

#[test]
fn the_server_crashes_at_every_step() {
    interrupt_at_every_step("the server crashes at every step", Interruption::Crash);
}

#[test]
fn a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("a fault at every store call of a request");
    for script in SCRIPTS {
        let (calls, _) = sweep.run(script, &RequestFaults::default());
        sweep.add_points(calls);
        for (call, fault) in (0..calls).flat_map(|call| faults().map(|fault| (call, fault))) {
            for retries_late in [false, true] {
                sweep.run(
                    script,
                    &RequestFaults { fault: Some((call, fault)), retries_late, ..RequestFaults::default() },
                );
            }
        }
    }
    sweep.finish(30, 600);
}

#[test]
fn an_interruption_at_every_step_and_a_fault_at_every_store_call() {
    let mut sweep = Sweep::new("the server crashes at every step, with a fault at every store call");
    let script = ServiceScript::Creates;
    let (calls, _) = sweep.run(script, &RequestFaults::default());
    for fault in (0..calls).flat_map(|call| faults().map(|fault| Some((call, fault)))) {
        let (_, steps) = sweep.run(script, &RequestFaults { fault, ..RequestFaults::default() });
        sweep.add_points(steps + 1);
        let kinds = [Interruption::Crash, Interruption::HangUp];
        for (step, kind) in (0..=steps).flat_map(|step| kinds.map(|kind| (step, kind))) {
            sweep.run(script, &RequestFaults { fault, interruption: Some((step, kind)), retries_late: false });
        }
    }
    sweep.finish(500, 1000);
}

fn faults() -> [StoreFault; 10] {
    [
        StoreFault::FailBefore(ErrorKind::NotApplied),
        StoreFault::FailBefore(ErrorKind::Unknown),
        StoreFault::FailAfter(ErrorKind::Unknown),
        StoreFault::SwallowBefore,
        StoreFault::SwallowAfter,
        StoreFault::FailThenApply(CopyDelay::Calls(0)),
        StoreFault::FailThenApply(CopyDelay::Time(LEASE / 2)),
        StoreFault::SwallowThenApply(CopyDelay::Calls(1)),
        StoreFault::ApplyTwice(CopyDelay::Calls(0)),
        StoreFault::ApplyTwice(CopyDelay::Time(LEASE - Duration::from_millis(1))),
    ]
}
