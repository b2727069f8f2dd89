//! An operator who resolves unknown outcomes. The operator is never wrong, but takes time to record a verdict.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Resolved, Verdict};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::settings::Found;
use hapax_core::store::Protocol;
use hapax_core::{Phase, Seconds, State};

use crate::plan::FaultClass;
use crate::scene::Scene;
use crate::store::NetworkStore;

/// Picks one key after another until the faults end.
pub(crate) async fn run_operator(scene: Arc<Scene>) {
    let life = scene.oracle.start_life(scene.plan.journals.len(), None);
    loop {
        scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease() / 4)).await;
        if scene.is_healed() {
            return;
        }
        let key = scene.dice.below(scene.plan.keys.len());
        if scene.plan.route(key).effect.is_at_most_once() {
            let case = resolve_key(Arc::clone(&scene), key, life);
            // The oracle checks the result in the store.
            scene.outside.spawn(Box::pin(async move { case.await.unwrap_or_default() }));
        }
    }
}

/// Resolves one key. Returns early if the record needs no verdict, or if a store call fails.
async fn resolve_key(scene: Arc<Scene>, key: usize, life: usize) -> Option<()> {
    let (rk, route) = (scene.calls[key][0].record_key(), scene.plan.route(key));
    let (outside, limit) = (&*scene.outside, scene.plan.store_timeout);
    let remote = NetworkStore::new(Arc::clone(&scene.network), life);
    let protocol = Protocol::over(&remote);
    let seen = timeout(outside, limit, protocol.read(rk)).await?.ok()?;
    let record = seen.live()?;
    match record.state {
        State::Open(Phase::InProgress, _) if !seen.is_running() => {}
        State::Open(Phase::Indeterminate, _) => {}
        State::Completed(_) | State::Open(Phase::InProgress | Phase::Released | Phase::Dead, _) => return None,
    }
    let unknown_retention = seconds(route.unknown_retention);
    let held = timeout(outside, limit, protocol.hold(&rk, record.token, unknown_retention)).await?.ok()?;
    scene.oracle.count(if held == Resolved::Yes { "hold: yes" } else { "hold: stale" });
    let verdict = match scene.oracle.find_out(rk.operation()) {
        Found::Done(answer) => Verdict::Done { answer, retention: seconds(route.retention) },
        Found::NotDone => Verdict::NotDone { lifetime: seconds(route.released_retention) },
        Found::Unknown => return None,
    };
    scene.outside.sleep(scene.dice.up_to(3 * route.lease)).await;
    let token = record.token.0;
    scene.oracle.record_fault(
        FaultClass::Operator,
        format_args!("key {key}: the operator resolves token {token}: {verdict:?}"),
    );
    timeout(outside, limit, protocol.resolve(&rk, record.token, &verdict)).await?.ok().map(drop)
}

/// A lifetime in whole seconds, as records have it.
pub(crate) fn seconds(time: Duration) -> Seconds {
    Seconds(u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
}
