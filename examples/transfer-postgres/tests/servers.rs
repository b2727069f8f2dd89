//! Runs the program on a real server and sends it requests.

#[expect(dead_code, reason = "the entry point is not called here")]
#[path = "../src/main.rs"]
mod example;
#[path = "../../program.rs"]
mod program;

use std::process::ExitCode;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use deadpool_postgres::{Manager, Pool};
use hapax::testing::{Kill, deliver_twice_async};
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions};
use http_body_util::BodyExt;
use program::Program;
use tower::ServiceExt;

/// The state of a record whose attempt has not ended, or whose outcome is unknown.
const IN_PROGRESS: i16 = 1;

fn main() -> ExitCode {
    servers::main(vec![
        servers::test("a_copy_moves_no_money_even_after_a_crash", "postgres", copies),
        servers::test("a_transfer_whose_commit_got_no_reply_is_not_released", "postgres", lost_reply),
        servers::test(
            "a_transfer_that_is_killed_anywhere_and_sent_again_moves_the_money_once",
            "postgres",
            killed_deliveries,
        ),
    ])
}

async fn copies() {
    let server = PostgresServer::shared().await.expect("the server starts");
    let start = || Program::start(env!("CARGO_BIN_EXE_example-transfer-postgres"), &[&server.url(), "0"]);
    let bank = start();
    let first = bank.post("/transfers", "order-1", "alice bob 5");
    assert!(first.status == 201 && first.body.starts_with("alice gave bob 5: "), "{}", first.body);
    let copy = bank.post("/transfers", "order-1", "alice bob 5");
    assert_eq!((copy.status, copy.is_replay(), &copy.body), (201, true, &first.body));
    assert_eq!(bank.post("/transfers", "order-1", "alice bob 6").status, 422);
    assert_eq!(bank.post("/transfers", "order-2", "alice carol 5").status, 422);
    for (order, wrong) in [("order-3", "alice bob -5"), ("order-4", "alice bob five"), ("order-5", "alice bob")] {
        assert_eq!(bank.post("/transfers", order, wrong).status, 400, "{wrong}");
    }
    drop(bank);

    // The store of the layer forgets everything, as a cache may. The ledger knows the operation.
    let client = server.client().await.expect("the server answers");
    client.batch_execute("truncate hapax_record").await.expect("the records can be removed");
    let bank = start();
    let copy = bank.post("/transfers", "order-1", "alice bob 5");
    assert_eq!((copy.status, copy.is_replay(), &copy.body), (201, false, &first.body));
    assert_eq!(bank.get("/accounts").body, "alice 995\nbob 1005\n");
    let row = client.query_one("select count(*) from hapax_outbox", &[]).await.expect("the events can be read");
    assert_eq!(row.get::<_, i64>(0), 1);
}

async fn lost_reply() {
    let server = PostgresServer::start(PostgresServerOptions::new()).await.expect("the server starts");
    let proxy = Proxy::start(server.address()).await.expect("a port is free");
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let bank = Program::start(env!("CARGO_BIN_EXE_example-transfer-postgres"), &[&url, "0"]);
    // The first try commits, and neither it nor a later one learns that.
    proxy.inject(NetworkFault::cut(CutPoint::Answered, "COMMIT\0").times(1));
    proxy.inject(NetworkFault::cut(CutPoint::Unsent, "hapax_claim_own($1").after(1));
    assert_eq!(bank.post("/transfers", "order-1", "alice bob 5").status, 503);
    assert_eq!(bank.get("/accounts").body, "alice 995\nbob 1005\n");
    let client = server.client().await.expect("the server answers");
    let row = client.query_one("select state from hapax_record", &[]).await.expect("the record can be read");
    assert_eq!(row.get::<_, i16>(0), IN_PROGRESS);

    proxy.heal().await.expect("the proxy listens");
    let copy = bank.post("/transfers", "order-1", "alice bob 5");
    assert!(copy.status == 201 && copy.body.starts_with("alice gave bob 5: "), "{}", copy.body);
    assert_eq!(bank.get("/accounts").body, "alice 995\nbob 1005\n");
}

/// In a runtime with one thread, so that the handler runs in the thread of its delivery.
async fn killed_deliveries() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ended = tokio::task::spawn_blocking(move || runtime.block_on(killed())).await;
    ended.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
}

/// The first delivery dies in its handler. The gate abandons its grant, and the second one runs the handler again.
async fn killed() {
    let server = PostgresServer::start(PostgresServerOptions::new()).await.expect("the server starts");
    let manager = Manager::new(server.url().parse().expect("a URL"), tokio_postgres::NoTls);
    let pool = Pool::builder(manager).build().expect("a runtime");
    let client = server.client().await.expect("the server answers");
    client.batch_execute(example::TABLES).await.expect("the tables are new");
    let url = server.url().parse().expect("a URL");
    let (_gate, app) = example::transfers(&url, pool).await.expect("the server answers");
    for (number, kill) in (1..).zip(Kill::ALL) {
        let deliver = || {
            let request = Request::post("/transfers").header("authorization", "Bearer me");
            let request = request.header("idempotency-key", format!("order-{number}"));
            let response = app.clone().oneshot(request.body(Body::from("alice bob 5")).expect("a request"));
            async {
                let response = response.await.expect("a router has no error");
                let status = response.status();
                let body = response.into_body().collect().await.expect("a whole body").to_bytes();
                if status == StatusCode::CREATED { Ok(body) } else { Err(status) }
            }
        };
        let delivered = deliver_twice_async(kill, deliver).await;
        let answer = delivered.answer.unwrap_or_else(|status| panic!("killed {kill}: {status}"));
        let lost = delivered.lost.expect("the gate answers for the handler");
        assert_eq!(lost.is_ok(), kill == Kill::AfterCommit, "killed {kill}");
        assert!(lost.is_err() || lost == Ok(answer), "killed {kill}");
        let read = "select balance, (select count(*) from hapax_outbox) from account where name = 'alice'";
        let row = client.query_one(read, &[]).await.expect("the tables can be read");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1000 - 5 * number, number), "killed {kill}");
    }
}
