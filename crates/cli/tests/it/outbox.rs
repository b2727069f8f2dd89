//! `hapax outbox` on an SQLite file, and its errors.

use hapax::stores::{SqliteLedger, SqliteOutbox};
use rusqlite::Connection;

use crate::harness::hapax;
use crate::outbox_commands::{events, operate};

#[tokio::test]
async fn parked_keys_are_listed_resumed_and_dropped_and_events_published_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let mut connection = Connection::open(&path).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    SqliteOutbox::migrate(&mut connection).unwrap();
    let transaction = connection.transaction().unwrap();
    for event in events() {
        SqliteOutbox::emit(&transaction, "accounts", None, event).unwrap();
    }
    transaction.commit().unwrap();
    operate(&SqliteOutbox::open(&path).unwrap(), &format!("sqlite://{}", path.display())).await;
}

#[test]
fn wrong_usage_is_2_and_a_database_without_an_outbox_is_3() {
    let directory = tempfile::tempdir().unwrap();
    let (absent, empty) = (directory.path().join("absent.db"), directory.path().join("empty.db"));
    Connection::open(&empty).unwrap().execute_batch("create table account (id text)").unwrap();
    let url = |path: &std::path::Path| format!("sqlite://{}", path.display());
    let run = |arguments: &[&str]| hapax().arg("outbox").args(arguments).output().unwrap();
    for (arguments, code, message) in [
        (&["list"][..], 2, "--database"),
        (&["list", "--database", "memory:"], 2, "has no tables; name sqlite://PATH, postgres://HOST/DATABASE"),
        (&["list", "--database", "redis://localhost"], 2, "has no tables; name sqlite://PATH"),
        (&["list", "--database", "mysql://localhost"], 2, "--database takes sqlite://PATH, postgres"),
        (&["list", "--database", &url(&absent)], 3, "does not exist"),
        (&["list", "--database", &url(&empty)], 3, "run `hapax migrate --database"),
        (&["list", "--database", "postgres://shop:hush-hush@127.0.0.1:1/shop"], 3, "cannot be reached"),
        (&["show", "7", "--database", &url(&empty)], 2, "UUID"),
        (&["resume", "--database", &url(&empty)], 2, "required"),
        (&["resume", "hex:0", "--database", &url(&empty)], 2, "hexadecimal digits"),
        (&["republish", "--database", &url(&empty)], 2, "--since"),
        (&["republish", "--since", "yesterday", "--database", &url(&empty)], 2, "2026-01-31T12:00:00Z"),
        (&["republish", "--since", "1h", "--until", "2h", "--database", &url(&empty)], 2, "before --until"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(message) && !error.contains("hush-hush"), "{arguments:?}: {error}");
    }
    assert!(!absent.exists());
    let tables: i64 = Connection::open(&empty)
        .unwrap()
        .query_row("select count(*) from sqlite_master", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1, "nothing is created");
}
