//! Workers that stop, and lanes that move.

use super::ledger::JobScript;
use super::world::SourceWorld;

pub(super) async fn drain_finishes_what_runs(world: &SourceWorld) {
    world.script("slow", JobScript::Held);
    world.publish(&["slow"]).await;
    let worker = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    world.begin_to_stop(&worker).await;
    world.publish(&["later"]).await;
    world.ledger.release("slow");
    world.until("the worker has ended", || worker.end().is_some()).await;
    assert_eq!(worker.end().map(|end| end.unfinished), Some(0));
    world.assert_effects(&["slow"]);
    assert_eq!(Vec::from_iter(world.setup.unfinished().await), [1]);
    let idle = world.start_worker().await;
    world.until_finished().await;
    idle.shut_down();
    world.until("an idle worker ends", || idle.end().is_some()).await;
    assert_eq!(world.ledger.tries("slow"), 1, "its end was settled");
}

pub(super) async fn revoke_finishes_what_runs(world: &SourceWorld) {
    let keys: Vec<String> = (0..8).map(|n| format!("{n}.slow")).collect();
    keys.iter().for_each(|key| world.script(key, JobScript::Held));
    world.publish(&keys).await;
    let _first = world.start_worker().await;
    let tries = || keys.iter().map(|key| world.ledger.tries(key)).sum::<u32>();
    world.until("one runs", || tries() > 0).await;
    let _second = world.start_worker().await;
    // Time for the rebalance to begin.
    world.pass(world.times().settle).await;
    keys.iter().for_each(|key| world.ledger.release(key));
    world.until_finished().await;
    world.assert_effects(&keys);
    assert_eq!(world.ledger.busy(), 0, "a lane moved while its message ran");
}

pub(super) async fn rebalance_storm(world: &SourceWorld) {
    let keys: Vec<String> = (0..160).map(|n| format!("{}.{n}", n % 8)).collect();
    let has = |count: usize| move || world.ledger.effects().len() >= count;
    world.publish(&keys[..40]).await;
    let first = world.start_worker().await;
    world.until("some have ended", has(10)).await;
    let second = world.start_worker().await;
    world.publish(&keys[40..80]).await;
    let third = world.start_worker().await;
    world.until("half of them have ended", has(60)).await;
    first.shut_down();
    world.publish(&keys[80..120]).await;
    second.host.crash();
    let _fourth = world.start_worker().await;
    world.until("more have ended", has(100)).await;
    third.shut_down();
    world.publish(&keys[120..]).await;
    let _fifth = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&keys);
}

pub(super) async fn loss_acknowledges_nothing(world: &SourceWorld) {
    world.script("slow", JobScript::Held);
    world.publish(&["slow"]).await;
    let _worker = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    world.setup.lose_lanes().await;
    world.until("the copy is delivered", || world.ledger.busy() > 0).await;
    world.ledger.release("slow");
    world.until("the old run has ended", || world.ledger.effects().len() == 1).await;
    // The old run's end says nothing about the copy, which belongs to another generation.
    loop {
        let unfinished = world.setup.unfinished().await.len();
        if world.ledger.copies() > 0 {
            break;
        }
        assert_eq!(unfinished, 1, "the old generation settled what the new one has to settle");
        world.pass(world.times().look).await;
    }
    world.until_finished().await;
    assert_eq!(world.setup.stale_settlements(), 0, "a lost lane was settled");
    world.assert_effects(&["slow"]);
}
