//! Clocks: only the store's clock decides, and it may step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::gate::{Provenance, Reason, Refused};
use hapax_core::machine::{Begin, Begun, Cancelled, Renewed, Settled};
use hapax_core::{Gate, Millis, Seconds, Settings};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use super::parallel::*;
use crate::clock::ManualClock;
use crate::setup::Setup;

const HOUR: Duration = Duration::from_secs(3600);

pub(super) async fn lapse_uses_store_clock_not_client(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, INSTANCES);
    let grants = each(&operations, |operation| async move { operation.grant(FIRST).await });
    grants.await;
    let client = Arc::new(ManualClock::new());
    let gate = gate(setup, &client);

    client.forward(HOUR);
    for result in run_all(&gate, &operations).await {
        assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    }
    // By the client's clock no lease has expired; by the store's clock all have.
    client.back(24 * HOUR);
    lapse_all(setup, &operations).await;
    for result in run_all(&gate, &operations).await {
        let is_unknown = matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. }));
        assert!(is_unknown, "{result:?}");
    }
}

/// Runs all operations through the gate concurrently. No handler may run.
async fn run_all(gate: &Gate, operations: &[SuiteOperation]) -> Vec<Result<(), Refused<String>>> {
    let ran = each(operations, |operation| {
        let gate = gate.clone();
        async move {
            let ran = gate.run(operation.call(), |_| async { Ok(String::from("run twice")) });
            ran.await.map(|ran| panic!("a handler ran: {ran:?}"))
        }
    });
    ran.await
}

pub(super) async fn client_clock_plus_1h(setup: &dyn Setup) {
    assert_runs_once(setup, |client| client.forward(HOUR)).await;
}

pub(super) async fn client_clock_minus_1h(setup: &dyn Setup) {
    assert_runs_once(setup, |client| client.back(HOUR)).await;
}

/// A gate whose clock differs from the store's runs an operation once, refuses a concurrent copy with Busy, and replays
/// the answer.
async fn assert_runs_once(setup: &dyn Setup, skew: impl FnOnce(&ManualClock)) {
    let client = Arc::new(ManualClock::new());
    skew(&client);
    let (gate, operation) = (gate(setup, &client), SuiteOperation::new(setup));
    let (copy_gate, call) = (gate.clone(), operation.call());
    let ran = gate.run(call, move |_| async move {
        let copy = copy_gate.run(call, |_| async { Ok(String::from("the copy's answer")) });
        let Err(Refused { reason: Reason::Busy { retry_after }, .. }) = copy.await else {
            panic!("the concurrent copy must be refused with Busy");
        };
        assert_left(retry_after, LEASE);
        Ok(String::from("the answer"))
    });
    let ran = ran.await.expect("the handler did not run");
    assert_eq!((ran.answer.as_str(), ran.provenance), ("the answer", Provenance::Fresh));

    let again = gate.run(call, |_| async { Ok(String::from("another answer")) });
    let again = again.await.expect("the answer is not replayed");
    assert_eq!((&again.answer, again.provenance), (&ran.answer, Provenance::Replayed));
    let seen = operation.read().await;
    assert_left(seen.life_left, RETENTION);
    let expiry = expect_replay(operation.begin(SECOND).await).expiry;
    assert_eq!((ran.expiry, again.expiry), (Some(expiry), Some(expiry)), "every copy is given the same expiry");
}

fn gate(setup: &dyn Setup, client: &Arc<ManualClock>) -> Gate {
    let mut settings = Settings::default();
    // A generous timeout: on a busy machine a slow call must not count as a timeout.
    settings.store_timeout = Duration::from_secs(30);
    settings.policy.lease = LEASE.into();
    settings.policy.retention = RETENTION.into();
    let builder = Gate::builder(setup.store(), settings).runtime(Arc::clone(client) as _);
    builder.build().expect("the settings are valid")
}

pub(super) async fn store_clock_back_unsticks_within_one_lease(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    back(setup, HOUR).await;
    assert_left(expect_busy(operation.retry(SECOND).await), LEASE);
    assert_left(operation.read().await.lease_left, LEASE);
    forward(setup, LEASE.into()).await;
    let second = expect_grant(operation.retry(SECOND).await);
    assert!(second.takeover && second.token > first.token, "{second:?}");
}

