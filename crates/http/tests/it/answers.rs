//! First answers, replays, running requests, long and broken responses.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::gate::Attempt;
use http::Response;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use crate::world::{BodyEnd, LIMIT, ScriptedBody, World, created, post, status};

#[tokio::test]
async fn a_retry_gets_the_same_answer_byte_for_byte_h15() {
    let world = World::new();
    let first = world.send(post("k", "{}"), || created("{\"charge\": 1}")).await;
    let retry = world.send(post("k", "{}"), || created("{\"charge\": 2}")).await;
    assert_eq!((first.status, &first.body), (retry.status, &retry.body));
    assert_eq!(retry.headers["location"], "/charges/1");
    assert!(!first.is_replay() && retry.is_replay());
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_cookie_is_sent_to_the_first_caller_only_h16() {
    let world = World::new();
    assert!(world.send(post("k", "{}"), || created("1")).await.headers.contains_key("set-cookie"));
    assert!(!world.send(post("k", "{}"), || created("1")).await.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn an_empty_answer_is_an_answer_h20() {
    let world = World::new();
    for replayed in [false, true] {
        let got = world.send(post("k", "{}"), || Response::builder().status(204).body("".into()).unwrap()).await;
        assert_eq!((got.status.as_u16(), got.body.len(), got.is_replay()), (204, 0, replayed));
    }
}

#[tokio::test]
async fn a_copy_of_a_running_request_gets_409_with_retry_after_h17() {
    let world = World::new();
    let permit = Arc::new(Semaphore::new(0));
    let (leader_world, allowed) = (world.clone(), Arc::clone(&permit));
    let first = tokio::spawn(async move {
        let handler = |_| async move {
            allowed.acquire().await.unwrap().forget();
            Ok(created("1"))
        };
        leader_world.send_to(post("k", "{}"), handler).await
    });
    world.wait_for_handler().await;
    let copy = world.send(post("k", "{}"), || created("2")).await;
    assert_eq!((copy.status.as_u16(), copy.problem().as_str()), (409, "in-progress"));
    // The remaining lease, but one second or two, depending on the record key.
    assert!(["1", "2"].contains(&copy.headers["retry-after"].to_str().unwrap()));
    let other = world.send(post("k", "{\"other\":1}"), || created("2")).await;
    assert_eq!(other.problem(), "key-reused", "the payload is compared while the first request runs");
    permit.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_disconnected_caller_does_not_stop_the_handler_h13() {
    let world = World::new();
    let permit = Arc::new(Semaphore::new(0));
    let (leader_world, allowed) = (world.clone(), Arc::clone(&permit));
    let first = tokio::spawn(async move {
        let handler = |_| async move {
            allowed.acquire().await.unwrap().forget();
            Ok(created("1"))
        };
        leader_world.send_to(post("k", "{}"), handler).await
    });
    world.wait_for_handler().await;
    first.abort();
    assert!(first.await.is_err(), "the task of the caller was cancelled");
    permit.add_permits(1);
    // Until the handler has ended, a copy gets 409.
    let retry = loop {
        let retry = world.send(post("k", "{}"), || created("2")).await;
        if retry.status != 409 {
            break retry;
        }
    };
    assert_eq!((&retry.body[..], retry.is_replay(), world.runs()), (&b"1"[..], true, 1));
}

#[tokio::test]
async fn an_answer_over_the_limit_is_passed_on_and_its_request_never_runs_again_h19() {
    let world = World::new();
    let piece: &'static str = "0123456789abcdef";
    let large = || Response::new(ScriptedBody { pieces: vec![piece; 2 * LIMIT / piece.len()], end: BodyEnd::Clean });
    let first = world.send(post("k", "{}"), large).await;
    assert_eq!((first.status.as_u16(), first.body), (200, Bytes::from(piece.repeat(2 * LIMIT / piece.len()))));
    let retry = world.send(post("k", "{}"), large).await;
    assert_eq!((retry.status.as_u16(), retry.problem().as_str(), world.runs()), (409, "not-replayable", 1));
}

#[tokio::test]
async fn an_answer_of_exactly_the_limit_is_replayed_h19() {
    let world = World::new();
    let long = || Response::new(ScriptedBody { pieces: vec!["0123456789abcdef"; LIMIT / 16], end: BodyEnd::Clean });
    world.send(post("k", "{}"), long).await;
    let retry = world.send(post("k", "{}"), long).await;
    assert!(retry.is_replay() && retry.body.len() == LIMIT);
}

#[tokio::test]
async fn an_event_stream_is_passed_on_and_its_request_never_runs_again_h19() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let world = World::new();
        // The stream has no piece and no end, so a layer that reads the body first would hang.
        let events = move || {
            let pieces = ScriptedBody { pieces: vec![], end: BodyEnd::Never };
            Response::builder().header("content-type", content_type).body(pieces).unwrap()
        };
        let head = world.head(post("k", "{}"), events).await;
        assert_eq!(head.status, 200, "{content_type}");
        assert_eq!(world.send(post("k", "{}"), events).await.problem(), "not-replayable", "{content_type}");
    }
}

#[tokio::test]
async fn a_broken_response_leaves_the_outcome_unknown_h27() {
    let world = World::new();
    let cut = || Response::new(ScriptedBody { pieces: vec!["half"], end: BodyEnd::Broken });
    let first = world.send(post("k", "{}"), cut).await;
    assert_eq!((first.status.as_u16(), first.problem().as_str()), (502, "upstream-cut"));
    let retry = world.send(post("k", "{}"), || created("2")).await;
    assert_eq!((retry.status.as_u16(), retry.problem().as_str(), world.runs()), (409, "outcome-unknown", 1));
}

#[tokio::test]
async fn the_handler_receives_the_whole_body_and_its_attempt_h14() {
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
