//! Store outages with a journal: an answer that a caller received is recorded in the end, whatever else happens.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_sweeps::{Interruption, Sweep};
use hapax_testkit::StoreFault;

use crate::faults::{FRESH, HOLD, LEASE};
use crate::handler::HandlerScript;
use crate::scenario::{FaultPlan, RunScenario, Scenario};

const WITH_JOURNAL: Scenario = Scenario { name: "with a journal", setup: HOLD, journal: true, ..FRESH };

const OUTAGES: [StoreFault; 4] = [
    StoreFault::FailBefore(ErrorKind::NotApplied),
    StoreFault::FailAfter(ErrorKind::Unknown),
    StoreFault::SwallowBefore,
    StoreFault::SwallowAfter,
];

/// So many store calls fail, from this call on.
fn outage(from: usize, calls: usize, fault: StoreFault) -> FaultPlan {
    FaultPlan::of((from..from + calls).map(|call| (call, fault)))
}

#[test]
fn an_outage_of_any_length_starts_at_every_store_call() {
    let mut sweep = Sweep::new("an outage starts at every store call, with a journal");
    let handler = HandlerScript::APPLIES.lasting(Duration::ZERO, LEASE);
    for scenario in [WITH_JOURNAL, Scenario { handler, ..WITH_JOURNAL }, Scenario { followers: 2, ..WITH_JOURNAL }] {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for (calls, fault) in (1..60).flat_map(|calls| OUTAGES.map(|fault| (calls, fault))) {
                let plan = outage(call, calls, fault);
                sweep.run(&scenario, &plan);
                sweep.run(&scenario, &FaultPlan { retries_late: true, ..plan });
            }
        }
    }
    sweep.finish(20, 9000);
}

/// The outage starts with the completion and outlasts the lease. The caller receives its answer while the completion is
/// in the journal; the completion is recorded when the store is back.
#[test]
fn an_interruption_at_every_step_of_an_outage() {
    let mut sweep = Sweep::new("an interruption at every step of an outage, with a journal");
    for fault in OUTAGES {
        let plan = outage(COMPLETION, 40, fault);
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
    sweep.finish(400, 1600);
}

/// The store call of a fresh run that is its completion.
const COMPLETION: usize = 3;
