//! The clauses on the grammar of keys, payloads, stored answers, problems and the policy page.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{ErrorKind, Identity, OnBusy, RecordKey, Rule, Settings};
use hapax_http::{Grammar, IdempotencyLayer, JsonKey, KeyField, KeyFormat, Problem, ProblemDetails, RawFingerprint};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{LIMIT, ReceivedResponse, ScriptedBody, World, created, memory, post, status};

/// A protected request with this value of the `Idempotency-Key` field.
fn keyed(field: &'static str) -> Request<Full<Bytes>> {
    let mut request = post("k", "{}");
    request.headers_mut().insert("idempotency-key", HeaderValue::from_static(field));
    request
}

#[tokio::test]
async fn a_route_may_pass_requests_without_a_key_on_h1() {
    let world = World::new().change_layer(IdempotencyLayer::key_optional);
    for number in 1..=2 {
        let mut request = post("k", "{}");
        request.headers_mut().remove("idempotency-key");
        let got = world.send(request, || created("1")).await;
        assert!(got.status == 201 && !got.headers.contains_key("idempotency-key-expires"));
        assert_eq!(world.runs(), number);
    }
    world.send(post("k", "{}"), || created("1")).await;
    assert!(world.send(post("k", "{}"), || created("1")).await.is_replay());
    assert_eq!(world.send(keyed("a b"), || created("1")).await.problem(), "key-malformed");
}

#[tokio::test]
async fn the_strict_grammar_accepts_only_quoted_keys_h3() {
    let world = World::new().change_layer(|layer| layer.key_with(KeyField::default().grammar(Grammar::Strict)));
    assert_eq!(world.send(keyed("abc"), || created("1")).await.problem(), "key-malformed");
    assert_eq!(world.send(keyed("\"abc\""), || created("1")).await.status, 201);
    assert!(world.send(keyed("\"abc\";v=2"), || created("1")).await.is_replay());
}

#[tokio::test]
async fn every_malformed_key_is_refused_before_anything_runs_h4() {
    let world = World::new();
    for field in ["", "\"\"", "\"abc", "\"a\", \"b\"", "a, b", "(\"a\")", "\"a\\x\"", "a b", "?1", ":YWJj: :"] {
        let got = world.send(keyed(field), || created("1")).await;
        assert_eq!((got.status.as_u16(), got.problem().as_str()), (400, "key-malformed"), "{field}");
    }
    let mut request = post("k", "{}");
    request.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
    assert_eq!(world.send(request, || created("1")).await.problem(), "key-malformed");
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_route_may_require_a_format_h5() {
    let world = World::new().change_layer(|layer| layer.key_with(KeyField::default().format(KeyFormat::Uuid)));
    assert_eq!(world.send(keyed("order-7"), || created("1")).await.problem(), "key-malformed");
    assert_eq!(world.send(keyed("8e03978e-40d5-43dd-bc93-6894a57f9324"), || created("1")).await.status, 201);
}

#[tokio::test]
async fn the_framing_of_a_body_does_not_count_h9() {
    let world = World::new();
    world.send(post("k", "{\"amount\":5}"), || created("1")).await;
    let pieces = ["{\"amount\"", ":5}"]
        .map(|piece| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(piece))));
    let chunked = post("k", "").map(|_| StreamBody::new(futures_util::stream::iter(pieces)));
    let inner =
        service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, std::convert::Infallible>(created("2")) });
    let response = world.layer.layer(inner).oneshot(chunked).await.unwrap();
    assert_eq!(response.headers()["idempotent-replayed"], "true");
}

#[tokio::test]
async fn the_order_of_members_and_white_space_of_a_body_count_h9() {
    let world = World::new();
    world.send(post("k", "{\"a\":1,\"b\":2}"), || created("1")).await;
    for other in ["{\"b\":2,\"a\":1}", "{\"a\":1, \"b\":2}"] {
        assert_eq!(world.send(post("k", other), || created("2")).await.problem(), "key-reused");
    }
}

