//! A panic at every poll of a handler.

use std::time::Duration;

use crate::act::Act;
use crate::faults::{FRESH, HOLD, RESOLVE, RETRY};
use crate::oracle::Word;
use crate::scenario::{Mishap, Scenario};
use crate::sweep::Sweep;

const ACTS: [Act; 4] = [
    Act::APPLIES,
    Act::APPLIES.says(Word::NotApplied),
    Act::APPLIES.lasting(Duration::from_secs(15), Duration::ZERO),
    Act::APPLIES.lasting(Duration::ZERO, Duration::from_secs(15)),
];

#[test]
fn a_panic_at_every_poll_of_a_handler() {
    let mut sweep = Sweep::new("a panic at every poll of a handler");
    for scenario in
        [HOLD, RETRY, RESOLVE].into_iter().flat_map(|terms| ACTS.map(|act| Scenario { terms, act, ..FRESH }))
    {
        for poll in 0.. {
            let scenario = Scenario { act: Act { panics_at: Some(poll), ..scenario.act }, ..scenario };
            let panicked = sweep.points(&scenario, |covered| covered.broken_off.min(1));
            if panicked == 0 {
                break;
            }
            for patient in [false, true] {
                for twins in [0, 2] {
                    sweep.run(&Scenario { twins, ..scenario }, &Mishap { patient, ..Mishap::default() });
                }
            }
        }
    }
    sweep.ends(40, 200);
}
