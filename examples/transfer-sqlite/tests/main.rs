//! Runs the program several times on one file, and reads what it prints and what it left in the file.

use std::path::Path;
use std::process::{Command, Output};

use rusqlite::Connection;

fn run(file: &Path, arguments: [&str; 4]) -> Output {
    let program = env!("CARGO_BIN_EXE_example-transfer-sqlite");
    Command::new(program).arg(file).args(arguments).output().expect("the program starts")
}

fn printed(file: &Path, arguments: [&str; 4]) -> String {
    let output = run(file, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the program prints text").trim_end().to_owned()
}

fn balances(file: &Path) -> Vec<(String, i64)> {
    let bank = Connection::open(file).expect("the file is a database");
    let mut rows = bank.prepare("select name, balance from account order by name").expect("the table exists");
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("the table can be read");
    rows.map(|row| row.expect("the row can be read")).collect()
}

#[test]
fn an_order_that_is_run_twice_moves_the_money_once() {
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("bank.db");
    assert_eq!(printed(&file, ["order-7", "alice", "bob", "5"]), "now: alice gave bob 5");
    assert_eq!(printed(&file, ["order-7", "alice", "bob", "5"]), "before: alice gave bob 5");
    assert_eq!(balances(&file), [("alice".into(), 95), ("bob".into(), 105)]);

    let other = run(&file, ["order-7", "alice", "bob", "6"]);
    assert!(!other.status.success());
    assert!(String::from_utf8_lossy(&other.stderr).contains("another payload"), "{other:?}");
    assert_eq!(balances(&file), [("alice".into(), 95), ("bob".into(), 105)]);

    let bank = Connection::open(&file).expect("the file is a database");
    let count = |table: &str| {
        bank.query_row(&format!("select count(*) from {table}"), [], |row| row.get::<_, i64>(0)).expect("it exists")
    };
    assert_eq!((count("hapax_ledger"), count("hapax_outbox")), (1, 1));
}

#[test]
fn a_final_answer_undoes_what_was_written_and_is_replayed() {
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("bank.db");
    assert_eq!(printed(&file, ["order-8", "alice", "carol", "5"]), "now: there is no account carol");
    assert_eq!(balances(&file), [("alice".into(), 100), ("bob".into(), 100)]);
    assert_eq!(printed(&file, ["order-8", "alice", "carol", "5"]), "before: there is no account carol");
    assert_eq!(printed(&file, ["order-9", "bob", "alice", "500"]), "now: bob does not have 500");
    assert_eq!(balances(&file), [("alice".into(), 100), ("bob".into(), 100)]);
}
