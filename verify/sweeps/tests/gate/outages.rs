//! Store outages with a journal: an answer that a caller received is recorded in the end, even if the caller hangs
//! up or the process crashes.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_sim::outcome::HandlerOutcome;
use hapax_sweeps::{Interruption, Sweep};
use hapax_testkit::StoreFault;

use crate::faults::{FRESH, HOLD, LEASE};
use crate::handler::HandlerScript;
use crate::scenario::{FaultPlan, RunScenario, Scenario};
use crate::setup::GateSetup;

const WITH_JOURNAL: Scenario = Scenario { name: "with a journal", setup: HOLD, journal: true, ..FRESH };

const OUTAGE_FAULTS: [StoreFault; 7] = [
    StoreFault::FailBefore(ErrorKind::NotApplied),
    StoreFault::FailBefore(ErrorKind::Damaged),
    StoreFault::FailBefore(ErrorKind::Unusable),
    StoreFault::FailBefore(ErrorKind::Full),
    StoreFault::FailAfter(ErrorKind::Unknown),
    StoreFault::SwallowBefore,
    StoreFault::SwallowAfter,
];

/// Injects the fault into `calls` consecutive store calls. The first of them has the number `from`.
fn outage(from: usize, calls: usize, fault: StoreFault) -> FaultPlan {
    FaultPlan::of((from..from + calls).map(|call| (call, fault)))
}

#[test]
fn outages_of_up_to_59_calls_start_at_every_store_call_with_a_journal() {
    let mut sweep = Sweep::new("an outage starts at every store call, with a journal");
    let handler = HandlerScript::APPLIES.lasting(Duration::ZERO, LEASE);
    for scenario in [WITH_JOURNAL, Scenario { handler, ..WITH_JOURNAL }, Scenario { followers: 2, ..WITH_JOURNAL }] {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for (calls, fault) in (1..60).flat_map(|calls| OUTAGE_FAULTS.map(|fault| (calls, fault))) {
                let plan = outage(call, calls, fault);
                sweep.run(&scenario, &plan);
                sweep.run(&scenario, &FaultPlan { retries_late: true, ..plan });
            }
        }
    }
    sweep.finish(20, 9000);
}

/// The outage starts with the completion and outlasts the patience of the caller. Without the interruption, the caller
/// receives its answer while the completion is in the journal. The completion is recorded when the store is back.
#[test]
fn an_interruption_at_every_step_of_an_outage() {
    let mut sweep = Sweep::new("an interruption at every step of an outage, with a journal");
    for fault in OUTAGE_FAULTS {
        let plan = outage(COMPLETION_CALL, 40, fault);
        let steps = sweep.run(&WITH_JOURNAL, &plan).map_or(0, |coverage| coverage.steps);
        sweep.add_points(steps);
        let kinds = [Interruption::HangUp, Interruption::Crash];
        for (step, kind) in (0..=steps).flat_map(|step| kinds.map(|kind| (step, kind))) {
            for retries_late in [false, true] {
                let interruption = Some((step, kind));
                sweep.run(&WITH_JOURNAL, &FaultPlan { interruption, retries_late, ..plan.clone() });
            }
        }
    }
    sweep.finish(200, 900);
}

/// The store never works again. Neither the journal nor a task tries for ever.
#[test]
fn retries_end_when_every_record_must_have_expired() {
    let mut sweep = Sweep::new("the store fails for good at every store call");
    let setup = GateSetup { unknown_retention: Some(4 * LEASE), ..HOLD };
    let outcomes = [HandlerOutcome::Applied, HandlerOutcome::NotApplied, HandlerOutcome::Unknown];
    for (outcome, journal) in outcomes.into_iter().flat_map(|outcome| [(outcome, false), (outcome, true)]) {
        let handler = HandlerScript::APPLIES.returns(outcome);
        let scenario = Scenario { name: "without recovery", setup, handler, journal, ..FRESH };
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for fault in OUTAGE_FAULTS {
                sweep.run_without_recovery(&scenario, call, fault);
            }
        }
    }
    sweep.finish(20, 100);
}

/// The number of the store call that completes a fresh run. Two processes first open a dedicated handle each (calls 0
/// and 1), and call 2 is the begin.
const COMPLETION_CALL: usize = 3;
