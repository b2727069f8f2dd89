use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hapax_core::gate::Attempt;
use http::Response;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use crate::world::{End, LIMIT, Scripted, World, created, post, status};

#[tokio::test]
async fn a_retry_gets_the_same_answer_byte_for_byte_h15() {
    let world = World::new();
    let first = world.send(post("k", "{}"), || created("{\"charge\": 1}")).await;
    let retry = world.send(post("k", "{}"), || created("{\"charge\": 2}")).await;
    assert_eq!((first.status, &first.body), (retry.status, &retry.body));
    assert_eq!(retry.headers["location"], "/charges/1");
    assert!(!first.replayed() && retry.replayed());
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_cookie_reaches_the_first_caller_alone_h16() {
    let world = World::new();
    assert!(world.send(post("k", "{}"), || created("1")).await.headers.contains_key("set-cookie"));
    assert!(!world.send(post("k", "{}"), || created("1")).await.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn an_empty_answer_is_an_answer_h20() {
    let world = World::new();
    for replayed in [false, true] {
        let got = world.send(post("k", "{}"), || Response::builder().status(204).body("".into()).unwrap()).await;
        assert_eq!((got.status.as_u16(), got.body.len(), got.replayed()), (204, 0, replayed));
    }
}

#[tokio::test]
async fn a_copy_that_comes_while_the_first_runs_is_told_to_come_back_h17() {
    let world = World::new();
    let open = Arc::new(Semaphore::new(0));
    let (inside, door) = (world.clone(), Arc::clone(&open));
    let first = tokio::spawn(async move {
        let handler = |_| async move {
            door.acquire().await.unwrap().forget();
            Ok(created("1"))
        };
        inside.send_to(post("k", "{}"), handler).await
    });
    while world.runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let twin = world.send(post("k", "{}"), || created("2")).await;
    assert_eq!((twin.status.as_u16(), twin.problem().as_str()), (409, "in-progress"));
    assert!(["1", "2"].contains(&twin.headers["retry-after"].to_str().unwrap()));
    let other = world.send(post("k", "{\"other\":1}"), || created("2")).await;
    assert_eq!(other.problem(), "key-reused", "also while the first still runs");
    open.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_caller_who_goes_away_stops_nothing_h13() {
    let world = World::new();
    let open = Arc::new(Semaphore::new(0));
    let (inside, door) = (world.clone(), Arc::clone(&open));
    let first = tokio::spawn(async move {
        let handler = |_| async move {
            door.acquire().await.unwrap().forget();
            Ok(created("1"))
        };
        inside.send_to(post("k", "{}"), handler).await
    });
    while world.runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.is_err(), "the caller is gone");
    open.add_permits(1);
    let retry = loop {
        let retry = world.send(post("k", "{}"), || created("2")).await;
        if retry.status != 409 {
            break retry;
        }
    };
    assert_eq!((&retry.body[..], retry.replayed(), world.runs()), (&b"1"[..], true, 1));
}

#[tokio::test]
async fn an_answer_over_the_cap_is_passed_on_whole_and_never_run_again_h19() {
    let world = World::new();
    let piece: &'static str = "0123456789abcdef";
    let large = || Response::new(Scripted { pieces: vec![piece; 2 * LIMIT / piece.len()], end: End::Clean });
    let first = world.send(post("k", "{}"), large).await;
    assert_eq!((first.status.as_u16(), first.body), (200, Bytes::from(piece.repeat(2 * LIMIT / piece.len()))));
    let retry = world.send(post("k", "{}"), large).await;
    assert_eq!((retry.status.as_u16(), retry.problem().as_str(), world.runs()), (409, "not-replayable", 1));
}

#[tokio::test]
async fn an_answer_as_long_as_the_cap_is_kept_h19() {
    let world = World::new();
    let long = || Response::new(Scripted { pieces: vec!["0123456789abcdef"; LIMIT / 16], end: End::Clean });
    world.send(post("k", "{}"), long).await;
    let retry = world.send(post("k", "{}"), long).await;
    assert!(retry.replayed() && retry.body.len() == LIMIT);
}

#[tokio::test]
async fn a_stream_of_events_is_passed_on_and_never_run_again_h19() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let world = World::new();
        // It never ends: whoever waited for its end, or for its first piece, would wait for ever.
        let events = move || {
            let pieces = Scripted { pieces: vec![], end: End::Never };
            Response::builder().header("content-type", content_type).body(pieces).unwrap()
        };
        let head = world.head(post("k", "{}"), events).await;
        assert_eq!(head.status, 200, "{content_type}");
        assert_eq!(world.send(post("k", "{}"), events).await.problem(), "not-replayable", "{content_type}");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_leaves_the_outcome_unknown_h27() {
    let world = World::new();
    let cut = || Response::new(Scripted { pieces: vec!["half"], end: End::Broken });
    let first = world.send(post("k", "{}"), cut).await;
    assert_eq!((first.status.as_u16(), first.problem().as_str()), (502, "upstream-cut"));
    let retry = world.send(post("k", "{}"), || created("2")).await;
    assert_eq!((retry.status.as_u16(), retry.problem().as_str(), world.runs()), (409, "outcome-unknown", 1));
}

#[tokio::test]
async fn the_handler_gets_the_whole_body_and_its_attempt_h14() {
    let world = World::new();
    let got = world
        .send_to(post("k", "{\"amount\":5}"), |request| async move {
            let (head, body) = request.into_parts();
            let attempt: Attempt = head.extensions.get().cloned().expect("an attempt");
            assert_eq!((attempt.number(), attempt.operation()), (1, attempt.record_key().operation()));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "{\"amount\":5}");
            Ok(status(200))
        })
        .await;
    assert_eq!(got.status, 200);
}