pub(super) async fn store_clock_forward_fences_old_holder(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    forward(setup, HOUR).await;
    let second = expect_grant(operation.retry(SECOND).await);
    assert!(second.takeover && second.token > first.token, "{second:?}");

    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.renew(&first).await, Renewed::Lost);
    assert_eq!(operation.release(&first).await, Settled::Lost);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Gone);
    assert_eq!(operation.abandon(&first).await, Settled::Lost);
    assert_eq!(operation.bury(&first).await, Settled::Lost);
    expect_busy(operation.begin(FIRST).await);
    operation.assert_unchanged(&before).await;
}

pub(super) async fn retention_boundary_no_double_grant(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, INSTANCES);
    let completed =
        each(&operations, |operation| async move { operation.grant_and_complete(FIRST, "the answer").await });
    let completed = completed.await;
    forward(setup, Duration::from(RETENTION) - HOUR).await;
    // An hour before the retention ends, every answer is still replayed.
    let early = each(&operations, |operation| async move {
        expect_replay(operation.begin(SECOND).await);
    });
    early.await;

    expire_all(setup, &operations).await;
    let begun = each(&operations, |operation| async move { join_all((0..4).map(|n| operation.begin(racer(n)))).await });
    for (old, begun) in completed.iter().zip(begun.await) {
        let mut grants = 0;
        for begun in begun {
            if let Begun::Granted(grant) = begun {
                assert!(grant.token > old.token, "{grant:?} after {old:?}");
                grants += 1;
            } else {
                expect_busy(begun);
            }
        }
        assert_eq!(grants, 1);
    }
}

pub(super) async fn retention_config_change_does_not_bend_age(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    let under = |lease, retention| Begin {
        lease: Millis(lease),
        unknown_retention: Seconds(retention),
        ..operation.retry_begin(SECOND)
    };
    let (short, long) = (under(1_000, 2), under(3_600_000, 365 * 24 * 3600));
    forward(setup, WHILE).await;
    let left = Duration::from(LEASE) - WHILE;
    assert_left(expect_busy(operation.begin_as(&short).await), left);
    assert_left(expect_busy(operation.begin_as(&long).await), left);
    let life_left = Duration::from(UNKNOWN) - WHILE;
    assert_left(operation.read().await.life_left, life_left);

    forward(setup, left).await;
    let grant = expect_grant(operation.begin_as(&long).await);
    assert!(grant.takeover, "the record's own lease has expired: {grant:?}");
    assert_left(operation.read().await.lease_left, Duration::from_secs(3600));

    let other = SuiteOperation::nth(setup, 1);
    other.grant(FIRST).await;
    let since = other.lapse_and_hold(setup, SECOND).await;
    forward(setup, HOUR).await;
    let ask = Begin { unknown_retention: Seconds(120), ..other.hold_begin(THIRD) };
    assert_same_time(expect_indeterminate(other.begin_as(&ask).await), since);
    let life_left = Duration::from(UNKNOWN) - HOUR;
    assert_left(other.read().await.life_left, life_left);
}

pub(super) async fn cancel_by_owner_after_ambiguous_begin(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Gone);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.cancel(SECOND).await, Cancelled::Gone);
    expect_busy(operation.begin(SECOND).await);

    assert_eq!(operation.cancel(FIRST).await, Cancelled::Yes);
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Yes);
    let second = operation.grant(SECOND).await;
    assert!(second.token > first.token && second.attempt == 2);
    forward(setup, WHILE).await;
    let before = operation.read().await;
    assert_eq!(operation.cancel(FIRST).await, Cancelled::Gone);
    operation.assert_unchanged(&before).await;

    // Cancelling a takeover leaves the outcome of the earlier attempt unknown.
    let third = operation.take_over(setup, THIRD).await;
    assert_eq!(operation.cancel(THIRD).await, Cancelled::Yes);
    assert_eq!(operation.renew(&third).await, Renewed::Lost);
    expect_indeterminate(operation.begin(FIRST).await);
}
