//! A known effect beats everything but a recorded answer.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Cancelled, Complete, Completed, Renewed, Resolved, Settled};
use hapax_core::store::Inserted;
use hapax_core::{ErrorKind, Seconds, State};

use super::bench::*;
use crate::setup::Setup;

pub(super) async fn complete_then_replay(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    let completion = operation.completion(&grant, "the answer");
    let mut stranger = operation.completion(&grant, "a stranger's answer");
    stranger.claim.owner = SECOND;
    let before = operation.record().await;
    let lost = operation.complete_as(&stranger).await;
    assert_eq!(lost, Completed::Lost(before), "the token alone is no claim");
    // The store's own step, which needs no second one here.
    let rk = operation.rk();
    let completed = operation.store().complete(&rk, &completion).await;
    let completed = completed.expect("a completion is answered");
    assert_eq!(completed, Completed::Done);
    let record = operation.record().await;
    assert_eq!(record.token, grant.token);
    assert_eq!(record.fingerprint, grant.fingerprint);
    operation.replays("the answer").await;
}

pub(super) async fn complete_twice_same_already(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.completed(FIRST, "the answer").await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let again = operation.complete(&grant, "the answer").await;
    assert_eq!(again, Completed::Already);
    let other = operation.complete(&grant, "another answer").await;
    assert_eq!(other, Completed::Already);
    operation.is_as(&before).await;
    operation.replays("the answer").await;
}

pub(super) async fn complete_twice_other_lost_returns_canonical(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
    let earlier = operation.complete(&first, "the first answer").await;
    assert_eq!(earlier, Completed::Done);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let later = operation.complete(&second, "the second answer").await;
    assert_eq!(canonical(later), "the first answer");
    operation.is_as(&before).await;
}

pub(super) async fn complete_after_lapse_without_takeover_ok(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    setup.lapse(&operation.rk()).await;
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done);
    operation.replays("the answer").await;

    let operation = Operation::nth(setup, 1);
    let grant = operation.granted(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done, "abandoned, and it knows better");
}

pub(super) async fn complete_after_takeover_lost(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
    let earlier = operation.complete(&second, "the second answer").await;
    assert_eq!(earlier, Completed::Done);
    let late = operation.complete(&first, "the first answer").await;
    assert_eq!(canonical(late), "the second answer");
    operation.replays("the second answer").await;
}

pub(super) async fn complete_heals_indeterminate(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    operation.marked_unknown(setup, SECOND).await;
    let late = operation.complete(&grant, "the answer").await;
    assert_eq!(late, Completed::Done);
    operation.replays("the answer").await;
}

