//! Completions that the store refuses, loses, or gets from the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::gate::{Detail, Provenance, Reason, Recorded, Refused};
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::{Claim, Complete, Completed};
use hapax_core::store::Protocol;
use hapax_core::{
    Error, ErrorKind, Gate, Identity, Journal, OnLapse, Owner, Rule, Seconds, State, Store, Timestamp, Token,
};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::settle;
use crate::world::{
    CallFault, GateWorld, LEASE, MAX_EXECUTION, assert_answer, call, call_of, gate_over, run_beside,
    run_call_with_answer, settings, wait_for_cancellation, with_journal,
};

#[tokio::test]
async fn an_answer_that_the_store_refuses_for_a_lease_is_unrecorded() {
    let world = GateWorld::new();
    world.store.refuse_all_after_begin(true);
    let run = world.run_with_answer("the answer");
    // Completions are retried for one lease; the rest is for their pauses.
    let result = run_beside(run, world.time.pass(LEASE * 3)).await;
    let Err(refused) = result else { panic!("unrecorded was expected, not {result:?}") };
    assert_eq!(refused.reason, Reason::Unrecorded);
    let Some(Detail::Error(error)) = refused.detail else { panic!("the cause was expected, not {:?}", refused.detail) };
    assert_eq!(error.downcast_ref::<Error>().map(Error::kind), Some(ErrorKind::Unknown));

    world.store.refuse_all_after_begin(false);
    for _ in 0..3 {
        let result = world.run_with_answer("a second run").await;
        assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
        world.time.pass(LEASE).await;
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_completion_is_retried_until_the_store_confirms_it() {
    let world = GateWorld::new();
    world.store.refuse_all_after_begin(true);
    let heal = async {
        world.time.pass(LEASE / 2).await;
        world.store.refuse_all_after_begin(false);
        world.time.pass(LEASE).await;
    };
    let result = run_beside(world.run_with_answer("the answer"), heal).await;
    assert_answer(result, "the answer", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn failing_completions_are_retried_for_one_lease() {
    let world = GateWorld::new();
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    let run = world.run_with_answer("the answer");
    let meanwhile = async {
        world.time.pass(LEASE / 2).await;
        let result = world.run_with_answer("a second run").await;
        assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
        world.time.pass(LEASE * 2).await;
    };
    let result = run_beside(run, meanwhile).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unrecorded, .. })), "{result:?}");
    world.time.pass(LEASE).await;
    let result = world.run_with_answer("a second run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn the_breaker_never_blocks_a_completion() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    world.store.down.store(true, Ordering::SeqCst);
    for number in 0..10 {
        assert!(run_call_with_answer(&world.gate, call_of("acme", &number.to_string())).await.is_err());
    }
    go.notify_one();
    settle().await;
    assert!(matches!(world.state().await, State::Completed(_)));
}

/// Another completion is recorded while the handler runs, under a claim derived from the grant.
async fn lose_to(claim: fn(&Claim) -> Claim) {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(wait_for_cancellation(&stopped));
    let lose = async {
        settle().await;
        let record = world.read().await.record.unwrap();
        let grant = Claim { owner: record.state.holding().unwrap().owner, token: record.token };
        let answer = Bytes::from_static(b"the canonical answer");
        let fingerprint = record.fingerprint;
        let ask = Complete {
            claim: claim(&grant),
            fingerprint,
            answer,
            retention: Seconds(60),
            ended: Timestamp(0),
            age: Duration::ZERO,
        };
        let completed = Protocol::over(&world.store.inner).complete(&call().record_key(), &ask).await;
        assert_eq!(completed.unwrap(), Completed::Done);
        world.time.pass(LEASE / 2).await;
    };
    let result = run_beside(run, lose).await;
    assert_answer(result, "the canonical answer", Provenance::Canonical);
    assert!(stopped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_lost_grant_returns_the_recorded_answer() {
    // A known effect under an older token overrides a record in progress (row C7).
    lose_to(|grant| Claim { owner: Owner([7; 16]), token: Token(grant.token.0 - 1) }).await;
    lose_to(|grant| Claim { owner: Owner([7; 16]), ..*grant }).await;
}

#[tokio::test]
async fn another_answer_under_its_own_token_is_the_answer_that_is_given() {
    lose_to(|grant| *grant).await;
}

#[tokio::test]
async fn a_lost_grant_does_not_return_the_answer_of_another_payload() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.unknown_retention = LEASE * 2);
    let go = Arc::new(Notify::new());
    let waits = Arc::clone(&go);
    let run = world.run(move |_| async move {
        waits.notified().await;
        Ok(String::from("the answer"))
    });
    let lose = async {
        settle().await;
        let fingerprint = Identity::plain().fingerprint(Rule(1), &[b"another payload"]);
        world.store.refuse_renewals.store(true, Ordering::SeqCst);
        // The record lives for two leases without a renewal. Then the key is free for another payload.
        world.time.pass(LEASE * 3).await;
        let elsewhere = gate_over(&world.store, &world.time, settings(OnLapse::Hold));
        let other = elsewhere.run(call().fingerprint(fingerprint), |_| async { Ok(String::from("another answer")) });
        assert_answer(other.await, "another answer", Provenance::Fresh);
        go.notify_one();
    };
    let result = run_beside(run, lose).await;
    assert!(
        matches!(result, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_spilled_answer_is_returned_as_pending_and_recorded_later() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    let ran = run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    assert_eq!(
        (ran.answer.as_str(), ran.provenance, ran.recorded),
        ("the answer", Provenance::Fresh, Recorded::Pending)
    );
    assert_eq!(journal.replay().await.unwrap().len(), 1);

    world.store.refuse_all_after_begin(false);
    world.time.pass(Duration::from_secs(2)).await;
    assert!(matches!(world.state().await, State::Completed(_)));
    assert!(journal.replay().await.unwrap().is_empty(), "the entry is removed from the journal");
    assert_answer(world.run_with_answer("a second run").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn the_lease_of_a_spilled_answer_is_renewed() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.pass(LEASE * 3).await;
    let result = world.run_with_answer("a second run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
}

#[tokio::test]
async fn max_execution_does_not_apply_to_an_answer_that_is_not_recorded_yet() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.pass(MAX_EXECUTION + LEASE * 3).await;
    let result = world.run_with_answer("a second run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
}

#[tokio::test]
async fn the_lease_of_a_damaged_record_is_not_renewed_after_its_handler_has_ended() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    for method in [StoreMethod::Renew, StoreMethod::Complete] {
        world.store.inject(method, CallFault::Fail(ErrorKind::Damaged));
    }
    let count_renewals = || world.store.renewals.load(Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    assert!(count_renewals() > 1, "an operator may still repair the record");
    go.notify_one();
    world.time.pass(LEASE).await;
    assert_eq!(journal.replay().await.unwrap().len(), 1);
    let renewals = count_renewals();
    world.time.pass(LEASE * 5).await;
    assert_eq!(count_renewals(), renewals);
}

#[tokio::test]
async fn a_new_process_records_the_journal_of_the_one_before() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.abort_all().await;

    world.store.refuse_all_after_begin(false);
    world.gate = with_journal(&world, &journal);
    settle().await;
    assert_answer(world.run_with_answer("a second run").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn the_answers_of_an_earlier_process_count_before_the_journal_is_replayed() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.abort_all().await;

    world.gate = with_journal(&world, &journal);
    assert_eq!(world.gate.spilled(), 1, "no task has run yet");
    world.time.pass(LEASE * 2).await;
    assert_eq!(world.gate.spilled(), 1);
    world.store.refuse_all_after_begin(false);
    world.time.pass(LEASE * 2).await;
    assert_eq!(world.gate.spilled(), 0);
}

/// The answer lives for its retention from its recording. The time that its first caller was told has passed by then.
#[tokio::test]
async fn an_answer_that_is_recorded_late_shows_no_expiry_that_has_passed() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    let mut policy = world.gate.policy().clone();
    policy.retention = LEASE * 5;
    world.gate = with_journal(&world, &journal).with(&policy).unwrap();
    world.store.refuse_all_after_begin(true);
    let ran = run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    assert!(ran.recorded == Recorded::Pending && ran.expiry.is_some(), "{ran:?}");
    world.time.pass(LEASE * 6).await;
    world.store.refuse_all_after_begin(false);
    world.time.pass(LEASE * 2).await;
    let replayed = world.run_with_answer("another").await.unwrap();
    assert_eq!((&*replayed.answer, replayed.provenance, replayed.expiry), ("the answer", Provenance::Replayed, None));
}

#[tokio::test]
async fn a_spilled_answer_older_than_its_retention_is_discarded() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.abort_all().await;
    let mut spilled = journal.replay().await.unwrap().remove(0).1;
    spilled.complete.retention = Seconds(1);
    // Another record key stands for a record that the store forgot.
    spilled.rk = call_of("acme", "forgotten by the store").record_key();
    // A new journal holds only this entry, as a crashed process would leave it.
    let left = Arc::new(MemoryJournal::new());
    left.append(&spilled).await.unwrap();

    world.store.refuse_all_after_begin(false);
    world.gate = with_journal(&world, &left);
    settle().await;
    let forgotten = world.store.inner.read(&spilled.rk).await.unwrap();
    assert!(forgotten.live().is_none(), "{forgotten:?}");
    assert!(left.replay().await.unwrap().is_empty(), "the journal must not keep it");
}

#[tokio::test]
async fn a_caller_waits_for_its_patience_and_not_for_its_lease() {
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    let mut settings = settings(OnLapse::Hold);
    (settings.policy.lease, settings.policy.record_patience) = (LEASE * 30, LEASE * 2);
    // A single try must not take longer than the patience either.
    settings.store_timeout = LEASE * 5;
    let builder = Gate::builder(Arc::clone(&world.store) as _, settings).runtime(Arc::clone(&world.time) as _);
    world.gate = builder.journal(Arc::clone(&journal) as _).build().unwrap();
    for is_silent in [false, true] {
        let fault = if is_silent { CallFault::Hang } else { CallFault::Fail(ErrorKind::Unknown) };
        world.store.inject(StoreMethod::Complete, fault);
        let key = if is_silent { "silent" } else { "refuses" };
        let run = run_call_with_answer(&world.gate, call_of("acme", key));
        let wait = async {
            world.time.pass(LEASE * 3 / 2).await;
            let spilled = journal.replay().await.unwrap().len();
            assert_eq!(spilled, usize::from(is_silent), "the store has time to confirm the answer");
            world.time.pass(LEASE).await;
        };
        let ran = run_beside(run, wait).await.unwrap();
        assert_eq!((ran.answer.as_str(), ran.recorded), ("the answer", Recorded::Pending));
    }
    world.store.heal(StoreMethod::Complete);
    world.time.pass(LEASE * 7).await;
    assert!(journal.replay().await.unwrap().is_empty(), "the gate goes on in the background");
}

#[tokio::test]
async fn without_a_journal_a_completion_is_retried_for_the_lease() {
    let world = GateWorld::new().with_settings(|settings| {
        (settings.policy.lease, settings.policy.record_patience) = (LEASE * 10, LEASE);
    });
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    let heal = async {
        world.time.pass(LEASE * 8).await;
        world.store.refuse_completes.store(false, Ordering::SeqCst);
        world.time.pass(LEASE).await;
    };
    let result = run_beside(world.run_with_answer("the answer"), heal).await;
    assert_answer(result, "the answer", Provenance::Fresh);
}
