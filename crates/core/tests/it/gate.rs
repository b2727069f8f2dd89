//! What a call gets from the gate: answers, refusals, limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join;
use hapax_core::gate::{Detail, Failure, Provenance, Reason, Recorded, Refused};
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{ErrorKind, Gate, Identity, OnStoreDown, Repeatable, Rule, Settings, ledger};
use tokio::sync::Notify;

use crate::stepped::{Stepped, settle};
use crate::world::{
    GateWorld, LEASE, assert_answer, call, call_of, count_begins, fail_by_question_mark, poll_once_and_drop,
    run_call_with_answer,
};

#[tokio::test]
async fn a_call_runs_once_and_is_replayed() {
    let world = GateWorld::new();
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    for _ in 0..3 {
        assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    }
    assert_eq!(world.runs(), 1);
    assert!(world.gate.drain(Duration::ZERO).await);
}

#[tokio::test]
async fn every_copy_gets_the_same_expiry() {
    let world = GateWorld::new();
    let fresh = world.run_with_answer("the answer").await.expect("the call has an answer").expiry;
    // The clock moves, so an expiry that is computed at the replay would differ.
    world.time.pass(LEASE).await;
    let replayed = world.run_with_answer("another").await.expect("the answer is replayed").expiry;
    assert!(fresh.is_some() && fresh == replayed, "{fresh:?} {replayed:?}");
}

#[tokio::test]
async fn a_final_answer_may_live_shorter_than_an_applied_one() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.final_retention = Some(LEASE * 10));
    let refuse = || world.run(|_| async { Err(Failure::finally(String::from("refused"))) });
    let fresh = refuse().await.expect("the call has an answer").expiry;
    world.time.pass(LEASE * 9).await;
    let replayed = refuse().await.expect("the answer is replayed");
    assert_eq!((replayed.provenance, replayed.expiry), (Provenance::Replayed, fresh));
    world.time.pass(LEASE * 2).await;
    // The refusal has expired. An applied answer lives for a day.
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    world.time.pass(LEASE * 60).await;
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
}

#[tokio::test]
async fn an_attempt_knows_its_grant_and_its_ids() {
    let world = GateWorld::new();
    let run = world.run(|attempt| async move {
        assert_eq!(attempt.number(), 1);
        assert_eq!(attempt.record_key(), call().record_key());
        assert_eq!(attempt.operation(), call().record_key().operation());
        assert_eq!(attempt.event_id("shop", 3), attempt.operation().event("shop", 3));
        Ok(attempt.grant().unwrap().token.0.to_string())
    });
    let answer = run.await.expect("the call has an answer").answer;
    assert_eq!(answer, world.read().await.record.unwrap().token.0.to_string());
}

#[tokio::test]
async fn another_payload_is_a_mismatch() {
    let world = GateWorld::new();
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    let other = call().fingerprint(Identity::plain().fingerprint(Rule(1), &[b"another payload"]));
    let result = world.gate.run(other, |_| async { Ok(String::from("another")) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Mismatch, .. })), "{result:?}");
}

#[tokio::test]
async fn an_attempt_goes_on_when_its_caller_goes_away() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    // A limit of zero asks without waiting.
    assert!(!world.gate.drain(Duration::ZERO).await, "drain must wait for the attempt");
    go.notify_one();
    settle().await;
    assert!(world.gate.drain(Duration::ZERO).await);
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn contradicting_settings_are_refused() {
    let store = || Arc::new(Memory::with(Stepped::new(), MemorySettings::default()));
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        let error = Gate::builder(store(), settings).runtime(Stepped::new()).build().expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    };
    refused(|settings| settings.store_timeout = Duration::ZERO);
    refused(|settings| settings.policy.lease = Duration::from_millis(999));
    refused(|settings| settings.policy.unknown_retention = settings.policy.lease);
    refused(|settings| settings.policy.retention = Duration::from_millis(999));
    refused(|settings| settings.policy.released_retention = Duration::ZERO);
    refused(|settings| settings.policy.retention = settings.policy.lease - Duration::from_millis(1));
    refused(|settings| settings.policy.released_retention = settings.policy.lease - Duration::from_millis(1));
    refused(|settings| settings.policy.unknown_retention = Duration::MAX);
    refused(|settings| settings.policy.final_retention = Some(settings.policy.lease - Duration::from_millis(1)));
    refused(|settings| settings.policy.final_retention = Some(Duration::MAX));
    refused(|settings| settings.policy.record_patience = Duration::ZERO);
}

