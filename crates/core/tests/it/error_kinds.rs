//! What each kind of store error means for a call, its answer and its grant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::gate::{Detail, Failure, Provenance, Reason, Recorded, Refused};
use hapax_core::journal::MemoryJournal;
use hapax_core::{ErrorKind, Journal, OnStoreDown, Phase, Repeatable, State};
use hapax_testkit::StoreMethod;

use crate::stepped::settle;
use crate::world::{
    CallFault, GateWorld, LEASE, assert_answer, call_of, fail_by_question_mark, run_beside, run_call_with_answer,
    with_journal,
};

/// The kinds after which a later try may succeed.
const PASSING: [ErrorKind; 4] = [ErrorKind::NotApplied, ErrorKind::Full, ErrorKind::Unknown, ErrorKind::Unusable];
/// The kinds that concern one record or one request.
const OWN: [ErrorKind; 2] = [ErrorKind::Damaged, ErrorKind::Invalid];

fn with_pass() -> GateWorld {
    GateWorld::new().with_settings(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    })
}

#[tokio::test]
async fn the_journal_keeps_an_answer_after_every_kind_of_error() {
    for kind in PASSING.into_iter().chain(OWN) {
        let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
        world.gate = with_journal(&world, &journal);
        world.store.inject(StoreMethod::Complete, CallFault::Fail(kind));
        let ran = run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
        assert_eq!(ran.recorded, Recorded::Pending, "{kind:?}");
        world.time.pass(LEASE * 5).await;
        assert_eq!(journal.replay().await.unwrap().len(), 1, "{kind:?}: the answer must not be lost");
        world.store.heal(StoreMethod::Complete);
        world.time.pass(LEASE * 2).await;
        assert!(journal.replay().await.unwrap().is_empty(), "{kind:?}");
        assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    }
}

#[tokio::test]
async fn an_entry_that_the_store_refuses_does_not_hold_up_later_ones() {
    for kind in [ErrorKind::Damaged, ErrorKind::Unusable, ErrorKind::Invalid] {
        let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
        world.gate = with_journal(&world, &journal);
        world.store.inject(StoreMethod::Complete, CallFault::Fail(kind));
        let rest = world.time.pass(LEASE * 2);
        run_beside(run_call_with_answer(&world.gate, call_of("acme", "damaged")), rest).await.unwrap();
        let damaged = call_of("acme", "damaged").record_key();
        *world.store.damaged.lock().unwrap() = Some((damaged, kind));
        run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
        world.store.heal(StoreMethod::Complete);
        world.time.pass(LEASE * 2).await;
        let left: Vec<_> = journal.replay().await.unwrap().iter().map(|(_, spilled)| spilled.rk).collect();
        assert_eq!(left, [damaged], "{kind:?}");
    }
}

#[tokio::test]
async fn an_error_about_one_record_does_not_count_as_a_store_that_is_down() {
    for kind in OWN {
        let world = with_pass();
        world.store.inject(StoreMethod::Begin, CallFault::Fail(kind));
        for number in 0..20 {
            let call = call_of("acme", &number.to_string());
            let result = run_call_with_answer(&world.gate, call).await;
            assert!(
                matches!(result, Err(Refused { reason: Reason::Store(got), .. }) if got == kind),
                "{kind:?}: {result:?}"
            );
        }
        assert!(!world.gate.is_store_down(), "{kind:?} must not open the breaker");
        world.store.heal(StoreMethod::Begin);
        assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    }
}

#[tokio::test]
async fn under_pass_a_call_runs_without_a_record_whatever_makes_the_store_unavailable() {
    for kind in PASSING {
        let world = with_pass();
        world.store.inject(StoreMethod::Begin, CallFault::Fail(kind));
        let ran = world.run_with_answer("the answer").await.expect("the handler runs");
        assert_eq!((ran.provenance, ran.recorded), (Provenance::Fresh, Recorded::No), "{kind:?}");
    }
}

#[tokio::test]
async fn every_kind_but_full_opens_the_breaker() {
    for kind in PASSING {
        let world = GateWorld::new();
        world.store.inject(StoreMethod::Begin, CallFault::Fail(kind));
        for number in 0..10 {
            assert!(run_call_with_answer(&world.gate, call_of("acme", &number.to_string())).await.is_err());
        }
        assert_eq!(world.gate.is_store_down(), kind != ErrorKind::Full, "{kind:?}");
    }
}

#[tokio::test]
async fn a_release_an_abandonment_and_a_cancellation_are_repeated_after_every_passing_error() {
    for kind in PASSING {
        let world = GateWorld::new();
        world.store.inject(StoreMethod::Swap, CallFault::Fail(kind));
        let released = world.run(|_| async { Err(Failure::NotApplied(Detail::Answer(String::from("later")))) }).await;
        assert!(matches!(released, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{released:?}");
        assert_given_back(&world, kind, |state| matches!(state, State::Open(Phase::Released, _))).await;

        let world = GateWorld::new();
        world.store.inject(StoreMethod::Swap, CallFault::Fail(kind));
        assert!(world.run(|_| fail_by_question_mark()).await.is_err());
        assert_given_back(
            &world,
            kind,
            |state| matches!(state, State::Open(Phase::InProgress, holding) if holding.is_abandoned()),
        )
        .await;

        let world = GateWorld::new();
        world.store.lose_begins.store(2, Ordering::SeqCst);
        world.store.inject(StoreMethod::Swap, CallFault::Fail(kind));
        assert!(world.run_with_answer("never").await.is_err());
        assert_given_back(&world, kind, |state| matches!(state, State::Open(Phase::Released, _))).await;
    }
}

/// Checks that the grant is given back soon after swaps work again, and not before.
async fn assert_given_back(world: &GateWorld, kind: ErrorKind, is_given_back: fn(&State) -> bool) {
    world.time.pass(LEASE * 3).await;
    assert!(!is_given_back(&world.state().await), "{kind:?}");
    world.store.heal(StoreMethod::Swap);
    world.time.pass(LEASE * 2).await;
    let state = world.state().await;
    assert!(is_given_back(&state), "{kind:?}: {state:?}");
}

#[tokio::test]
async fn no_retry_goes_on_after_the_record_has_expired() {
    for kind in PASSING {
        let mut world = GateWorld::new();
        let journal = Arc::new(MemoryJournal::new());
        let mut policy = world.gate.policy().clone();
        policy.unknown_retention = LEASE * 4;
        world.gate = with_journal(&world, &journal).with(&policy).unwrap();
        world.store.inject(StoreMethod::Read, CallFault::Fail(kind));
        assert!(world.run(|_| fail_by_question_mark()).await.is_err());
        world.time.pass(LEASE * 3).await;
        assert!(!world.gate.drain(Duration::ZERO).await, "{kind:?}");
        world.time.pass(LEASE * 3).await;
        assert!(world.gate.drain(Duration::ZERO).await, "{kind:?}: the abandonment is still repeated");

        world.store.inject(StoreMethod::Complete, CallFault::Fail(kind));
        let run = run_call_with_answer(&world.gate, call_of("acme", "spilled"));
        run_beside(run, world.time.pass(LEASE * 2)).await.unwrap();
        assert_eq!(journal.replay().await.unwrap().len(), 1, "{kind:?}");
        world.time.pass(LEASE * 5).await;
        settle().await;
        assert!(journal.replay().await.unwrap().is_empty(), "{kind:?}: the completion is still retried");
    }
}
