//! A service behind the gateways of a run: `hapax-torture-gated-service with-ledger|without-ledger URL PORT`. It has no
//! records of its own, and takes the operation from the gateway.

use std::env;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use deadpool_postgres::Pool;
use hapax::OperationId;
use hapax::gate::Reason;
use hapax::ledger::{Call, Terms};
use hapax::stores::{PostgresLedger, PostgresUrl};
use hapax_torture::transfers::{TABLES, transfer_with_entry, transfer_without_ledger};
use tokio::net::TcpListener;

/// How a request is carried out.
#[derive(Clone)]
enum GatedService {
    WithLedger(PostgresLedger),
    WithoutLedger(Pool),
}

async fn transfer(State(service): State<GatedService>, headers: HeaderMap, order: String) -> Response {
    let operation = headers.get("hapax-operation").and_then(|value| value.to_str().ok()?.parse::<OperationId>().ok());
    let Some(operation) = operation else { return StatusCode::BAD_REQUEST.into_response() };
    match service {
        GatedService::WithLedger(ledger) => run(&ledger, &headers, operation, order).await,
        GatedService::WithoutLedger(pool) => {
            match transfer_without_ledger(&pool, &operation.to_string(), &order).await {
                Ok(answer) => (StatusCode::CREATED, answer).into_response(),
                // Never again: the COMMIT may have lost its reply.
                Err(error) => {
                    eprintln!("{order}: {error:#}");
                    (StatusCode::INTERNAL_SERVER_ERROR, "unknown\n").into_response()
                }
            }
        }
    }
}

async fn run(ledger: &PostgresLedger, headers: &HeaderMap, operation: OperationId, order: String) -> Response {
    // The gateways of a run have one rule, so there is one fingerprint.
    let fingerprint = headers.get("hapax-fingerprint").and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(fingerprint) = fingerprint else { return StatusCode::BAD_REQUEST.into_response() };
    let call = Call::new(operation).fingerprint(fingerprint);
    let ran = ledger.run(call, async move |transaction, entry| transfer_with_entry(transaction, entry, &order).await);
    let refused = match ran.await {
        Ok(result) => return (StatusCode::CREATED, result.answer).into_response(),
        Err(refused) => refused,
    };
    eprintln!("{refused}");
    match refused.reason {
        // `Retry-After` says that nothing was applied.
        Reason::Busy { .. } | Reason::Overloaded | Reason::NotApplied { .. } => {
            (StatusCode::CONFLICT, [(RETRY_AFTER, "1")]).into_response()
        }
        Reason::Mismatch | Reason::Dead => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Reason::Unknown { .. } | Reason::Indeterminate { .. } | Reason::Unrecorded | Reason::Store(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "unknown\n").into_response()
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, url, port] = &arguments[..] else { bail!("with-ledger|without-ledger URL PORT") };
    let manager = deadpool_postgres::Manager::new(url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(16).build()?;
    pool.get().await?.batch_execute(TABLES).await?;
    let service = match &**kind {
        "with-ledger" => {
            let url: PostgresUrl = url.parse()?;
            GatedService::WithLedger(PostgresLedger::connect(&url, Terms::new("transfers")?)?)
        }
        "without-ledger" => GatedService::WithoutLedger(pool),
        _ => bail!("with-ledger or without-ledger"),
    };
    let app = Router::new().route("/transfers", post(transfer)).with_state(service);
    let listener = TcpListener::bind(("127.0.0.1", port.parse::<u16>().context("no port")?)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
