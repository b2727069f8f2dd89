//! Requests and responses of hostile or careless clients and services.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::Tokio;
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Gate, Scope, Settings};
use hapax_http::{IdempotencyLayer, Tenant};
use hapax_testkit::{Faulty, StoreFault};
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{BodyEnd, LIMIT, ScriptedBody, World, created, memory, post};

/// The default request, with another value of this field.
fn post_with(name: &'static str, value: &'static str) -> Request<Full<Bytes>> {
    let mut request = post("k", "{}");
    request.headers_mut().insert(name, HeaderValue::from_static(value));
    request
}

fn gate() -> Gate {
    Gate::builder(memory(), Settings::default()).build().unwrap()
}

#[tokio::test]
async fn a_renewed_credential_makes_a_new_request_unless_the_tenant_is_the_account_h7() {
    let by_credential = World::new();
    by_credential.send(post("k", "{}"), || created("1")).await;
    let renewed = by_credential.send(post_with("authorization", "Bearer renewed"), || created("2")).await;
    assert_eq!((&renewed.body[..], renewed.is_replay()), (&b"2"[..], false));

    let account = Tenant::Header(HeaderName::from_static("x-account"));
    let by_account = World::new().change_layer(|_| IdempotencyLayer::new(gate()).tenant("it", account).unwrap());
    let of = |credential: &'static str| {
        let mut request = post_with("x-account", "acme");
        request.headers_mut().insert("authorization", HeaderValue::from_static(credential));
        request
    };
    by_account.send(of("Bearer a"), || created("1")).await;
    assert!(by_account.send(of("Bearer renewed"), || created("2")).await.is_replay());
    assert_eq!(by_account.send(post("k", "{}"), || created("3")).await.problem(), "caller-unknown");
}

#[tokio::test]
async fn users_of_one_tenant_may_have_separate_keys_h6() {
    let layer = IdempotencyLayer::new(gate()).scope(|parts| {
        let user = parts.headers.get("x-user").map(HeaderValue::as_bytes).ok_or("send x-user")?;
        Ok(Scope::tenant("it", "acme")?.principal(user))
    });
    let world = World::new().change_layer(|_| layer);
    world.send(post_with("x-user", "one"), || created("1")).await;
    assert!(world.send(post_with("x-user", "one"), || created("2")).await.is_replay());
    assert!(!world.send(post_with("x-user", "two"), || created("2")).await.is_replay());
}

#[tokio::test]
async fn field_names_ignore_case_and_keys_do_not_h2() {
    let world = World::new();
    world.send(post("Order-7", "{}"), || created("1")).await;
    let mut other_case = post("k", "{}");
    other_case.headers_mut().remove("idempotency-key");
    other_case.headers_mut().insert("IDEMPOTENCY-KEY".parse::<HeaderName>().unwrap(), "Order-7".parse().unwrap());
    assert!(world.send(other_case, || created("2")).await.is_replay());
    assert!(!world.send(post("order-7", "{}"), || created("2")).await.is_replay());
}

#[tokio::test]
async fn another_encoding_is_another_payload_h9() {
    let world = World::new();
    world.send(post("k", "{}"), || created("1")).await;
    let mut zipped = post("k", "").map(|_| Full::from(Bytes::from_static(b"\x1f\x8b")));
    zipped.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    assert_eq!(world.send(zipped, || created("2")).await.problem(), "key-reused");
}

#[tokio::test]
async fn a_request_without_a_body_is_protected_h12() {
    let world = World::new();
    world.send(post("k", ""), || created("1")).await;
    assert!(world.send(post("k", ""), || created("2")).await.is_replay());
    assert_eq!(world.send(post("k", " "), || created("2")).await.problem(), "key-reused");
}

#[tokio::test]
async fn an_endless_body_is_refused_at_the_limit_h11() {
    let world = World::new();
    let piece = || Some((Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(vec![b'x'; 1 << 16]))), ()));
    let endless = StreamBody::new(futures_util::stream::unfold((), move |()| async move { piece() }));
    let inner = service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, Infallible>(created("1")) });
    let response = world.layer.layer(inner).oneshot(post("k", "").map(|_| Box::pin(endless))).await.unwrap();
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn a_protocol_switch_leaves_the_outcome_unknown_h24() {
    let world = World::new();
    let switch = || Response::builder().status(101).header("upgrade", "websocket").body("".into()).unwrap();
    assert_eq!(world.send(post("k", "{}"), switch).await.status, 101);
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.problem(), "outcome-unknown");
}

