//! Workers that end without notice, or are too slow.

use std::time::Duration;

use hapax_core::broker::DeadReason;

use super::ledger::{JobScript, MAX_ATTEMPTS};
use super::world::SourceWorld;

pub(super) async fn redelivery_after_a_crash(world: &SourceWorld) {
    let keys: Vec<String> = (0..40).map(|n| format!("{}.{n}", n % 5)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    world.script(keys[11], JobScript::Takes(Duration::from_millis(400)));
    world.publish(&keys).await;
    let first = world.start_worker().await;
    world.until("the slow message runs", || world.ledger.tries(keys[11]) == 1).await;
    first.host.crash();
    let _second = world.start_worker().await;
    world.until_finished().await;
    let mut expected = keys.clone();
    expected.sort_unstable();
    assert_eq!(world.sorted_effects(), expected);
}

pub(super) async fn crash_between_ledger_commit_and_dead_letter(world: &SourceWorld) {
    world.script("poison", JobScript::Fails(u32::MAX));
    world.dead.fail(usize::MAX);
    world.publish(&["poison"]).await;
    let first = world.start_worker().await;
    world.until("the operation is closed", || world.ledger.tries("poison") == MAX_ATTEMPTS).await;
    world.pass(Duration::from_millis(500)).await;
    first.host.crash();
    assert_eq!(world.setup.unfinished().await, 1, "the message has no dead letter");
    world.dead.fail(0);
    let _second = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("poison".to_owned(), DeadReason::AttemptsExhausted)]);
    assert_eq!(world.ledger.tries("poison"), MAX_ATTEMPTS, "the restart does not begin to count again");
}

pub(super) async fn handler_slower_than_lease_or_poll_interval(world: &SourceWorld) {
    world.script("slow", JobScript::Takes(Duration::from_secs(30)));
    world.publish(&["slow", "fast"]).await;
    let _first = world.start_worker().await;
    let _second = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.sorted_effects(), ["fast", "slow"]);
    assert_eq!(world.ledger.tries("slow"), 1, "the message ran twice");
    assert_eq!(world.ledger.busy(), 0, "the broker delivered the message while it ran");
}

pub(super) async fn pause_beyond_the_session_with_takeover(world: &SourceWorld) {
    world.script("slow", JobScript::Takes(Duration::from_secs(2)));
    world.publish(&["slow", "a", "b"]).await;
    let first = world.start_worker().await;
    world.until("it runs", || world.ledger.tries("slow") == 1).await;
    first.host.pause();
    let _second = world.start_worker().await;
    // The paused process still has its transaction open, so the copy is busy.
    world.pass(Duration::from_secs(30)).await;
    first.host.resume();
    world.until_finished().await;
    assert_eq!(world.sorted_effects(), ["a", "b", "slow"]);
}
