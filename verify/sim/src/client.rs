//! Clients: they call, and retry.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Recorded;
use hapax_core::runtime::Runtime;

use crate::handler::HandlerPlan;
use crate::outcome::CallerOutcome;
use crate::plan::FaultClass;
use crate::rules;
use crate::scene::{ClientRequest, Scene};

/// Runs a client with one operation until the client has an answer or gives up.
pub(crate) async fn run_client(scene: Arc<Scene>) {
    let (plan, dice) = (Arc::clone(&scene.plan), scene.dice.clone());
    scene.outside.sleep(dice.up_to(plan.window)).await;
    // The minimum of two draws makes some keys more popular than others.
    let key = dice.below(plan.keys.len()).min(dice.below(plan.keys.len()));
    let route = plan.route(key);
    // A real ledger would compare payloads; the ledger of the simulation does not.
    let may_differ = plan.allows(FaultClass::OtherPayload) && !route.effect.has_ledger();
    let payload = usize::from(may_differ && dice.percent(25));
    if payload == 1 {
        scene.oracle.count_fault(FaultClass::OtherPayload);
    }
    for _ in 0..dice.between(1, 8) {
        let patience = (plan.allows(FaultClass::HangUp) && dice.percent(15)).then(|| dice.up_to(route.lease));
        let handler = HandlerPlan::draw(&dice, &plan, route);
        if handler.duration() > route.lease {
            scene.oracle.count_fault(FaultClass::LongHandler);
        }
        let process = dice.below(plan.journals.len());
        let outcome = scene.call(ClientRequest { key, payload, handler, process, patience }).await;
        let pause = match outcome {
            // Most clients stop here; the others retry and must get the same answer.
            Some(CallerOutcome::Answer { .. } | CallerOutcome::Mismatch) if dice.percent(70) => return,
            Some(CallerOutcome::Busy(after)) if dice.percent(70) => after + dice.up_to(route.lease / 10),
            Some(_) | None => dice.up_to(route.lease),
        };
        scene.outside.sleep(pause).await;
    }
}

/// Calls two processes, one after the other, until each reports a final outcome.
pub(crate) async fn finish_key(scene: Arc<Scene>, key: usize) {
    let processes = scene.plan.journals.len();
    let first = scene.dice.below(processes);
    let mut last = Vec::new();
    // Records that live for a few leases only may expire before the second process is called.
    let asked = if scene.plan.allows(FaultClass::Expiry) { 1 } else { 2 };
    for process in [first, (first + 1) % processes].into_iter().take(asked) {
        match final_outcome(&scene, key, process).await {
            Some(outcome) => last.push(outcome),
            None => return scene.oracle.fail(rules::NOT_SETTLED),
        }
    }
    scene.oracle.finish_key(key, &last);
}

async fn final_outcome(scene: &Arc<Scene>, key: usize, process: usize) -> Option<CallerOutcome> {
    let mut tries = 0;
    while tries < 30 {
        let payload = scene.oracle.recorded_payload(key);
        let pause = match scene
            .call(ClientRequest { key, payload, handler: HandlerPlan::APPLIES, process, patience: None })
            .await?
        {
            // The gate still believes that the store is down, and tries again soon.
            CallerOutcome::Answer { recorded: Recorded::No, .. } => Duration::from_secs(1),
            outcome @ CallerOutcome::Answer { .. } => return Some(outcome),
            // The probe may need time before it knows the outcome.
            CallerOutcome::Indeterminate if scene.has_probe(key) => scene.plan.route(key).lease / 2,
            outcome @ (CallerOutcome::Indeterminate | CallerOutcome::Dead) => return Some(outcome),
            CallerOutcome::Busy(after) => after,
            CallerOutcome::Overloaded => {
                scene.outside.sleep(scene.dice.up_to(scene.plan.route(key).lease)).await;
                continue;
            }
            CallerOutcome::Unknown
            | CallerOutcome::Unrecorded
            | CallerOutcome::NotApplied
            | CallerOutcome::Store(_)
            | CallerOutcome::Mismatch => scene.plan.route(key).lease / 3,
        };
        tries += 1;
        scene.outside.sleep(pause.max(Duration::from_millis(1))).await;
    }
    None
}