pub(super) async fn complete_missing_recreates(setup: &dyn Setup) {
    let operations = Operation::many(setup, 2);
    let mut grants = Vec::new();
    for operation in &operations {
        grants.push(operation.granted(FIRST).await);
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
    operations[1].replays("the answer").await;
}

pub(super) async fn complete_never_downgrades(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
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
    assert_eq!(canonical(late), "the answer");
    operation.is_as(&before).await;
}

pub(super) async fn complete_without_retention(setup: &dyn Setup) {
    let operations = Operation::many(setup, 2);
    let grant = operations[0].granted(FIRST).await;
    let fleeting = Complete { retention: Seconds(0), ..operations[0].completion(&grant, "the answer") };
    let mut stranger = fleeting.clone();
    stranger.claim.owner = SECOND;
    let before = operations[0].record().await;
    assert_eq!(operations[0].complete_as(&stranger).await, Completed::Lost(before));
    assert_eq!(operations[0].complete_as(&fleeting).await, Completed::Done);

    let grant = operations[1].granted(FIRST).await;
    expire_all(setup, &operations).await;
    assert_eq!(operations[0].read().await.live(), None);
    let late = Complete { retention: Seconds(0), ..operations[1].completion(&grant, "the answer") };
    assert_eq!(operations[1].complete_as(&late).await, Completed::Gone);
}

pub(super) async fn complete_sets_result_retention(setup: &dyn Setup) {
    for (n, retention) in [(0, Seconds(60)), (1, RETENTION), (2, Seconds(90 * 24 * 3600))] {
        let operation = Operation::nth(setup, n);
        let grant = operation.granted(FIRST).await;
        let completion = Complete { retention, ..operation.completion(&grant, "the answer") };
        assert_eq!(operation.complete_as(&completion).await, Completed::Done);
        let seen = operation.read().await;
        assert_left(seen.life_left, retention);
        let shown = replayed(operation.begin(SECOND).await).expiry;
        let expected = seen.now.plus(retention.into()).seconds();
        assert!(shown.abs_diff(expected) <= 5, "{shown}, not {expected}");
    }
}

pub(super) async fn complete_when_store_full_succeeds(setup: &dyn Setup) {
    let early = Operation::many(setup, 8);
    let mut grants = Vec::new();
    for operation in &early {
        grants.push(operation.granted(FIRST).await);
    }
    let filler = Bytes::from(vec![0x5A; 256 << 10]);
    let refused = fill(setup, &filler).await;
    assert_eq!(refused.read().await.record, None, "a refused begin is none");

    for (operation, grant) in early.iter().zip(&grants) {
        let completion = operation.completion(grant, filler.slice(..4096));
        assert_eq!(operation.complete_as(&completion).await, Completed::Done);
        let answer = replayed(operation.begin(SECOND).await).answer;
        assert_eq!(answer.len(), 4096);
    }
}

/// Begins and completes until a begin is refused, and gives the one that was.
async fn fill(setup: &dyn Setup, answer: &Bytes) -> Operation {
    for n in 1000..2000 {
        let operation = Operation::nth(setup, n);
        match operation.store().begin(&operation.ask(FIRST)).await {
            Ok(Inserted::Granted(grant)) => {
                let completion = operation.completion(&grant, answer.clone());
                assert_eq!(operation.complete_as(&completion).await, Completed::Done);
            }
            Err(error) if error.kind() == ErrorKind::Full => return operation,
            begun => panic!("a grant or a refusal was expected, not {begun:?}"),
        }
    }
    panic!("the store took 250 MiB and is not full; give its set-up less room");
}

pub(super) async fn complete_empty_body(setup: &dyn Setup) {
    comes_back(setup, Bytes::new()).await;
}

pub(super) async fn complete_binary_body_with_nul(setup: &dyn Setup) {
    comes_back(setup, Bytes::from_static(b"\0a\0\xFF\xFE\x80'\"\\\n\r\0")).await;
}

pub(super) async fn complete_1_mib_body(setup: &dyn Setup) {
    let body: Vec<u8> = (0..1u32 << 20).map(|n| n.wrapping_mul(0x9E37_79B1).to_be_bytes()[0]).collect();
    comes_back(setup, body.into()).await;
}

async fn comes_back(setup: &dyn Setup, answer: Bytes) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    let completion = operation.completion(&grant, answer.clone());
    assert_eq!(operation.complete_as(&completion).await, Completed::Done);
    let replay = replayed(operation.begin(SECOND).await).answer;
    assert!(replay == answer, "{} bytes came back altered", replay.len());
    let State::Completed(read) = operation.record().await.state else {
        panic!("a completed record was expected");
    };
    assert!(read.answer == answer, "a read shows the same bytes");
    assert_eq!(operation.complete_as(&completion).await, Completed::Already);
}

pub(super) async fn complete_beats_released(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    assert_eq!(operation.release(&first).await, Settled::Yes);
    let second = operation.granted(SECOND).await;
    assert_eq!(operation.release(&second).await, Settled::Yes);

    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    operation.replays("the answer").await;

    // Under its own token too: who knows better heals its own release.
    let operation = Operation::nth(setup, 1);
    let own = operation.granted(FIRST).await;
    assert_eq!(operation.release(&own).await, Settled::Yes);
    let late = operation.complete(&own, "the answer").await;
    assert_eq!(late, Completed::Done);
}

pub(super) async fn complete_beats_dead(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
    assert_eq!(operation.bury(&second).await, Settled::Yes);
    let before = operation.record().await;
    let own = operation.complete(&second, "no answer").await;
    assert_eq!(own, Completed::Lost(before), "who buried it stays dead");

    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    operation.replays("the answer").await;
}

pub(super) async fn complete_beats_running(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
    assert_eq!(operation.record().await.token, first.token);
    assert_eq!(operation.renew(&second).await, Renewed::Lost);
    operation.replays("the answer").await;

    // Not so for another payload: that is another effect.
    let operation = Operation::nth(setup, 1);
    let first = operation.granted(FIRST).await;
    setup.expire(&operation.rk()).await;
    granted(operation.other_payload(SECOND).await);
    let before = operation.record().await;
    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Lost(before.clone()));
    assert_eq!(operation.record().await, before);
}
