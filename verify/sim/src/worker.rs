//! A worker that gives up operations which had too many attempts: it buries their records. An operator reopens some of
//! them.
//!
//! The worker begins on the machine of the store, so it always knows which grant it has. Later its calls meet every
//! fault, and it repeats them until the store answers.

use std::future::Future;
use std::sync::Arc;

use hapax_core::machine::{Begin, Begun, Claim, Grant, Lapse, Resolved, Settled};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::Protocol;
use hapax_core::{Millis, Owner, Result};

use crate::operator::seconds;
use crate::plan::FaultClass;
use crate::scene::Scene;
use crate::store::NetworkStore;

/// Gives up one operation after another until the faults end.
pub(crate) async fn run_worker(scene: Arc<Scene>) {
    let life = scene.oracle.start_life(scene.plan.journals.len() + 1, None);
    loop {
        scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease())).await;
        if scene.is_healed() {
            return;
        }
        let key = scene.dice.below(scene.plan.keys.len());
        // Without a takeover no earlier attempt of the key is still unknown.
        if scene.plan.route(key).effect.is_at_most_once() {
            give_up(&scene, key, life).await;
        }
    }
}

/// Buries the record of a key if it is granted, and perhaps reopens it.
async fn give_up(scene: &Arc<Scene>, key: usize, life: usize) {
    let route = scene.plan.route(key);
    let Some(grant) = begin(scene, key, life).await else { return };
    scene.outside.sleep(scene.dice.up_to(route.lease / 2)).await;
    let remote = NetworkStore::new(Arc::clone(&scene.network), life);
    let (protocol, rk, claim) = (Protocol::over(&remote), grant.rk, Claim::from(&grant));
    let lifetime = seconds(route.unknown_retention);
    if repeat(scene, || protocol.bury(&rk, &claim, lifetime)).await != Settled::Yes {
        return;
    }
    scene.oracle.record_fault(FaultClass::Worker, format_args!("key {key}: the worker gave it up"));
    scene.outside.sleep(scene.dice.up_to(2 * route.lease)).await;
    if scene.dice.percent(70) {
        let released = seconds(route.released_retention);
        let reopened = repeat(scene, || protocol.reopen(&rk, claim.token, released)).await;
        scene.oracle.count(if reopened == Resolved::Yes { "reopen: yes" } else { "reopen: stale" });
    }
}

async fn begin(scene: &Arc<Scene>, key: usize, life: usize) -> Option<Grant> {
    let route = scene.plan.route(key);
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&scene.dice.next().to_be_bytes());
    owner[8..].copy_from_slice(&scene.dice.next().to_be_bytes());
    let ask = Begin {
        call: scene.calls[key][0],
        owner: Owner(owner),
        lease: Millis(u32::try_from(route.lease.as_millis()).ok()?),
        unknown_retention: seconds(route.unknown_retention),
        on_lapse: Lapse::Hold,
    };
    scene.oracle.start_work(key, ask.owner);
    let sure = NetworkStore::sure(Arc::clone(&scene.network), life);
    match Protocol::over(&sure).begin(&ask).await {
        Ok(Begun::Granted(grant)) => Some(grant),
        Ok(_) | Err(_) => None,
    }
}

/// Repeats an operation until the store answers it.
async fn repeat<T, F: Future<Output = Result<T>> + Send>(scene: &Arc<Scene>, operation: impl Fn() -> F) -> T {
    loop {
        if let Some(Ok(reply)) = timeout(&*scene.outside, scene.plan.store_timeout, operation()).await {
            return reply;
        }
        scene.outside.sleep(scene.plan.shortest_lease() / 8).await;
    }
}
