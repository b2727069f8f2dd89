//! A journal under outages of the store: an answer that was told is recorded in the end, whatever else happens meanwhile.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_testkit::Fault;

use crate::act::Act;
use crate::faults::{FRESH, HOLD, LEASE};
use crate::scenario::{Blow, Mishap, Scenario};
use crate::sweep::Sweep;

const SPILLS: Scenario = Scenario { name: "with a journal", terms: HOLD, journal: true, ..FRESH };

const OUTAGES: [Fault; 4] = [
    Fault::FailBefore(ErrorKind::NotApplied),
    Fault::FailAfter(ErrorKind::Unknown),
    Fault::SwallowBefore,
    Fault::SwallowAfter,
];

/// The store fails from this call on.
fn outage(from: usize, calls: usize, fault: Fault) -> Mishap {
    Mishap::of((from..from + calls).map(|call| (call, fault)))
}

#[test]
fn an_outage_of_any_length_from_every_call_on() {
    let mut sweep = Sweep::new("an outage from every store call on, with a journal");
    let lasts = Act::APPLIES.lasting(Duration::ZERO, LEASE);
    for scenario in [SPILLS, Scenario { act: lasts, ..SPILLS }, Scenario { twins: 2, ..SPILLS }] {
        for call in 0..sweep.points(&scenario, |covered| covered.calls) {
            for (calls, fault) in (1..60).flat_map(|calls| OUTAGES.map(|fault| (calls, fault))) {
                let mishap = outage(call, calls, fault);
                sweep.run(&scenario, &mishap);
                sweep.run(&scenario, &Mishap { patient: true, ..mishap });
            }
        }
    }
    sweep.ends(20, 9000);
}

/// From the completion on, for longer than the lease: the answer is told from the journal, and recorded when the store is back.
#[test]
fn a_blow_at_every_step_of_an_outage() {
    let mut sweep = Sweep::new("a blow at every step of an outage, with a journal");
    for fault in OUTAGES {
        let mishap = outage(COMPLETION, 40, fault);
        let steps = sweep.run(&SPILLS, &mishap).map_or(0, |covered| covered.steps);
        sweep.points += steps;
        for (step, blow) in (0..=steps).flat_map(|step| [(step, Blow::Hangup), (step, Blow::Crash)]) {
            for patient in [false, true] {
                let blow = Some((step, blow));
                sweep.run(&SPILLS, &Mishap { blow, patient, ..mishap.clone() });
            }
        }
    }
    sweep.ends(400, 1600);
}

/// The first call of a fresh run that completes it.
const COMPLETION: usize = 3;
