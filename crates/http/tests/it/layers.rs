//! The layer with axum's router, a plain function, and layers of tower-http in the right order and in the wrong one.

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

/// The status of the response, whether it is a replay, and its body.
async fn send(app: &Router, request: Request<Body>) -> (u16, bool, Bytes) {
    let response = app.clone().oneshot(request).await.unwrap();
    let (status, is_replay) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
    (status, is_replay, response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn an_axum_router_is_protected_and_its_handlers_extract_their_attempt_h14() {
    let charge = |attempt: Attempt| async move { attempt.operation().to_string() };
    let app = Router::new().route("/charges", on_post(charge)).layer(layer());
    let (status, replayed, first) = send(&app, request("k")).await;
    assert_eq!((status, replayed, first.len()), (200, false, 36));
    assert_eq!(send(&app, request("k")).await, (200, true, first));
}

#[tokio::test]
async fn an_unprotected_handler_has_no_attempt() {
    let charge = |_: Attempt| async { "charged" };
    let optional =
        |attempt: Option<Attempt>| async move { if attempt.is_some() { "protected" } else { "not protected" } };
    let app = Router::new().route("/charges", on_post(charge)).route("/optional", on_post(optional));
    assert_eq!(send(&app, request("k")).await.0, 500);
    let app = app.layer(layer().key_optional());
    let mut without = request("k");
    without.headers_mut().remove("idempotency-key");
    *without.uri_mut() = "/optional".parse().unwrap();
    assert_eq!(send(&app, without).await.2, "not protected");
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
    assert_eq!(send(&app, of("one")).await, (200, false, "one".into()));
    assert_eq!(send(&app, of("one")).await, (200, true, "one".into()));
    assert_eq!(send(&app, of("two")).await.0, 422, "the request of another account has another payload");
}

#[tokio::test]
async fn an_axum_handler_declares_its_outcome_h25() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let charge = move |body: String| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match (body.as_str(), run) {
                ("not applied", 0) => NotApplied((StatusCode::CONFLICT, "sold out")).into_response(),
                ("final", 0) => Final((StatusCode::INTERNAL_SERVER_ERROR, "declined")).into_response(),
                ("unknown", 0) => Unknown((StatusCode::OK, "timed out")).into_response(),
                _ => "charged".into_response(),
            }
        }
    };
    for (outcome, first, second) in [("not applied", 409, 200), ("final", 500, 500), ("unknown", 200, 409)] {
        runs.store(0, Ordering::SeqCst);
        let app = Router::new().route("/charges", on_post(charge.clone())).layer(layer());
        let copy = || request("k").map(|_| Body::from(outcome));
        assert_eq!((send(&app, copy()).await.0, send(&app, copy()).await.0), (first, second), "{outcome}");
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
async fn trace_timeout_and_compression_work_outside_of_the_layer_h38() {
    // Long enough for the compression layer, which leaves short bodies alone.
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
async fn the_log_lines_of_a_handler_are_in_the_span_of_its_request() {
    // The spans of an attempt have the level debug.
    let info = tracing::level_filters::LevelFilter::INFO;
    let _logs = tracing::subscriber::set_default(tracing_subscriber::layer::SubscriberExt::with(
        tracing_subscriber::registry(),
        info,
    ));
    let span = || Span::current().metadata().map_or("none", Metadata::name);
    let app = Router::new().route("/charges", on_post(async move || span())).layer(layer());
    let (_, _, seen) = send(&app, request("k")).instrument(tracing::info_span!("request")).await;
    assert_eq!(seen, "request");
}

/// A handler that has its effect at once and then hangs.
fn hanging(effects: &Arc<AtomicUsize>) -> Router {
    let effects = Arc::clone(effects);
    let charge = move || {
        effects.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<String>()
    };
    Router::new().route("/charges", on_post(charge))
}

/// A timeout that every run of [`hanging`] exceeds.
fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(20))
}

#[tokio::test]
async fn an_inner_timeout_drops_the_handler_and_its_408_means_unknown_h24() {
    let effects = Arc::default();
    let app = hanging(&effects).layer(ServiceBuilder::new().layer(layer()).layer(timeout()));
    assert_eq!(send(&app, request("k")).await.0, 408);
    let (status, _, body) = send(&app, request("k")).await;
    assert!(status == 409 && String::from_utf8_lossy(&body).contains("outcome-unknown"));
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_outer_timeout_does_not_stop_the_handler_h13() {
    let effects = Arc::default();
    let app = hanging(&effects).layer(ServiceBuilder::new().layer(timeout()).layer(layer()));
    assert_eq!(send(&app, request("k")).await.0, 408);
    let (status, _, body) = send(&app, request("k")).await;
    assert!(status == 409 && String::from_utf8_lossy(&body).contains("in-progress"));
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_inner_compression_does_not_encode_h38() {
    let long = "charged ".repeat(100);
    let charge = on_post(move || async move { long.clone() });
    let app = Router::new()
        .route("/charges", charge)
        .layer(ServiceBuilder::new().layer(layer()).layer(CompressionLayer::new()));
    let mut zipped = request("k");
    zipped.headers_mut().insert("accept-encoding", HeaderValue::from_static("gzip"));
    let first = app.clone().oneshot(zipped).await.unwrap();
    assert!(!first.headers().contains_key("content-encoding"), "a later client may not be able to decode it");
}

/// The layer keeps the properties that tower and hyper require of a service.
#[test]
fn the_protected_service_is_clone_send_and_static() {
    fn service<S: Service<Request<Full<Bytes>>> + Clone + Send + 'static>(_: &S) {}
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    service(&layer().layer(tower::service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    })));
}
