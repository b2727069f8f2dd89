//! The service of `examples/transfer-postgres` without its ledger: the same layer, the same transaction, the same
//! retries. It proves that the audit can fail.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use deadpool_postgres::Pool;
use hapax::http::axum::{Attempt, Unknown};
use hapax::http::{IdempotencyLayer, Tenant};
use hapax::ledger::Terms;
use hapax::stores::{Postgres, PostgresLedger, PostgresUrl};
use hapax::{Gate, OnLapse, Policy, Repeatable, Settings};
use hapax_torture::transfers::{TABLES, transfer_without_ledger};
use tokio::net::TcpListener;

async fn transfer(attempt: Attempt, State(pool): State<Pool>, order: String) -> Response {
    for pause in [10, 100, 1000] {
        match transfer_without_ledger(&pool, &attempt.operation().to_string(), &order).await {
            Ok(answer) => return (StatusCode::CREATED, answer).into_response(),
            Err(error) => eprintln!("{order}: {error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    Unknown((StatusCode::SERVICE_UNAVAILABLE, "try again\n")).into_response()
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().context("no URL")?;
    let port: u16 = arguments.next().context("no port")?.parse()?;
    let manager = deadpool_postgres::Manager::new(url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(16).build()?;
    pool.get().await?.batch_execute(TABLES).await?;
    let url: PostgresUrl = url.parse()?;
    // Only for its tables.
    PostgresLedger::connect(&url, Terms::new("transfers")?)?.create_tables().await?;
    let retry = OnLapse::Retry(Repeatable::declared("wrongly: a second run has a second effect"));
    let policy = Policy::default().lease(Duration::from_secs(3)).on_lapse(retry);
    let store = Arc::new(Postgres::with(&url, Arc::new(hapax::runtime::Tokio::current()))?);
    let gate = Gate::builder(store, Settings::default().policy(policy)).build()?;
    let layer = IdempotencyLayer::new(gate).tenant("transfers", Tenant::Authorization)?;
    let app = Router::new().route("/transfers", post(transfer)).layer(layer).with_state(pool);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