#[tokio::test]
async fn no_more_attempts_run_than_there_are_permits() {
    let world = GateWorld::new().with_settings(|settings| settings.max_in_flight = 1);
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the first").await;
    let result = run_call_with_answer(&world.gate, call_of("acme", "another")).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Overloaded, .. })), "{result:?}");
    assert_eq!(count_begins(&world), 1, "no begin is sent");
    go.notify_one();
    settle().await;
    assert_answer(run_call_with_answer(&world.gate, call_of("acme", "another")).await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_tenant_that_fills_its_share_leaves_room_for_others() {
    let world = GateWorld::new().with_settings(|settings| settings.max_in_flight_per_tenant = 1);
    world.start_and_leave(&Arc::new(Notify::new()), "the first").await;
    let result = run_call_with_answer(&world.gate, call_of("acme", "another")).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Overloaded, .. })), "{result:?}");
    assert_answer(
        run_call_with_answer(&world.gate, call_of("other", "another")).await,
        "the answer",
        Provenance::Fresh,
    );
}

#[tokio::test]
async fn under_pass_a_call_runs_without_a_record_while_the_store_is_down() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    world.store.down.store(true, Ordering::SeqCst);
    let ran = world.run(|attempt| async move {
        assert!(attempt.grant().is_none() && attempt.operation() == call().record_key().operation());
        Ok(String::from("the answer"))
    });
    let ran = ran.await.unwrap();
    assert_eq!((ran.provenance, ran.recorded), (Provenance::Fresh, Recorded::No));
    world.store.down.store(false, Ordering::SeqCst);
    assert!(world.read().await.live().is_none(), "there must be no record");
}

#[tokio::test]
async fn a_refusal_says_whether_the_handler_ran_without_a_record() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    for down in [true, false] {
        world.store.down.store(down, Ordering::SeqCst);
        let result = world.run(|_| async { Err(Failure::NotApplied(Detail::Answer(String::from("later")))) }).await;
        assert!(
            matches!(result, Err(Refused { reason: Reason::NotApplied { unrecorded }, .. }) if unrecorded == down),
            "{result:?}"
        );
        let result = world.run(|_| async { Err(Failure::Unknown(Detail::Answer(String::from("perhaps")))) }).await;
        assert!(
            matches!(result, Err(Refused { reason: Reason::Unknown { unrecorded }, .. }) if unrecorded == down),
            "{result:?}"
        );
    }
}

#[tokio::test]
async fn a_drain_waits_for_every_attempt() {
    let world = GateWorld::new();
    let start = async |key: &str| {
        let (gate, go) = (world.gate.clone(), Arc::new(Notify::new()));
        let (may_end, call) = (Arc::clone(&go), call_of("acme", key));
        let run = async move {
            gate.run(call, move |_| async move {
                may_end.notified().await;
                Ok(String::from("the answer"))
            })
            .await
        };
        poll_once_and_drop(run).await;
        go
    };
    let (first, second) = (start("first").await, start("second").await);
    settle().await;
    let has_drained = AtomicBool::new(false);
    let drain = async {
        assert!(world.gate.drain(LEASE * 10).await);
        has_drained.store(true, Ordering::SeqCst);
    };
    let end = async {
        for go in [second, first] {
            assert!(!world.gate.drain(Duration::ZERO).await && !has_drained.load(Ordering::SeqCst));
            go.notify_one();
            settle().await;
        }
    };
    join(drain, end).await;
    assert!(world.gate.drain(Duration::ZERO).await);
}

#[tokio::test]
async fn a_drain_waits_for_the_grant_that_an_attempt_leaves_to_be_given_back() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    let may_end = Arc::clone(&go);
    let run = world.run(move |_| async move {
        may_end.notified().await;
        fail_by_question_mark().await
    });
    poll_once_and_drop(run).await;
    settle().await;
    let has_drained = AtomicBool::new(false);
    let drain = async {
        assert!(world.gate.drain(LEASE * 10).await);
        has_drained.store(true, Ordering::SeqCst);
    };
    let end = async {
        world.store.refuse_swaps.store(true, Ordering::SeqCst);
        go.notify_one();
        settle().await;
        assert!(world.gate.wait_for_attempts(Duration::ZERO).await);
        assert!(!has_drained.load(Ordering::SeqCst), "the abandonment is not confirmed");
        assert_eq!(world.gate.unconfirmed_releases(), 1);
        world.store.refuse_swaps.store(false, Ordering::SeqCst);
        world.time.pass(LEASE).await;
    };
    join(drain, end).await;
}

#[test]
fn a_route_behind_a_ledger_declares_the_ledger_by_its_namespace() {
    let repeatable = Repeatable::behind(&ledger::Terms::new("transfers").unwrap());
    assert_eq!(repeatable.reason(), "the handler runs in a transaction of the ledger `transfers`");
}