/// A copy of a request that is sent to this host.
fn copy_to(host: &str) -> Request<Full<Bytes>> {
    let mut request = post("k", "{}");
    request.headers_mut().insert("host", host.parse().unwrap());
    request
}

#[tokio::test]
async fn the_host_counts_unless_the_rule_leaves_it_out_h8() {
    let world = World::new();
    world.send(copy_to("api.example"), || created("1")).await;
    for same in ["API.Example", "api.example:80", "api.example:443", "api.example:"] {
        assert!(world.send(copy_to(same), || created("2")).await.is_replay(), "{same}");
    }
    let mut absolute = copy_to("ignored");
    *absolute.uri_mut() = format!("https://api.example:443{}", absolute.uri().path()).parse().unwrap();
    assert!(world.send(absolute, || created("2")).await.is_replay());
    for other in ["other.example", "api.example:8080", "[::80]", ""] {
        assert_eq!(world.send(copy_to(other), || created("2")).await.problem(), "key-reused", "{other}");
    }
    let world = World::new().change_layer(|layer| layer.fingerprint_with(RawFingerprint::default().without_host()));
    world.send(copy_to("api.example"), || created("1")).await;
    assert!(world.send(copy_to("other.example"), || created("2")).await.is_replay());
}

/// An upload as clients send it: each attempt draws a boundary.
fn upload(boundary: &str, content: &str) -> Request<Full<Bytes>> {
    let body = format!("--{boundary}\r\nA: b\r\n\r\n{content}\r\n--{boundary}--\r\n");
    let mut request = post("upload", "").map(|_| Full::from(body));
    let content_type = format!("multipart/form-data; boundary={boundary}");
    request.headers_mut().insert("content-type", content_type.parse().unwrap());
    request
}

#[tokio::test]
async fn a_new_boundary_is_the_same_payload_h9() {
    let world = World::new();
    world.send(upload("first", "text"), || created("1")).await;
    let replay = world.send(upload("second", "text"), || created("2")).await;
    assert!(replay.is_replay(), "{} {:?}", replay.status, replay.body);
    assert_eq!(world.send(upload("third", "other"), || created("2")).await.problem(), "key-reused");
    // A service may ignore what stands before the first boundary, and may not: every byte counts.
    let body = upload("second", "text").into_body().collect().await.unwrap().to_bytes();
    let unusual = upload("second", "text").map(|_| Full::from([b"x\r\n", &*body].concat()));
    assert_eq!(world.send(unusual, || created("2")).await.problem(), "key-reused");
}

#[tokio::test]
async fn a_length_that_the_service_claims_is_not_passed_on_h42() {
    let world = World::new();
    for (key, length) in [("short", "2"), ("long", "99")] {
        let claiming = || {
            let mut response = created("more than two bytes");
            response.headers_mut().insert("content-length", length.parse().unwrap());
            response
        };
        let answer = world.send(post(key, "{}"), claiming).await;
        assert!(!answer.headers.contains_key("content-length"), "{key}");
    }
}

#[tokio::test]
async fn the_fingerprint_rule_may_change_while_records_live_h10() {
    let store = memory();
    let body_only = |identity: &Identity, _: &Parts, body: &Bytes| identity.fingerprint(Rule(2), &[body]);
    let before = World::over(Arc::clone(&store) as _);
    before.send(post("k", "{}"), || created("1")).await;
    let after = World::over(Arc::clone(&store) as _)
        .change_layer(|layer| layer.fingerprint(body_only).older_fingerprint_with(RawFingerprint::default()));
    assert!(after.send(post("k", "{}"), || created("2")).await.is_replay());
    assert_eq!(after.send(post("k", "{ }"), || created("2")).await.problem(), "key-reused");
    after.send(post("new", "{}"), || created("1")).await;
    let much_later = World::over(store).change_layer(|layer| layer.fingerprint(body_only));
    assert!(much_later.send(post("new", "{}"), || created("2")).await.is_replay());
    assert_eq!(much_later.send(post("k", "{}"), || created("2")).await.problem(), "key-reused");
}

