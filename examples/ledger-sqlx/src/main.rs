//! Money in transactions of sqlx, behind `hapax gateway`, which gives each operation its id. Each effect, its answer
//! and its event commit in one transaction, so the money moves once, whatever is sent twice, killed or restarted. A
//! transfer has a transaction of its own; a deposit lets the runner open it.
//!
//! ```sh
//! hapax migrate --database postgres://postgres@localhost/bank
//! cargo run -p example-ledger-sqlx -- postgres://postgres@localhost/bank 9000
//! hapax gateway --upstream http://127.0.0.1:9000 --store sqlite://requests.db --on-lapse retry
//! post() { curl -i -H 'Authorization: Bearer me' -H "Idempotency-Key: $2" -d "$3" "http://127.0.0.1:8080/$1"; }
//! post transfers order-1 'alice bob 5'   # 201: the money moves
//! post transfers order-1 'alice bob 5'   # 201: the same answer, and Idempotent-Replayed: true
//! post deposits order-2 'alice 5'        # 201: the same, through the runner
//! ```

use std::env;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax::gate::{Failure, Reason};
use hapax::ledger::{Call, Claimed, Entry, Event, Terms};
use hapax::stores::{SqlxLedger, SqlxRunner};
use sqlx::{PgConnection, PgPool};
use tokio::net::TcpListener;

const TABLES: &str = "
    create table if not exists account (name text primary key, balance bigint not null check (balance >= 0));
    insert into account values ('alice', 1000), ('bob', 1000) on conflict do nothing";

#[derive(Clone)]
struct SqlxBank {
    pool: PgPool,
    ledger: SqlxLedger,
    runner: SqlxRunner,
}

// The integration with Hapax begins here ...
async fn transfer(State(bank): State<SqlxBank>, headers: HeaderMap, order: String) -> Response {
    let Ok(call) = call(&headers) else { return without_gateway() };
    // A handler is dropped when its client disconnects, and a dropped `begin` may leave its transaction open in the
    // pool. So the transaction is in a task of its own.
    let transfers = tokio::spawn(async move {
        for pause in [10, 100, 1000] {
            match bank.try_transfer(&call, &order).await {
                Ok(response) => return response,
                // A conflict, or the connection broke. If it has committed, the next run is a replay.
                Err(error) => eprintln!("{order}: {error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        StatusCode::INTERNAL_SERVER_ERROR.into_response() // the outcome is unknown
    });
    transfers.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// The runner opens the transaction, and runs it again after a conflict or a lost connection. If it is dropped, it
/// closes its connection, so it needs no task of its own.
async fn deposit(State(bank): State<SqlxBank>, headers: HeaderMap, order: String) -> Response {
    let Ok(call) = call(&headers) else { return without_gateway() };
    let deposit = async move |transaction: &mut PgConnection, entry: &mut Entry| {
        let (name, amount) = order.split_once(' ').unwrap_or_default();
        let Ok(amount) = amount.parse::<i64>() else { return Err(Failure::not_applied("send: NAME AMOUNT")) };
        let update = sqlx::query("update account set balance = balance + $2 where name = $1").bind(name).bind(amount);
        if update.execute(&mut *transaction).await?.rows_affected() == 0 {
            return Err(Failure::not_applied("no such account"));
        }
        let answer = format!("{order}: {}\n", entry.operation());
        entry.emit(Event::new("deposits", answer.clone()))?;
        Ok(answer)
    };
    match bank.runner.run(call, deposit).await {
        Ok(deposited) => (StatusCode::CREATED, deposited.answer).into_response(),
        Err(refused) => (refusal(&refused.reason), format!("{refused}\n")).into_response(),
    }
}

fn refusal(reason: &Reason) -> StatusCode {
    match reason {
        Reason::Busy { .. } => StatusCode::CONFLICT,
        Reason::Mismatch | Reason::Dead | Reason::NotApplied { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        // The same request finds out later.
        Reason::Indeterminate { .. } | Reason::Overloaded | Reason::Unknown { .. } | Reason::Unrecorded => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        Reason::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn without_gateway() -> Response {
    (StatusCode::BAD_REQUEST, "there is no gateway in front\n").into_response()
}

/// The operation and the payload as the gateway names them.
fn call(headers: &HeaderMap) -> anyhow::Result<Call> {
    let field = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(Call::new(field("hapax-operation").parse()?).fingerprint(field("hapax-fingerprint").parse()?))
}

impl SqlxBank {
    async fn try_transfer(&self, call: &Call, order: &str) -> anyhow::Result<Response> {
        let mut transaction = self.pool.begin().await?;
        let mut entry = match self.ledger.claim::<String>(&mut transaction, call).await? {
            Claimed::Fresh(entry) => entry,
            Claimed::Replay(answer) => return Ok((StatusCode::CREATED, answer).into_response()),
            Claimed::Busy => return Ok((StatusCode::CONFLICT, [(RETRY_AFTER, "1")]).into_response()),
            Claimed::Mismatch | Claimed::Dead => return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response()),
        };
        let [from, to, amount] = order.split_whitespace().collect::<Vec<_>>()[..] else {
            return Ok((StatusCode::BAD_REQUEST, "send: FROM TO AMOUNT\n").into_response());
        };
        let Ok(amount) = amount.parse::<i64>() else {
            return Ok((StatusCode::BAD_REQUEST, "AMOUNT is a number\n").into_response());
        };
        for (name, change) in [(from, -amount), (to, amount)] {
            let update = "update account set balance = balance + $2 where name = $1 and balance + $2 >= 0";
            let update = sqlx::query(update).bind(name).bind(change);
            if update.execute(&mut *transaction).await?.rows_affected() == 0 {
                return Ok((StatusCode::UNPROCESSABLE_ENTITY, "no such account, or not enough money\n").into_response());
            }
        }
        let answer = format!("{order}: {}\n", entry.operation());
        entry.emit(Event::new("transfers", answer.clone()))?;
        entry.finish(&mut transaction, &answer).await?;
        transaction.commit().await?;
        Ok((StatusCode::CREATED, answer).into_response())
    }
}
// ... and ends here.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "postgres://postgres@localhost/postgres".into());
    let port = arguments.next().unwrap_or_else(|| "9000".into()).parse()?;
    let pool = PgPool::connect(&url).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let ledger = SqlxLedger::new(Terms::new("transfers")?);
    let bank = SqlxBank { runner: ledger.runner(pool.clone()), ledger, pool };
    let app = Router::new().route("/transfers", post(transfer)).route("/deposits", post(deposit)).with_state(bank);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
