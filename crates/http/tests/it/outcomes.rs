//! The outcome of each status, declared outcomes, and what a copy gets after each.

use hapax_http::{Outcome, StatusOutcomes};
use http::Response;

use crate::world::{BodyEnd, InnerResponse, LIMIT, ScriptedBody, World, created, post, status};

/// The status and the body of the response.
async fn send(world: &World, answer: impl FnOnce() -> InnerResponse + Clone + Send + 'static) -> (u16, String) {
    let got = world.send(post("k", "{}"), answer).await;
    (got.status.as_u16(), String::from_utf8(got.body.into()).expect("text"))
}

#[tokio::test]
async fn a_response_that_means_not_applied_is_passed_on_and_a_copy_runs_h22() {
    for code in [401, 403, 425, 429] {
        let world = World::new();
        assert_eq!(send(&world, move || status(code)).await, (code, "text".into()));
        assert_eq!(send(&world, || created("1")).await, (201, "1".into()), "after {code}");
    }
}

#[tokio::test]
async fn status_409_and_503_with_retry_after_mean_not_applied_h22() {
    for code in [409, 503] {
        let world = World::new();
        let later = move || Response::builder().status(code).header("retry-after", "1").body("later".into()).unwrap();
        let got = world.send(post("k", "{}"), later).await;
        assert_eq!((got.status.as_u16(), &got.headers["retry-after"]), (code, &http::HeaderValue::from_static("1")));
        assert_eq!(send(&world, || created("1")).await.0, 201, "after {code}");
    }
}

#[tokio::test]
async fn a_final_response_is_replayed_to_every_copy_h23() {
    for code in [400, 402, 404, 409, 422] {
        let world = World::new();
        assert_eq!(send(&world, move || status(code)).await, (code, "text".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.status.as_u16(), retry.is_replay(), world.runs()), (code, true, 1));
    }
}

#[tokio::test]
async fn an_unknown_response_is_passed_on_and_copies_get_outcome_unknown_h24() {
    for code in [408, 500, 502, 503, 504] {
        let world = World::new();
        assert_eq!(send(&world, move || status(code)).await, (code, "text".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.problem().as_str(), world.runs()), ("outcome-unknown", 1), "after {code}");
    }
}

#[tokio::test]
async fn a_panic_leaves_the_outcome_unknown_h26() {
    let world = World::new();
    let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
    assert_eq!(got.problem(), "outcome-unknown");
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.problem(), "outcome-unknown");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_declared_outcome_overrides_the_status_h25() {
    let world = World::new();
    let refused = || Outcome::NotApplied.declare_on(status(500));
    assert_eq!(send(&world, refused).await.0, 500);
    assert_eq!(send(&world, || created("1")).await.0, 201, "a copy ran again");
}

#[tokio::test]
async fn a_route_may_override_the_outcome_of_a_status_h25() {
    let exceptions = StatusOutcomes::default().not_applied([503]).finally([500]);
    let world = World::new().change_layer(|layer| layer.outcome_with(exceptions.clone()));
    assert_eq!(send(&world, || status(503)).await.0, 503);
    assert_eq!(send(&world, || status(500)).await.0, 500, "a copy ran again");
    assert_eq!(send(&world, || created("1")).await.0, 500, "the 500 was final");
    let by_closure = World::new().change_layer(|layer| {
        layer.outcome(|head| match head.headers.contains_key("x-rolled-back") {
            true => Outcome::NotApplied,
            false => Outcome::Unknown,
        })
    });
    let rolled_back = || Response::builder().status(200).header("x-rolled-back", "1").body("text".into()).unwrap();
    assert_eq!(send(&by_closure, rolled_back).await.0, 200);
    assert_eq!(send(&by_closure, || created("1")).await.0, 201);
    assert_eq!(send(&by_closure, || created("1")).await.0, 409, "201 means unknown on this route");
}

#[tokio::test]
async fn an_applied_response_is_replayed_to_every_copy_h21() {
    for code in [200, 201, 202, 204, 301, 303, 304] {
        let world = World::new();
        let answer = move || Response::builder().status(code).body("".into()).unwrap();
        assert_eq!(world.send(post("k", "{}"), answer).await.status.as_u16(), code);
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.status.as_u16(), retry.is_replay(), world.runs()), (code, true, 1));
    }
}

#[tokio::test]
async fn a_long_response_that_breaks_later_stays_not_replayable_h27() {
    let world = World::new();
    let cut = || Response::new(ScriptedBody { pieces: vec!["0123456789abcdef"; 2 * LIMIT / 16], end: BodyEnd::Broken });
    let head = world.head(post("k", "{}"), cut).await;
    assert_eq!(head.status, 200);
    let retry = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((retry.problem().as_str(), world.runs()), ("not-replayable", 0));
}
