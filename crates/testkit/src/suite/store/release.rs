//! Release, cancel, abandon and bury: only "known not applied" lets the next begin run at once.

use hapax_core::machine::{Begun, Cancelled, Claim, Completed, Resolved, Settled};
use hapax_core::{Phase, State};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use crate::setup::Setup;

pub(super) async fn release_then_begin(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.release(&grant).await, Settled::Yes);
    let seen = operation.read().await;
    assert_left(seen.life_left, RELEASED);
    let record = seen.live().expect("the record is not live");
    assert_eq!(record.token, grant.token);
    assert!(matches!(record.state, State::Open(Phase::Released, _)), "{record:?}");

    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.release(&grant).await, Settled::Yes);
    operation.assert_unchanged(&before).await;
    assert_eq!(operation.grant(SECOND).await.attempt, 2);
}

pub(super) async fn release_wrong_token_noop(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    for (owner, token) in [(FIRST, first.token), (FIRST, second.token), (SECOND, first.token)] {
        let claim = Claim { owner, token };
        assert_eq!(operation.release_as(&claim).await, Settled::Lost);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn release_completed_noop(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant_and_complete(FIRST, "the answer").await;
    assert_eq!(operation.release(&grant).await, Settled::Lost);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Gone);
    operation.assert_replays("the answer").await;
}

pub(super) async fn release_keeps_fingerprint(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.release(&grant).await, Settled::Yes);
    assert_eq!(operation.other_payload(SECOND).await, Begun::Mismatch);
    let second = operation.grant(SECOND).await;
    assert_eq!(second.fingerprint, grant.fingerprint);
}

pub(super) async fn release_late_ghost_noop(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.release(&first).await, Settled::Yes);
    let second = operation.grant(SECOND).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.release(&first).await, Settled::Lost);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Gone);
    assert_eq!(operation.abandon(&first).await, Settled::Lost);
    operation.assert_unchanged(&before).await;
    let done = operation.complete(&second, "the answer").await;
    assert_eq!(done, Completed::Done);
}

pub(super) async fn abandon_is_not_release(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    let holding = expect_in_progress(&operation.record().await);
    assert!(holding.is_abandoned(), "{holding:?}");
    let before = operation.read().await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    operation.assert_unchanged(&before).await;
    expect_indeterminate(operation.begin(SECOND).await);

    let operation = SuiteOperation::nth(setup, 1);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    assert!(expect_grant(operation.retry(SECOND).await).takeover);
}

pub(super) async fn release_of_takeover_is_abandon(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    assert_eq!(operation.release(&second).await, Settled::Yes);
    let holding = expect_in_progress(&operation.record().await);
    assert!(holding.is_abandoned() && holding.takeover, "{holding:?}");
    assert_eq!(operation.release(&second).await, Settled::Yes);

    // The outcome of the earlier attempt is still unknown, before and after the record becomes indeterminate.
    expect_indeterminate(operation.begin(THIRD).await);
    let before = operation.read().await;
    assert_eq!(operation.release(&second).await, Settled::Yes);
    assert_eq!(operation.cancel(SECOND).await, Cancelled::Yes);
    operation.assert_unchanged(&before).await;
    expect_indeterminate(operation.begin(THIRD).await);
}

pub(super) async fn cancel_heals_marked_unknown(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    assert_eq!(operation.cancel(SECOND).await, Cancelled::Gone);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Yes);
    let second = operation.grant(SECOND).await;
    assert!(second.token > first.token && !second.takeover);
}

pub(super) async fn abandon_after_hold_is_yes(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    setup.lapse(&operation.rk()).await;
    assert_eq!(operation.hold(grant.token).await, Resolved::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    operation.assert_unchanged(&before).await;
}

pub(super) async fn bury_from_indeterminate(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    operation.lapse_and_hold(setup, SECOND).await;
    assert_eq!(operation.bury(&grant).await, Settled::Yes);
    assert_eq!(operation.begin(SECOND).await, Begun::Dead);
    assert_left(operation.read().await.life_left, DEAD);

    // After a takeover the earlier attempt's outcome is still unknown: that attempt may complete, or an operator may
    // resolve it.
    let operation = SuiteOperation::nth(setup, 1);
    operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    operation.lapse_and_hold(setup, THIRD).await;
    assert_eq!(operation.bury(&second).await, Settled::Lost);
    expect_indeterminate(operation.begin(THIRD).await);
}

pub(super) async fn bury_repeated_is_yes(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.bury(&grant).await, Settled::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.bury(&grant).await, Settled::Yes);
    operation.assert_unchanged(&before).await;
    assert_eq!(operation.begin(FIRST).await, Begun::Dead);
    assert_eq!(operation.retry(SECOND).await, Begun::Dead);
}
