//! From the handler's return value to the caller's result and the record.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::gate::{Detail, Failure, Provenance, Reason, Refused};
use hapax_core::machine::Grant;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Error, ErrorKind, Gate, OnBusy, OnLapse, Phase, State, Store};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::{Stepped, settle};
use crate::world::{
    CallFault, GateWorld, Handled, LEASE, assert_answer, call, fail_by_question_mark, poll_once_and_drop, retry,
    run_on, settings,
};

#[tokio::test]
async fn a_panic_is_unknown_and_held() {
    let world = GateWorld::new();
    let result = world.run(|_| async { panic!("a panic on purpose") }).await;
    assert!(
        matches!(result, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{result:?}"
    );
    let result = world.run_with_answer("another").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_panic_before_the_first_await_is_unknown_too() {
    let world = GateWorld::new();
    let panics = |_| -> std::future::Ready<Handled> { panic!("a panic on purpose") };
    let result = world.run(panics).await;
    assert!(
        matches!(result, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{result:?}"
    );
    assert!(matches!(
        world.run_with_answer("another").await,
        Err(Refused { reason: Reason::Indeterminate { .. }, .. })
    ));
}

#[tokio::test]
async fn a_plain_question_mark_is_unknown_and_held() {
    let world = GateWorld::new();
    let result = world.run(|_| fail_by_question_mark()).await;
    let Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(error)), .. }) = result else {
        panic!("unknown was expected, not {result:?}")
    };
    assert_eq!(error.to_string(), "the connection broke");
    let result = world.run_with_answer("another").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn under_retry_an_unknown_outcome_runs_again_at_once() {
    let world = GateWorld::with_on_lapse(retry());
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    let result = world.run(move |attempt| async move {
        *seen.lock().unwrap() = attempt.grant().copied();
        fail_by_question_mark().await
    });
    assert!(matches!(result.await, Err(Refused { reason: Reason::Unknown { .. }, .. })));

    let first: Grant = first.lock().unwrap().expect("the first attempt ran");
    let again = world.run(move |attempt| async move {
        let grant = attempt.grant().unwrap();
        assert!(grant.token > first.token && grant.takeover, "{grant:?}");
        assert_eq!(attempt.number(), 2);
        assert_eq!(attempt.operation(), first.rk.operation());
        Ok(String::from("the answer"))
    });
    assert_answer(again.await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn not_applied_frees_the_key() {
    let world = GateWorld::new();
    let result = world.run(|_| async { Err(Failure::not_applied(io::Error::other("no funds"))) }).await;
    let Err(Refused { reason: Reason::NotApplied { .. }, detail: Some(Detail::Error(error)), .. }) = result else {
        panic!("not applied was expected, not {result:?}")
    };
    assert_eq!(error.to_string(), "no funds");
    let again = world.run(|attempt| async move {
        assert_eq!((attempt.number(), attempt.grant().unwrap().takeover), (2, false));
        Ok(String::from("the answer"))
    });
    assert_answer(again.await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn an_attempt_that_gives_up_closes_the_key() {
    let world = GateWorld::new();
    world.store.refuse_swaps.store(true, Ordering::SeqCst);
    let result = world.run(|_| async { Err(Failure::given_up(io::Error::other("closed for ever"))) }).await;
    let Err(Refused { reason: Reason::NotApplied { .. }, detail: Some(Detail::Error(error)), .. }) = result else {
        panic!("not applied was expected, not {result:?}")
    };
    assert_eq!(error.to_string(), "closed for ever");
    world.store.refuse_swaps.store(false, Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Dead, _)), "the burial is repeated");
    let copy = world.run_with_answer("another").await;
    assert!(matches!(copy, Err(Refused { reason: Reason::Dead, .. })), "{copy:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn the_detail_of_a_failure_reaches_the_caller_unchanged() {
    let world = GateWorld::new();
    let result = world.run(|_| async { Err(Failure::NotApplied(Detail::Answer(String::from("later")))) }).await;
    let refused = result.unwrap_err();
    assert!(matches!(refused.reason, Reason::NotApplied { .. }), "{refused:?}");
    assert!(matches!(&refused.detail, Some(Detail::Answer(answer)) if answer == "later"), "{refused:?}");
    let result = world.run(|_| async { Err(Failure::Unknown(Detail::Answer(String::from("perhaps")))) }).await;
    let refused = result.unwrap_err();
    assert!(matches!(refused.reason, Reason::Unknown { .. }), "{refused:?}");
    assert!(matches!(&refused.detail, Some(Detail::Answer(answer)) if answer == "perhaps"), "{refused:?}");
}

#[tokio::test]
async fn the_local_value_of_a_handler_reaches_the_caller_who_ran_it_only() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let run = |returned: Handled, local| world.gate.run_with_local(call(), move |_| async move { (returned, local) });
    let (refused, local) = run(Err(Failure::not_applied("no funds")), 1).await;
    assert!(matches!(refused, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{refused:?}");
    assert_eq!(local, Some(1), "a failure has a local value, too");
    let go = Arc::new(Notify::new());
    let waits = Arc::clone(&go);
    let leader = world.gate.run_with_local(call(), move |_| async move {
        waits.notified().await;
        (Ok(String::from("the answer")), 2)
    });
    let answer_first = async {
        settle().await;
        go.notify_one();
    };
    let follower = run(Ok(String::from("another")), 3);
    let ((leader, led), (follower, followed), ()) = futures_util::join!(leader, follower, answer_first);
    assert_answer(leader, "the answer", Provenance::Fresh);
    assert_answer(follower, "the answer", Provenance::Replayed);
    assert_eq!((led, followed), (Some(2), None));
    let (copy, local) = run(Ok(String::from("another")), 4).await;
    assert_answer(copy, "the answer", Provenance::Replayed);
    assert_eq!(local, None);
}

#[tokio::test]
async fn a_handler_that_panics_has_no_local_value() {
    let world = GateWorld::new();
    let panics = |_| -> std::future::Ready<(Handled, u8)> { panic!("a panic on purpose") };
    let (refused, local) = world.gate.run_with_local(call(), panics).await;
    assert!(matches!(refused, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{refused:?}");
    assert_eq!(local, None);
}

#[tokio::test]
async fn a_final_failure_is_replayed() {
    let world = GateWorld::new();
    let result = world.run(|_| async { Err(Failure::finally(String::from("refused for ever"))) }).await;
    assert_answer(result, "refused for ever", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "refused for ever", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_aborted_handler_is_abandoned_and_not_released() {
    let world = GateWorld::new();
    world.start_and_leave(&Arc::new(Notify::new()), "never").await;
    // Drops the futures of all tasks, as a runtime that shuts down does.
    world.time.abort_all().await;
    let State::Open(Phase::InProgress, holding) = world.state().await else {
        panic!("a record in progress was expected")
    };
    assert!(holding.is_abandoned(), "{holding:?}");
    let result = world.run_with_answer("another").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert_eq!(world.runs(), 1);
}

#[test]
fn a_runtime_that_shuts_down_releases_no_grant() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outer = runtime();
    // The clock of the store belongs to the outer runtime and outlives the inner one.
    let _in_outer = outer.enter();
    let time = Stepped::new();
    let store = Arc::new(Memory::with(Arc::clone(&time) as _, MemorySettings::default()));
    let gate = |runtime: Arc<dyn Runtime>| {
        let store = Arc::clone(&store);
        Gate::builder(store as _, settings(OnLapse::Hold)).runtime(runtime).build().unwrap()
    };

    let inner = runtime();
    inner.block_on(async {
        let gate = gate(Arc::new(Tokio::current()));
        poll_once_and_drop(run_on(gate, Arc::default(), |_| pending())).await;
        settle().await;
    });
    // Drops the running handler, as at the end of a process.
    drop(inner);

    outer.block_on(async {
        let seen = store.read(&call().record_key()).await.unwrap();
        let state = &seen.live().expect("the record lives").state;
        assert!(matches!(state, State::Open(Phase::InProgress, _)), "{state:?}");
        time.pass(LEASE).await;
        let runs = Arc::<AtomicU32>::default();
        let answer = |_| async { Ok(String::from("a second run")) };
        let result = run_on(gate(Arc::clone(&time) as _), Arc::clone(&runs), answer).await;
        assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 0);
    });
}

#[tokio::test]
async fn a_failed_abandon_is_repeated_in_the_background() {
    let world = GateWorld::new();
    world.store.refuse_swaps.store(true, Ordering::SeqCst);
    assert!(matches!(
        world.run(|_| fail_by_question_mark()).await,
        Err(Refused { reason: Reason::Unknown { .. }, .. })
    ));
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if !holding.is_abandoned()));
    world.store.refuse_swaps.store(false, Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if holding.is_abandoned()));
    assert!(world.gate.drain(Duration::ZERO).await);
}

#[tokio::test]
async fn a_takeover_that_applied_nothing_leaves_the_key_unknown() {
    let world = GateWorld::with_on_lapse(retry());
    let result = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{result:?}");
    let result =
        world.run(|_| async { Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{result:?}");
    let State::Open(Phase::InProgress, holding) = world.state().await else { panic!("the record is not in progress") };
    assert!(holding.takeover && holding.is_abandoned(), "{holding:?}");
}

#[tokio::test]
async fn the_record_of_a_denied_caller_lives_ten_seconds_or_a_lease() {
    for (lease, before, after) in [(LEASE, 9, 2), (LEASE * 20, 19, 2)] {
        let world = GateWorld::new().with_settings(|settings| settings.policy.lease = lease);
        let result = world.run(|_| async { Err(Failure::denied(io::Error::other("no right"))) }).await;
        assert!(matches!(result, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{result:?}");
        world.time.pass(Duration::from_secs(before)).await;
        assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
        world.time.pass(Duration::from_secs(after)).await;
        assert!(world.read().await.live().is_none(), "a denied caller must not hold the key for longer");
    }
}

#[tokio::test]
async fn an_attempt_that_is_aborted_while_it_settles_is_abandoned() {
    for (method, failure) in [
        (StoreMethod::Complete, None),
        (StoreMethod::Swap, Some(Failure::<String>::unknown as fn(io::Error) -> Failure<String>)),
        (StoreMethod::Swap, Some(Failure::not_applied)),
        (StoreMethod::Swap, Some(Failure::given_up)),
    ] {
        let world = GateWorld::new();
        world.store.inject(method, CallFault::Hang);
        let run = world.run(move |_| async move {
            match failure {
                None => Ok(String::from("the answer")),
                Some(failure) => Err(failure(io::Error::other("see the record"))),
            }
        });
        poll_once_and_drop(run).await;
        settle().await;
        world.store.heal(method);
        world.time.abort_all().await;
        world.time.pass(LEASE / 10).await;
        let state = world.state().await;
        assert!(
            matches!(state, State::Open(Phase::InProgress, holding) if holding.is_abandoned()),
            "{method:?}: {state:?}"
        );
    }
}
