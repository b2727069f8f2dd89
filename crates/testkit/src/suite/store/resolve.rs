//! Hold, resolve and reopen: an operator or a probe reports the outcome of an indeterminate operation.

use hapax_core::machine::{Begun, Completed, Resolved, Settled};
use hapax_core::{Phase, State, Token};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use crate::setup::Setup;

pub(super) async fn resolve_done_replays(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.hold(grant.token).await, Resolved::Stale);
    let too_early = operation.resolve_done(grant.token, "too early").await;
    assert_eq!(too_early, Resolved::Stale, "the attempt is still in progress");
    setup.lapse(&operation.rk()).await;
    let not_held = operation.resolve_done(grant.token, "not held").await;
    assert_eq!(not_held, Resolved::Stale, "a record must be held before it is resolved");

    assert_eq!(operation.hold(grant.token).await, Resolved::Yes);
    let resolved = operation.resolve_done(grant.token, "the answer").await;
    assert_eq!(resolved, Resolved::Yes);
    assert!(operation.record().await.token > grant.token);
    assert_left(operation.read().await.life_left, RETENTION);
    operation.assert_replays("the answer").await;
    let late = operation.complete(&grant, "another answer").await;
    assert_eq!(expect_recorded_answer(late), "the answer");
}

pub(super) async fn resolve_not_done_grants(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    assert_eq!(operation.resolve_not_done(first.token).await, Resolved::Yes);
    let record = operation.record().await;
    let State::Open(Phase::Released, holding) = &record.state else {
        panic!("expected a released record, got {record:?}");
    };
    assert_eq!((record.token, holding.owner), (first.token, FIRST));
    assert_left(operation.read().await.life_left, RELEASED);
    let second = operation.grant(SECOND).await;
    assert!(second.token > first.token && !second.takeover);

    // The resolution was wrong: the old owner completes the operation after it.
    let operation = SuiteOperation::nth(setup, 1);
    let first = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    assert_eq!(operation.resolve_not_done(first.token).await, Resolved::Yes);
    let late = operation.complete(&first, "the answer").await;
    assert_eq!(late, Completed::Done);
}

pub(super) async fn resolve_stale_token_refused(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    setup.lapse(&operation.rk()).await;
    assert_eq!(operation.hold(first.token).await, Resolved::Stale);
    assert_eq!(operation.hold(second.token).await, Resolved::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    for token in [first.token, Token(second.token.0 + 1), Token(0)] {
        assert_eq!(operation.hold(token).await, Resolved::Stale);
        assert_eq!(operation.resolve_not_done(token).await, Resolved::Stale);
        let done = operation.resolve_done(token, "an answer").await;
        assert_eq!(done, Resolved::Stale);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn reopen_dead(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.reopen(first.token).await, Resolved::Stale);
    assert_eq!(operation.bury(&first).await, Settled::Yes);
    let other = Token(first.token.0 + 1);
    assert_eq!(operation.reopen(other).await, Resolved::Stale);
    assert_eq!(operation.begin(SECOND).await, Begun::Dead);

    assert_eq!(operation.reopen(first.token).await, Resolved::Yes);
    let reopened = operation.record().await;
    assert!(reopened.token > first.token, "{reopened:?}");
    let second = operation.grant(SECOND).await;
    assert!(second.token > reopened.token, "{second:?}");
    assert_eq!((second.attempt, second.takeover), (2, false));
}

pub(super) async fn resolve_other_answer_is_stale(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    let resolved = operation.resolve_done(grant.token, "the answer").await;
    assert_eq!(resolved, Resolved::Yes);
    let other = operation.resolve_done(grant.token, "another answer").await;
    assert_eq!(other, Resolved::Stale);
    assert_eq!(operation.resolve_not_done(grant.token).await, Resolved::Stale);
    operation.assert_replays("the answer").await;
}

pub(super) async fn resolve_repeated_is_yes(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    let done = operations[0].grant(FIRST).await.token;
    let not_done = operations[1].grant(FIRST).await.token;
    lapse_all(setup, &operations).await;
    for (operation, token) in operations.iter().zip([done, not_done]) {
        assert_eq!(operation.hold(token).await, Resolved::Yes);
        assert_eq!(operation.hold(token).await, Resolved::Yes);
    }
    for _ in 0..2 {
        let resolved = operations[0].resolve_done(done, "the answer").await;
        assert_eq!(resolved, Resolved::Yes);
        let resolved = operations[1].resolve_not_done(not_done).await;
        assert_eq!(resolved, Resolved::Yes);
    }
    operations[0].assert_replays("the answer").await;
    assert_eq!(operations[1].record().await.token, not_done);
}

pub(super) async fn reopen_repeated_is_yes(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.bury(&grant).await, Settled::Yes);
    assert_eq!(operation.reopen(grant.token).await, Resolved::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.reopen(grant.token).await, Resolved::Yes);
    operation.assert_unchanged(&before).await;
    let reopened = operation.record().await.token;
    assert_eq!(operation.reopen(reopened).await, Resolved::Stale);
}
