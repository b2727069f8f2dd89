//! Responses while the store fails, a record is damaged, or too many requests run.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::journal::MemoryJournal;
use hapax_core::runtime::Tokio;
use hapax_core::{ErrorKind, Gate, OnBusy, OnStoreDown, Repeatable, Settings};
use hapax_testkit::{Faulty, StoreFault};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Response};
use tokio::sync::Semaphore;

use crate::world::{BodyEnd, InnerResponse, ReceivedResponse, ScriptedBody, World, created, memory, post, status};

/// A body over the limit for stored bodies.
const LONG: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0";

/// A world whose store can fail. The heartbeat has already made call 0, for a handle of its own, so the calls of the
/// first request are [`BEGIN`] and [`COMPLETE`].
async fn faulty(settings: Settings) -> (World, Arc<Faulty>) {
    let store = Faulty::new(memory(), Arc::new(Tokio::current()), Duration::from_secs(30));
    let gate = Gate::builder(Arc::clone(&store) as _, settings).journal(Arc::new(MemoryJournal::new()));
    let world = World::with_gate(gate.build().unwrap());
    while store.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    (world, store)
}

/// The number of the store call that a request makes to begin, and of the one to complete.
const BEGIN: usize = 1;
const COMPLETE: usize = 2;

#[tokio::test]
async fn no_request_runs_while_the_store_is_down_h28() {
    let (world, store) = faulty(Settings::default()).await;
    store.inject_all(0..100, StoreFault::FailBefore(ErrorKind::NotApplied));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (503, "store-unavailable"));
    assert!(got.headers.contains_key("retry-after") && world.runs() == 0);
    store.heal();
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.status, 201);
}

/// A world whose store is down, and whose route runs requests without a record.
async fn unrecorded_world(on_busy: OnBusy) -> World {
    let mut settings = Settings::default();
    settings.policy.on_store_down =
        OnStoreDown::Pass(Repeatable::declared("the service behind the layer has a ledger"));
    settings.policy.on_busy = on_busy;
    let (world, store) = faulty(settings).await;
    store.inject_all(0..100, StoreFault::FailBefore(ErrorKind::NotApplied));
    world
}

/// Whether a response is marked as unrecorded and has no expiry.
fn is_unrecorded(got: &ReceivedResponse) -> bool {
    !got.headers.contains_key("idempotency-key-expires")
        && got.headers.get("hapax-unrecorded").is_some_and(|value| value == "true")
}

#[tokio::test]
async fn a_route_may_run_requests_unrecorded_while_the_store_is_down_h28() {
    let world = unrecorded_world(OnBusy::Reject).await;
    // Applied, final, not applied, denied, unknown: each response is passed on, and the next copy runs again.
    for (runs, code) in [(1, 201), (2, 404), (3, 429), (4, 401), (5, 500)] {
        let got = world.send(post("k", "{}"), move || status(code)).await;
        assert_eq!((got.status.as_u16(), &*got.body, world.runs()), (code, &b"text"[..], runs));
        assert!(is_unrecorded(&got), "{code}");
    }
}

#[tokio::test]
async fn a_failed_run_without_a_record_is_marked_unrecorded_h28() {
    let world = unrecorded_world(OnBusy::Reject).await;
    let cut = || Response::new(ScriptedBody { pieces: vec!["half"], end: BodyEnd::Broken });
    let got = world.send(post("k", "{}"), cut).await;
    assert!(got.problem() == "upstream-cut" && is_unrecorded(&got));
    let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
    assert!(got.problem() == "outcome-unknown" && is_unrecorded(&got));
    let got = world.send(post("k", "{}"), || created(LONG)).await;
    assert!(got.status == 201 && got.body == LONG && is_unrecorded(&got));
    assert_eq!(world.runs(), 3);
}

type Handler = fn() -> InnerResponse;

