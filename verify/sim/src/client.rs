//! Clients: they ask, and ask again.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Recorded;
use hapax_core::runtime::Runtime;

use crate::handler::Act;
use crate::outcome::CallerOutcome;
use crate::plan::Class;
use crate::rules;
use crate::scene::{Scene, Try};

/// A client with one operation, until it has an answer or gives up.
pub(crate) async fn runs(scene: Arc<Scene>) {
    let (plan, dice) = (Arc::clone(&scene.plan), scene.dice.clone());
    scene.outside.sleep(dice.up_to(plan.window)).await;
    // Some keys are more popular than others.
    let key = dice.below(plan.keys.len()).min(dice.below(plan.keys.len()));
    let route = plan.route(key);
    // A ledger would compare payloads, too; this one does not.
    let may_differ = plan.may(Class::OtherPayload) && !route.effect.has_ledger();
    let payload = usize::from(may_differ && dice.percent(25));
    if payload == 1 {
        scene.oracle.counts(Class::OtherPayload);
    }
    for _ in 0..dice.between(1, 8) {
        let patience = (plan.may(Class::HangUp) && dice.percent(15)).then(|| dice.up_to(route.lease));
        let act = Act::draw(&dice, &plan, route);
        if act.lasts() > route.lease {
            scene.oracle.counts(Class::LongHandler);
        }
        let site = dice.below(plan.journals.len());
        let told = scene.ask(Try { key, payload, act, site, patience }).await;
        let pause = match told {
            // Mostly the end of it; some come back for the same answer.
            Some(CallerOutcome::Answer { .. } | CallerOutcome::Mismatch) if dice.percent(70) => return,
            Some(CallerOutcome::Busy(after)) if dice.percent(70) => after + dice.up_to(route.lease / 10),
            Some(_) | None => dice.up_to(route.lease),
        };
        scene.outside.sleep(pause).await;
    }
}

/// Asks until the end is known, two processes one after the other.
pub(crate) async fn closes(scene: Arc<Scene>, key: usize) {
    let sites = scene.plan.journals.len();
    let first = scene.dice.below(sites);
    let mut last = Vec::new();
    // Where records live for a few leases only, the second may be asked after the end of the first one's.
    let asked = if scene.plan.may(Class::Expiry) { 1 } else { 2 };
    for site in [first, (first + 1) % sites].into_iter().take(asked) {
        match last_word(&scene, key, site).await {
            Some(told) => last.push(told),
            None => return scene.oracle.breaks(rules::NOT_SETTLED),
        }
    }
    scene.oracle.closes(key, &last);
}

async fn last_word(scene: &Arc<Scene>, key: usize, site: usize) -> Option<CallerOutcome> {
    let mut tries = 0;
    while tries < 30 {
        let payload = scene.oracle.payload_to_ask_with(key);
        let pause = match scene.ask(Try { key, payload, act: Act::APPLIES, site, patience: None }).await? {
            // A gate that thinks that the store is down asks it again soon.
            CallerOutcome::Answer { recorded: Recorded::No, .. } => Duration::from_secs(1),
            told @ CallerOutcome::Answer { .. } => return Some(told),
            // A probe may have to wait before it knows.
            CallerOutcome::Indeterminate if scene.probes(key) => scene.plan.route(key).lease / 2,
            told @ CallerOutcome::Indeterminate => return Some(told),
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
            CallerOutcome::Dead => return None,
        };
        tries += 1;
        scene.outside.sleep(pause.max(Duration::from_millis(1))).await;
    }
    None
}
