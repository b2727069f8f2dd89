//! Edge cases: readiness of the inner service, late answers, long bodies and headers, and other settings of the page.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use hapax_core::gate::Attempt;
use hapax_core::machine::{Claim, Verdict};
use hapax_core::store::Protocol;
use hapax_core::{Identity, Key, Scope, Seconds, Settings};
use hapax_http::{BodyRefused, IdempotencyLayer, Outcome, RequestBody};
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::world::{BodyEnd, LIMIT, ScriptedBody, World, created, memory, post, status};

/// A service that must be polled ready before each call, like a concurrency limit or a buffer.
struct PolledFirst {
    is_ready: bool,
}

impl Clone for PolledFirst {
    /// A clone is not ready, as tower allows.
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Request<RequestBody<Full<Bytes>>>> for PolledFirst {
    type Response = Response<ScriptedBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "the service was called without being polled ready");
        ready(Ok(created("1")))
    }
}

#[tokio::test]
async fn the_layer_calls_the_service_that_was_polled_ready() {
    let mut service = World::new().layer.layer(PolledFirst { is_ready: false });
    for key in ["one", "two"] {
        let response = service.ready().await.unwrap().call(post(key, "{}")).await.unwrap();
        assert_eq!(response.status(), 201);
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_returned_and_leaves_the_outcome_unknown_h24() {
    let fails = service_fn(|_: Request<_>| ready(Err::<Response<ScriptedBody>, _>("out of room")));
    let service = World::new().layer.layer(fails);
    assert_eq!(service.clone().oneshot(post("k", "{}")).await.unwrap_err(), "out of room");
    assert_eq!(service.oneshot(post("k", "{}")).await.unwrap().status(), 409);
}

#[tokio::test]
async fn the_recorded_answer_is_returned_instead_of_a_later_one_h15() {
    let store = memory();
    let world = World::over(Arc::clone(&store) as _);
    let resolved = move |request: Request<RequestBody<Full<Bytes>>>| async move {
        let attempt: &Attempt = request.extensions().get().unwrap();
        let (rk, grant, protocol) = (attempt.record_key(), attempt.grant().unwrap(), Protocol::over(&*store));
        protocol.abandon(&rk, &Claim::from(grant)).await.unwrap();
        // Status 200 and no headers, in the format of `stored.rs`.
        let answer = Bytes::from_static(b"\x01\x00\xc8\x00of the operator");
        let done = Verdict::Done { answer, retention: Seconds(60) };
        protocol.hold(&rk, grant.token, Seconds(60)).await.unwrap();
        protocol.resolve(&rk, grant.token, &done).await.unwrap();
        Ok(created("of the handler"))
    };
    let got = world.send_to(post("k", "{}"), resolved).await;
    assert_eq!((got.status.as_u16(), &got.body[..], got.is_replay()), (200, &b"of the operator"[..], true));
}

#[tokio::test]
async fn a_service_may_declare_its_500_as_applied_h25() {
    let world = World::new();
    let applied = || Outcome::Applied.declare_on(status(500));
    assert_eq!(world.send(post("k", "{}"), applied).await.status, 500);
    let retry = world.send(post("k", "{}"), || created("2")).await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (500, true));
}

#[tokio::test]
async fn the_problem_of_a_long_refusal_does_not_claim_an_effect_h19() {
    let world = World::new();
    let refused = || {
        let long = ScriptedBody { pieces: vec!["0123456789abcdef"; 2 * LIMIT / 16], end: BodyEnd::Clean };
        Response::builder().status(422).body(long).unwrap()
    };
    assert_eq!(world.send(post("k", "{}"), refused).await.status, 422);
    let retry = world.send(post("k", "{}"), refused).await;
    assert_eq!(retry.problem(), "not-replayable");
    assert!(!String::from_utf8_lossy(&retry.body).contains("effect"));
}

#[tokio::test]
async fn four_mebibytes_of_a_long_body_are_discarded_h11() {
    const PIECE: usize = 1 << 16;
    let sent_bytes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent_bytes);
    let piece = move || {
        counted.fetch_add(PIECE, Ordering::SeqCst);
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; PIECE]))), ()))
    };
    let endless = StreamBody::new(stream::unfold((), move |()| ready(piece())));
    let inner = service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, Infallible>(created("1")) });
    let response = World::new().layer.layer(inner).oneshot(post("k", "").map(|_| endless)).await.unwrap();
    assert_eq!(response.status(), 413);
    let read = sent_bytes.load(Ordering::SeqCst);
    // The layer stops at the first piece after the limit of bodies, and again after 4 MiB more.
    assert!((4 << 20..(4 << 20) + 3 * PIECE).contains(&read), "{read} bytes");
}

