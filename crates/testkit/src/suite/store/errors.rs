//! Damaged records, dropped calls, and records of an older format version.

use hapax_core::machine::{
    Begin, Begun, Change, Claim, Completed, Decision, Grant, Observed, Renewed, Settled, first_grant, release,
};
use hapax_core::store::Swapped;
use hapax_core::{Call, ErrorKind, Identity, Key, Result, Rule, Scope, State};

use super::assertions::*;
use super::operation::*;
use super::parallel::*;
use crate::setup::{Setup, StoredPart};

/// The call of the golden record: a plain identity, namespace "golden", tenant "acme", key "order-1", and rule 1 over
/// the one part "golden payload".
///
/// Its record key is `74f4c5d81d49f5e68782b67250642463`, its fingerprint `6c51e1855b0d5bcd2b9aa36d`.
///
/// # Panics
/// Never: the parts are valid.
pub fn golden_call() -> Call {
    let identity = Identity::plain();
    let scope = Scope::tenant("golden", "acme").expect("the scope is valid");
    let key = Key::new("order-1").expect("the key is valid");
    identity.call(&scope, &key).fingerprint(identity.fingerprint(Rule(1), &[b"golden payload"]))
}

/// The answer of the golden record.
pub const GOLDEN_ANSWER: &[u8] = b"golden answer";

pub(super) async fn corrupt_record_is_error_not_absent(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    let grants = [operations[0].grant(FIRST).await, operations[1].grant_and_complete(FIRST, "the answer").await];
    for (operation, grant) in operations.iter().zip(&grants) {
        let seen = operation.read().await;
        let (change, _) = first_grant(&operation.hold_begin(SECOND), &seen);
        setup.corrupt(&operation.rk(), StoredPart::Header).await;
        assert_every_call_is_damaged(operation, grant, &seen, &change).await;
    }
}

pub(super) async fn corrupt_answer_is_error_not_replayed(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant_and_complete(FIRST, "the answer").await;
    let seen = operation.read().await;
    let (change, _) = first_grant(&operation.hold_begin(SECOND), &seen);
    setup.corrupt(&operation.rk(), StoredPart::Answer).await;
    assert_every_call_is_damaged(&operation, &grant, &seen, &change).await;
    // The answer that was recorded before the damage, sent again.
    assert_damaged(operation.store().complete(&operation.rk(), &operation.completion(&grant, "the answer")).await);
}

async fn assert_every_call_is_damaged(operation: &SuiteOperation, grant: &Grant, seen: &Observed, change: &Change) {
    let (store, rk) = (operation.store(), operation.rk());
    // Twice: the first round must not have repaired the record by overwriting it.
    for _ in 0..2 {
        assert_damaged(store.read(&rk).await);
        assert_damaged(store.begin(&operation.hold_begin(SECOND)).await);
        assert_damaged(store.begin(&operation.hold_begin(FIRST)).await);
        assert_damaged(store.renew(&rk, &Claim::from(grant)).await);
        let completion = operation.completion(grant, "another answer");
        assert_damaged(store.complete(&rk, &completion).await);
        assert_damaged(store.swap(&rk, seen, change).await);
    }
}

fn assert_damaged<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.expect_err("a damaged record is an error");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
}

pub(super) async fn drop_future_leaks_nothing(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, INSTANCES);
    let numbered = operations.iter().cloned().zip(0..);
    run_concurrently(numbered.map(|(operation, n)| drop_every_call(operation, n % 4))).await;

    let after = SuiteOperation::nth(setup, INSTANCES);
    after.grant_and_complete(FIRST, "the answer").await;
    after.assert_replays("the answer").await;
}

/// Drops each call after this many polls, repeats it, and finds it applied once.
async fn drop_every_call(operation: SuiteOperation, polls: u32) {
    let (store, rk) = (operation.store(), operation.rk());
    drop_after_polls(polls, store.begin(&operation.hold_begin(FIRST))).await;
    let begun = operation.begin(FIRST).await;
    let (Begun::Granted(first) | Begun::Mine(first)) = begun else {
        panic!("expected the grant of this attempt, got {begun:?}");
    };
    expect_busy(operation.begin(SECOND).await);

    drop_after_polls(polls, store.renew(&rk, &Claim::from(&first))).await;
    assert_eq!(operation.renew(&first).await, Renewed::Yes);

    drop_after_polls(polls, store.read(&rk)).await;
    let seen = operation.read().await;
    assert_eq!(seen.record.as_ref().map(|it| it.token), Some(first.token));

    let Decision::Change(change, _) = release(&seen, &Claim::from(&first), RELEASED) else {
        panic!("the grant can be released");
    };
    drop_after_polls(polls, store.swap(&rk, &seen, &change)).await;
    let (Swapped::Yes | Swapped::Changed) = operation.swap(&seen, &change).await;
    assert_eq!(operation.record().await, change.record);
    assert_eq!(operation.release(&first).await, Settled::Yes);

    let second = operation.grant(SECOND).await;
    assert_eq!(second.attempt, 2, "only one attempt came before");
    let completion = operation.completion(&second, "the answer");
    drop_after_polls(polls, store.complete(&rk, &completion)).await;
    let completed = operation.complete_as(&completion).await;
    let is_applied = matches!(completed, Completed::Done | Completed::Already);
    assert!(is_applied, "{completed:?}");
    operation.assert_replays("the answer").await;
}

pub(super) async fn golden_v1_readable(setup: &dyn Setup) {
    setup.put_golden().await;
    let operation = SuiteOperation::with_key(setup, golden_call().record_key());
    let golden = Begin { call: golden_call(), ..operation.hold_begin(FIRST) };
    let replay = expect_replay(operation.begin_as(&golden).await);
    assert_eq!(replay.answer, GOLDEN_ANSWER);
    assert_eq!(operation.other_payload(FIRST).await, Begun::Mismatch);
    let record = operation.record().await;
    assert_eq!(record.fingerprint, golden_call().newest_fingerprint());
    assert!(matches!(record.state, State::Completed(_)), "{record:?}");
    assert!(record.token.0 > 0);
}