#[tokio::test]
async fn an_incomplete_request_body_leaves_no_record_h11() {
    let world = World::new();
    let pieces = [Ok(http_body::Frame::data(Bytes::from("{"))), Err("the connection broke")];
    let cut = post("k", "").map(|_| StreamBody::new(futures_util::stream::iter(pieces)));
    let inner =
        service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, std::convert::Infallible>(created("1")) });
    let response = world.layer.layer(inner).oneshot(cut).await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(!world.send(post("k", "{}"), || created("2")).await.is_replay(), "the key is still free");
}

#[tokio::test]
async fn every_answer_has_its_expiry_h12() {
    let world = World::new();
    let first = world.send(post("k", "{}"), || created("1")).await;
    let retry = world.send(post("k", "{}"), || created("1")).await;
    let expires = |got: &ReceivedResponse| {
        httpdate::parse_http_date(got.headers["idempotency-key-expires"].to_str().unwrap()).unwrap()
    };
    let left = expires(&first).duration_since(httpdate::parse_http_date("Sat, 21 Nov 2026 00:00:00 GMT").unwrap());
    assert!(left.is_ok_and(|left| left > Duration::from_secs(24 * 3600)), "the answer is replayed for a day");
    // The store's clock dates the replay and the clock of the process dates the first answer, so a second may lie
    // between.
    let apart = expires(&retry).duration_since(expires(&first)).unwrap_or_else(|earlier| earlier.duration());
    assert!(apart <= Duration::from_secs(1), "{apart:?}");
}

#[tokio::test]
async fn a_replay_is_marked_and_not_cacheable_h15() {
    let world = World::new();
    world.send(post("k", "{}"), || created("1")).await;
    let retry = world.send(post("k", "{}"), || created("1")).await;
    assert_eq!(
        (&retry.headers["idempotent-replayed"], &retry.headers["cache-control"]),
        (&"true".parse().unwrap(), &"no-store".parse().unwrap())
    );
}

#[tokio::test]
async fn a_route_may_store_additional_headers_h16() {
    let cost = HeaderName::from_static("x-request-cost");
    let world = World::new().change_layer(|layer| layer.store_header(cost.clone()).unwrap());
    let answer = || {
        Response::builder()
            .header("x-request-cost", "7")
            .header("x-trace", "1")
            .header("etag", "\"1\"")
            .body("".into())
            .unwrap()
    };
    world.send(post("k", "{}"), answer).await;
    let retry = world.send(post("k", "{}"), answer).await;
    assert_eq!(
        (&retry.headers["x-request-cost"], &retry.headers["etag"]),
        (&"7".parse().unwrap(), &"\"1\"".parse().unwrap())
    );
    assert!(!retry.headers.contains_key("x-trace"));
    for never in ["set-cookie", "date", "www-authenticate", "connection", "content-length", "transfer-encoding"] {
        let refused = world.layer.clone().store_header(HeaderName::from_static(never));
        assert_eq!(refused.expect_err("the header is not storable").kind(), ErrorKind::Invalid, "{never}");
    }
}

