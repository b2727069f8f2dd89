//! What a client sees while records cannot be reached, read or written, or while there is too much to do.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::journal::MemoryJournal;
use hapax_core::runtime::Tokio;
use hapax_core::{ErrorKind, Gate, OnBusy, OnStoreDown, Repeatable, Settings};
use hapax_testkit::{Faulty, StoreFault};
use http::{HeaderValue, Response};
use tokio::sync::Semaphore;

use crate::world::{Answer, End, Got, Scripted, World, created, memory, post, status};

/// Longer than what is kept.
const LONG: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0";

/// A world whose store can fail. Its first call to the store is to ask for the heartbeat's handle, and is over.
async fn faulty(settings: Settings) -> (World, Arc<Faulty>) {
    let store = Faulty::new(memory(), Arc::new(Tokio::current()), Duration::from_secs(30));
    let gate = Gate::builder(Arc::clone(&store) as _, settings).journal(Arc::new(MemoryJournal::new()));
    let world = World::of(gate.build().unwrap());
    while store.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    (world, store)
}

const BEGIN: usize = 1;
const COMPLETE: usize = 2;

#[tokio::test]
async fn while_the_store_is_down_nothing_runs_h28() {
    let (world, store) = faulty(Settings::default()).await;
    store.inject_all(0..100, StoreFault::FailBefore(ErrorKind::NotApplied));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (503, "store-unavailable"));
    assert!(got.headers.contains_key("retry-after") && world.runs() == 0);
    store.heal();
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.status, 201);
}

/// A world whose store is down, and whose route lets requests run all the same.
async fn passing(on_busy: OnBusy) -> World {
    let mut settings = Settings::default();
    settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the service behind has a ledger"));
    settings.policy.on_busy = on_busy;
    let (world, store) = faulty(settings).await;
    store.inject_all(0..100, StoreFault::FailBefore(ErrorKind::NotApplied));
    world
}

/// Whether a response says that there is no record of it, and promises no further answer.
fn is_unrecorded(got: &Got) -> bool {
    !got.headers.contains_key("idempotency-key-expires")
        && got.headers.get("hapax-unrecorded").is_some_and(|value| value == "true")
}

#[tokio::test]
async fn a_route_may_let_requests_run_unrecorded_while_the_store_is_down_h28() {
    let world = passing(OnBusy::Reject).await;
    // Applied, final, not applied, denied, unknown: each is passed on, and the next copy runs again.
    for (runs, code) in [(1, 201), (2, 404), (3, 429), (4, 401), (5, 500)] {
        let got = world.send(post("k", "{}"), move || status(code)).await;
        assert_eq!((got.status.as_u16(), &*got.body, world.runs()), (code, &b"told"[..], runs));
        assert!(is_unrecorded(&got), "{code}");
    }
}

#[tokio::test]
async fn what_went_wrong_without_a_record_says_so_h28() {
    let world = passing(OnBusy::Reject).await;
    let cut = || Response::new(Scripted { pieces: vec!["half"], end: End::Broken });
    let got = world.send(post("k", "{}"), cut).await;
    assert!(got.problem() == "upstream-cut" && is_unrecorded(&got));
    let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
    assert!(got.problem() == "outcome-unknown" && is_unrecorded(&got));
    let got = world.send(post("k", "{}"), || created(LONG)).await;
    assert!(got.status == 201 && got.body == LONG && is_unrecorded(&got));
    assert_eq!(world.runs(), 3);
}

type Handler = fn() -> Answer;

#[tokio::test]
async fn a_copy_that_waited_for_a_run_without_a_record_hears_that_there_is_none_h28() {
    const ANSWERS: [(Handler, &str); 3] =
        [(|| created("1"), "replayed"), (|| created(LONG), "not-replayable"), (|| status(500), "outcome-unknown")];
    for (answer, told) in ANSWERS {
        let world = passing(OnBusy::Wait(Duration::from_secs(60))).await;
        let go = Arc::new(Semaphore::new(0));
        let (inside, let_go) = (world.clone(), Arc::clone(&go));
        let first = tokio::spawn(async move {
            let handler = move |_| async move {
                let_go.acquire().await.expect("open").forget();
                Ok(answer())
            };
            inside.send_to(post("k", "{}"), handler).await
        });
        while world.runs() == 0 {
            tokio::task::yield_now().await;
        }
        let (copy, ()) = tokio::join!(world.send(post("k", "{}"), || created("a second run")), async {
            tokio::task::yield_now().await;
            go.add_permits(1);
        });
        let first = first.await.expect("no panic");
        assert_eq!((first.status, world.runs()), (answer().status(), 1));
        let copy_is = if copy.replayed() { "replayed".to_owned() } else { copy.problem() };
        assert_eq!(copy_is, told);
        assert!(is_unrecorded(&first) && is_unrecorded(&copy), "{told}");
    }
}

#[tokio::test]
async fn with_a_record_nothing_says_that_there_is_none_h28() {
    for code in [201, 404, 429, 401, 500] {
        let world = World::new();
        for _ in 0..2 {
            let got = world.send(post("k", "{}"), move || status(code)).await;
            assert!(!got.headers.contains_key("hapax-unrecorded"), "{code}");
        }
    }
}

#[tokio::test]
async fn more_requests_than_are_allowed_are_turned_away_h29() {
    let mut settings = Settings::default();
    settings.max_in_flight = 1;
    let world = World::under(memory(), settings);
    let inside = world.clone();
    let first = tokio::spawn(async move { inside.send_to(post("k", "{}"), |_| std::future::pending()).await });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let got = world.send(post("another", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (503, "overloaded"));
    assert!(got.headers.contains_key("retry-after"));
    first.abort();
}

#[tokio::test]
async fn an_answer_that_is_not_recorded_yet_says_so_h30() {
    let (world, store) = faulty(Settings::default()).await;
    store.inject(COMPLETE, StoreFault::FailBefore(ErrorKind::Unusable));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), &got.headers["hapax-recorded"]), (201, &HeaderValue::from_static("pending")));
    assert!(got.headers.contains_key("idempotency-key-expires"));
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_or_kept_is_not_given_h30() {
    let store = Faulty::new(memory(), Arc::new(Tokio::current()), Duration::from_secs(30));
    let world = World::on(Arc::clone(&store) as _);
    while store.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    store.inject(COMPLETE, StoreFault::FailBefore(ErrorKind::Unusable));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str()), (500, "outcome-unrecorded"));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_never_taken_for_none_h31() {
    let (world, store) = faulty(Settings::default()).await;
    store.inject(BEGIN, StoreFault::FailBefore(ErrorKind::Damaged));
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (500, "record-damaged", 0));
}
