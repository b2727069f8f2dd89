//! Workers that stop, and lanes that move.

use std::time::Duration;

use super::ledger::JobScript;
use super::world::SourceWorld;

pub(super) async fn drain_finishes_what_runs(world: &SourceWorld) {
    world.script("slow", JobScript::Takes(Duration::from_secs(2)));
    world.publish(&["slow"]).await;
    let worker = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    worker.shut_down();
    world.publish(&["later"]).await;
    world.until("the worker has ended", || worker.end().is_some()).await;
    assert_eq!(worker.end().map(|end| end.unfinished), Some(0));
    assert_eq!(world.sorted_effects(), ["slow"], "nothing new is started");
    assert_eq!(world.setup.unfinished().await, 1);
    let idle = world.start_worker().await;
    world.until_finished().await;
    idle.shut_down();
    world.until("an idle worker ends", || idle.end().is_some()).await;
    assert_eq!(world.ledger.tries("slow"), 1, "its end was settled");
}

pub(super) async fn revoke_finishes_what_runs(world: &SourceWorld) {
    let keys: Vec<String> = (0..8).map(|n| format!("{n}.slow")).collect();
    for key in &keys {
        world.script(key, JobScript::Takes(Duration::from_secs(1)));
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    world.publish(&keys).await;
    let _first = world.start_worker().await;
    world.until("one runs", || keys.iter().any(|key| world.ledger.tries(key) == 1)).await;
    let _second = world.start_worker().await;
    world.until_finished().await;
    let mut expected = keys.clone();
    expected.sort_unstable();
    assert_eq!(world.sorted_effects(), expected);
    assert_eq!(world.ledger.busy(), 0, "a lane moved while its message ran");
}

pub(super) async fn loss_acknowledges_nothing(world: &SourceWorld) {
    world.script("slow", JobScript::Takes(Duration::from_secs(2)));
    world.publish(&["slow"]).await;
    let _worker = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    world.setup.lose_lanes().await;
    world.until("the copy is delivered", || world.ledger.busy() > 0).await;
    world.until("the old run has ended", || world.ledger.effects().len() == 1).await;
    // The old run's end says nothing about the copy, which belongs to another generation.
    while world.ledger.copies() == 0 {
        assert_eq!(world.setup.unfinished().await, 1, "the old generation settled what the new one has to settle");
        world.pass(Duration::from_millis(10)).await;
    }
    world.until_finished().await;
    assert_eq!(world.setup.stale_settlements(), 0, "a lost lane was settled");
    assert_eq!(world.sorted_effects(), ["slow"]);
}
