use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Begin, Lapse};
use hapax_core::store::{Inserted, Inspect, Severity};
use hapax_core::{Error, ErrorKind, Identity, Key, Millis, Owner, Scope, Seconds, Store};
use hapax_stores::{Sqlite, SqliteSettings};
use hapax_testkit::ManualClock;
use rusqlite::Connection;

use crate::disk::wait_until_closed;

pub(crate) fn open(path: &Path) -> Result<Sqlite, Error> {
    Sqlite::open(path)
}

pub(crate) fn begin(key: u32) -> Begin {
    let scope = Scope::untenanted("it").unwrap();
    let key = Key::new(key.to_be_bytes()).unwrap();
    let (lease, unknown_retention) = (Millis(30_000), Seconds(3600));
    Begin {
        call: Identity::plain().call(&scope, &key),
        owner: Owner([1; 16]),
        lease,
        unknown_retention,
        on_lapse: Lapse::Hold,
    }
}

#[tokio::test]
async fn a_damaged_file_is_reported_as_damaged_and_never_as_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = open(&path).unwrap();
    for key in 0..500 {
        store.begin(&begin(key)).await.unwrap();
    }
    drop(store);
    wait_until_closed(&path).await;
    damage_tables(&path, &["hapax_record", "hapax_record_rk"]);
    let store = open(&path).unwrap();
    assert_eq!(store.check().await.unwrap(), []);
    for key in [0, 250, 1_000] {
        let error = store.begin(&begin(key)).await.expect_err("the file is damaged");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
        let error = store.read(&begin(key).call.record_key()).await.expect_err("the file is damaged");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
        let found = store.check().await.unwrap();
        assert!(found.len() == 1 && found[0].severity == Severity::Refuse, "{found:?}");
        assert!(found[0].message.contains("hapax.db is damaged; stop the process"), "{found:?}");
    }
}

/// The three connections of a store close at the same time. None may keep the others from moving the log into the file.
#[tokio::test]
async fn a_store_that_is_dropped_leaves_no_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    for key in 0..100 {
        let store = open(&path).unwrap();
        store.begin(&begin(key)).await.unwrap();
        drop(store);
        wait_until_closed(&path).await;
    }
}

/// Overwrites the root pages of these tables and indexes.
fn damage_tables(path: &Path, names: &[&str]) {
    let connection = Connection::open(path).unwrap();
    let page =
        |name| connection.query_row("select rootpage from sqlite_schema where name = ?1", [name], |row| row.get(0));
    let pages: Vec<i64> = names.iter().map(|name| page(name).unwrap()).collect();
    let size: i64 = connection.query_row("pragma page_size", [], |row| row.get(0)).unwrap();
    drop(connection);
    let mut bytes = std::fs::read(path).unwrap();
    for page in pages {
        let begin = usize::try_from((page - 1) * size).unwrap();
        bytes[begin..begin + usize::try_from(size).unwrap()].fill(0xAB);
    }
    std::fs::write(path, bytes).unwrap();
}

fn refusal(path: &Path) -> String {
    let error = open(path).expect_err("the store must refuse");
    assert_eq!(error.kind(), ErrorKind::Unusable);
    error.to_string()
}

#[tokio::test]
async fn a_missing_directory_is_reported_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let message = refusal(&directory.path().join("absent/hapax.db"));
    assert!(message.contains("absent/hapax.db") && message.contains("check that its directory exists"), "{message}");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    let text = "not a database, ".repeat(400);
    std::fs::write(&path, &text).unwrap();
    let message = refusal(&path);
    assert!(message.contains("is not an SQLite database"), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    drop(open(&path).unwrap());
    Connection::open(&path).unwrap().execute("update hapax_store set version = 2", []).unwrap();
    let message = refusal(&path);
    assert!(message.contains("version 2") && message.contains("knows 1"), "{message}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_refused() {
    // Root may write to any file, so the path names a directory, which not even root can open for writing.
    let directory = tempfile::tempdir().unwrap();
    let message = refusal(directory.path());
    assert!(message.contains("cannot be"), "{message}");
}

#[tokio::test]
async fn the_check_confirms_that_every_commit_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("hapax.db")).unwrap();
    assert_eq!(store.check().await.unwrap(), []);
}

