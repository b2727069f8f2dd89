//! What is damaged, dropped or old.

use hapax_core::machine::{Begin, Begun, Claim, Completed, Decision, Renewed, Settled, first_grant, release};
use hapax_core::store::Swapped;
use hapax_core::{Call, ErrorKind, Identity, Key, Result, Rule, Scope, State};

use super::bench::*;
use crate::setup::Setup;

/// The call under which the golden record was completed: a plain identity, namespace "golden", tenant "acme", key "order-1",
/// and rule 1 over the one part "golden payload".
///
/// Its record key is `74f4c5d81d49f5e68782b67250642463`, the fingerprint
/// `6c51e1855b0d5bcd2b9aa36d`.
///
/// # Panics
/// Never: its parts are valid.
pub fn golden_call() -> Call {
    let identity = Identity::plain();
    let scope = Scope::tenant("golden", "acme").expect("the scope is valid");
    let key = Key::new("order-1").expect("the key is valid");
    identity.call(&scope, &key).fingerprint(identity.fingerprint(Rule(1), &[b"golden payload"]))
}

/// The answer in the golden record.
pub const GOLDEN_ANSWER: &[u8] = b"golden answer";

pub(super) async fn corrupt_record_is_error_not_absent(setup: &dyn Setup) {
    let operations = Operation::many(setup, 2);
    let grants = [operations[0].granted(FIRST).await, operations[1].completed(FIRST, "the answer").await];
    for (operation, grant) in operations.iter().zip(&grants) {
        let seen = operation.read().await;
        let (change, _) = first_grant(&operation.ask(SECOND), &seen);
        setup.corrupt(&operation.rk()).await;

        let (store, rk) = (operation.store(), operation.rk());
        // Twice: none of them may have mended it by overwriting it.
        for _ in 0..2 {
            is_damaged(store.read(&rk).await);
            is_damaged(store.begin(&operation.ask(SECOND)).await);
            is_damaged(store.begin(&operation.ask(FIRST)).await);
            is_damaged(store.renew(&rk, &Claim::from(grant)).await);
            let completion = operation.completion(grant, "another answer");
            is_damaged(store.complete(&rk, &completion).await);
            is_damaged(store.swap(&rk, &seen, &change).await);
        }
    }
}

fn is_damaged<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.expect_err("a damaged record is an error");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
}

pub(super) async fn drop_future_leaks_nothing(setup: &dyn Setup) {
    let operations = Operation::many(setup, INSTANCES);
    let numbered = operations.iter().cloned().zip(0..);
    at_once(numbered.map(|(operation, n)| drops_every_step(operation, n % 4))).await;

    let after = Operation::nth(setup, INSTANCES);
    after.completed(FIRST, "the answer").await;
    after.replays("the answer").await;
}

/// Drops each step after so many polls, repeats it, and finds it done once.
async fn drops_every_step(operation: Operation, polls: u32) {
    let (store, rk) = (operation.store(), operation.rk());
    dropped_after(polls, store.begin(&operation.ask(FIRST))).await;
    let begun = operation.begin(FIRST).await;
    let (Begun::Granted(first) | Begun::Mine(first)) = begun else {
        panic!("the grant was to be this attempt's, not {begun:?}");
    };
    busy(operation.begin(SECOND).await);

    dropped_after(polls, store.renew(&rk, &Claim::from(&first))).await;
    assert_eq!(operation.renew(&first).await, Renewed::Yes);

    dropped_after(polls, store.read(&rk)).await;
    let seen = operation.read().await;
    assert_eq!(seen.record.as_ref().map(|it| it.token), Some(first.token));

    let Decision::Change(change, _) = release(&seen, &Claim::from(&first), RELEASED) else {
        panic!("the grant can be released");
    };
    dropped_after(polls, store.swap(&rk, &seen, &change)).await;
    let (Swapped::Yes | Swapped::Changed) = operation.swap(&seen, &change).await;
    assert_eq!(operation.record().await, change.record);
    assert_eq!(operation.release(&first).await, Settled::Yes);

    let second = operation.granted(SECOND).await;
    assert_eq!(second.attempt, 2, "one attempt before it, not more");
    let completion = operation.completion(&second, "the answer");
    dropped_after(polls, store.complete(&rk, &completion)).await;
    let completed = operation.complete_as(&completion).await;
    let once = matches!(completed, Completed::Done | Completed::Already);
    assert!(once, "{completed:?}");
    operation.replays("the answer").await;
}

pub(super) async fn golden_v1_readable(setup: &dyn Setup) {
    setup.put_golden().await;
    let operation = Operation::under(setup, golden_call().record_key());
    let golden = Begin { call: golden_call(), ..operation.ask(FIRST) };
    let replay = replayed(operation.begin_as(&golden).await);
    assert_eq!(replay.answer, GOLDEN_ANSWER);
    assert_eq!(operation.other_payload(FIRST).await, Begun::Mismatch);
    let record = operation.record().await;
    assert_eq!(record.fingerprint, golden_call().newest_fingerprint());
    assert!(matches!(record.state, State::Completed(_)), "{record:?}");
    assert!(record.token.0 > 0);
}
