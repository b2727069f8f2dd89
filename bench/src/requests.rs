//! One small service, without a layer, behind a layer that only collects the body, and behind the idempotency layer.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use hapax_core::store::Memory;
use hapax_core::{Gate, Settings};
use hapax_http::{IdempotencyLayer, Tenant};
use http_body_util::{BodyExt, Collected};
use tower_service::Service;

/// The layer in front of the handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Middleware {
    /// No layer.
    Bare,
    /// A layer that reads the whole body of the request, as every layer must that compares payloads.
    CollectBody,
    /// The idempotency layer, over a gate on the memory store.
    Idempotency,
}

/// A router with one route, which answers at once.
pub(crate) fn app(middleware: Middleware) -> anyhow::Result<Router> {
    let app = Router::new().route("/charges", post(async || "{\"charge\":\"ch_0123456789\",\"status\":\"paid\"}"));
    Ok(match middleware {
        Middleware::Bare => app,
        Middleware::CollectBody => app.layer(from_fn(collect_body)),
        Middleware::Idempotency => {
            let store = Memory::new();
            let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
            app.layer(IdempotencyLayer::new(gate).tenant("bench", Tenant::Authorization)?)
        }
    })
}

async fn collect_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// Sends a request with this key and reads the whole response.
pub(crate) async fn send(app: &mut Router, key: u64) -> anyhow::Result<()> {
    let request = Request::post("/charges")
        .header("authorization", "Bearer 0123456789abcdef")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("order-{key}"))
        .body(Body::from("{\"amount\":500,\"currency\":\"eur\"}"))?;
    let response = app.call(request).await.unwrap_or_else(|never: Infallible| match never {});
    anyhow::ensure!(response.status() == 200, "{}", response.status());
    response.into_body().collect().await?;
    Ok(())
}