#[tokio::test]
async fn a_follower_may_wait_for_the_answer_of_the_leader_h17() {
    let mut settings = Settings::default();
    settings.policy.on_busy = OnBusy::Wait(Duration::from_secs(60));
    let world = World::with_settings(memory(), settings);
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
    let waiting = world.clone();
    let follower = tokio::spawn(async move { waiting.send(post("k", "{}"), || created("2")).await });
    // The follower must have joined before the leader may end. Otherwise it would get a replay from the store.
    tokio::task::yield_now().await;
    permit.add_permits(1);
    let (first, follower) = (first.await.unwrap(), follower.await.unwrap());
    assert_eq!((first.status, &first.body, first.is_replay()), (follower.status, &follower.body, false));
    assert!(follower.is_replay() && world.runs() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_copies_at_once_run_once_h18() {
    let mut settings = Settings::default();
    settings.policy.on_busy = OnBusy::Wait(Duration::from_secs(60));
    let world = World::with_settings(memory(), settings);
    let copies = (0..50).map(|_| {
        let world = world.clone();
        tokio::spawn(async move { world.send(post("k", "{}"), || created("1")).await })
    });
    for copy in copies.collect::<Vec<_>>() {
        let got = copy.await.unwrap();
        assert_eq!((got.status.as_u16(), &got.body[..]), (201, &b"1"[..]));
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn trailers_of_a_stored_answer_are_left_out_h20() {
    let world = World::new();
    let inner = service_fn(|_: Request<_>| async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("1"));
        let frames = [http_body::Frame::data(Bytes::from("1")), http_body::Frame::trailers(trailers)];
        let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
        Ok::<_, std::convert::Infallible>(Response::new(body))
    });
    for _ in 0..2 {
        let response = world.layer.layer(inner).oneshot(post("k", "{}")).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        assert!(body.trailers().is_none());
        assert_eq!(body.to_bytes(), "1");
    }
}

#[tokio::test]
async fn a_problem_has_advice_and_a_link_to_its_explanation_h33() {
    let world = World::new();
    world.send(post("k", "{}"), || created("1")).await;
    let got = world.send(post("k", "{ }"), || created("1")).await;
    let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(document["title"], "Idempotency-Key is already used");
    assert_eq!((&document["retry"], &document["status"]), (&"new-key".into(), &422.into()));
    let instance = document["instance"].as_str().unwrap().strip_prefix("urn:hapax:record:").unwrap();
    assert!(instance.len() == 32 && instance.bytes().all(|byte| byte.is_ascii_hexdigit()), "{instance}");
    assert_eq!(got.headers["link"], "</.well-known/idempotency>; rel=\"describedby\"");
    assert_eq!(
        (&got.headers["content-language"], &got.headers["cache-control"]),
        (&"en".parse().unwrap(), &"no-store".parse().unwrap())
    );
    let malformed = world.send(keyed("a b"), || created("1")).await;
    assert!(!String::from_utf8_lossy(&malformed.body).contains("instance"), "a request without a key has no record");
    assert!(!String::from_utf8_lossy(&malformed.body).contains("a b"), "a problem never repeats the key");
}

#[tokio::test]
async fn problems_may_link_to_another_page_or_have_another_format_h34() {
    let elsewhere = ProblemDetails::explained_at("https://docs.example/idempotency").unwrap();
    let world = World::new().change_layer(|layer| layer.problem_with(elsewhere));
    let got = world.send(keyed("a b"), || created("1")).await;
    let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(document["type"], "https://docs.example/idempotency#key-malformed");
    let plain_text = |problem: &Problem, _: Option<&RecordKey>| {
        Response::builder().status(problem.status()).body(Bytes::from(problem.name())).unwrap()
    };
    let world = World::new().change_layer(|layer| layer.problem(plain_text));
    let got = world.send(keyed("a b"), || created("1")).await;
    assert_eq!((got.status.as_u16(), &got.body[..]), (400, &b"key-malformed"[..]));
}

#[tokio::test]
async fn the_policy_page_is_served_as_json_and_html_h35() {
    let world = World::new().change_layer(|layer| layer.key_with(KeyField::default().format(KeyFormat::AtLeast(16))));
    let page = world.layer.page();
    let json = page.response(&HeaderMap::new());
    assert_eq!(json.headers()["content-type"], "application/json");
    assert_eq!(String::from_utf8_lossy(json.body()), include_str!("policy.json"));
    let mut asked = HeaderMap::new();
    asked.insert("accept", HeaderValue::from_static("text/html,application/xhtml+xml"));
    let html = page.response(&asked);
    let text = String::from_utf8_lossy(html.body());
    assert!(html.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    for problem in page.json()["problems"].as_array().unwrap() {
        let anchor = format!("id={}", problem["name"]);
        assert!(text.contains(&anchor), "{anchor}");
    }
}

#[tokio::test]
async fn the_policy_page_lists_routes_with_different_contracts_h35() {
    let refunds = World::new().layer.methods([Method::PUT]).key_optional().key_with(JsonKey::at("/id").unwrap());
    let page = World::new().layer.page().route("/refunds/{id}", &refunds);
    let page = page.unprotected_route("/search", &[Method::POST]);
    let routes = serde_json::json!([
        {
            "methods": ["PUT"],
            "path": "/refunds/{id}",
            "protected": true,
            "key": { "pointer": "/id", "format": "any", "minLength": 1, "maxLength": 255, "characters": "[ -~]" },
            "keyRequired": false,
            "caller": "authorization",
            "fingerprint": "raw",
            "retention": { "seconds": 86400, "duration": "P1D" },
            "finalRetention": { "seconds": 86400, "duration": "P1D" },
        },
        { "methods": ["POST"], "path": "/search", "protected": false },
    ]);
    assert_eq!(page.json()["routes"], routes);
}

fn keyless(body: &'static str) -> Request<Full<Bytes>> {
    let mut request = post("unused", body);
    request.headers_mut().remove("idempotency-key");
    request
}

#[tokio::test]
async fn the_key_may_be_in_another_field_h1() {
    let world = World::new()
        .change_layer(|layer| layer.key_with(KeyField::default().in_field(HeaderName::from_static("x-request-id"))));
    for copies in 0..2 {
        let mut request = post("ignored", "{}");
        request.headers_mut().insert("x-request-id", HeaderValue::from_static("k"));
        let got = world.send(request, || created("1")).await;
        assert_eq!((got.status.as_u16(), got.is_replay()), (201, copies > 0));
    }
    assert_eq!(world.send(post("k", "{}"), || created("2")).await.problem(), "key-missing");
}

#[tokio::test]
async fn the_key_may_be_in_a_member_of_the_body_h1() {
    let world = World::new().change_layer(|layer| layer.key_with(JsonKey::at("/id").unwrap()));
    world.send(keyless(r#"{"id":"k","amount":5}"#), || created("1")).await;
    let retry = world.send(keyless(r#"{"id":"k","amount":5}"#), || created("2")).await;
    assert!(retry.is_replay() && retry.body == "1");
    let changed = world.send(keyless(r#"{"id":"k","amount":6}"#), || created("2")).await;
    assert_eq!(changed.problem(), "key-reused");
    assert_eq!(world.send(keyless("{}"), || created("2")).await.problem(), "key-missing");
    assert_eq!(world.send(keyless("no json"), || created("2")).await.problem(), "key-malformed");
    let optional = world.clone().change_layer(IdempotencyLayer::key_optional);
    let mut anonymous = keyless("{}");
    anonymous.headers_mut().remove("authorization");
    assert_eq!(optional.send(anonymous, || created("2")).await.body, "2", "without a key the request is passed on");
}

#[tokio::test]
async fn the_service_is_asked_for_an_unencoded_answer_h38() {
    let world = World::new();
    let mut request = post("k", "{}");
    request.headers_mut().insert("accept-encoding", HeaderValue::from_static("br"));
    let seen = |request: Request<_>| async move {
        assert_eq!(request.headers()["accept-encoding"], "identity");
        Ok(status(200))
    };
    assert_eq!(world.send_to(request, seen).await.status, 200);
}

#[tokio::test]
async fn an_inner_idempotency_layer_passes_the_request_on_h39() {
    let world = World::new();
    let inner =
        service_fn(|_: Request<_>| async { Ok::<Response<ScriptedBody>, std::convert::Infallible>(created("1")) });
    for is_replay in [false, true] {
        let twice = world.layer.layer(world.layer.layer(inner));
        let response = twice.oneshot(post("k", "{}")).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), response.headers().contains_key("idempotent-replayed")),
            (201, is_replay)
        );
    }
}

#[tokio::test]
async fn the_rest_of_a_long_body_is_discarded_before_the_refusal_h11() {
    let world = World::new();
    let mut request = post("k", "");
    *request.body_mut() = Full::from(Bytes::from(vec![b'x'; 64 * LIMIT]));
    assert_eq!(world.send(request, || created("1")).await.problem(), "body-too-large");
}
