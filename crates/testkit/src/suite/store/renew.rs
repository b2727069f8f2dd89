//! Renewals: only the holder of the grant can renew its lease.

use std::time::Duration;

use hapax_core::machine::{Begin, Claim, Renewed, Settled};
use hapax_core::{Seconds, Token};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use crate::setup::Setup;

pub(super) async fn renew_extends(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let record = operation.record().await;
    forward(setup, WHILE).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    let seen = operation.read().await;
    assert_left(seen.lease_left, LEASE);
    assert_left(seen.life_left, UNKNOWN);

    // The lease has expired, but no other attempt has begun since.
    setup.lapse(&operation.rk()).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    assert_left(expect_busy(operation.retry(SECOND).await), LEASE);
    assert_eq!(operation.record().await, record);
}

pub(super) async fn renew_wrong_token_lost(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    for token in [grant.token.0 - 1, grant.token.0 + 1, 0, u64::MAX] {
        let claim = Claim { token: Token(token), owner: FIRST };
        assert_eq!(operation.renew_as(&claim).await, Renewed::Lost);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn renew_wrong_owner_lost(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let claim = Claim { token: grant.token, owner: SECOND };
    assert_eq!(operation.renew_as(&claim).await, Renewed::Lost);
    operation.assert_unchanged(&before).await;
}

pub(super) async fn renew_after_complete_lost_and_retention_untouched(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant_and_complete(FIRST, "the answer").await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.renew(&grant).await, Renewed::Lost);
    assert_left(operation.read().await.life_left, Duration::from(RETENTION) - WHILE);
    operation.assert_unchanged(&before).await;
}

pub(super) async fn renew_missing_gone(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let claim = Claim { owner: FIRST, token: Token(7) };
    assert_eq!(operation.renew_as(&claim).await, Renewed::Gone);
    let grant = operation.grant(FIRST).await;
    setup.expire(&operation.rk()).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Gone);
    assert_eq!(operation.read().await.live(), None);
}

pub(super) async fn renew_after_takeover_lost(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.renew(&first).await, Renewed::Lost);
    operation.assert_unchanged(&before).await;
    assert_eq!(operation.renew(&second).await, Renewed::Yes);
}

pub(super) async fn renew_idempotent(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    let once = operation.read().await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    operation.assert_unchanged(&once).await;
}

pub(super) async fn renew_after_abandon_lost(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(before.lease_left, Duration::ZERO);
    assert_eq!(operation.renew(&grant).await, Renewed::Lost);
    operation.assert_unchanged(&before).await;
}

pub(super) async fn renew_keeps_a_long_lifetime(setup: &dyn Setup) {
    // More than 24 bits, and each byte differs; then the largest.
    for (n, lifetime) in [(0, Seconds(0x0203_0405)), (1, Seconds(u32::MAX))] {
        let operation = SuiteOperation::nth(setup, n);
        let begin = Begin { unknown_retention: lifetime, ..operation.hold_begin(FIRST) };
        let grant = expect_grant(operation.begin_as(&begin).await);
        forward(setup, WHILE).await;
        assert_eq!(operation.renew(&grant).await, Renewed::Yes);
        assert_left(operation.read().await.life_left, lifetime);
    }
}
