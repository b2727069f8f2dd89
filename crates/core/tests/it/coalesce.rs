//! Copies of a call in flight in the same process.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use futures_util::future::{Either, join, join_all, select};
use hapax_core::gate::{Failure, Provenance, Reason, Recorded, Refused};
use hapax_core::journal::MemoryJournal;
use hapax_core::store::Memory;
use hapax_core::{Error, ErrorKind, Gate, Identity, OnBusy, OnLapse, OnStoreDown, Repeatable, Rule, Settings};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::settle;
use crate::world::{
    CallFault, GateWorld, LEASE, assert_answer, call, call_of, count_begins, poll_once_and_drop, run_beside,
    run_call_with_answer, run_on, settings, with_journal,
};

#[tokio::test]
async fn fifty_copies_run_the_handler_once() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    let copies = (0..50).map(|_| {
        let go = Arc::clone(&go);
        world.run(move |_| async move {
            go.notified().await;
            Ok(String::from("the answer"))
        })
    });
    let release = async {
        settle().await;
        go.notify_one();
    };
    // `release` waits until every copy is in flight, and only then lets the leader end.
    let (results, ()) = join(join_all(copies), release).await;

    assert_eq!(world.runs(), 1);
    let mut fresh = 0;
    for result in results {
        if let Err(Refused { reason: Reason::Busy { retry_after }, .. }) = result {
            assert!(retry_after <= LEASE, "{retry_after:?}");
        } else {
            assert_answer(result, "the answer", Provenance::Fresh);
            fresh += 1;
        }
    }
    assert_eq!(fresh, 1);
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_copy_from_another_origin_gets_the_answer_of_its_leader() {
    for (on_busy, waits) in [(OnBusy::Reject, false), (OnBusy::Wait(LEASE), true)] {
        let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = on_busy);
        let go = Arc::new(Notify::new());
        let released = Arc::clone(&go);
        let first = world.gate.run(call().origin(1), move |_| async move {
            released.notified().await;
            Ok(String::from("the answer"))
        });
        // A client that changed its network sends the same request again while the first one runs.
        let copy = async {
            settle().await;
            let copy = world.gate.run(call().origin(2), |_| async { Ok(String::from("another")) });
            let release = async {
                settle().await;
                go.notify_one();
            };
            join(copy, release).await.0
        };
        let (first, copy) = join(first, copy).await;
        assert_answer(first, "the answer", Provenance::Fresh);
        match copy {
            Err(Refused { reason: Reason::Busy { .. }, .. }) if !waits => {}
            copy => assert_answer(copy, "the answer", Provenance::Replayed),
        }
    }
}

#[test]
fn fifty_copies_on_two_threads_run_the_handler_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let store = Memory::new();
        let gate = Gate::builder(Arc::new(store), Settings::default()).build().unwrap();
        let runs = Arc::<AtomicU32>::default();
        let answer = |_| async { Ok(String::from("the answer")) };
        let results = join_all((0..50).map(|_| run_on(gate.clone(), Arc::clone(&runs), answer))).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        for result in results {
            let has_answer = matches!(&result, Ok(ran) if ran.answer == "the answer");
            assert!(has_answer || matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
        }
    });
}

#[tokio::test]
async fn waiting_followers_share_one_begin_and_one_answer() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let followers = join_all((0..20).map(|_| world.run_with_answer("a second run")));
    let release = async {
        settle().await;
        go.notify_one();
    };
    let (followers, ()) = join(followers, release).await;
    for follower in followers {
        assert_answer(follower, "the answer", Provenance::Replayed);
    }
    assert_eq!((world.runs(), count_begins(&world)), (1, 1));
}

#[tokio::test]
async fn a_follower_waits_no_longer_than_its_budget() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    world.start_and_leave(&Arc::new(Notify::new()), "the answer").await;
    let result = run_beside(world.run_with_answer("a second run"), world.time.pass(LEASE)).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
}

#[tokio::test]
async fn a_follower_that_does_not_wait_sends_no_begin() {
    let world = GateWorld::new();
    world.start_and_leave(&Arc::new(Notify::new()), "the answer").await;
    for _ in 0..3 {
        let result = world.run_with_answer("a second run").await;
        assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    }
    assert_eq!((world.runs(), count_begins(&world)), (1, 1));
}

