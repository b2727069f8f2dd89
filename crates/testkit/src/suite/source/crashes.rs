//! Workers that end without notice, or are too slow, and brokers that do.

use hapax_core::broker::DeadReason;

use super::ledger::{JobScript, MAX_ATTEMPTS};
use super::world::{SourceWorld, assert_unusable};

pub(super) async fn redelivery_after_a_crash(world: &SourceWorld) {
    let keys: Vec<String> = (0..40).map(|n| format!("free{n}")).collect();
    crash_and_go_on(world, &keys).await;
}

pub(super) async fn order_holds_after_a_crash(world: &SourceWorld) {
    let keys: Vec<String> = (0..40).map(|n| format!("{}.{n}", n % 5)).collect();
    crash_and_go_on(world, &keys).await;
}

/// Crashes a worker while a message runs.
async fn crash_and_go_on(world: &SourceWorld, keys: &[String]) {
    world.script(&keys[11], JobScript::Held);
    world.publish(keys).await;
    let first = world.start_worker().await;
    world.until("the slow message runs", || world.ledger.tries(&keys[11]) == 1).await;
    first.host.crash();
    world.ledger.release(&keys[11]);
    let _second = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(keys);
}

pub(super) async fn crash_between_ledger_commit_and_dead_letter(world: &SourceWorld) {
    world.script("poison", JobScript::Fails(u32::MAX));
    world.dead.fail(usize::MAX);
    world.publish(&["poison"]).await;
    let first = world.start_worker().await;
    world.until("the operation is closed", || world.ledger.tries("poison") == MAX_ATTEMPTS).await;
    world.until("the dead letter is tried again", || world.dead.failures() > 1).await;
    first.host.crash();
    assert_eq!(world.setup.unfinished().await.len(), 1, "the message has no dead letter");
    world.dead.fail(0);
    let _second = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("poison".to_owned(), DeadReason::AttemptsExhausted)]);
    assert_eq!(world.ledger.tries("poison"), MAX_ATTEMPTS, "the restart does not begin to count again");
}

pub(super) async fn handler_slower_than_lease_or_poll_interval(world: &SourceWorld) {
    world.script("slow", JobScript::Takes(world.times().slow));
    world.publish(&["slow", "fast"]).await;
    let _first = world.start_worker().await;
    let _second = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&["fast", "slow"]);
    assert_eq!(world.ledger.tries("slow"), 1, "the message ran twice");
    assert_eq!(world.ledger.busy(), 0, "the broker delivered the message while it ran");
}

pub(super) async fn handler_slower_than_the_longest_lease(world: &SourceWorld) {
    world.script("slow", JobScript::Held);
    world.publish(&["slow", "fast"]).await;
    let _first = world.start_worker().await;
    let _second = world.start_worker().await;
    world.until("the broker delivers it again", || world.ledger.busy() > 0).await;
    world.ledger.release("slow");
    world.until_finished().await;
    world.assert_effects(&["fast", "slow"]);
    assert_eq!(world.ledger.tries("slow"), 1, "the message ran twice");
}

pub(super) async fn pause_beyond_the_session_with_takeover(world: &SourceWorld) {
    world.script("slow", JobScript::Held);
    world.publish(&["slow", "a", "b"]).await;
    let first = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    first.host.pause();
    let _second = world.start_worker().await;
    // The paused process still has its transaction open, so the copy is busy.
    world.until("another member has taken over", || world.ledger.busy() > 0).await;
    world.ledger.release("slow");
    first.host.resume();
    world.until_finished().await;
    world.assert_effects(&["a", "b", "slow"]);
    assert_eq!(world.ledger.tries("slow"), 1, "the message ran twice");
}

pub(super) async fn restart_of_the_broker_loses_nothing(world: &SourceWorld) {
    let keys: Vec<String> = (0..60).map(|n| format!("{}.{n}", n % 5)).collect();
    world.script(&keys[21], JobScript::Held);
    world.publish(&keys[..40]).await;
    let _worker = world.start_worker().await;
    world.until("the slow message runs", || world.ledger.tries(&keys[21]) == 1).await;
    world.setup.restart_broker().await;
    world.ledger.release(&keys[21]);
    world.publish(&keys[40..]).await;
    world.until_finished().await;
    world.assert_effects(&keys);
}

pub(super) async fn an_expired_committed_offset_is_refused(world: &SourceWorld) {
    let keys: Vec<String> = (0..16).map(|n| format!("free{n}")).collect();
    world.publish(&keys[..8]).await;
    let first = world.start_worker().await;
    world.until_finished().await;
    world.begin_to_stop(&first).await;
    world.until("the worker has ended", || first.end().is_some()).await;
    world.publish(&keys[8..]).await;
    world.setup.expire_messages().await;
    let _second = world.start_worker().await;
    assert_unusable(&world.until_refused().await);
    world.assert_effects(&keys[..8]);
}
