use hapax_http::{Outcome, StatusOutcomes};
use http::Response;

use crate::world::{Answer, End, LIMIT, Scripted, World, created, post, status};

async fn told(world: &World, answer: impl FnOnce() -> Answer + Clone + Send + 'static) -> (u16, String) {
    let got = world.send(post("k", "{}"), answer).await;
    (got.status.as_u16(), String::from_utf8(got.body.into()).expect("text"))
}

#[tokio::test]
async fn what_was_not_applied_is_passed_on_and_may_be_tried_again_h22() {
    for code in [401, 403, 425, 429] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        assert_eq!(told(&world, || created("1")).await, (201, "1".into()), "after {code}");
    }
}

#[tokio::test]
async fn a_service_that_says_when_to_come_back_did_nothing_h22() {
    for code in [409, 503] {
        let world = World::new();
        let later = move || Response::builder().status(code).header("retry-after", "1").body("later".into()).unwrap();
        let got = world.send(post("k", "{}"), later).await;
        assert_eq!((got.status.as_u16(), &got.headers["retry-after"]), (code, &http::HeaderValue::from_static("1")));
        assert_eq!(told(&world, || created("1")).await.0, 201, "after {code}");
    }
}

#[tokio::test]
async fn what_is_final_is_given_to_every_copy_h23() {
    for code in [400, 402, 404, 409, 422] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.status.as_u16(), retry.replayed(), world.runs()), (code, true, 1));
    }
}

#[tokio::test]
async fn what_is_unknown_is_passed_on_once_and_then_held_h24() {
    for code in [408, 500, 502, 503, 504] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.problem().as_str(), world.runs()), ("outcome-unknown", 1), "after {code}");
    }
}

#[tokio::test]
async fn a_panic_is_unknown_h26() {
    let world = World::new();
    let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
    assert_eq!(got.problem(), "outcome-unknown");
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.problem(), "outcome-unknown");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_handler_that_knows_better_than_its_status_is_believed_h25() {
    let world = World::new();
    let refused = || Outcome::NotApplied.on(status(500));
    assert_eq!(told(&world, refused).await.0, 500);
    assert_eq!(told(&world, || created("1")).await.0, 201, "the key was free again");
}

#[tokio::test]
async fn a_route_may_read_a_status_in_its_own_way_h25() {
    let own = StatusOutcomes::default().not_applied([503]).finally([500]);
    let world = World::new().with(|layer| layer.outcome(own.clone()));
    assert_eq!(told(&world, || status(503)).await.0, 503);
    assert_eq!(told(&world, || status(500)).await.0, 500, "the key was free again");
    assert_eq!(told(&world, || created("1")).await.0, 500, "and this is the last word");
    let by_closure = World::new().with(|layer| {
        layer.outcome(|head: &http::response::Parts| match head.headers.contains_key("x-rolled-back") {
            true => Outcome::NotApplied,
            false => Outcome::Unknown,
        })
    });
    let rolled_back = || Response::builder().status(200).header("x-rolled-back", "1").body("told".into()).unwrap();
    assert_eq!(told(&by_closure, rolled_back).await.0, 200);
    assert_eq!(told(&by_closure, || created("1")).await.0, 201);
    assert_eq!(told(&by_closure, || created("1")).await.0, 409, "201 says nothing on this route");
}

#[tokio::test]
async fn what_happened_is_given_to_every_copy_h21() {
    for code in [200, 201, 202, 204, 301, 303, 304] {
        let world = World::new();
        let answer = move || Response::builder().status(code).body("".into()).unwrap();
        assert_eq!(world.send(post("k", "{}"), answer).await.status.as_u16(), code);
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.status.as_u16(), retry.replayed(), world.runs()), (code, true, 1));
    }
}

#[tokio::test]
async fn an_answer_cut_off_after_it_was_found_too_long_is_never_run_again_h27() {
    let world = World::new();
    let cut = || Response::new(Scripted { pieces: vec!["0123456789abcdef"; 2 * LIMIT / 16], end: End::Broken });
    let head = world.head(post("k", "{}"), cut).await;
    assert_eq!(head.status, 200);
    let retry = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((retry.problem().as_str(), world.runs()), ("not-replayable", 0));
}
