//! Completions: they replace every open record of the same payload, and never a recorded answer. An attempt cannot
//! complete a key that it buried.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::machine::{Cancelled, Complete, Completed, Renewed, Resolved, Settled};
use hapax_core::store::Inserted;
use hapax_core::{ErrorKind, Seconds, State};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use super::parallel::*;
use crate::setup::Setup;

pub(super) async fn complete_then_replay(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let completion = operation.completion(&grant, "the answer");
    let mut stranger = operation.completion(&grant, "a stranger's answer");
    (stranger.claim.owner, stranger.fingerprint) = (SECOND, payload("another payload"));
    let before = operation.record().await;
    let lost = operation.complete_as(&stranger).await;
    assert_eq!(lost, Completed::Lost(before), "another payload is another operation");
    // Calls the store's own operation: in this state it needs no further step of the protocol.
    let rk = operation.rk();
    let completed = operation.store().complete(&rk, &completion).await;
    let completed = completed.expect("the completion failed");
    assert_eq!(completed, Completed::Done);
    let record = operation.record().await;
    assert_eq!(record.token, grant.token);
    assert_eq!(record.fingerprint, grant.fingerprint);
    operation.assert_replays("the answer").await;
}

pub(super) async fn complete_twice_same_already(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant_and_complete(FIRST, "the answer").await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let again = operation.complete(&grant, "the answer").await;
    assert_eq!(again, Completed::Already);
    for another in ["another answer", "the answer, and more", "the", ""] {
        let other = operation.complete(&grant, another).await;
        assert_eq!(expect_recorded_answer(other), "the answer");
    }
    operation.assert_unchanged(&before).await;
    operation.assert_replays("the answer").await;
}

pub(super) async fn complete_twice_other_lost_returns_canonical(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    let earlier = operation.complete(&first, "the first answer").await;
    assert_eq!(earlier, Completed::Done);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let later = operation.complete(&second, "the second answer").await;
    assert_eq!(expect_recorded_answer(later), "the first answer");
    operation.assert_unchanged(&before).await;
}

pub(super) async fn complete_after_lapse_without_takeover_ok(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    setup.lapse(&operation.rk()).await;
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done);
    operation.assert_replays("the answer").await;

    let operation = SuiteOperation::nth(setup, 1);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done, "an abandoned grant can still be completed");
}

pub(super) async fn complete_after_takeover_lost(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    let earlier = operation.complete(&second, "the second answer").await;
    assert_eq!(earlier, Completed::Done);
    let late = operation.complete(&first, "the first answer").await;
    assert_eq!(expect_recorded_answer(late), "the second answer");
    operation.assert_replays("the second answer").await;
}

pub(super) async fn complete_heals_indeterminate(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done);
    operation.assert_replays("the answer").await;
}

pub(super) async fn complete_missing_recreates(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    let mut grants = Vec::new();
    for operation in &operations {
        grants.push(operation.grant(FIRST).await);
    }
    expire_all(setup, &operations).await;
    sweep_all(setup).await;

    let old = Complete { age: RETENTION.into(), ..operations[0].completion(&grants[0], "the answer") };
    assert_eq!(operations[0].complete_as(&old).await, Completed::Gone);
    assert_eq!(operations[0].read().await.live(), None);

    let age = Duration::from(RETENTION) - Duration::from_secs(1);
    let young = Complete { age, ..operations[1].completion(&grants[1], "the answer") };
    let recreated = operations[1].complete_as(&young).await;
    assert_eq!(recreated, Completed::Recreated);
    let again = operations[1].complete_as(&young).await;
    assert_eq!(again, Completed::Already);
    assert_eq!(operations[1].record().await.token, grants[1].token);
    let seen = operations[1].read().await;
    assert!(seen.token_high_water >= grants[1].token, "{seen:?}");
    operations[1].assert_replays("the answer").await;
}

pub(super) async fn complete_never_downgrades(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    let done = operation.complete(&second, "the answer").await;
    assert_eq!(done, Completed::Done);
    forward(setup, WHILE).await;
    let before = operation.read().await;

    for grant in [&first, &second] {
        assert_eq!(operation.renew(grant).await, Renewed::Lost);
        assert_eq!(operation.release(grant).await, Settled::Lost);
        assert_eq!(operation.abandon(grant).await, Settled::Lost);
        assert_eq!(operation.bury(grant).await, Settled::Lost);
        assert_eq!(operation.cancel(grant.owner).await, Cancelled::Gone);
        let (token, stale) = (grant.token, Resolved::Stale);
        assert_eq!(operation.hold(token).await, stale);
        assert_eq!(operation.resolve_not_done(token).await, stale);
        assert_eq!(operation.resolve_done(token, "another").await, stale);
        assert_eq!(operation.reopen(token).await, stale);
    }
    let late = operation.complete(&first, "another answer").await;
    assert_eq!(expect_recorded_answer(late), "the answer");
    operation.assert_unchanged(&before).await;
}

