//! A renewal arms the lease of whoever holds the grant, and nobody else's.

use std::time::Duration;

use hapax_core::Token;
use hapax_core::machine::{Claim, Renewed, Settled};

use super::bench::*;
use crate::setup::Setup;

pub(super) async fn renew_extends(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    let record = operation.record().await;
    forward(setup, WHILE).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    let seen = operation.read().await;
    assert_left(seen.lease_left, LEASE);
    assert_left(seen.life_left, UNKNOWN);

    // Lapsed, but nobody looked yet.
    setup.lapse(&operation.rk()).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    assert_left(busy(operation.retry(SECOND).await), LEASE);
    assert_eq!(operation.record().await, record);
}

pub(super) async fn renew_wrong_token_lost(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    for token in [grant.token.0 - 1, grant.token.0 + 1, 0, u64::MAX] {
        let claim = Claim { token: Token(token), owner: FIRST };
        assert_eq!(operation.renew_as(&claim).await, Renewed::Lost);
    }
    operation.is_as(&before).await;
}

pub(super) async fn renew_wrong_owner_lost(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    let claim = Claim { token: grant.token, owner: SECOND };
    assert_eq!(operation.renew_as(&claim).await, Renewed::Lost);
    operation.is_as(&before).await;
}

pub(super) async fn renew_after_complete_lost_and_retention_untouched(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.completed(FIRST, "the answer").await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.renew(&grant).await, Renewed::Lost);
    assert_left(operation.read().await.life_left, Duration::from(RETENTION) - WHILE);
    operation.is_as(&before).await;
}

pub(super) async fn renew_missing_gone(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let claim = Claim { owner: FIRST, token: Token(7) };
    assert_eq!(operation.renew_as(&claim).await, Renewed::Gone);
    let grant = operation.granted(FIRST).await;
    setup.expire(&operation.rk()).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Gone);
    assert_eq!(operation.read().await.live(), None);
}

pub(super) async fn renew_after_takeover_lost(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let first = operation.granted(FIRST).await;
    let second = operation.taken_over(setup, SECOND).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.renew(&first).await, Renewed::Lost);
    operation.is_as(&before).await;
    assert_eq!(operation.renew(&second).await, Renewed::Yes);
}

pub(super) async fn renew_idempotent(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    let once = operation.read().await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    operation.is_as(&once).await;
}

pub(super) async fn renew_after_abandon_lost(setup: &dyn Setup) {
    let operation = Operation::on(setup);
    let grant = operation.granted(FIRST).await;
    assert_eq!(operation.abandon(&grant).await, Settled::Yes);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(before.lease_left, Duration::ZERO);
    assert_eq!(operation.renew(&grant).await, Renewed::Lost);
    operation.is_as(&before).await;
}
