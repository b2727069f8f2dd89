//! Heartbeats, deadlines and lost grants.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax_core::gate::{Detail, Failure, Provenance, Reason, Refused};
use hapax_core::machine::{Claim, Settled};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Memory, Protocol};
use hapax_core::{Gate, OnLapse, Phase, Seconds, State, Store};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::settle;
use crate::world::{
    CallFault, GateWorld, LEASE, MAX_EXECUTION, assert_answer, call, poll_once_and_drop, run_beside, settings,
    wait_for_cancellation,
};

#[tokio::test]
async fn a_heartbeat_keeps_the_lease_of_a_long_handler() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let before = world.read().await.record;
    for _ in 0..10 {
        world.time.pass(LEASE / 2).await;
        let result = world.run_with_answer("a second run").await;
        assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    }
    assert_eq!(world.read().await.record, before);
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    // A renewal is due after a third of the lease, plus or minus a tenth of that, and the thread checks every twelfth.
    assert!((12..=17).contains(&renewals), "{renewals} renewals in 5 leases");

    go.notify_one();
    settle().await;
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    world.time.pass(LEASE * 3).await;
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), renewals, "the heartbeat must stop");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_heartbeat_goes_on_after_failed_renewals() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    world.store.refuse_renewals.store(true, Ordering::SeqCst);
    // The lease expires, but no begin takes over, so a late renewal still counts (row R2).
    world.time.pass(LEASE * 2).await;
    world.store.refuse_renewals.store(false, Ordering::SeqCst);
    world.time.pass(LEASE / 2).await;
    let result = world.run_with_answer("a second run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    go.notify_one();
    settle().await;
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_lost_grant_cancels_the_handler_and_discards_its_answer() {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(wait_for_cancellation(&stopped));
    let lose = async {
        settle().await;
        let record = world.read().await.record.unwrap();
        let owner = record.state.holding().unwrap().owner;
        let claim = Claim { owner, token: record.token };
        let buried = Protocol::over(&world.store.inner).bury(&call().record_key(), &claim, Seconds(60)).await;
        assert_eq!(buried.unwrap(), Settled::Yes);
        assert!(!stopped.load(Ordering::SeqCst));
        world.time.pass(LEASE / 2).await;
        assert!(stopped.load(Ordering::SeqCst), "the next renewal fires the cancellation");
    };
    let result = run_beside(run, lose).await;
    assert!(
        matches!(result, Err(Refused { reason: Reason::Unknown { .. }, detail: Some(Detail::Error(_)), .. })),
        "{result:?}"
    );
    assert!(matches!(world.run_with_answer("another").await, Err(Refused { reason: Reason::Dead, .. })));
}

#[tokio::test]
async fn a_handler_is_cancelled_at_max_execution_and_still_completes() {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    let run = world.run(wait_for_cancellation(&stopped));
    let wait = async {
        // One lease of distance on either side, because the limit is noticed when a renewal is due.
        world.time.pass(MAX_EXECUTION - LEASE).await;
        assert!(!stopped.load(Ordering::SeqCst));
        world.time.pass(LEASE * 2).await;
    };
    let result = run_beside(run, wait).await;
    assert_answer(result, "its own answer", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "its own answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_renewal_in_progress_is_awaited_before_the_grant_is_given_back() {
    let unknown: fn() -> Failure<String> = || Failure::unknown(io::Error::other("who knows"));
    let not_applied: fn() -> Failure<String> = || Failure::not_applied(io::Error::other("no funds"));
    for failure in [unknown, not_applied] {
        let world = GateWorld::new();
        let go = Arc::new(Notify::new());
        let released = Arc::clone(&go);
        let run = world.run(move |_| async move {
            released.notified().await;
            Err(failure())
        });
        poll_once_and_drop(run).await;
        world.store.hold_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE / 2).await;
        assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1);

        go.notify_one();
        settle().await;
        assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if !holding.is_abandoned()));
        world.store.renewals_may_go_on.notify_one();
        settle().await;
        let is_given_back = match world.state().await {
            State::Open(Phase::InProgress, holding) => holding.is_abandoned(),
            State::Open(Phase::Released, _) => true,
            State::Completed(_) | State::Open(Phase::Indeterminate | Phase::Dead, _) => false,
        };
        assert!(is_given_back && world.gate.drain(Duration::ZERO).await);
    }
}

#[tokio::test]
async fn a_handler_is_cancelled_before_its_lease_can_expire() {
    let world = GateWorld::new();
    world.store.refuse_renewals.store(true, Ordering::SeqCst);
    let (time, stopped) = (Arc::clone(&world.time), Arc::new(Mutex::new(None)));
    let stop_time = Arc::clone(&stopped);
    let run = world.run(move |attempt| async move {
        attempt.cancelled().await;
        *stop_time.lock().unwrap() = Some(time.boottime_now());
        Ok(String::from("the answer"))
    });
    assert_answer(run_beside(run, world.time.pass(LEASE)).await, "the answer", Provenance::Fresh);
    let stopped = stopped.lock().unwrap().expect("the handler was cancelled");
    // The deadline is a tenth of the lease before its end. The thread checks every twelfth.
    assert!(stopped < LEASE && stopped > LEASE / 2, "{stopped:?}");
}

