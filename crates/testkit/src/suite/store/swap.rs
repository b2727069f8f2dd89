//! Swaps: a swap replaces only the record that was read.

use hapax_core::machine::{
    Cancelled, Change, Completed, Decision, Grant, Observed, Renewed, Resolved, Settled, first_grant, release,
};
use hapax_core::store::Swapped;

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use crate::setup::Setup;

pub(super) async fn swap_notices_renewal(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let seen = operation.read().await;
    forward(setup, WHILE).await;
    assert_eq!(operation.renew(&grant).await, Renewed::Yes);
    let before = operation.read().await;
    let change = released(&seen, &grant);
    assert_eq!(operation.swap(&seen, &change).await, Swapped::Changed);
    operation.assert_unchanged(&before).await;

    // Time has passed since the read, but the record is unchanged.
    forward(setup, WHILE).await;
    assert_eq!(operation.swap(&before, &change).await, Swapped::Yes);
    assert_eq!(operation.record().await, change.record);
    assert_left(operation.read().await.life_left, RELEASED);
}

pub(super) async fn swap_notices_every_other_write(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let absent = operation.read().await;
    let (change, _) = first_grant(&operation.hold_begin(SECOND), &absent);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.swap(&absent, &change).await, Swapped::Changed);

    let in_progress = operation.read().await;
    let change = released(&in_progress, &grant);
    assert_eq!(operation.swap(&in_progress, &change).await, Swapped::Yes);
    let again = operation.swap(&in_progress, &change).await;
    assert_eq!(again, Swapped::Changed, "the first swap changed the record");

    let grant = operation.grant(FIRST).await;
    let in_progress = operation.read().await;
    let done = operation.complete(&grant, "the answer").await;
    assert_eq!(done, Completed::Done);
    let before = operation.read().await;
    let change = released(&in_progress, &grant);
    assert_eq!(operation.swap(&in_progress, &change).await, Swapped::Changed);
    operation.assert_unchanged(&before).await;

    setup.expire(&operation.rk()).await;
    let expired = operation.read().await;
    let (change, _) = first_grant(&operation.hold_begin(SECOND), &expired);
    operation.grant(FIRST).await;
    let before = operation.read().await;
    assert_eq!(operation.swap(&expired, &change).await, Swapped::Changed);
    operation.assert_unchanged(&before).await;
}

/// Thirteen operations with expired records: two were indeterminate, one was dead and the others were in progress.
/// Also returns their grants, and the last record as it was read while it was live.
async fn expired_operations(setup: &dyn Setup) -> (Vec<SuiteOperation>, Vec<Grant>, Observed) {
    let operations = SuiteOperation::many(setup, 13);
    let mut grants = Vec::new();
    for operation in &operations {
        grants.push(operation.grant(FIRST).await);
    }
    let to_hold = &operations[9..=10];
    lapse_all(setup, to_hold).await;
    for (operation, grant) in to_hold.iter().zip(&grants[9..=10]) {
        assert_eq!(operation.hold(grant.token).await, Resolved::Yes);
    }
    assert_eq!(operations[11].bury(&grants[11]).await, Settled::Yes);
    let live = operations[12].read().await;
    expire_all(setup, &operations).await;
    (operations, grants, live)
}

pub(super) async fn expired_is_absent_for_every_op(setup: &dyn Setup) {
    // Each call is made on an expired record of its own: `grants[n]` is the first grant of `operations[n]`.
    let (operations, grants, live) = expired_operations(setup).await;
    assert_eq!(operations[0].read().await.live(), None);
    assert_eq!(operations[0].grant(SECOND).await.attempt, 1);
    assert_eq!(operations[1].renew(&grants[1]).await, Renewed::Gone);
    let completed = operations[2].complete(&grants[2], "the answer").await;
    assert_eq!(completed, Completed::Recreated);
    assert_eq!(operations[3].release(&grants[3]).await, Settled::Lost);
    assert_eq!(operations[4].cancel(FIRST).await, Cancelled::Gone);
    assert_eq!(operations[5].abandon(&grants[5]).await, Settled::Lost);
    assert_eq!(operations[6].bury(&grants[6]).await, Settled::Lost);
    assert_eq!(operations[7].hold(grants[7].token).await, Resolved::Stale);
    let seen = operations[8].read().await;
    let (change, grant) = first_grant(&operations[8].hold_begin(SECOND), &seen);
    assert_eq!(operations[8].swap(&seen, &change).await, Swapped::Yes);
    assert_eq!(operations[8].record().await.token, grant.token);
    assert_eq!(operations[9].resolve_not_done(grants[9].token).await, Resolved::Stale);
    let done = operations[10].resolve_done(grants[10].token, "the answer").await;
    assert_eq!(done, Resolved::Stale);
    assert_eq!(operations[11].reopen(grants[11].token).await, Resolved::Stale);
    // The record was read while it was live, and has expired since.
    let change = released(&live, &grants[12]);
    assert_eq!(operations[12].swap(&live, &change).await, Swapped::Changed);
    sweep_all(setup).await;
    assert_eq!(operations[12].swap(&live, &change).await, Swapped::Changed);
    for n in [1, 3, 4, 5, 6, 7, 9, 10, 11, 12] {
        assert_eq!(operations[n].read().await.live(), None, "operation {n}");
    }
}

/// The change that releases this grant.
fn released(seen: &Observed, grant: &Grant) -> Change {
    let Decision::Change(change, Settled::Yes) = release(seen, &grant.into(), RELEASED) else {
        panic!("the grant can be released");
    };
    change
}
