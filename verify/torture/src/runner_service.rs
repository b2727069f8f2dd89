//! A service whose ledger runs the transaction itself: the same transfers as `examples/transfer-postgres`, through
//! `PostgresLedger::run`.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax::gate::Reason;
use hapax::http::axum::{Attempt, NotApplied, Unknown};
use hapax::http::{IdempotencyLayer, Tenant};
use hapax::ledger::{Call, Terms};
use hapax::stores::{Postgres, PostgresLedger, PostgresUrl};
use hapax::{Gate, OnLapse, Policy, Repeatable, Settings};
use hapax_torture::transfers::{TABLES, transfer_with_entry};
use tokio::net::TcpListener;

async fn transfer(attempt: Attempt, State(ledger): State<PostgresLedger>, order: String) -> Response {
    let moved = ledger.run(Call::from(&*attempt), async move |transaction, entry| {
        transfer_with_entry(transaction, entry, &order).await
    });
    let refused = match moved.await {
        Ok(result) => return (StatusCode::CREATED, result.answer).into_response(),
        Err(refused) => refused,
    };
    eprintln!("{refused}");
    match refused.reason {
        Reason::Busy { .. } | Reason::Overloaded => (StatusCode::CONFLICT, [(RETRY_AFTER, "1")]).into_response(),
        Reason::Mismatch | Reason::Dead => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Reason::NotApplied { .. } => NotApplied((StatusCode::SERVICE_UNAVAILABLE, "try again\n")).into_response(),
        Reason::Unknown { .. } | Reason::Indeterminate { .. } | Reason::Unrecorded | Reason::Store(_) => {
            Unknown((StatusCode::SERVICE_UNAVAILABLE, "try again\n")).into_response()
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let text = arguments.next().context("no URL")?;
    let url: PostgresUrl = text.parse()?;
    let port: u16 = arguments.next().context("no port")?.parse()?;
    let (client, connection) = tokio_postgres::connect(&text, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLES).await?;
    let ledger = PostgresLedger::connect(&url, Terms::new("transfers")?)?;
    ledger.create_tables().await?;
    let retry = OnLapse::Retry(Repeatable::behind(&ledger));
    let policy = Policy::default().lease(Duration::from_secs(3)).on_lapse(retry);
    let store = Arc::new(Postgres::with(&url, Arc::new(hapax::runtime::Tokio::current()))?);
    let gate = Gate::builder(store, Settings::default().policy(policy)).build()?;
    let layer = IdempotencyLayer::new(gate).tenant("transfers", Tenant::Authorization)?;
    let app = Router::new().route("/transfers", post(transfer)).layer(layer).with_state(ledger);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
