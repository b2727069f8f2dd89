//! Runs the program on a real server and sends it requests.

#[path = "../../program.rs"]
mod program;

use std::process::ExitCode;

use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions};
use program::Program;

/// The state of a record whose attempt has not ended, or whose outcome is unknown.
const IN_PROGRESS: i16 = 1;

fn main() -> ExitCode {
    servers::main(vec![
        servers::test("a_copy_moves_no_money_even_after_a_crash", "postgres", copies),
        servers::test("a_transfer_whose_commit_got_no_reply_is_not_released", "postgres", lost_reply),
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
    proxy.inject(NetworkFault::cut(CutPoint::Answered, "COMMIT").times(1));
    proxy.inject(NetworkFault::cut(CutPoint::Unsent, "pg_try_advisory_xact_lock").after(1));
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
