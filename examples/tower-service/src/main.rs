//! A plain tower service behind the idempotency layer, served by hyper: no framework.
//!
//! ```sh
//! cargo run -p example-tower-service -- 3000
//! curl -i -H 'Authorization: Bearer me' -H 'Idempotency-Key: order-1' -d book http://127.0.0.1:3000/orders
//! ```

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::{IdempotencyLayer, RequestBody, Tenant};
use hapax::store::Memory;
use hapax::{Gate, Settings};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

static ORDERS: AtomicU32 = AtomicU32::new(0);

/// Accepts an order. A protected request has its whole body and its attempt; the layer passes other requests on
/// unprotected.
async fn order(request: Request<RequestBody<Incoming>>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let Some(attempt) = head.extensions.get::<Attempt>() else {
        return Ok(Response::new(Full::from(format!("orders: {}\n", ORDERS.load(Ordering::SeqCst)))));
    };
    let text = body.collect().await?.to_bytes();
    let number = ORDERS.fetch_add(1, Ordering::SeqCst) + 1;
    let text = String::from_utf8_lossy(&text);
    Ok(Response::new(Full::from(format!("order {number}: {text}, operation {}\n", attempt.operation()))))
}

fn idempotency() -> hapax::Result<IdempotencyLayer> {
    let store = Memory::new();
    let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    IdempotencyLayer::new(gate).tenant("orders", Tenant::Authorization)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = env::args().nth(1).unwrap_or_else(|| "3000".into()).parse()?;
    let service = idempotency()?.layer(service_fn(order));
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}
