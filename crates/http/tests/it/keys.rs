//! Keys, callers and payloads: which request is a copy, and which is refused.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;

use crate::world::{LIMIT, World, created, post};

#[tokio::test]
async fn a_request_without_a_key_is_refused_and_not_run_h1() {
    let world = World::new();
    let mut request = post("k", "{}");
    request.headers_mut().remove("idempotency-key");
    let got = world.send(request, || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (400, "key-missing", 0));
}

#[tokio::test]
async fn two_key_fields_are_malformed_h4() {
    let world = World::new();
    let mut request = post("k", "{}");
    request.headers_mut().append("idempotency-key", HeaderValue::from_static("k"));
    let got = world.send(request, || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (400, "key-malformed", 0));
}

#[tokio::test]
async fn a_quoted_key_and_its_bare_form_are_the_same_key_h2() {
    let world = World::new();
    world.send(post("\"abc\"", "{}"), || created("1")).await;
    assert!(world.send(post("abc", "{}"), || created("2")).await.is_replay());
}

#[tokio::test]
async fn an_unidentified_caller_is_refused_h7() {
    let world = World::new();
    for authorizations in [vec![], vec!["Bearer a", "Bearer b"], vec![""]] {
        let mut request = post("k", "{}");
        request.headers_mut().remove("authorization");
        for value in &authorizations {
            request.headers_mut().append("authorization", HeaderValue::from_str(value).unwrap());
        }
        let got = world.send(request, || created("1")).await;
        assert_eq!((got.status.as_u16(), got.problem().as_str()), (400, "caller-unknown"), "{authorizations:?}");
    }
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn the_same_key_of_another_tenant_is_another_operation_h6() {
    let world = World::new();
    world.send(post("k", "{}"), || created("1")).await;
    let mut request = post("k", "{}");
    request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer b"));
    let got = world.send(request, || created("2")).await;
    assert_eq!((&got.body[..], got.is_replay(), world.runs()), (&b"2"[..], false, 2));
}

#[tokio::test]
async fn the_same_key_with_another_payload_is_refused_h8() {
    let world = World::new();
    world.send(post("k", "{}"), || created("1")).await;
    let changed = [
        Request::post("/charges").header("content-type", "application/json").body(Full::from("{ }")),
        Request::post("/refunds").header("content-type", "application/json").body(Full::from("{}")),
        Request::post("/charges?x").header("content-type", "application/json").body(Full::from("{}")),
        Request::patch("/charges").header("content-type", "application/json").body(Full::from("{}")),
        Request::post("/charges").header("content-type", "text/plain").body(Full::from("{}")),
    ];
    let two_types =
        Request::post("/charges").header("content-type", "application/json").header("content-type", "text/plain");
    for request in changed.into_iter().chain([two_types.body(Full::from("{}"))]) {
        let mut request = request.unwrap();
        request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer a"));
        request.headers_mut().insert("idempotency-key", HeaderValue::from_static("k"));
        let request_line = format!("{} {}", request.method(), request.uri());
        let got = world.send(request, || created("2")).await;
        assert_eq!((got.status.as_u16(), got.problem().as_str()), (422, "key-reused"), "{request_line}");
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_leaves_no_record_h11() {
    let world = World::new();
    let mut request = post("k", "");
    *request.body_mut() = Full::from(Bytes::from(vec![b'x'; LIMIT + 1]));
    let got = world.send(request, || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (413, "body-too-large", 0));
    assert!(!world.send(post("k", "{}"), || created("2")).await.is_replay(), "the key is still free");
}

#[tokio::test]
async fn unprotected_methods_are_passed_on_with_or_without_a_key_h36() {
    let world = World::new();
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
        for _ in 0..2 {
            let request =
                Request::builder().method(method).uri("/charges").header("idempotency-key", "k").body(Full::default());
            let got = world.send(request.unwrap(), || created("1")).await;
            assert!(got.status == 201 && !got.is_replay(), "{method}");
        }
    }
    assert_eq!(world.runs(), 10);
}
