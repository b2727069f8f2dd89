//! Runs the program on a real server and sends it requests.

#[path = "../../program.rs"]
mod program;

use std::process::ExitCode;

use hapax_testkit::servers::{self, PostgresServer};
use program::Program;

fn main() -> ExitCode {
    servers::main(vec![servers::test("a_copy_moves_no_money_even_after_a_crash", "postgres", copies)])
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
