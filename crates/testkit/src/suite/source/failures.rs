//! Messages that cannot be processed, now or ever.

use bytes::Bytes;
use hapax_core::broker::{DeadReason, Message};

use super::ledger::{JobScript, MAX_ATTEMPTS};
use super::world::{MAX_PANICS, SourceWorld, message};

pub(super) async fn busy_is_never_acknowledged(world: &SourceWorld) {
    // The copies get to other places, so a worker gets both at once.
    world.script("twin", JobScript::Held);
    world.publish(&["twin"]).await;
    let first = world.start_worker().await;
    world.until("the first one runs", || world.ledger.tries("twin") == 1).await;
    world.publish(&["twin", "twin", "twin"]).await;
    world.until("a copy is busy", || world.ledger.busy() > 0).await;
    assert_eq!(world.setup.unfinished().await.len(), 4);
    // The first one never commits: only the copies can.
    first.host.crash();
    assert_eq!(world.setup.unfinished().await.len(), 4);
    world.ledger.release("twin");
    let _second = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&["twin"]);
}

pub(super) async fn dead_letter_is_confirmed_before_the_acknowledgement(world: &SourceWorld) {
    world.script("bad", JobScript::Rejects);
    world.dead.fail(3);
    world.publish(&["bad", "good"]).await;
    let _worker = world.start_worker().await;
    world.until("the good one has its effect", || world.ledger.effects().len() == 1).await;
    // `until_finished` looks at each look whether a message without an end is acknowledged.
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("bad".to_owned(), DeadReason::Rejected)]);
}

pub(super) async fn missing_key_is_a_dead_letter(world: &SourceWorld) {
    let none = Message { payload: Bytes::from_static(b"none"), ..Message::default() };
    let mut two = message("two");
    two.headers.push("idempotency-key", &b"other"[..]);
    world.publish_messages(vec![none, two, message("good")]).await;
    let _worker = world.start_worker().await;
    world.until_finished().await;
    let expected = [("none".to_owned(), DeadReason::KeyMissing), ("two".to_owned(), DeadReason::KeyMalformed)];
    assert_eq!(world.dead_letters(), expected);
    world.assert_effects(&["good"]);
}

pub(super) async fn key_reused_with_another_payload(world: &SourceWorld) {
    let other = Message { payload: Bytes::from_static(b"another payload"), ..message("key") };
    world.publish(&["key"]).await;
    let _worker = world.start_worker().await;
    world.until("the first one has its effect", || world.ledger.effects().len() == 1).await;
    world.publish_messages(vec![other.clone(), other]).await;
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("another payload".to_owned(), DeadReason::KeyReused)]);
    world.assert_effects(&["key"]);
}

pub(super) async fn rejected_is_a_dead_letter_each_time(world: &SourceWorld) {
    world.script("bad", JobScript::Rejects);
    world.publish(&["bad"]).await;
    let _worker = world.start_worker().await;
    world.until_finished().await;
    world.publish(&["bad"]).await;
    world.until_finished().await;
    assert_eq!(world.dead_letters(), [("bad".to_owned(), DeadReason::Rejected)], "one letter under one id");
    assert_eq!((world.dead.writes(), world.ledger.tries("bad")), (2, 1));
}

pub(super) async fn a_panic_is_unknown(world: &SourceWorld) {
    world.script("panics", JobScript::Panics(3));
    world.script("hopeless", JobScript::Panics(u32::MAX));
    world.publish(&["a", "panics", "b", "hopeless", "c"]).await;
    let _worker = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&["a", "b", "c", "panics"]);
    assert_eq!(world.dead_letters(), [("hopeless".to_owned(), DeadReason::OutcomeUnknown)]);
}

/// Each message has one attempt left after its panics alone. A panic of a batch with others must not take it.
pub(super) async fn the_panic_of_a_shared_batch_counts_for_none_of_its_messages(world: &SourceWorld) {
    let keys: Vec<String> = (0..20).map(|n| format!("free{n}")).collect();
    keys.iter().for_each(|key| world.script(key, JobScript::PanicsAlone(MAX_PANICS - 1)));
    world.publish(&keys).await;
    let _worker = world.start_worker().await;
    world.until_finished().await;
    assert_eq!(world.dead_letters(), []);
    world.assert_effects(&keys);
}

pub(super) async fn database_down_pauses(world: &SourceWorld) {
    world.script("a", JobScript::Pauses(5));
    world.publish(&["a", "b"]).await;
    let _worker = world.start_worker().await;
    world.until_finished().await;
    world.assert_effects(&["a", "b"]);
    assert_eq!((world.dead.writes(), world.ledger.failed_operations()), (0, 0), "a pause is no attempt");
}

pub(super) async fn dead_letter_and_redrive(world: &SourceWorld) {
    world.script("poison", JobScript::Fails(MAX_ATTEMPTS + 2));
    world.publish(&["poison", "good"]).await;
    let _worker = world.start_worker().await;
    let _redrives = world.start_redrives();
    world.until_finished().await;
    let letter = world.dead.letters().remove(0);
    let operation = letter.operation.expect("the message has a key");
    // Without a reopened operation it is the same dead letter again.
    world.dead.redrive(letter.id);
    world.until("it is written again", || world.dead.writes() == 2).await;
    world.pass(world.times().settle).await;
    assert_eq!(world.dead_letters(), [("poison".to_owned(), DeadReason::AttemptsExhausted)]);
    assert_eq!(world.ledger.tries("poison"), MAX_ATTEMPTS);
    world.ledger.reopen(operation);
    world.dead.redrive(letter.id);
    world.until("the letter is gone", || world.dead.letters().is_empty()).await;
    world.assert_effects(&["good", "poison"]);
}
