//! Effects once each, and in the order of their keys.

use hapax_core::broker::DeadReason;

use super::ledger::{JobScript, MAX_ATTEMPTS};
use super::world::SourceWorld;

pub(super) async fn every_message_has_its_effect_once(world: &SourceWorld) {
    let keys: Vec<String> =
        (0..60).map(|n| format!("{}.{n}", n % 7)).chain((0..20).map(|n| format!("free{n}"))).collect();
    world.publish(&keys).await;
    let _first = world.start_worker().await;
    // Some of them twice.
    world.publish(&keys[20..40]).await;
    world.until_finished().await;
    world.assert_effects(&keys);
    assert_eq!(world.dead_letters(), []);
}

pub(super) async fn nothing_is_acknowledged_before_its_end(world: &SourceWorld) {
    // The first message ends last. The others reach every partition.
    let keys: Vec<String> = (0..16).map(|n| format!("free{n}")).collect();
    world.script(&keys[0], JobScript::Held);
    world.publish(&keys[..1]).await;
    let first = world.start_worker().await;
    world.until("the slow message runs", || world.ledger.tries(&keys[0]) == 1).await;
    world.publish(&keys[1..]).await;
    world.until("the others have ended", || world.ledger.effects().len() == 15).await;
    // Here a worker that acknowledges the highest message would lose the slow one.
    world.pass(world.times().settle).await;
    first.host.crash();
    world.ledger.release(&keys[0]);
    let _second = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&keys);
}

pub(super) async fn poison_blocks_only_its_key(world: &SourceWorld) {
    world.script("p.1", JobScript::Retries);
    world.publish(&["p.1", "p.2", "q.1", "p.3", "q.2", "free"]).await;
    let _worker = world.start_worker().await;
    // The others do not wait for the poison. At the end, `until_finished` checks all starts of p.2 and p.3.
    let others = || world.ledger.effects().len() >= 3 && world.ledger.tries("p.1") > 1;
    world.until("the others have ended", others).await;
    let tries = world.ledger.tries("p.1");
    world.script("p.1", JobScript::Fails(u32::MAX));
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("p.1".to_owned(), DeadReason::AttemptsExhausted)]);
    assert_eq!(world.dead.letters()[0].attempts, MAX_ATTEMPTS);
    assert!(world.ledger.tries("p.1") >= tries + MAX_ATTEMPTS, "a retry of the database was counted");
    world.assert_effects(&["free", "p.2", "p.3", "q.1", "q.2"]);
    assert_eq!(world.ledger.failed_operations(), 1, "an innocent neighbour was counted");
}

pub(super) async fn order_holds_over_a_restart(world: &SourceWorld) {
    let later: Vec<String> = (2..40).map(|n| format!("k.{n}")).collect();
    world.script("k.1", JobScript::Held);
    world.publish(&["k.1"]).await;
    let first = world.start_worker().await;
    world.until("the first one of the key runs", || world.ledger.tries("k.1") == 1).await;
    world.publish(&later).await;
    world.publish(&["free"]).await;
    world.until("the later ones have arrived", || world.ledger.effects() == ["free"]).await;
    world.begin_to_stop(&first).await;
    world.ledger.release("k.1");
    world.until("the worker has ended", || first.end().is_some()).await;
    let _second = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.ledger.effects().len(), later.len() + 2);
    assert_eq!(world.ledger.tries("k.1"), 1, "its end was settled");
}

pub(super) async fn order_holds_at_a_stop(world: &SourceWorld) {
    world.script("k.1", JobScript::Held);
    world.publish(&["k.1"]).await;
    let first = world.start_worker().await;
    world.until("the first one of the key runs", || world.ledger.tries("k.1") == 1).await;
    world.publish(&["k.2", "k.3", "free"]).await;
    world.until("the later ones have arrived", || world.ledger.effects() == ["free"]).await;
    world.begin_to_stop(&first).await;
    let second = world.start_worker().await;
    // Time for a later one to reach the other worker.
    world.pass(world.times().settle).await;
    world.check_order();
    world.ledger.release("k.1");
    world.until("the first worker has ended", || first.end().is_some()).await;
    world.until_finished().await;
    world.assert_effects(&["free", "k.1", "k.2", "k.3"]);
    assert_eq!(world.ledger.tries("k.1"), 1, "its end was settled");
    drop(second);
}
