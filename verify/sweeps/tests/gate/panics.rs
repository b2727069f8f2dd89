//! A panic at each poll of a handler.

use std::time::Duration;

use hapax_sim::outcome::HandlerOutcome;
use hapax_sweeps::Sweep;

use crate::faults::{FRESH, HOLD, RESOLVE, RETRY};
use crate::handler::HandlerScript;
use crate::scenario::{FaultPlan, RunScenario, Scenario};

const HANDLERS: [HandlerScript; 4] = [
    HandlerScript::APPLIES,
    HandlerScript::APPLIES.returns(HandlerOutcome::NotApplied),
    HandlerScript::APPLIES.lasting(Duration::from_secs(15), Duration::ZERO),
    HandlerScript::APPLIES.lasting(Duration::ZERO, Duration::from_secs(15)),
];

#[test]
fn a_handler_panics_at_every_poll() {
    let mut sweep = Sweep::new("a handler panics at every poll");
    for scenario in [HOLD, RETRY, RESOLVE]
        .into_iter()
        .flat_map(|setup| HANDLERS.map(|handler| Scenario { setup, handler, ..FRESH }))
    {
        for poll in 0.. {
            let handler = HandlerScript { panics_at: Some(poll), ..scenario.handler };
            let scenario = Scenario { handler, ..scenario };
            let panicked = sweep.points(&scenario, |coverage| coverage.broken_off.min(1));
            if panicked == 0 {
                break;
            }
            for retries_late in [false, true] {
                for followers in [0, 2] {
                    let plan = FaultPlan { retries_late, ..FaultPlan::default() };
                    sweep.run(&Scenario { followers, ..scenario }, &plan);
                }
            }
        }
    }
    sweep.finish(40, 200);
}
