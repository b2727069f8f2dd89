//! Tokens grow with every grant, even if the record expires or the clock steps.

use std::time::Duration;

use hapax_core::machine::{Change, Completed, Renewed, Settled};
use hapax_core::store::Swapped;
use hapax_core::{Holding, Phase, Record, State, Token};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use crate::setup::Setup;

/// Longer than every lifetime in these cases.
const LONG: Duration = Duration::from_secs(60 * 24 * 3600);

pub(super) async fn token_grows_on_takeover(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    let third = operation.take_over(setup, THIRD).await;
    assert!(first.token > Token(0), "zero is not a token");
    assert!(second.token > first.token && third.token > second.token);
    assert_eq!(operation.record().await.token, third.token);
}

pub(super) async fn token_grows_across_release(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let mut before = Token(0);
    for owner in [FIRST, SECOND, FIRST, THIRD] {
        let grant = operation.grant(owner).await;
        assert!(grant.token > before, "{grant:?} after {before:?}");
        assert_eq!(operation.release(&grant).await, Settled::Yes);
        assert_eq!(operation.record().await.token, grant.token);
        before = grant.token;
    }
}

pub(super) async fn token_grows_across_expiry(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    let mut olds = Vec::new();
    for operation in &operations {
        olds.push(operation.grant_and_complete(FIRST, "the answer").await.token);
    }
    expire_all(setup, &operations).await;
    let grant = operations[0].grant(SECOND).await;
    assert!(grant.token > olds[0], "the expired record was not swept yet");

    sweep_all(setup).await;
    assert_eq!(operations[1].read().await.record, None);
    let grant = operations[1].grant(SECOND).await;
    assert!(grant.token > olds[1], "the record was swept");
}

pub(super) async fn token_grows_when_record_is_gone_and_clock_steps_back(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let old = operation.grant_and_complete(FIRST, "the answer").await.token;
    setup.expire(&operation.rk()).await;
    sweep_all(setup).await;
    back(setup, LONG).await;
    let grant = operation.grant(SECOND).await;
    assert!(grant.token > old, "{grant:?} after {old:?}");
}

/// The row of the record shows only the older token, and must not hide the newer one.
pub(super) async fn token_grows_after_completion_under_older_one(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let second = operation.take_over(setup, SECOND).await;
    assert_eq!(operation.complete(&first, "the answer").await, Completed::Done);
    setup.expire(&operation.rk()).await;
    sweep_all(setup).await;
    back(setup, LONG).await;
    let seen = operation.read().await;
    assert!(seen.token_high_water >= second.token, "{seen:?}");
    let third = operation.grant(THIRD).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
}

pub(super) async fn token_grows_when_clock_steps_back(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    back(setup, LONG).await;
    // This begin renews the lease under the new clock, so that it can expire.
    expect_busy(operation.begin(SECOND).await);
    let second = operation.take_over(setup, SECOND).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");

    back(setup, LONG).await;
    expect_busy(operation.begin(THIRD).await);
    let third = operation.take_over(setup, THIRD).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
}

pub(super) async fn token_grows_over_all_keys(setup: &dyn Setup) {
    let first = SuiteOperation::new(setup).grant(FIRST).await;
    back(setup, LONG).await;
    let other = SuiteOperation::nth(setup, 1);
    let second = other.grant(FIRST).await;
    assert!(second.token > first.token, "the mark keeps tokens growing: {second:?} after {first:?}");

    assert_eq!(other.renew(&second).await, Renewed::Yes);
    back(setup, LONG).await;
    let third = SuiteOperation::nth(setup, 2).grant(FIRST).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
}

pub(super) async fn token_exact_above_2_pow_50(setup: &dyn Setup) {
    // Above the exact range of a double, above the range of a signed integer, and near the maximum.
    let tokens = [(1 << 53) + 1, (1 << 63) + 1, u64::MAX - 9];
    for (n, token) in (0..).zip(tokens.map(Token)) {
        let operation = SuiteOperation::nth(setup, n);
        let seen = operation.read().await;
        let change = in_progress_under(token);
        assert_eq!(operation.swap(&seen, &change).await, Swapped::Yes);
        assert_eq!(operation.record().await, change.record);
        let next = operation.take_over(setup, SECOND).await;
        assert!(next.token > token, "{next:?} after {token:?}");
    }
}

pub(super) async fn token_mark_is_raised_by_every_write(setup: &dyn Setup) {
    for (n, token) in (0..).zip([(1 << 53) + 1, (1 << 63) + 1].map(Token)) {
        let operation = SuiteOperation::nth(setup, n);
        let seen = operation.read().await;
        assert_eq!(operation.swap(&seen, &in_progress_under(token)).await, Swapped::Yes);
        let seen = operation.read().await;
        assert!(seen.token_high_water >= token, "the mark was not raised: {seen:?}");
        let other = SuiteOperation::nth(setup, 10 + n).grant(FIRST).await;
        assert!(other.token > token, "the mark applies to all keys");
    }
}

/// A change to a record in progress under this token.
pub(super) fn in_progress_under(token: Token) -> Change {
    let holding = Holding { owner: FIRST, attempt: u16::MAX - 1, takeover: false, lease: LEASE, lifetime: UNKNOWN };
    let record = Record { token, fingerprint: payload("the payload"), state: State::Open(Phase::InProgress, holding) };
    Change { record, lifetime: UNKNOWN }
}