pub(super) async fn complete_without_retention(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    let grant = operations[0].grant(FIRST).await;
    let fleeting = Complete { retention: Seconds(0), ..operations[0].completion(&grant, "the answer") };
    let mut stranger = fleeting.clone();
    (stranger.claim.owner, stranger.fingerprint) = (SECOND, payload("another payload"));
    let before = operations[0].record().await;
    assert_eq!(operations[0].complete_as(&stranger).await, Completed::Lost(before));
    assert_eq!(operations[0].complete_as(&fleeting).await, Completed::Done);

    let grant = operations[1].grant(FIRST).await;
    expire_all(setup, &operations).await;
    assert_eq!(operations[0].read().await.live(), None);
    let late = Complete { retention: Seconds(0), ..operations[1].completion(&grant, "the answer") };
    assert_eq!(operations[1].complete_as(&late).await, Completed::Gone);
}

pub(super) async fn complete_sets_result_retention(setup: &dyn Setup) {
    for (n, retention) in [(0, Seconds(60)), (1, RETENTION), (2, Seconds(90 * 24 * 3600))] {
        let operation = SuiteOperation::nth(setup, n);
        let grant = operation.grant(FIRST).await;
        let completion = Complete { retention, ..operation.completion(&grant, "the answer") };
        assert_eq!(operation.complete_as(&completion).await, Completed::Done);
        let seen = operation.read().await;
        assert_left(seen.life_left, retention);
        let expiry = expect_replay(operation.begin(SECOND).await).expiry;
        assert_eq!(expiry, completion.ended.plus(retention.into()).seconds(), "counted from the end of the attempt");
    }
}

pub(super) async fn complete_when_store_full_succeeds(setup: &dyn Setup) {
    let early = SuiteOperation::many(setup, 8);
    let mut grants = Vec::new();
    for operation in &early {
        grants.push(operation.grant(FIRST).await);
    }
    let ended = [SuiteOperation::nth(setup, 8).grant(FIRST).await, SuiteOperation::nth(setup, 9).grant(FIRST).await];
    // Large answers fill the store with few calls.
    let filler = Bytes::from(vec![0x5A; 256 << 10]);
    let refused = fill(setup, &filler).await;
    assert_eq!(refused.read().await.record, None, "a refused begin stores no record");

    // Running attempts must be able to go on and to end, whatever their outcome.
    for (operation, grant) in early.iter().zip(&grants) {
        assert_eq!(operation.renew(grant).await, Renewed::Yes);
    }
    let [free, leave] = [8, 9].map(|n| SuiteOperation::nth(setup, n));
    assert_eq!(free.release(&ended[0]).await, Settled::Yes);
    assert_eq!(leave.abandon(&ended[1]).await, Settled::Yes);
    for (operation, grant) in early.iter().zip(&grants) {
        let completion = operation.completion(grant, filler.slice(..4096));
        assert_eq!(operation.complete_as(&completion).await, Completed::Done);
        let answer = expect_replay(operation.begin(SECOND).await).answer;
        assert_eq!(answer.len(), 4096);
    }
}

/// Begins and completes until a begin is refused. Returns the refused operation.
async fn fill(setup: &dyn Setup, answer: &Bytes) -> SuiteOperation {
    for n in 1000..2000 {
        let operation = SuiteOperation::nth(setup, n);
        match operation.store().begin(&operation.hold_begin(FIRST)).await {
            Ok(Inserted::Granted(grant)) => {
                let completion = operation.completion(&grant, answer.clone());
                assert_eq!(operation.complete_as(&completion).await, Completed::Done);
            }
            Err(error) if error.kind() == ErrorKind::Full => return operation,
            begun => panic!("expected a grant or a refusal, got {begun:?}"),
        }
    }
    panic!("the store accepted 250 MiB and is not full; configure a smaller limit in its setup");
}

pub(super) async fn complete_empty_body(setup: &dyn Setup) {
    assert_round_trip(setup, Bytes::new()).await;
}

pub(super) async fn complete_binary_body_with_nul(setup: &dyn Setup) {
    assert_round_trip(setup, Bytes::from_static(b"\0a\0\xFF\xFE\x80'\"\\\n\r\0")).await;
}

pub(super) async fn complete_1_mib_body(setup: &dyn Setup) {
    let body: Vec<u8> = (0..1u32 << 20).map(|n| n.wrapping_mul(0x9E37_79B1).to_be_bytes()[0]).collect();
    assert_round_trip(setup, body.into()).await;
}

/// The answer is replayed and read with the same bytes.
async fn assert_round_trip(setup: &dyn Setup, answer: Bytes) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let completion = operation.completion(&grant, answer.clone());
    assert_eq!(operation.complete_as(&completion).await, Completed::Done);
    let replay = expect_replay(operation.begin(SECOND).await).answer;
    assert!(replay == answer, "{} replayed bytes differ from the answer", replay.len());
    let State::Completed(read) = operation.record().await.state else {
        panic!("expected a completed record");
    };
    assert!(read.answer == answer, "the read answer differs");
    assert_eq!(operation.complete_as(&completion).await, Completed::Already);
}

