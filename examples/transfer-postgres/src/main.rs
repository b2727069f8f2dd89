//! Transfers between accounts. Each transfer, its answer and its event commit in one transaction of the service, so the
//! money moves once, whatever is sent twice, killed or restarted.
//!
//! ```sh
//! cargo run -p example-transfer-postgres -- postgres://postgres@localhost/bank 3000
//! pay() { curl -i -H 'Authorization: Bearer me' -H "Idempotency-Key: $1" -d "$2" http://127.0.0.1:3000/transfers; }
//! pay order-1 'alice bob 5'      # 201: the money moves
//! pay order-1 'alice bob 5'      # 201: the same answer, and Idempotent-Replayed: true
//! pay order-1 'alice bob 6'      # 422: the key was used for another transfer
//! curl http://127.0.0.1:3000/accounts
//! ```

use std::env;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use deadpool_postgres::Pool;
use hapax::http::axum::{Attempt, Unknown};
use hapax::http::{IdempotencyLayer, PAGE, Tenant};
use hapax::ledger::{Call, Claimed, Event, Terms};
use hapax::stores::{Postgres, PostgresLedger, PostgresUrl};
use hapax::{ErrorKind, Gate, OnLapse, Policy, Repeatable, Settings};
use tokio::net::TcpListener;

pub(crate) const TABLES: &str = "
    create table if not exists account (name text primary key, balance bigint not null check (balance >= 0));
    create table if not exists transfer (operation text, payer text, payee text, amount bigint);
    insert into account values ('alice', 1000), ('bob', 1000) on conflict do nothing";

#[derive(Clone)]
struct Bank {
    pool: Pool,
    ledger: PostgresLedger,
}

// The integration with Hapax begins here ...
pub(crate) async fn transfers(url: &PostgresUrl, pool: Pool) -> hapax::Result<(Gate, Router)> {
    let runtime = Arc::new(hapax::runtime::Tokio::current());
    let ledger = PostgresLedger::connect(url, Terms::new("transfers")?)?;
    ledger.create_tables().await?;
    // The ledger makes a second run harmless, so an operation runs again after its lease, which can be short.
    let retry = OnLapse::Retry(Repeatable::behind(&ledger));
    let policy = Policy::default().lease(Duration::from_secs(3)).on_lapse(retry);
    let settings = Settings::default().policy(policy);
    let gate = Gate::builder(Arc::new(Postgres::with(url, runtime)?), settings).build()?;
    let idempotency = IdempotencyLayer::new(gate.clone()).tenant("transfers", Tenant::Authorization)?;
    let page = idempotency.page();
    let page = get(async move |headers: HeaderMap| page.response(&headers).map(Body::from));
    let router = Router::new().route("/transfers", post(transfer)).layer(idempotency).route(PAGE, page);
    Ok((gate, router.route("/accounts", get(accounts)).with_state(Bank { pool, ledger })))
}

async fn transfer(attempt: Attempt, State(bank): State<Bank>, order: String) -> Response {
    for pause in [10, 100, 1000] {
        match bank.try_transfer(&attempt, &order).await {
            Ok(response) => return response,
            Err(error) if is_unusable(&error) => {
                return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response();
            }
            // Another transaction was faster, or the connection broke. If it has committed, the next run is a replay.
            Err(error) => eprintln!("{order}: {error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    // Not `NotApplied`: the last COMMIT may have lost its reply.
    Unknown((StatusCode::SERVICE_UNAVAILABLE, "try again\n")).into_response()
}

impl Bank {
    async fn try_transfer(&self, attempt: &hapax::gate::Attempt, order: &str) -> anyhow::Result<Response> {
        let [from, to, amount] = order.split_whitespace().collect::<Vec<_>>()[..] else {
            return Ok((StatusCode::BAD_REQUEST, "send: FROM TO AMOUNT\n").into_response());
        };
        let Some(amount) = amount.parse::<i64>().ok().filter(|amount| *amount > 0) else {
            return Ok((StatusCode::BAD_REQUEST, "AMOUNT is a positive number\n").into_response());
        };
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let mut entry = match self.ledger.claim::<String>(&transaction, &Call::from(attempt)).await? {
            Claimed::Fresh(entry) => entry,
            Claimed::Replay(answer) => return Ok((StatusCode::CREATED, answer).into_response()),
            Claimed::Busy => anyhow::bail!("another attempt runs"),
            Claimed::Mismatch | Claimed::Dead => return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response()),
        };
        let take = "update account set balance = balance - $2 where name = $1 and balance >= $2";
        let give = "update account set balance = balance + $2 where name = $1";
        if transaction.execute(take, &[&from, &amount]).await? == 0
            || transaction.execute(give, &[&to, &amount]).await? == 0
        {
            return Ok((StatusCode::UNPROCESSABLE_ENTITY, "no such accounts, or not enough money\n").into_response());
        }
        let operation = entry.operation().to_string();
        transaction.execute("insert into transfer values ($1, $2, $3, $4)", &[&operation, &from, &to, &amount]).await?;
        let answer = format!("{from} gave {to} {amount}: {operation}\n");
        entry.emit(Event::new("transfers", answer.clone()).ordered_by(from.to_owned()))?;
        entry.finish(&transaction, &answer).await?;
        transaction.commit().await?;
        Ok((StatusCode::CREATED, answer).into_response())
    }
}
// ... and ends here.

/// Whether the tables are missing, so that another try cannot help.
fn is_unusable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<hapax::Error>().is_some_and(|error| error.kind() == ErrorKind::Unusable)
}

async fn accounts(State(bank): State<Bank>) -> Result<String, StatusCode> {
    let rows = async {
        let client = bank.pool.get().await?;
        anyhow::Ok(client.query("select name, balance from account order by name", &[]).await?)
    };
    let rows = rows.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(rows.iter().map(|row| format!("{} {}\n", row.get::<_, &str>(0), row.get::<_, i64>(1))).collect())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "postgres://postgres@localhost/postgres".into());
    let port = arguments.next().unwrap_or_else(|| "3000".into()).parse()?;

    let manager = deadpool_postgres::Manager::new(url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(16).build()?;
    pool.get().await?.batch_execute(TABLES).await?;
    let (gate, app) = transfers(&url.parse()?, pool).await?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(wait_for_interrupt()).await?;
    gate.drain(Duration::from_secs(10)).await;
    Ok(())
}

async fn wait_for_interrupt() {
    // Without signal handling the function waits forever, and the process ends in another way.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
