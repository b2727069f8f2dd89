//! A payment service with one charge per `Idempotency-Key`, even if the request is repeated after a restart.
//!
//! ```sh
//! cargo run -p example-axum-payments -- hapax.db 3000
//! pay() { curl -i -H 'Authorization: Bearer me' -H "Idempotency-Key: $1" -d "$2" http://127.0.0.1:3000/charges; }
//! pay order-1 500      # 201, a charge
//! pay order-1 500      # 201, the same charge, and Idempotent-Replayed: true
//! pay order-1 600      # 422: the key was used for another amount
//! curl http://127.0.0.1:3000/charges
//! curl http://127.0.0.1:3000/.well-known/idempotency
//! ```

mod provider;

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hapax::http::axum::{Attempt, NotApplied};
use hapax::http::{IdempotencyLayer, PAGE, Tenant};
use hapax::journal::{FileJournal, StorePlace};
use hapax::stores::Sqlite;
use hapax::{Gate, Settings};
use provider::{Closed, Provider};
use tokio::net::TcpListener;

// The integration with Hapax begins here ...
fn payments(records: &Path, provider: Arc<Provider>) -> hapax::Result<(Gate, Router)> {
    let store = Sqlite::open(records)?;
    // Keeps the answers that the store does not accept until it works again.
    let place = StorePlace::of_file("sqlite", records);
    let journal = FileJournal::open(records.with_extension("spill"), &place)?;
    let gate = Gate::builder(Arc::new(store), Settings::default()).journal(Arc::new(journal)).build()?;
    let idempotency = IdempotencyLayer::new(gate.clone()).tenant("payments", Tenant::Authorization)?;
    let page = idempotency.page();
    let page = get(async move |headers: HeaderMap| page.response(&headers).map(Body::from));
    let charges = Router::new().route("/charges", post(charge).get(charges)).layer(idempotency);
    Ok((gate, charges.route(PAGE, page).route("/provider", put(set_provider)).with_state(provider)))
}

async fn charge(attempt: Attempt, State(provider): State<Arc<Provider>>, cents: String) -> Response {
    let Ok(cents) = cents.parse() else {
        return (StatusCode::BAD_REQUEST, "send an amount in cents\n").into_response();
    };
    // The operation id is the same in every attempt, so the provider can recognize a copy too.
    match provider.charge(attempt.operation(), cents) {
        Ok(charge) => (StatusCode::CREATED, charge).into_response(),
        Err(Closed) => NotApplied((StatusCode::CONFLICT, "the provider is closed\n")).into_response(),
    }
}
// ... and ends here.

/// The layer passes a `GET` on unprotected.
async fn charges(State(provider): State<Arc<Provider>>) -> String {
    provider.charges()
}

/// Opens or closes the provider, to show the answer of a charge that was not applied.
async fn set_provider(State(provider): State<Arc<Provider>>, state: String) -> StatusCode {
    provider.set_open(state.trim() != "closed");
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let records = arguments.next().unwrap_or_else(|| "hapax.db".into());
    let port = arguments.next().unwrap_or_else(|| "3000".into()).parse()?;

    let (gate, app) = payments(Path::new(&records), Arc::default())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(wait_for_interrupt()).await?;
    // Attempts of disconnected clients may still be running, and their charges must be recorded.
    gate.drain(Duration::from_secs(10)).await;
    Ok(())
}

async fn wait_for_interrupt() {
    // Without signal handling the function waits forever, and the process ends in another way.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