#[tokio::test]
async fn a_follower_of_a_run_without_a_record_is_marked_unrecorded_h28() {
    const ANSWERS: [(Handler, &str); 3] =
        [(|| created("1"), "replayed"), (|| created(LONG), "not-replayable"), (|| status(500), "outcome-unknown")];
    for (answer, expected) in ANSWERS {
        let world = unrecorded_world(OnBusy::Wait(Duration::from_secs(60))).await;
        let released = Arc::new(Semaphore::new(0));
        let (leader_world, permit) = (world.clone(), Arc::clone(&released));
        let first = tokio::spawn(async move {
            let handler = move |_| async move {
                permit.acquire().await.expect("open").forget();
                Ok(answer())
            };
            leader_world.send_to(post("k", "{}"), handler).await
        });
        world.wait_for_handler().await;
        // The copy is polled first, so it is a follower before the leader may end.
        let (copy, ()) = tokio::join!(world.send(post("k", "{}"), || created("a second run")), async {
            tokio::task::yield_now().await;
            released.add_permits(1);
        });
        let first = first.await.expect("no panic");
        assert_eq!((first.status, world.runs()), (answer().status(), 1));
        let copy_is = if copy.is_replay() { "replayed".to_owned() } else { copy.problem() };
        assert_eq!(copy_is, expected);
        assert!(is_unrecorded(&first) && is_unrecorded(&copy), "{expected}");
    }
}

#[tokio::test]
async fn a_recorded_run_is_not_marked_unrecorded_h28() {
    for code in [201, 404, 429, 401, 500] {
        let world = World::new();
        for _ in 0..2 {
            let got = world.send(post("k", "{}"), move || status(code)).await;
            assert!(!got.headers.contains_key("hapax-unrecorded"), "{code}");
        }
    }
}

#[tokio::test]
async fn requests_over_the_limit_get_overloaded_h29() {
    let mut settings = Settings::default();
    settings.max_in_flight = 1;
    let world = World::with_settings(memory(), settings);
    let inside = world.clone();
    let first = tokio::spawn(async move { inside.send_to(post("k", "{}"), |_| std::future::pending()).await });
    world.wait_for_handler().await;
    let got = world.send(post("another", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (503, "overloaded"));
    assert!(got.headers.contains_key("retry-after"));
    first.abort();
}

#[tokio::test]
async fn an_answer_with_a_pending_record_is_marked_h30() {
    let (world, store) = faulty(Settings::default()).await;
    store.inject(COMPLETE, StoreFault::FailBefore(ErrorKind::Unusable));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), &got.headers["hapax-recorded"]), (201, &HeaderValue::from_static("pending")));
    assert!(got.headers.contains_key("idempotency-key-expires"));
}

#[tokio::test]
async fn a_key_that_another_caller_has_used_costs_the_store_calls_of_a_new_key_h6() {
    let (world, store) = faulty(Settings::default()).await;
    let send = async |caller: &str, key: &'static str| {
        let before = store.calls().len();
        let mut request = post(key, "{}");
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::try_from(caller).expect("a field value"));
        let got = world.send(request, || created("1")).await;
        (got.status, got.is_replay(), store.calls().split_off(before))
    };
    let first = send("victim", "used").await;
    assert_eq!(send("attacker", "used").await, first);
    assert_eq!(send("attacker", "new").await, first);
}

#[tokio::test]
async fn an_answer_without_record_and_journal_is_not_returned_h30() {
    let store = Faulty::new(memory(), Arc::new(Tokio::current()), Duration::from_secs(30));
    let world = World::over(Arc::clone(&store) as _);
    // The heartbeat's call must come first, otherwise the fault hits another call.
    while store.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    store.inject(COMPLETE, StoreFault::FailBefore(ErrorKind::Unusable));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (500, "outcome-unrecorded"));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_damaged_record_does_not_count_as_absent_h31() {
    let mut settings = Settings::default();
    for on_store_down in [OnStoreDown::Reject, OnStoreDown::Pass(Repeatable::declared("the service has a ledger"))] {
        settings.policy.on_store_down = on_store_down;
        let (world, store) = faulty(settings.clone()).await;
        store.inject_all(BEGIN..100, StoreFault::FailBefore(ErrorKind::Damaged));
        // More often than a store that is down may fail before its begins are refused.
        for _ in 0..10 {
            let got = world.send(post("k", "{}"), || created("1")).await;
            assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (500, "record-damaged", 0));
        }
    }
}
