//! The removal of old rows of a ledger, some at a time.

use std::time::Duration;

use hapax_core::gate::{Failure, Reason};
use hapax_core::ledger::{Call, Retention, Terms};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{ErrorKind, Identity, Key, Scope};
use hapax_stores::{SqliteLedger, SqliteTables};
use rusqlite::Connection;

fn run(ledger: &SqliteLedger, file: &mut Connection, key: usize) {
    ledger.run(file, call(key), |_, _| Ok(String::from("done"))).unwrap();
}

fn call(key: usize) -> Call {
    let scope = Scope::tenant("transfers", "acme").unwrap();
    Identity::plain().call(&scope, &Key::new(key.to_string()).unwrap()).into()
}

fn hourly(namespace: &str) -> SqliteLedger {
    let terms = Terms::new(namespace).unwrap().max_attempts(2);
    SqliteLedger::new(terms.retention(Retention::For(Duration::from_hours(1)), Duration::ZERO).unwrap())
}

fn count(file: &Connection, table: &str) -> i64 {
    file.query_row(&format!("select count(*) from {table}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn a_sweep_removes_the_old_rows_of_its_namespace_in_several_steps() {
    let mut file = Connection::open_in_memory().unwrap();
    SqliteLedger::migrate(&mut file).unwrap();
    let ledger_of = |namespace: &str, kept| {
        SqliteLedger::new(Terms::new(namespace).unwrap().retention(kept, Duration::ZERO).unwrap())
    };
    let hour = Retention::For(Duration::from_hours(1));
    let (ours, other) = (ledger_of("transfers", hour), ledger_of("others", hour));
    for key in 0..10 {
        run(&ours, &mut file, key);
        run(&other, &mut file, key);
    }
    // The rows have the ids 1 to 20, and those of `transfers` the odd ones.
    file.execute("update hapax_ledger set created_at = created_at - 7200000 where id <= 18", []).unwrap();

    let (mut after, mut steps) = (Some(0), 0);
    while let Some(from) = after {
        after = ours.sweep(&file, from, 3).unwrap();
        steps += 1;
        let looked_at = 3 * steps;
        let removed = "select count(*) from hapax_ledger where namespace = 'transfers' and id <= ?1";
        let left: i64 = file.query_row(removed, [looked_at.min(18)], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "after {steps} steps");
        assert!(steps <= 20, "a sweep ends");
    }
    assert_eq!(steps, 7, "20 rows, 3 at a time");
    let left = "select count(*) filter (where namespace = 'transfers'), count(*) from hapax_ledger";
    let left: (i64, i64) = file.query_row(left, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(left, (1, 11), "a young row, and those of the other namespace");
    let forever = ledger_of("others", Retention::Forever);
    assert_eq!(forever.sweep(&file, 0, 100).unwrap(), None);
    assert_eq!(file.query_row("select count(*) from hapax_ledger", [], |row| row.get::<_, i64>(0)).unwrap(), 11);
}

#[test]
fn a_sweep_removes_old_counts_of_failed_attempts() {
    let mut file = Connection::open_in_memory().unwrap();
    SqliteLedger::migrate(&mut file).unwrap();
    let (ours, other) = (hourly("transfers"), hourly("others"));
    for ledger in [&ours, &other] {
        // The first one is closed.
        for key in [0, 0, 1, 2] {
            let failed = ledger.run(&mut file, call(key), |_, _| Err::<String, _>(Failure::from("it cannot be run")));
            assert!(failed.is_err());
        }
    }
    file.execute("update hapax_attempt set first_at = first_at - 7200000", []).unwrap();
    let mut after = ours.sweep(&file, 0, 1).unwrap();
    assert_eq!(count(&file, "hapax_attempt"), 5, "one at a time");
    let mut steps = 1;
    while let Some(from) = after {
        after = ours.sweep(&file, from, 1).unwrap();
        steps += 1;
        assert!(steps <= 10, "a sweep ends");
    }
    assert_eq!(steps, 3, "two old counts, one at a time");
    assert_eq!(count(&file, "hapax_attempt where namespace = 'transfers' and dead_at is not null"), 1);
    assert_eq!(count(&file, "hapax_attempt"), 4, "that one, and those of the other namespace");
    file.execute("update hapax_attempt set dead_at = dead_at - 7200000", []).unwrap();
    ours.sweep(&file, 0, 100).unwrap();
    assert_eq!(count(&file, "hapax_attempt"), 3);
}

#[tokio::test]
async fn a_regular_sweep_removes_the_rows_that_have_become_old() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let mut file = Connection::open(directory.path().join("shop.db")).unwrap();
        SqliteLedger::migrate(&mut file).unwrap();
        file
    };
    let (ledger, mut file, runtime) = (hourly("transfers"), open(), Tokio::current());
    let rows_come = async {
        for round in 0..2 {
            for key in 0..5 {
                run(&ledger, &mut file, 10 * round + key);
            }
            file.execute("update hapax_ledger set created_at = created_at - 7200000", []).unwrap();
            while count(&file, "hapax_ledger") > 0 {
                tokio::task::yield_now().await;
            }
        }
    };
    let sweeps = ledger.sweep_regularly(open(), &runtime, Duration::from_millis(5));
    let both = async {
        tokio::select! {
            () = sweeps => panic!("a sweep of a limited retention never ends"),
            () = rows_come => {}
        }
    };
    hapax_core::runtime::timeout(&runtime, Duration::from_secs(60), both).await.expect("old rows are removed");
}

#[tokio::test]
async fn a_sweep_waits_for_its_turn() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let mut file = Connection::open(&path).unwrap();
    SqliteLedger::migrate(&mut file).unwrap();
    run(&hourly("transfers"), &mut file, 1);
    let turn = std::fs::File::open(directory.path().join("shop.db.turn")).unwrap();
    turn.lock().unwrap();
    file.busy_timeout(Duration::from_millis(50)).unwrap();
    let (runtime, begun) = (Tokio::current(), Tokio::current().boottime_now());
    hourly("transfers").sweep(&file, 0, 10).unwrap();
    assert!(runtime.boottime_now() - begun >= Duration::from_millis(50), "it took no turn");
}

#[test]
fn a_handler_that_lacks_a_table_is_not_counted() {
    let mut file = Connection::open_in_memory().unwrap();
    SqliteLedger::migrate(&mut file).unwrap();
    file.execute_batch("create table account (id integer)").unwrap();
    let ledger = SqliteLedger::new(Terms::new("transfers").unwrap().max_attempts(1));
    let statements =
        ["insert into absent values (1)", "select absent from account", "insert into account (absent) values (1)"];
    for statement in statements {
        let refused = ledger.run(&mut file, call(1), |transaction, _| {
            transaction.execute_batch(statement)?;
            Ok(String::from("done"))
        });
        assert_eq!(refused.unwrap_err().reason, Reason::Store(ErrorKind::Unusable), "{statement}");
    }
    assert_eq!(count(&file, "hapax_attempt"), 0);
    run(&ledger, &mut file, 1);
}

#[test]
fn tables_of_a_newer_release_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let tables = SqliteTables::new(&path);
    tables.create().unwrap();
    Connection::open(&path).unwrap().execute("update hapax_store set version = 2", []).unwrap();
    for refused in [tables.missing().map(drop), tables.create().map(drop), tables.script().map(drop)] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unusable);
        assert!(error.to_string().contains("the schema has version 2 and this release knows 1"), "{error}");
    }
}
