use hapax_http::Outcome;
use http::Response;

use crate::world::{Answer, World, created, post, status};

async fn told(world: &World, answer: impl FnOnce() -> Answer + Clone + Send + 'static) -> (u16, String) {
    let got = world.send(post("k", "{}"), answer).await;
    (got.status.as_u16(), String::from_utf8(got.body.into()).expect("text"))
}

#[tokio::test]
async fn what_was_not_applied_is_passed_on_and_may_be_tried_again() {
    for code in [401, 403, 408, 425, 429] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        assert_eq!(told(&world, || created("1")).await, (201, "1".into()), "after {code}");
    }
}

#[tokio::test]
async fn an_unavailable_service_that_says_when_to_come_back_did_nothing() {
    let world = World::new();
    let unavailable = || Response::builder().status(503).header("retry-after", "1").body("later".into()).unwrap();
    let got = world.send(post("k", "{}"), unavailable).await;
    assert_eq!((got.status.as_u16(), &got.headers["retry-after"]), (503, &http::HeaderValue::from_static("1")));
    assert_eq!(told(&world, || created("1")).await.0, 201);
}

#[tokio::test]
async fn what_is_final_is_given_to_every_copy() {
    for code in [400, 402, 404, 409, 422] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.status.as_u16(), retry.replayed(), world.runs()), (code, true, 1));
    }
}

#[tokio::test]
async fn what_is_unknown_is_passed_on_once_and_then_held() {
    for code in [500, 502, 503, 504] {
        let world = World::new();
        assert_eq!(told(&world, move || status(code)).await, (code, "told".into()));
        let retry = world.send(post("k", "{}"), || created("1")).await;
        assert_eq!((retry.problem().as_str(), world.runs()), ("outcome-unknown", 1), "after {code}");
    }
}

#[tokio::test]
async fn a_panic_is_unknown() {
    let world = World::new();
    let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
    assert_eq!(got.problem(), "outcome-unknown");
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.problem(), "outcome-unknown");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_handler_that_knows_better_than_its_status_is_believed() {
    let world = World::new();
    let refused = || {
        let mut response = status(500);
        response.extensions_mut().insert(Outcome::NotApplied);
        response
    };
    assert_eq!(told(&world, refused).await.0, 500);
    assert_eq!(told(&world, || created("1")).await.0, 201, "the key was free again");
}
