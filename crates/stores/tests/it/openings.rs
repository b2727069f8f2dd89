//! Opening a file while another connection writes.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use hapax_core::Result;
use hapax_core::runtime::Tokio;
use hapax_stores::{
    Sqlite, SqliteDeadLetters, SqliteLedger, SqliteOutbox, SqliteQueue, SqliteSink, SqliteSinkConfig, SqliteTables,
};
use rusqlite::Connection;

/// Everything that opens a file.
fn open_all(path: &Path) -> Vec<(&'static str, Result<()>)> {
    let sink = SqliteSink::open(SqliteSinkConfig::new(path), Arc::new(Tokio::current()));
    vec![
        ("records", Sqlite::open(path).map(drop)),
        ("queue", SqliteQueue::new("orders").unwrap().source(path).map(drop)),
        ("sink", sink.map(drop)),
        ("outbox", SqliteOutbox::open(path).map(drop)),
        ("dead letters", SqliteDeadLetters::open(path).map(drop)),
        ("all tables", SqliteTables::new(path).create().map(drop)),
    ]
}

#[tokio::test]
async fn a_file_with_its_tables_is_opened_while_another_connection_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    SqliteTables::new(&path).create().unwrap();
    let mut service = Connection::open(&path).unwrap();
    service.busy_timeout(Duration::ZERO).unwrap();
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("begin immediate; create table account (id text)").unwrap();
    for (what, opened) in open_all(&path) {
        opened.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    }
    SqliteLedger::migrate(&mut service).unwrap();
    SqliteOutbox::migrate(&mut service).unwrap();
    SqliteQueue::migrate(&mut service).unwrap();
    SqliteDeadLetters::migrate(&mut service).unwrap();
    writer.execute_batch("commit").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_tables_is_opened_after_a_transaction_that_takes_longer_than_a_call_may_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("pragma journal_mode = wal; begin immediate; create table account (id text)").unwrap();
    let (ended, openings) = mpsc::channel::<()>();
    let holding = thread::Builder::new().spawn(move || {
        // A call waits for 1 s. An opening that gives up so early ends the wait.
        let _ = openings.recv_timeout(Duration::from_millis(1_500));
        writer.execute_batch("commit").unwrap();
    });
    let opened = SqliteQueue::new("orders").unwrap().source(&path).map(drop);
    drop(ended);
    holding.unwrap().join().unwrap();
    opened.unwrap();
}

#[tokio::test]
async fn an_index_that_is_missing_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    SqliteTables::new(&path).create().unwrap();
    let mut service = Connection::open(&path).unwrap();
    service.execute_batch("drop index hapax_queue_event_oldest; drop trigger hapax_queue_next").unwrap();
    SqliteQueue::migrate(&mut service).unwrap();
    let found = "select count(*) from sqlite_schema where name in ('hapax_queue_event_oldest', 'hapax_queue_next')";
    assert_eq!(service.query_row(found, [], |row| row.get::<_, u32>(0)).unwrap(), 2);
}