#[tokio::test]
async fn after_a_leader_that_applied_nothing_a_follower_begins_for_itself() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let (go, started) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (may_end, has_started) = (Arc::clone(&go), Arc::clone(&started));
    let leader = world.run(move |_| async move {
        has_started.notify_one();
        may_end.notified().await;
        Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined")))
    });
    let follower = async {
        started.notified().await;
        go.notify_one();
        world.run_with_answer("the answer").await
    };
    let (leader, follower) = join(leader, follower).await;
    assert!(matches!(leader, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{leader:?}");
    assert_answer(follower, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_follower_of_a_leader_with_unknown_outcome_gets_unknown() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let (go, started) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (may_end, has_started) = (Arc::clone(&go), Arc::clone(&started));
    let leader = world.run(move |_| async move {
        has_started.notify_one();
        may_end.notified().await;
        Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off")))
    });
    let follower = async {
        started.notified().await;
        let follower = world.run_with_answer("a second run");
        let release = async {
            settle().await;
            go.notify_one();
        };
        join(follower, release).await.0
    };
    let (leader, follower) = join(leader, follower).await;
    assert!(matches!(leader, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{leader:?}");
    assert!(matches!(follower, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{follower:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_follower_beyond_the_limit_gets_busy() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_busy = OnBusy::Wait(LEASE * 10);
        settings.max_followers_per_key = 2;
    });
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let waiting = join_all((0..2).map(|_| world.run_with_answer("a second run")));
    let third = async {
        settle().await;
        let third = world.run_with_answer("a second run").await;
        go.notify_one();
        third
    };
    // The two that wait are polled first, so the third is the one beyond the limit.
    let (waiting, third) = join(waiting, third).await;
    assert!(matches!(third, Err(Refused { reason: Reason::Busy { .. }, .. })), "{third:?}");
    for follower in waiting {
        assert_answer(follower, "the answer", Provenance::Replayed);
    }
}

#[tokio::test]
async fn another_payload_while_the_first_runs_is_refused_without_a_begin() {
    let world = GateWorld::new();
    world.start_and_leave(&Arc::new(Notify::new()), "the answer").await;
    let other = call().fingerprint(Identity::plain().fingerprint(Rule(1), &[b"another payload"]));
    let result = run_call_with_answer(&world.gate, other).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Mismatch, .. })), "{result:?}");
    assert_eq!(count_begins(&world), 1);
}

#[tokio::test]
async fn a_follower_of_a_call_without_a_record_gets_recorded_no() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    world.store.down.store(true, Ordering::SeqCst);
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let release = async {
        settle().await;
        go.notify_one();
    };
    let ran = run_beside(world.run_with_answer("a second run"), release).await.unwrap();
    assert_eq!((ran.answer.as_str(), ran.provenance, ran.recorded), ("the answer", Provenance::Replayed, Recorded::No));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_follower_of_a_spilled_answer_gets_recorded_pending() {
    let mut world = GateWorld::new();
    let mut wait = settings(OnLapse::Hold);
    wait.policy.on_busy = OnBusy::Wait(LEASE * 5);
    world.gate = with_journal(&world, &Arc::new(MemoryJournal::new())).with(&wait.policy).unwrap();
    world.store.refuse_all_after_begin(true);
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let meanwhile = async {
        settle().await;
        go.notify_one();
        world.time.pass(LEASE * 3).await;
    };
    let follower = run_beside(world.run_with_answer("a second run"), meanwhile).await.expect("the call has an answer");
    assert_eq!(
        (follower.answer.as_str(), follower.provenance, follower.recorded),
        ("the answer", Provenance::Replayed, Recorded::Pending)
    );
}

#[tokio::test]
async fn a_follower_gets_no_answer_that_is_not_recorded() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE * 5));
    world.store.refuse_all_after_begin(true);
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let meanwhile = async {
        settle().await;
        go.notify_one();
        world.time.pass(LEASE * 3).await;
    };
    let follower = run_beside(world.run_with_answer("a second run"), meanwhile).await;
    assert!(matches!(follower, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{follower:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_follower_waits_no_longer_once_waits_end() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE * 10));
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let end = async {
        settle().await;
        world.gate.end_waits();
    };
    let waiting = run_beside(world.run_with_answer("never"), end).await;
    let later = world.run_with_answer("never").now_or_never().expect("a later copy does not wait");
    for refused in [waiting, later] {
        assert!(matches!(refused, Err(Refused { reason: Reason::Busy { .. }, .. })), "{refused:?}");
    }
    go.notify_one();
    settle().await;
    assert_answer(world.run_with_answer("never").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn the_limit_of_all_followers_counts_those_that_wait_now() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_busy = OnBusy::Wait(LEASE * 10);
        settings.max_followers = 2;
    });
    for round in 0..3 {
        let go = Arc::new(Notify::new());
        let keys = ["a", "b", "c"].map(|key| call_of("acme", &format!("{key}-{round}")));
        for call in keys {
            let go = Arc::clone(&go);
            let run = world.gate.clone();
            let leader = async move {
                run.run(call, move |_| async move {
                    go.notified().await;
                    Ok(String::from("the answer"))
                })
                .await
            };
            poll_once_and_drop(leader).await;
        }
        settle().await;
        let waiting = join_all(keys[..2].iter().map(|call| run_call_with_answer(&world.gate, *call)));
        let third = async {
            settle().await;
            let third = run_call_with_answer(&world.gate, keys[2]).now_or_never();
            go.notify_waiters();
            third.expect("a call beyond the limit does not wait")
        };
        let (waiting, third) = join(waiting, third).await;
        assert!(matches!(third, Err(Refused { reason: Reason::Busy { .. }, .. })), "round {round}: {third:?}");
        for follower in waiting {
            assert_answer(follower, "the answer", Provenance::Replayed);
        }
    }
}