#[tokio::test]
async fn a_lease_counts_from_the_sending_of_its_renewal() {
    let world = GateWorld::new();
    world.store.hold_renewals.store(true, Ordering::SeqCst);
    let (time, stopped) = (Arc::clone(&world.time), Arc::new(Mutex::new(None)));
    let stop_time = Arc::clone(&stopped);
    let run = world.run(move |attempt| async move {
        attempt.cancelled().await;
        *stop_time.lock().unwrap() = Some(time.boottime_now());
        Ok(String::from("the answer"))
    });
    let the_only_reply_is_late = async {
        world.time.pass(LEASE * 4 / 5).await;
        world.store.hold_renewals.store(false, Ordering::SeqCst);
        world.store.renewals_may_go_on.notify_one();
        settle().await;
        world.store.refuse_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE).await;
    };
    assert_answer(run_beside(run, the_only_reply_is_late).await, "the answer", Provenance::Fresh);
    let stopped = stopped.lock().unwrap().expect("the handler was cancelled");
    // Sent after a third of a lease, so the deadline is 1.23 leases after the begin. Counted from the reply it would be
    // 1.7.
    assert!(stopped > LEASE && stopped < LEASE * 7 / 5, "{stopped:?}");
}

#[tokio::test]
async fn a_handler_goes_on_after_the_store_forgot_its_record() {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    world.store.forgets.store(true, Ordering::SeqCst);
    let run = world.run(wait_for_cancellation(&stopped));
    let forget = async {
        world.time.pass(LEASE / 2).await;
        let renewals = world.store.renewals.load(Ordering::SeqCst);
        assert!(renewals > 0 && !stopped.load(Ordering::SeqCst), "a forgotten record is no lost grant");
        world.store.forgets.store(false, Ordering::SeqCst);
        // The store has the record again, for instance after a failover: the lease is renewed as before.
        world.time.pass(LEASE * 3).await;
        assert!(!stopped.load(Ordering::SeqCst));
        world.time.pass(MAX_EXECUTION).await;
    };
    assert_answer(run_beside(run, forget).await, "its own answer", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "its own answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_handler_whose_record_stays_forgotten_goes_on_until_max_execution() {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    world.store.forgets.store(true, Ordering::SeqCst);
    let run = world.run(wait_for_cancellation(&stopped));
    let wait = async {
        // One lease of distance on either side, because the limit is noticed when a renewal is due.
        world.time.pass(MAX_EXECUTION - LEASE).await;
        assert!(
            !stopped.load(Ordering::SeqCst),
            "no other attempt has the key, and the completion recreates the record"
        );
        world.time.pass(LEASE * 2).await;
    };
    assert_answer(run_beside(run, wait).await, "its own answer", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "its own answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_handler_whose_record_was_forgotten_is_cancelled_when_the_store_stops_answering() {
    let world = GateWorld::new();
    let stopped = Arc::<AtomicBool>::default();
    world.store.forgets.store(true, Ordering::SeqCst);
    let run = world.run(wait_for_cancellation(&stopped));
    let wait = async {
        world.time.pass(LEASE * 3).await;
        assert!(!stopped.load(Ordering::SeqCst));
        // From now on another attempt may have the key, and no renewal would say so.
        world.store.forgets.store(false, Ordering::SeqCst);
        world.store.refuse_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE).await;
        assert!(stopped.load(Ordering::SeqCst));
    };
    assert_answer(run_beside(run, wait).await, "its own answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_renewal_that_failed_is_sent_again_at_the_next_check() {
    let world = GateWorld::new();
    world.store.refuse_renewals.store(true, Ordering::SeqCst);
    world.start_and_leave(&Arc::new(Notify::new()), "never").await;
    world.time.pass(LEASE).await;
    // The first one is due after a third of the lease, and the thread checks twelve times a lease.
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    assert!((6..=9).contains(&renewals), "{renewals} renewals in a lease");
}

#[tokio::test]
async fn a_grant_is_given_back_one_timeout_after_a_renewal_that_never_returns() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    let may_end = Arc::clone(&go);
    let run = world.run(move |_| async move {
        may_end.notified().await;
        Err(Failure::unknown(io::Error::other("who knows")))
    });
    let meanwhile = async {
        settle().await;
        world.store.inject(StoreMethod::Renew, CallFault::Hang);
        world.time.pass(LEASE / 2).await;
        assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1);
        go.notify_one();
        // The timeout of the store is a second, and the renewal was sent before the handler ended.
        world.time.pass(Duration::from_secs(1)).await;
    };
    let result = run_beside(run, meanwhile).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{result:?}");
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, holding) if holding.is_abandoned()));
}

#[expect(clippy::disallowed_methods, reason = "the only test in real time, with its own threads")]
/// The only test in real time: the handler blocks the only thread of its executor for longer than its lease.
#[test]
fn a_blocked_executor_does_not_lose_its_lease() {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    executor.block_on(async {
        let store = Arc::new(Memory::new());
        let gate = Gate::builder(Arc::clone(&store) as _, settings(OnLapse::Hold)).build().unwrap();
        let ran = gate.run(call(), |_| async {
            let started = Instant::now();
            while started.elapsed() < LEASE * 2 {
                std::hint::spin_loop();
            }
            Ok(String::from("the answer"))
        });
        let other = std::thread::spawn({
            let store = Arc::clone(&store);
            move || lapses_within(&store, LEASE * 2)
        });
        assert_answer(ran.await, "the answer", Provenance::Fresh);
        assert!(!other.join().unwrap(), "the lease expired while the executor was blocked");
    });
}

#[expect(clippy::disallowed_methods, reason = "polls in real time")]
/// Whether the lease of the record expires within this time, as another process sees it.
fn lapses_within(store: &Memory, time: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < time {
        let seen = futures_util::FutureExt::now_or_never(store.read(&call().record_key())).unwrap().unwrap();
        if matches!(seen.live().map(|record| &record.state), Some(State::Open(Phase::InProgress, _)))
            && !seen.is_running()
        {
            return true;
        }
        std::thread::yield_now();
    }
    false
}