#[tokio::test]
async fn a_record_outlives_the_process_that_wrote_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let first = open(&path).unwrap().begin(&begin(1)).await.unwrap();
    let Inserted::Granted(grant) = first else { panic!("{first:?}") };
    let Inserted::Found(seen) = open(&path).unwrap().begin(&begin(1)).await.unwrap() else {
        panic!("the key was granted twice")
    };
    assert_eq!(seen.live().unwrap().token, grant.token);
}

#[tokio::test]
async fn two_stores_on_one_file_grant_a_key_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let (one, two) = (open(&path).unwrap(), open(&path).unwrap());
    for key in 0..50 {
        let ask = begin(key);
        let (left, right) = tokio::join!(one.begin(&ask), two.begin(&ask));
        let granted =
            [left.unwrap(), right.unwrap()].iter().filter(|begun| matches!(begun, Inserted::Granted(_))).count();
        assert_eq!(granted, 1, "key {key}");
    }
}

#[tokio::test]
async fn a_sweep_searches_the_table_in_bounded_windows() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new());
    let settings = SqliteSettings::default().sweep_every(None);
    let store = Sqlite::with(&directory.path().join("hapax.db"), Arc::clone(&clock) as _, settings).unwrap();
    for key in 0..100 {
        store.begin(&begin(key)).await.unwrap();
    }
    // Half of the records' lifetime passes, so the first hundred expire half a lifetime before the others.
    clock.forward(Duration::from_secs(1800));
    for key in 100..150 {
        store.begin(&begin(key)).await.unwrap();
    }
    assert_eq!(store.sweep(1000).await.unwrap(), 0, "no record has expired yet");
    clock.forward(Duration::from_secs(1800));
    let (first, second, third) =
        (store.sweep(60).await.unwrap(), store.sweep(60).await.unwrap(), store.sweep(60).await.unwrap());
    assert_eq!((first, second, third), (60, 40, 0));
    assert!(matches!(store.begin(&begin(120)).await.unwrap(), Inserted::Found(_)), "a live record was not swept");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_records_are_removed_by_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let (path, clock) = (directory.path().join("hapax.db"), Arc::new(ManualClock::new()));
    assert!(SqliteSettings::default().sweep_every.is_some(), "a store sweeps unless its settings say otherwise");
    let settings = SqliteSettings::default().sweep_every(Some(Duration::from_millis(1)));
    let store = Sqlite::with(&path, Arc::clone(&clock) as _, settings).unwrap();
    for key in 0..100 {
        store.begin(&begin(key)).await.unwrap();
    }
    let file = Connection::open(&path).unwrap();
    let rows = || file.query_row("select count(*) from hapax_record", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(rows(), 100, "no record has expired yet");
    clock.forward(Duration::from_secs(3600));
    for _ in 0..1_000_000 {
        if rows() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} records are left", rows());
}

/// The length of the log, in pages of 4 KiB.
fn log_pages(path: &Path) -> u64 {
    let log = path.with_file_name("hapax.db-wal");
    std::fs::metadata(log).map_or(0, |log| log.len() / 4096)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_moved_into_the_file_while_the_writer_continues() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = Arc::new(open(&path).unwrap());
    // Enough writes for many checkpoints. Without a checkpoint the log would hold every written page.
    for round in 0..80_u32 {
        let group = (0..500).map(|key| {
            let (store, ask) = (Arc::clone(&store), begin(round * 500 + key));
            async move { store.begin(&ask).await.unwrap() }
        });
        futures_util::future::join_all(group).await;
    }
    let file = std::fs::metadata(&path).unwrap().len() / 4096;
    assert!(file > 1000, "{file} pages have reached the file");
    assert!(log_pages(&path) < 16_384, "{} pages are in the log", log_pages(&path));
}

#[tokio::test]
async fn a_refused_statement_is_not_applied_and_leaves_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = open(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    let refuse = "create trigger refuse before insert on hapax_record begin select raise(abort, 'no'); end";
    other.execute_batch(refuse).unwrap();
    let error = store.begin(&begin(1)).await.expect_err("the trigger refuses the insert");
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    other.execute_batch("drop trigger refuse").unwrap();
    assert!(matches!(store.begin(&begin(1)).await.unwrap(), Inserted::Granted(_)), "the refused begin left no record");
}
