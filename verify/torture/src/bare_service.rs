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
use tokio::net::TcpListener;

const TABLES: &str = "
    create table if not exists transfer (operation text, payer text, payee text, amount bigint)";

async fn transfer(attempt: Attempt, State(pool): State<Pool>, order: String) -> Response {
    for pause in [10, 100, 1000] {
        match try_transfer(&pool, &attempt, &order).await {
            Ok(answer) => return (StatusCode::CREATED, answer).into_response(),
            Err(error) => eprintln!("{order}: {error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    Unknown((StatusCode::SERVICE_UNAVAILABLE, "try again\n")).into_response()
}

async fn try_transfer(pool: &Pool, attempt: &Attempt, order: &str) -> Result<String> {
    let mut words = order.split_whitespace();
    let (from, to) = (words.next().context("no payer")?, words.next().context("no payee")?);
    let amount: i64 = words.next().context("no amount")?.parse()?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let operation = attempt.operation().to_string();
    let answer = format!("{from} gave {to} {amount}: {operation}\n");
    transaction.execute("update account set balance = balance - $2 where name = $1", &[&from, &amount]).await?;
    transaction.execute("update account set balance = balance + $2 where name = $1", &[&to, &amount]).await?;
    transaction.execute("insert into transfer values ($1, $2, $3, $4)", &[&operation, &from, &to, &amount]).await?;
    // An id of its own for each attempt: the derived one would be refused the second time.
    let emit = "insert into hapax_outbox (event_id, operation, namespace, topic, payload)
                values (gen_random_uuid(), $1::text::uuid, 'transfers', 'transfers', $2)";
    transaction.execute(emit, &[&operation, &answer.as_bytes()]).await?;
    transaction.commit().await?;
    Ok(answer)
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
