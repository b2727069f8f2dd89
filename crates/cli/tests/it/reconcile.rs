//! `hapax reconcile` on SQLite, its probe and its errors.

#![expect(clippy::disallowed_types, reason = "the test plants records in a store")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use hapax::Store;
use hapax::ledger::{Event, Terms};
use hapax::outbox::Outbox;
use hapax::stores::{Sqlite, SqliteLedger, SqliteOutbox};
use rusqlite::Connection;

use crate::harness::hapax;
use crate::reconciliation::{
    EVENT_KEYS, System, asks_the_processor, finds_and_repairs, heals_what_a_dead_gateway_left,
};

/// A system in two files: the gateway's, and the one of the service and its relay.
fn system(directory: &Path) -> System {
    let (gateway, bank) = (directory.join("gateway.db"), directory.join("bank.db"));
    let mut connection = Connection::open(&bank).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    SqliteOutbox::migrate(&mut connection).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
    connection.execute_batch("create table effect (text text)").unwrap();
    for key in EVENT_KEYS {
        let event = Event::new("withdrawals", "5").ordered_by(key);
        SqliteOutbox::emit(&connection, "bank", None, event).unwrap();
    }
    let (ledger, connection) = (SqliteLedger::new(Terms::new("bank").unwrap()), Arc::new(Mutex::new(connection)));
    let damaged = gateway.clone();
    System {
        store_url: format!("sqlite://{}", gateway.display()),
        records: Arc::new(Sqlite::open(&gateway).unwrap()) as Arc<dyn Store>,
        database_url: format!("sqlite://{}", bank.display()),
        claims: Arc::new(Sqlite::open(&bank).unwrap()),
        outbox: Arc::new(SqliteOutbox::open(&bank).unwrap()) as Arc<dyn Outbox>,
        book: Arc::new(move |call, text| {
            let mut connection = connection.lock().unwrap();
            let ran = ledger.run(&mut connection, call, |transaction, _| {
                transaction.execute("insert into effect values (?1)", [&text])?;
                Ok(text.clone())
            });
            let answer = ran.unwrap().answer;
            Box::pin(async move { answer })
        }),
        damage: Box::new(move |rk| {
            let sql = "update hapax_record set token = token + 1 where rk = ?1";
            let changed = Connection::open(&damaged).unwrap().execute(sql, [&rk.as_bytes()[..]]).unwrap();
            assert_eq!(changed, 1);
            Box::pin(async {})
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_inconsistency_is_found_the_certain_ones_are_repaired_and_nothing_else_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    finds_and_repairs(&system(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_healed_that_a_gateway_left_which_died_after_the_ledger_had_committed() {
    let directory = tempfile::tempdir().unwrap();
    heals_what_a_dead_gateway_left(&system(directory.path()), &directory.path().join("spill")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_processor_tells_of_effects_without_a_record_and_of_records_without_an_effect() {
    let directory = tempfile::tempdir().unwrap();
    asks_the_processor(&system(directory.path())).await;
}

#[test]
fn wrong_usage_is_2_and_a_server_that_cannot_be_reached_is_3() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    let (absent, bank) = (path("absent.db"), path("bank.db"));
    let migrated = hapax().args(["migrate", "--database", &bank]).output().unwrap();
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let lost = "postgres://shop:hush-hush@127.0.0.1:1/shop";
    for (flags, code, message) in [
        (&["--database", &bank][..], 2, "--store"),
        (&["--store", &bank], 2, "--database"),
        (&["--store", "memory:", "--database", &bank], 2, "name its store"),
        (&["--store", &bank, "--database", "redis://localhost"], 2, "has no tables; name postgres://"),
        (&["--store", &bank, "--database", &bank, "--since", "yesterday"], 2, "2026-01-31T12:00:00Z"),
        (&["--store", &bank, "--database", &bank, "--probe", "ftp://a"], 2, "--probe takes http://HOST/PATH"),
        (&["--store", &bank, "--database", &bank, "--worker-namespace", ""], 2, "namespace"),
        (&["--store", &absent, "--database", &bank], 3, "name the file that the gateway uses"),
        (&["--store", &bank, "--database", &absent], 3, "does not exist"),
        (&["--store", &bank, "--database", lost], 3, "cannot be reached"),
        (&["--store", lost, "--database", &bank], 3, "cannot be reached"),
        (&["--store", "redis://:hush-hush@127.0.0.1:1", "--database", &bank], 3, "cannot be reached"),
        (&["--store", &bank, "--database", &bank], 0, ""),
    ] {
        let output = hapax().arg("reconcile").args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {error}");
        assert!(error.contains(message) && !error.contains("hush-hush"), "{flags:?}: {error}");
    }
    assert!(!directory.path().join("absent.db").exists());
}
