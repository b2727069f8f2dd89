//! Runs the program on a real server and sends it requests as the gateway does.

#[path = "../../program.rs"]
#[allow(dead_code, reason = "shared with examples that have a gate of their own")]
mod program;

use std::process::ExitCode;

use hapax::ledger::Terms;
use hapax::stores::{PostgresLedger, PostgresUrl};
use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions};
use program::Program;

fn main() -> ExitCode {
    servers::main(vec![servers::test("copies_with_one_operation_move_no_money", "postgres", copies)])
}

async fn copies() {
    let server = PostgresServer::start(PostgresServerOptions::new()).await.expect("the server starts");
    let url: PostgresUrl = server.url().parse().expect("a URL");
    let ledger = PostgresLedger::connect(&url, Terms::new("transfers").expect("a namespace")).expect("no files");
    ledger.create_tables().await.expect("the server answers");
    let client = server.client().await.expect("the server answers");
    let start = || Program::start(env!("CARGO_BIN_EXE_example-ledger-sqlx"), &[&server.url(), "0"]);
    let fields = |operation: u32, payload: char| {
        format!(
            "Hapax-Operation: 00000000-0000-8000-8000-{operation:012}\r\nHapax-Fingerprint: 1:{}\r\n",
            payload.to_string().repeat(24)
        )
    };
    let post = |bank: &Program, fields: &str, body: &str| bank.send("POST /transfers", fields, body);
    let deposit = |bank: &Program, fields: &str, body: &str| bank.send("POST /deposits", fields, body);
    let bank = start();
    let first = post(&bank, &fields(1, 'a'), "alice bob 5");
    assert!(first.status == 201 && first.body.starts_with("alice bob 5: 00000000"), "{}", first.body);
    assert_eq!(post(&bank, &fields(1, 'b'), "alice bob 6").status, 422);
    assert_eq!(post(&bank, &fields(2, 'c'), "alice carol 5").status, 422);
    assert_eq!(post(&bank, &fields(3, 'd'), "alice bob 5000").status, 422);
    assert_eq!(post(&bank, "", "alice bob 5").status, 400);
    let deposited = deposit(&bank, &fields(4, 'e'), "bob 7");
    assert!(deposited.status == 201 && deposited.body.starts_with("bob 7: 00000000"), "{}", deposited.body);
    assert_eq!(deposit(&bank, &fields(4, 'f'), "bob 8").status, 422);
    assert_eq!(deposit(&bank, "", "bob 7").status, 400);
    // A refused call is not recorded, so a corrected account is found.
    assert_eq!(deposit(&bank, &fields(5, 'a'), "carol 7").status, 422);
    client.batch_execute("insert into account values ('carol', 0)").await.expect("the table is there");
    assert_eq!(deposit(&bank, &fields(5, 'a'), "carol 7").status, 201);
    drop(bank);
    let bank = start();
    let copy = post(&bank, &fields(1, 'a'), "alice bob 5");
    assert_eq!((copy.status, &copy.body), (201, &first.body));
    let copy = deposit(&bank, &fields(4, 'e'), "bob 7");
    assert_eq!((copy.status, &copy.body), (201, &deposited.body));
    let balances = "select array_agg(balance order by name), (select count(*) from hapax_outbox) from account";
    let row = client.query_one(balances, &[]).await.expect("the tables can be read");
    assert_eq!((row.get::<_, Vec<i64>>(0), row.get::<_, i64>(1)), (vec![995, 1012, 7], 3));
}