#[tokio::test]
async fn hop_by_hop_fields_are_never_replayed_h16() {
    let world = World::new();
    let response = || {
        let builder = Response::builder().header("connection", "x-foo").header("x-foo", "1");
        builder.header("www-authenticate", "Basic").header("date", "now").body("1".into()).unwrap()
    };
    world.send(post("k", "{}"), response).await;
    let retry = world.send(post("k", "{}"), response).await;
    for name in ["connection", "x-foo", "www-authenticate", "date"] {
        assert!(!retry.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn reserved_fields_of_the_service_are_removed_h37() {
    const RESERVED: [&str; 4] =
        ["idempotent-replayed", "idempotency-key-expires", "hapax-recorded", "hapax-unrecorded"];
    let world = World::new();
    for status in [200, 404, 429, 500] {
        let forged = move || {
            let forged = Response::builder().status(status);
            RESERVED.into_iter().fold(forged, |forged, name| forged.header(name, "forged")).body("1".into()).unwrap()
        };
        let first = world.send(post(&format!("order-{status}"), "{}"), forged).await;
        assert!(first.headers.values().all(|value| value != "forged"), "{status}: {:?}", first.headers);
    }
}

#[tokio::test]
async fn a_hanging_handler_blocks_only_its_own_key_h17() {
    let world = World::new();
    let inside = world.clone();
    let hung = tokio::spawn(async move { inside.send_to(post("k", "{}"), |_| std::future::pending()).await });
    world.wait_for_handler().await;
    assert_eq!(world.send(post("k", "{}"), || created("1")).await.problem(), "in-progress");
    assert_eq!(world.send(post("another", "{}"), || created("1")).await.status, 201);
    hung.abort();
}

#[tokio::test]
async fn an_answer_of_five_mebibytes_is_passed_on_completely_h19() {
    const MIB: usize = 1 << 20;
    static PIECE: [u8; MIB] = [b'x'; MIB];
    let world = World::new();
    let pieces = || vec![std::str::from_utf8(&PIECE).unwrap(); 5];
    let large = move || Response::new(ScriptedBody { pieces: pieces(), end: BodyEnd::Clean });
    assert_eq!(world.send(post("k", "{}"), large).await.body.len(), 5 * MIB);
    assert_eq!(world.send(post("k", "{}"), large).await.problem(), "not-replayable");
}

#[tokio::test]
async fn a_full_store_refuses_new_requests_and_accepts_answers_h28() {
    let settings = MemorySettings::default().max_bytes(4096);
    let world = World::over(Arc::new(Memory::with(Arc::new(Tokio::current()), settings)));
    let mut refused = 0;
    for number in 0..30 {
        let got = world.send(post(&format!("order-{number}"), "{}"), || created("1")).await;
        if got.status == 503 {
            assert_eq!(got.problem(), "store-unavailable");
            refused += 1;
        }
    }
    // Only the bounds are certain: how many records fit depends on the size of a record in memory.
    assert!(refused > 0 && refused < 30 && world.runs() == 30 - refused, "{refused} of 30 refused");
    assert!(world.send(post("order-0", "{}"), || created("2")).await.is_replay());
}

#[tokio::test]
async fn a_store_that_exceeds_its_timeout_is_unavailable_h28() {
    let store = Faulty::new(memory(), Arc::new(Tokio::current()), Duration::from_secs(30));
    store.inject_all(0..100, StoreFault::SwallowBefore);
    let mut settings = Settings::default();
    settings.store_timeout = Duration::from_millis(20);
    let world = World::with_settings(Arc::clone(&store) as _, settings);
    let got = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!((got.status.as_u16(), got.problem().as_str(), world.runs()), (503, "store-unavailable", 0));
    store.heal();
    // On a busy machine the healed store can exceed the timeout of 20 ms, too.
    let again = loop {
        let again = world.send(post("k", "{}"), || created("1")).await;
        if again.status != 503 {
            break again;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(again.status, 201);
}

#[tokio::test]
async fn a_request_whose_record_was_lost_runs_again_h12() {
    let before = World::new();
    before.send(post("k", "{}"), || created("1")).await;
    let after = World::new();
    let got = after.send(post("k", "{}"), || created("2")).await;
    assert_eq!((&got.body[..], got.is_replay()), (&b"2"[..], false), "only a ledger would know that the request ran");
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_accepted_h11() {
    let world = World::new();
    let body = |length| post("k", "").map(|_| Full::from(Bytes::from(vec![b'x'; length])));
    assert_eq!(world.send(body(LIMIT + 1), || created("1")).await.status, 413);
    let echoed = world
        .send_to(body(LIMIT), |request| async move {
            let length = request.into_body().collect().await.unwrap().to_bytes().len();
            assert_eq!(length, LIMIT);
            Ok(created("1"))
        })
        .await;
    assert_eq!(echoed.status, 201);
}
