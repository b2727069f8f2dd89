//! Layer 1: a request has one answer for each key of its caller, and puts one payment into the queue.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use hapax::broker::Message;
use hapax::http::axum::Attempt;
use hapax::http::{IdempotencyLayer, Tenant};
use hapax::stores::{Sqlite, SqliteQueue};
use hapax::{Gate, OnLapse, Policy, Repeatable, Settings};
use rusqlite::Connection;
use tokio::task::spawn_blocking;

pub(crate) const QUEUE: &str = "payments";

pub(crate) fn payments(folder: &Path) -> anyhow::Result<(Gate, Router)> {
    let bank = folder.join("bank.db");
    SqliteQueue::migrate(&mut Connection::open(&bank)?)?;

    let store = Arc::new(Sqlite::open(folder.join("records.db"))?);
    // Nobody needs to decide about an unknown outcome: a message that is in the queue twice is booked once.
    let repeatable = Repeatable::declared("the worker has a ledger under the id of the operation");
    let policy = Policy::default().on_lapse(OnLapse::Retry(repeatable));
    let gate = Gate::builder(store, Settings::default().policy(policy)).build()?;
    let layer = IdempotencyLayer::new(gate.clone()).tenant("payments", Tenant::Authorization)?;
    Ok((gate, Router::new().route("/payments", post(accept)).layer(layer).with_state(bank)))
}

/// Answers when the payment is in the queue. Its key there is the id of the operation, the same in every attempt.
async fn accept(attempt: Attempt, State(bank): State<PathBuf>, payment: String) -> (StatusCode, &'static str) {
    let key = attempt.operation().to_string();
    let enqueued = spawn_blocking(move || enqueue(&bank, key, payment)).await;
    match enqueued {
        Ok(Ok(())) => (StatusCode::ACCEPTED, "accepted\n"),
        Ok(Err(_)) | Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "send the payment again\n"),
    }
}

fn enqueue(bank: &Path, key: String, payment: String) -> anyhow::Result<()> {
    let headers = [("Idempotency-Key", key)].into_iter().collect();
    let message = Message { payload: payment.into(), headers, ..Message::default() };
    let mut bank = Connection::open(bank)?;
    let transaction = bank.transaction()?;
    SqliteQueue::new(QUEUE)?.enqueue(&transaction, &message)?;
    Ok(transaction.commit()?)
}