#[tokio::test]
async fn a_replay_is_not_cacheable_even_if_the_first_answer_was_h15() {
    let world = World::new().change_layer(|layer| layer.store_header(CACHE_CONTROL).unwrap());
    let public = || Response::builder().header("cache-control", "public").body("1".into()).unwrap();
    world.send(post("k", "{}"), public).await;
    let retry = world.send(post("k", "{}"), public).await;
    assert_eq!(retry.headers.get_all(CACHE_CONTROL).iter().collect::<Vec<_>>(), ["no-store"]);
}

#[tokio::test]
async fn headers_that_do_not_fit_into_the_record_are_left_out_h16() {
    let world = World::new();
    let many = || {
        let mut answer = created("1");
        answer.headers_mut().insert("etag", HeaderValue::from_bytes(&[b'x'; 1 << 16]).unwrap());
        for number in 0..300 {
            answer.headers_mut().append("link", number.into());
        }
        answer
    };
    assert_eq!(world.send(post("k", "{}"), many).await.headers.get_all("link").iter().count(), 300);
    let retry = world.send(post("k", "{}"), many).await;
    assert_eq!((retry.status.as_u16(), retry.is_replay(), &retry.body[..]), (201, true, &b"1"[..]));
    assert_eq!(
        (retry.headers.contains_key("etag"), &retry.headers["location"]),
        (false, &"/charges/1".parse().unwrap())
    );
}

#[tokio::test]
async fn an_outcome_unknown_problem_names_its_record_h33() {
    let world = World::new();
    for _ in 0..2 {
        let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
        let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
        assert!(document["instance"].as_str().is_some_and(|urn| urn.starts_with("urn:hapax:record:")), "{document}");
    }
}

#[tokio::test]
async fn the_tenant_is_the_hash_of_the_credential_under_the_identity_of_the_layer_h7() {
    for identity in [Identity::plain(), Identity::keyed([7; 32])] {
        let world = World::new().change_layer(|layer| layer.identity(identity.clone()));
        let got = world.send(post("k", "{}"), || panic!("a test's panic")).await;
        let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
        let scope = Scope::tenant("it", identity.tenant_of(b"Bearer a")).unwrap();
        let rk = identity.call(&scope, &Key::new("k").unwrap()).record_key();
        assert_eq!(document["instance"], format!("urn:hapax:record:{rk}"));
    }
}

#[tokio::test]
async fn the_policy_page_shows_the_settings_of_the_layer_h35() {
    let mut settings = Settings::default();
    settings.policy.retention = std::time::Duration::from_secs(90);
    let methods = [Method::DELETE, Method::PUT, Method::POST];
    let world = World::with_settings(memory(), settings)
        .change_layer(|layer| layer.methods(methods))
        .change_layer(IdempotencyLayer::key_optional);
    let page = world.layer.page();
    assert_eq!(page.json()["retention"], serde_json::json!({ "seconds": 90, "duration": "PT90S" }));
    assert_eq!(page.json()["methods"], serde_json::json!(["DELETE", "PUT", "POST"]));
    assert_eq!(page.json()["keyRequired"], false);
    assert_eq!(page.response(&HeaderMap::new()).headers()["vary"], "accept");
}

#[tokio::test]
async fn a_service_around_the_layer_learns_that_a_body_is_refused_before_its_rest_is_read_h11() {
    let world = World::new();
    for (length, is_refused) in [(LIMIT, false), (LIMIT + 1, true)] {
        let refused = BodyRefused::default();
        let seen = refused.clone();
        // The piece after the first one comes only if the layer reads on.
        let pieces = stream::iter([vec![b'x'; length], Vec::new()]).enumerate().map(move |(number, piece)| {
            assert_eq!(seen.is_set(), is_refused && number > 0, "{length} bytes, piece {number}");
            Ok::<_, Infallible>(Frame::data(Bytes::from(piece)))
        });
        let mut request = post("k", "").map(|_| StreamBody::new(pieces));
        request.extensions_mut().insert(refused);
        let inner = service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, Infallible>(created("1")) });
        let status = world.layer.layer(inner).oneshot(request).await.unwrap().status();
        assert_eq!(status.as_u16(), if is_refused { 413 } else { 201 });
    }
}
