//! Effects once each, and in the order of their keys.

use std::time::Duration;

use hapax_core::broker::DeadReason;

use super::ledger::{JobScript, MAX_ATTEMPTS};
use super::world::SourceWorld;

pub(super) async fn every_message_has_its_effect_once(world: &SourceWorld) {
    let keys: Vec<String> =
        (0..60).map(|n| format!("{}.{n}", n % 7)).chain((0..20).map(|n| format!("free{n}"))).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    world.publish(&keys).await;
    let _first = world.start_worker().await;
    // Some of them twice.
    world.publish(&keys[20..40]).await;
    world.until_finished().await;
    let mut expected = keys.clone();
    expected.sort_unstable();
    assert_eq!(world.sorted_effects(), expected);
    assert_eq!(world.dead_letters(), []);
    for order in 0..7 {
        let prefix = format!("{order}.");
        let of_order = |key: &&str| key.starts_with(&prefix);
        let effects = world.ledger.effects();
        let effects: Vec<&str> = effects.iter().map(String::as_str).filter(of_order).collect();
        let published: Vec<&str> = keys.iter().copied().filter(of_order).collect();
        assert_eq!(effects, published, "the order of one key");
    }
}

pub(super) async fn nothing_is_acknowledged_before_its_end(world: &SourceWorld) {
    // The first message ends last.
    world.script("slow", JobScript::Takes(Duration::from_secs(3)));
    world.publish(&["slow"]).await;
    let worker = world.start_worker().await;
    world.until("the slow message runs", || world.ledger.tries("slow") == 1).await;
    world.publish(&["a", "b", "c"]).await;
    world.until("the others have ended", || world.ledger.effects().len() == 3).await;
    // Here a worker that acknowledges the highest message would lose the slow one.
    world.pass(Duration::from_secs(1)).await;
    worker.host.crash();
    let _second = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.sorted_effects(), ["a", "b", "c", "slow"]);
}

pub(super) async fn poison_blocks_only_its_key(world: &SourceWorld) {
    world.script("p.1", JobScript::Fails(u32::MAX));
    world.publish(&["p.1", "p.2", "q.1", "p.3", "q.2", "free"]).await;
    let _worker = world.start_worker().await;
    world.until("the others have ended", || world.ledger.effects().len() >= 3).await;
    assert!(world.ledger.tries("p.1") < MAX_ATTEMPTS, "the others do not wait for the poison");
    assert_eq!(world.ledger.tries("p.2"), 0, "p.2 overtakes p.1");
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("p.1".to_owned(), DeadReason::AttemptsExhausted)]);
    assert_eq!(world.dead.letters()[0].attempts, MAX_ATTEMPTS);
    assert_eq!(world.ledger.tries("p.1"), MAX_ATTEMPTS);
    assert_eq!(world.sorted_effects(), ["free", "p.2", "p.3", "q.1", "q.2"]);
    assert_eq!(world.ledger.failed_operations(), 1, "an innocent neighbour was counted");
    let effects = world.ledger.effects();
    let place = |key: &str| effects.iter().position(|effect| effect == key);
    assert!(place("p.2") < place("p.3") && place("q.1") < place("q.2"));
}
