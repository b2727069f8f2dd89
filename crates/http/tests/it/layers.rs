//! The layer among others: axum's router, a plain function, and the layers of tower-http, in the right order and in the wrong one.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post as on_post;
use bytes::Bytes;
use hapax_http::axum::{Attempt, Final, NotApplied, Unknown};
use hapax_http::{IdempotencyLayer, RequestBody};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_http::compression::CompressionLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tracing::{Instrument, Metadata, Span};

use crate::world::World;

fn layer() -> IdempotencyLayer {
    World::new().layer.max_request_body(1 << 20).max_stored_body(1 << 20)
}

fn request(key: &str) -> Request<Body> {
    let builder = Request::post("/charges").header("authorization", "Bearer a").header("idempotency-key", key);
    builder.body(Body::from("{}")).unwrap()
}

async fn told(app: &Router, request: Request<Body>) -> (u16, bool, Bytes) {
    let response = app.clone().oneshot(request).await.unwrap();
    let (status, replayed) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
    (status, replayed, response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_router_of_axum_is_protected_and_its_handlers_know_their_attempt_h14() {
    let charge = |attempt: Attempt| async move { attempt.operation().to_string() };
    let app = Router::new().route("/charges", on_post(charge)).layer(layer());
    let (status, replayed, first) = told(&app, request("k")).await;
    assert_eq!((status, replayed, first.len()), (200, false, 36));
    assert_eq!(told(&app, request("k")).await, (200, true, first));
}

#[tokio::test]
async fn a_handler_that_is_not_protected_gets_no_attempt() {
    let charge = |_: Attempt| async { "charged" };
    let perhaps =
        |attempt: Option<Attempt>| async move { if attempt.is_some() { "protected" } else { "not protected" } };
    let app = Router::new().route("/charges", on_post(charge)).route("/perhaps", on_post(perhaps));
    assert_eq!(told(&app, request("k")).await.0, 500);
    let app = app.layer(layer().key_optional());
    let mut without = request("k");
    without.headers_mut().remove("idempotency-key");
    *without.uri_mut() = "/perhaps".parse().unwrap();
    assert_eq!(told(&app, without).await.2, "not protected");
}

#[tokio::test]
async fn the_prefix_of_a_nested_router_counts_h8() {
    let charges =
        Router::new().route("/charges", on_post(|Path(account): Path<String>| async { account })).layer(layer());
    let app = Router::new().nest("/accounts/{account}", charges);
    let of = |account: &str| {
        let mut request = request("k");
        *request.uri_mut() = format!("/accounts/{account}/charges").parse().unwrap();
        request
    };
    assert_eq!(told(&app, of("one")).await, (200, false, "one".into()));
    assert_eq!(told(&app, of("one")).await, (200, true, "one".into()));
    assert_eq!(told(&app, of("two")).await.0, 422, "the answer of another account");
}

#[tokio::test]
async fn a_handler_says_in_a_word_what_became_of_it_h25() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let charge = move |body: String| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match (body.as_str(), run) {
                ("not applied", 0) => NotApplied((StatusCode::CONFLICT, "sold out")).into_response(),
                ("final", 0) => Final((StatusCode::INTERNAL_SERVER_ERROR, "declined")).into_response(),
                ("unknown", 0) => Unknown((StatusCode::OK, "perhaps")).into_response(),
                _ => "charged".into_response(),
            }
        }
    };
    for (word, first, second) in [("not applied", 409, 200), ("final", 500, 500), ("unknown", 200, 409)] {
        runs.store(0, Ordering::SeqCst);
        let app = Router::new().route("/charges", on_post(charge.clone())).layer(layer());
        let asked = || request("k").map(|_| Body::from(word));
        assert_eq!((told(&app, asked()).await.0, told(&app, asked()).await.0), (first, second), "{word}");
    }
}

#[tokio::test]
async fn a_plain_function_is_protected_h15() {
    let charge = tower::service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("charged")))
    });
    let service = layer().layer(charge);
    for replayed in [false, true] {
        let response = service.clone().oneshot(request("k").map(|_| Full::from("{}"))).await.unwrap();
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
    }
}

#[tokio::test]
async fn trace_timeout_and_compression_go_around_it_h38() {
    let long = "charged ".repeat(100);
    let app = Router::new().route("/charges", on_post(move || async move { long.clone() })).layer(
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(60)))
            .layer(CompressionLayer::new())
            .layer(layer()),
    );
    let encoded = |encoding| {
        let mut request = request("k");
        request.headers_mut().insert("accept-encoding", HeaderValue::from_static(encoding));
        request
    };
    let zipped = app.clone().oneshot(encoded("gzip")).await.unwrap();
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    let plain = app.clone().oneshot(encoded("identity")).await.unwrap();
    assert!(!plain.headers().contains_key("content-encoding") && plain.headers().contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn what_a_handler_logs_belongs_to_its_request() {
    let _logs = tracing::subscriber::set_default(tracing_subscriber::registry());
    let span = || Span::current().metadata().map_or("none", Metadata::name);
    let app = Router::new().route("/charges", on_post(async move || span())).layer(layer());
    let (_, _, seen) = told(&app, request("k")).instrument(tracing::info_span!("request")).await;
    assert_eq!(seen, "request");
}

/// A handler that has its effect at once and then takes for ever.
fn slow(effects: &Arc<AtomicUsize>) -> Router {
    let effects = Arc::clone(effects);
    let charge = move || {
        effects.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<String>()
    };
    Router::new().route("/charges", on_post(charge))
}

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(20))
}

#[tokio::test]
async fn a_timeout_inside_drops_the_handler_and_its_408_frees_nothing_h24() {
    let effects = Arc::default();
    let app = slow(&effects).layer(ServiceBuilder::new().layer(layer()).layer(timeout()));
    assert_eq!(told(&app, request("k")).await.0, 408);
    let (status, _, body) = told(&app, request("k")).await;
    assert!(status == 409 && String::from_utf8_lossy(&body).contains("outcome-unknown"));
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_timeout_outside_lets_the_handler_go_on_h13() {
    let effects = Arc::default();
    let app = slow(&effects).layer(ServiceBuilder::new().layer(timeout()).layer(layer()));
    assert_eq!(told(&app, request("k")).await.0, 408);
    let (status, _, body) = told(&app, request("k")).await;
    assert!(status == 409 && String::from_utf8_lossy(&body).contains("in-progress"));
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_compression_inside_finds_nothing_to_do_h38() {
    let long = "charged ".repeat(100);
    let charge = on_post(move || async move { long.clone() });
    let app = Router::new()
        .route("/charges", charge)
        .layer(ServiceBuilder::new().layer(layer()).layer(CompressionLayer::new()));
    let mut zipped = request("k");
    zipped.headers_mut().insert("accept-encoding", HeaderValue::from_static("gzip"));
    let first = app.clone().oneshot(zipped).await.unwrap();
    assert!(!first.headers().contains_key("content-encoding"), "every later client could not read it");
}

/// What is protected is still a service that can be cloned, sent and polled.
#[test]
fn it_is_a_service_like_any_other() {
    fn service<S: Service<Request<Full<Bytes>>> + Clone + Send + 'static>(_: &S) {}
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = runtime.enter();
    service(&layer().layer(tower::service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    })));
}