#[tokio::test]
async fn the_followers_of_a_leader_that_dies_in_its_begin_begin_for_themselves() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    world.store.inject(StoreMethod::Begin, CallFault::Hang);
    world.start_and_leave(&Arc::new(Notify::new()), "never").await;
    let follower = world.run_with_answer("the answer");
    let die = async {
        settle().await;
        world.store.heal(StoreMethod::Begin);
        world.time.abort_all().await;
    };
    assert_answer(join(follower, die).await.0, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn the_begin_of_its_leader_counts_against_the_budget_of_a_follower() {
    let world = GateWorld::new().with_settings(|settings| {
        settings.policy.on_busy = OnBusy::Wait(LEASE * 3);
        // The begin takes two seconds, and must neither time out nor come too late.
        (settings.store_timeout, settings.policy.lease) = (LEASE * 10, LEASE * 10);
    });
    world.store.inject(StoreMethod::Begin, CallFault::Wait);
    world.start_and_leave(&Arc::new(Notify::new()), "never").await;
    let meanwhile = async {
        world.time.pass(LEASE * 2).await;
        world.store.may_go_on.notify_one();
        world.time.pass(LEASE * 3 / 2).await;
    };
    let result = run_beside(world.run_with_answer("a second run"), meanwhile).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_call_that_follows_several_leaders_has_one_budget() {
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE * 3));
    let go = Arc::new(Notify::new());
    let not_applied = |go: Arc<Notify>| {
        world.run(move |_| async move {
            go.notified().await;
            Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined")))
        })
    };
    poll_once_and_drop(not_applied(Arc::clone(&go))).await;
    settle().await;
    // The first follower becomes the next leader. The second one follows both of them.
    let next = not_applied(Arc::new(Notify::new()));
    let follower = world.run_with_answer("never");
    let meanwhile = async {
        world.time.pass(LEASE * 2).await;
        go.notify_one();
        world.time.pass(LEASE * 3 / 2).await;
    };
    let follower = async { run_beside(follower, meanwhile).await };
    let (next, follower) = (pin!(next), pin!(follower));
    let Either::Right((result, _)) = select(next, follower).await else { panic!("the second leader does not end") };
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
}