pub(super) async fn complete_beats_released(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.release(&first).await, Settled::Yes);
    let second = operation.grant(SECOND).await;
    assert_eq!(operation.release(&second).await, Settled::Yes);

    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    operation.assert_replays("the answer").await;

    // Under its own token too: an attempt can complete after its own release.
    let operation = SuiteOperation::nth(setup, 1);
    let own = operation.grant(FIRST).await;
    assert_eq!(operation.release(&own).await, Settled::Yes);
    let late = operation.complete(&own, "the answer").await;
    assert_eq!(late, Completed::Done);
}

pub(super) async fn complete_beats_dead(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    assert_eq!(operation.bury(&second).await, Settled::Yes);
    let before = operation.record().await;
    let own = operation.complete(&second, "no answer").await;
    assert_eq!(own, Completed::Lost(before), "the attempt that buried the record cannot complete it");

    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    operation.assert_replays("the answer").await;
}

pub(super) async fn complete_beats_another_owner_under_its_token(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 4);
    for (n, operation) in operations.iter().enumerate() {
        let grant = operation.grant(FIRST).await;
        match n {
            1 => assert_eq!(operation.release(&grant).await, Settled::Yes),
            2 => assert_eq!(operation.bury(&grant).await, Settled::Yes),
            3 => assert_eq!(operation.abandon(&grant).await, Settled::Yes),
            _ => {}
        }
        let mut same_token = operation.completion(&grant, "the answer");
        same_token.claim.owner = SECOND;
        let other_payload = Complete { fingerprint: payload("another payload"), ..same_token.clone() };
        let before = operation.record().await;
        assert_eq!(operation.complete_as(&other_payload).await, Completed::Lost(before));
        assert_eq!(operation.complete_as(&same_token).await, Completed::Done);
        assert_eq!(operation.renew(&grant).await, Renewed::Lost);
        let own = operation.complete(&grant, "its own answer").await;
        assert_eq!(expect_recorded_answer(own), "the answer");
        operation.assert_replays("the answer").await;
    }
}

pub(super) async fn complete_beats_running(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    assert_eq!(operation.renew(&second).await, Renewed::Lost);
    operation.assert_replays("the answer").await;

    // A record for another payload is another operation, which a completion does not override.
    let operation = SuiteOperation::nth(setup, 1);
    let first = operation.grant(FIRST).await;
    setup.expire(&operation.rk()).await;
    expect_grant(operation.other_payload(SECOND).await);
    let before = operation.record().await;
    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Lost(before.clone()));
    assert_eq!(operation.record().await, before);
}

pub(super) async fn complete_batch_equals_singles(setup: &dyn Setup) {
    let mut singles = Vec::new();
    for n in 0..BATCH {
        let (operation, completion) = prepare_varied(setup, n).await;
        singles.push(describe(&operation.complete_as(&completion).await));
    }
    let mut prepared = Vec::new();
    for n in BATCH..2 * BATCH {
        prepared.push(prepare_varied(setup, n).await);
    }
    let batch = prepared.iter().map(|(operation, completion)| operation.complete_as(completion));
    let batch: Vec<_> = with_deadline(join_all(batch)).await.iter().map(describe).collect();
    assert_eq!(batch, singles);
    for expected in ["done", "already", "lost, with an answer", "lost", "recreated", "gone"] {
        assert!(batch.contains(&expected), "{expected} is not among {batch:?}");
    }
}

const BATCH: u32 = 64;

/// Brings the n-th operation into one of eight states, and returns a completion for it.
async fn prepare_varied(setup: &dyn Setup, n: u32) -> (SuiteOperation, Complete) {
    let operation = SuiteOperation::nth(setup, n);
    let grant = operation.grant(FIRST).await;
    let mut completion = operation.completion(&grant, "the answer");
    match n % 8 {
        0 => {}
        1 => assert_eq!(operation.complete(&grant, "the answer").await, Completed::Done),
        2 => assert_eq!(operation.complete(&grant, "another answer").await, Completed::Done),
        3 => assert_eq!(operation.release(&grant).await, Settled::Yes),
        4 => completion.claim.owner = SECOND,
        5 => (completion.claim.owner, completion.fingerprint) = (SECOND, payload("another payload")),
        // Nothing is stored under the key.
        old => {
            completion.age = if old == 6 { Duration::ZERO } else { RETENTION.into() };
            return (SuiteOperation::nth(setup, n + 4 * BATCH), completion);
        }
    }
    (operation, completion)
}

/// Describes a reply without its token and times.
fn describe(completed: &Completed) -> &'static str {
    match completed {
        Completed::Done => "done",
        Completed::Recreated => "recreated",
        Completed::Already => "already",
        Completed::Gone => "gone",
        Completed::Lost(there) if matches!(there.state, State::Completed(_)) => "lost, with an answer",
        Completed::Lost(_) => "lost",
    }
}
