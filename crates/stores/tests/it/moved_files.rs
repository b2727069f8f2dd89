//! A file that is moved, removed or replaced while it is open: nothing is read from it or confirmed in it any more.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::broker::{DeadLetterStore, Job, Process, Room, Source, Verdict};
use hapax_core::ledger::{Entry, Terms};
use hapax_core::outbox::{Outbox, OutgoingEvent, Published, Sink};
use hapax_core::runtime::{Tokio, timeout};
use hapax_core::store::{Inserted, Inspect, Severity};
use hapax_core::{ErrorKind, EventId, Store};
use hapax_stores::{
    Sqlite, SqliteDeadLetters, SqliteFile, SqliteLedger, SqliteOutbox, SqliteQueue, SqliteSink, SqliteSinkConfig,
    SqliteSource, SqliteSourceSettings, SqliteTables,
};
use rusqlite::{Connection, Transaction};

use crate::ledger_unavailable::job;
use crate::sqlite::{begin, open};

/// A file with all tables, in a folder of its own.
struct MovableFile {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl MovableFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        SqliteTables::new(&path).create().unwrap();
        Self { folder, path }
    }

    fn other(&self) -> PathBuf {
        self.folder.path().join("other.db")
    }

    /// What an operator does who restores a backup: the file gets the content, but is another one.
    fn replace(&self) {
        fs::copy(&self.path, self.other()).unwrap();
        fs::rename(self.other(), &self.path).unwrap();
    }

    fn move_away(&self) {
        fs::rename(&self.path, self.other()).unwrap();
    }

    fn move_back(&self) {
        fs::rename(self.other(), &self.path).unwrap();
    }
}

async fn begins(store: &Sqlite, key: u32) -> Result<(), ErrorKind> {
    match store.begin(&begin(key)).await {
        Ok(Inserted::Granted(_)) => Ok(()),
        Ok(Inserted::Found(_)) => panic!("key {key} is new"),
        Err(error) => Err(error.kind()),
    }
}

async fn refusals(store: &Sqlite) -> Vec<String> {
    let findings = store.check().await.unwrap();
    let refused = findings.into_iter().filter(|finding| finding.severity == Severity::Refuse);
    refused.map(|finding| finding.message).collect()
}

#[tokio::test]
async fn records_are_refused_while_their_file_is_not_at_its_path() {
    let file = MovableFile::new();
    let store = open(&file.path).unwrap();
    begins(&store, 1).await.unwrap();
    file.move_away();
    assert_eq!(begins(&store, 2).await, Err(ErrorKind::NotApplied));
    let error = store.read(&begin(1).call.record_key()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    assert!(error.to_string().contains("shop.db was moved or removed while this process has it open"), "{error}");
    assert_eq!(refusals(&store).await.len(), 1);
    file.move_back();
    begins(&store, 2).await.unwrap();
    assert_eq!(refusals(&store).await, Vec::<String>::new());
    file.replace();
    assert_eq!(begins(&store, 3).await, Err(ErrorKind::NotApplied));
    let refused = refusals(&store).await;
    assert!(refused.len() == 1 && refused[0].contains("was replaced by another file"), "{refused:?}");
}

#[tokio::test]
async fn what_keeps_the_file_is_allowed() {
    let file = MovableFile::new();
    let link = file.folder.path().join("link.db");
    symlink(&file.path, &link).unwrap();
    let stores = [open(&file.path).unwrap(), open(&link).unwrap()];
    let connection = Connection::open(&file.path).unwrap();
    for (key, sql) in ["vacuum", "pragma wal_checkpoint(truncate)", "select 1"].iter().enumerate() {
        let _: Option<i64> = connection.query_row(sql, [], |row| row.get(0)).ok();
        for (n, store) in stores.iter().enumerate() {
            let key = u32::try_from(2 * key + n).unwrap();
            begins(store, key).await.unwrap_or_else(|kind| panic!("after {sql}: {kind:?}"));
        }
    }
    // The link leads to another file.
    fs::copy(&file.path, file.other()).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(file.other(), &link).unwrap();
    begins(&stores[0], 100).await.unwrap();
    assert_eq!(begins(&stores[1], 101).await, Err(ErrorKind::NotApplied));
}

/// Removes files beside the database, as an operator does before a restore.
fn remove(file: &MovableFile, suffixes: &[&str]) {
    for suffix in suffixes {
        fs::remove_file(format!("{}{suffix}", file.path.display())).unwrap();
    }
}

#[tokio::test]
async fn a_log_that_is_removed_while_it_is_open_is_noticed() {
    for (suffixes, restored) in [(&["-wal"][..], false), (&["-wal", "-shm"], false), (&["-wal", "-shm"], true)] {
        let file = MovableFile::new();
        let store = open(&file.path).unwrap();
        begins(&store, 1).await.unwrap();
        remove(&file, suffixes);
        if restored {
            // `cp` keeps the file and with it the inode. The connection creates another log.
            let content = fs::read(&file.path).unwrap();
            fs::write(&file.path, content).unwrap();
            Connection::open(&file.path).unwrap().query_row("pragma user_version", [], |_| Ok(())).unwrap();
        }
        for key in 2..4 {
            assert_eq!(begins(&store, key).await, Err(ErrorKind::NotApplied), "{suffixes:?} {restored}");
        }
        let error = store.read(&begin(1).call.record_key()).await.unwrap_err();
        assert!(error.to_string().contains("shop.db-wal was removed or replaced while"), "{error}");
        assert_eq!(refusals(&store).await.len(), 1);
    }
}

#[tokio::test]
async fn an_index_of_the_log_that_is_removed_is_noticed() {
    let file = MovableFile::new();
    let store = open(&file.path).unwrap();
    begins(&store, 1).await.unwrap();
    remove(&file, &["-shm"]);
    assert_eq!(begins(&store, 2).await, Err(ErrorKind::NotApplied));
    let refused = refusals(&store).await;
    assert!(refused.len() == 1 && refused[0].contains("shop.db-shm was removed or replaced"), "{refused:?}");
}

#[tokio::test]
async fn a_file_that_only_got_another_name_is_noticed_because_its_log_has_the_old_one() {
    for has_link in [false, true] {
        let file = MovableFile::new();
        let link = file.folder.path().join("link.db");
        let path = if has_link { &link } else { &file.path };
        let _ = symlink(&file.path, &link);
        let store = open(path).unwrap();
        begins(&store, 1).await.unwrap();
        file.move_away();
        let _ = fs::remove_file(path);
        symlink(file.other(), path).unwrap();
        assert_eq!(begins(&store, 2).await, Err(ErrorKind::NotApplied), "{}", path.display());
        // The old name again, by a second name of the file.
        if has_link {
            fs::hard_link(file.other(), &file.path).unwrap();
        }
        let refused = refusals(&store).await;
        let remedy = format!(
            "got another name while this process has it open, so nothing is written any more; move \
             the file back to {}",
            file.path.display()
        );
        assert!(refused.len() == 1 && refused[0].contains(&remedy), "{refused:?}");
        fs::remove_file(path).unwrap();
        file.move_back();
        let _ = symlink(&file.path, &link);
        begins(&store, 2).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_emptied_is_noticed() {
    let file = MovableFile::new();
    let store = open(&file.path).unwrap();
    begins(&store, 1).await.unwrap();
    File::create(&file.path).unwrap();
    assert_eq!(begins(&store, 2).await, Err(ErrorKind::NotApplied));
    let refused = refusals(&store).await;
    assert!(refused.len() == 1 && refused[0].contains("shop.db was emptied while"), "{refused:?}");
}

/// A killed process leaves its log, and a backup is restored with `mv`.
#[tokio::test]
async fn a_log_of_the_file_before_is_not_written_into_a_restored_one() {
    let file = MovableFile::new();
    let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", file.path.display()));
    let store = open(&file.path).unwrap();
    begins(&store, 1).await.unwrap();
    file.replace();
    let restored = fs::read(&file.path).unwrap();
    for _ in 0..2 {
        let error = open(&file.path).expect_err("its log is that of the old file");
        assert_eq!(error.kind(), ErrorKind::Unusable);
        assert!(error.to_string().contains("remove") && error.to_string().contains("shop.db-wal"), "{error}");
    }
    SqliteOutbox::open(&file.path).expect_err("its log is that of the old file");
    assert_eq!(fs::read(&file.path).unwrap(), restored);
    // Both were restored together, as from a copy of the folder.
    fs::copy(beside("-wal"), file.other()).unwrap();
    fs::rename(file.other(), beside("-wal")).unwrap();
    fs::remove_file(beside("-shm")).unwrap();
    begins(&open(&file.path).unwrap(), 2).await.unwrap();
    drop(store);
}

/// SQLite removes the log when the last connection closes, and when the journal mode changes.
#[test]
fn a_log_that_sqlite_removes_or_creates_itself_is_allowed() {
    let file = MovableFile::new();
    let wal = PathBuf::from(format!("{}-wal", file.path.display()));
    let opened = SqliteFile::at(&file.path).unwrap();
    let write = |connection: &Connection| connection.execute_batch("create table if not exists t (x)").unwrap();
    for mode in ["wal", "delete", "wal", "truncate", "wal"] {
        let connection = Connection::open(&file.path).unwrap();
        connection.pragma_update(None, "journal_mode", mode).unwrap();
        write(&connection);
        opened.check().unwrap_or_else(|error| panic!("{mode}: {error}"));
        assert_eq!(wal.exists(), mode == "wal");
        if mode == "wal" {
            let other = Connection::open(&file.path).unwrap();
            write(&other);
            drop(connection);
            opened.check().unwrap();
            // The log keeps its inode.
            let _: i64 = other.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get(0)).unwrap();
            write(&other);
            opened.check().unwrap();
        } else {
            drop(connection);
        }
        assert!(!wal.exists());
        // Another file may get the inode of the old log.
        File::create(file.folder.path().join(format!("{mode}.txt"))).unwrap();
        opened.check().unwrap_or_else(|error| panic!("{mode}, closed: {error}"));
    }
}

/// The file goes after the write has begun, and before it is committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_file_went_meanwhile_is_not_confirmed() {
    let file = MovableFile::new();
    let store = open(&file.path).unwrap();
    begins(&store, 1).await.unwrap();
    let turn = File::open(file.folder.path().join("shop.db.turn")).unwrap();
    turn.lock().unwrap();
    let moved = async {
        while !waits_for_its_turn() {
            hapax_testkit::pause().await;
        }
        file.move_away();
        turn.unlock().unwrap();
    };
    let both = async { tokio::join!(begins(&store, 2), moved) };
    let (written, ()) =
        timeout(&*runtime(), Duration::from_secs(60), both).await.expect("the write waits for its turn");
    assert_eq!(written, Err(ErrorKind::Unknown));
}

/// Whether a thread of this process waits for the turn of a writer.
fn waits_for_its_turn() -> bool {
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    let mut names = fs::read_dir("/proc/self/task").unwrap().filter_map(name);
    names.any(|name| name.starts_with("hapax-sqlite-tu"))
}

fn runtime() -> Arc<Tokio> {
    Arc::new(Tokio::current())
}

fn sink(path: &Path) -> SqliteSink {
    SqliteSink::open(SqliteSinkConfig::new(path), runtime()).unwrap()
}

#[tokio::test]
async fn an_event_for_a_file_that_has_gone_is_not_published() {
    let file = MovableFile::new();
    let sink = sink(&file.path);
    let event = |n| Arc::new(OutgoingEvent::new(EventId::from_bytes([n; 16]), "orders", "{}"));
    assert!(matches!(sink.publish(&event(1)).await, Published::Yes { caught: false }));
    file.replace();
    for n in 1..3 {
        let published = sink.publish(&event(n)).await;
        let Published::NotPublished { cause, .. } = published else { panic!("{published:?}") };
        assert!(format!("{cause:?}").contains("was replaced by another file"), "{cause:?}");
    }
    assert!(sink.check().await.unwrap_err().to_string().contains("was replaced by another file"));
}

#[tokio::test]
async fn an_event_for_a_file_whose_log_has_gone_is_not_published() {
    let file = MovableFile::new();
    let sink = sink(&file.path);
    remove(&file, &["-wal", "-shm"]);
    let published = sink.publish(&Arc::new(OutgoingEvent::new(EventId::from_bytes([1; 16]), "orders", "{}"))).await;
    let Published::NotPublished { cause, .. } = published else { panic!("{published:?}") };
    assert!(format!("{cause:?}").contains("shop.db-wal was removed or replaced"), "{cause:?}");
}

#[tokio::test]
async fn queues_outboxes_and_dead_letters_are_refused_while_their_file_has_gone() {
    let file = MovableFile::new();
    let queue = SqliteQueue::new("orders").unwrap();
    let mut source = SqliteSource::open(&file.path, &queue, runtime(), SqliteSourceSettings::default()).unwrap();
    let outbox = SqliteOutbox::open(&file.path).unwrap();
    let letters = SqliteDeadLetters::open(&file.path).unwrap();
    letters.list(None, 1).await.unwrap();
    outbox.horizon().await.unwrap();
    file.move_away();
    let room = Room { messages: 1, bytes: 1 << 20, closed: Default::default() };
    let next = timeout(&*runtime(), Duration::from_secs(10), source.next(room)).await.expect("an error, not a wait");
    for error in [
        next.map(drop).unwrap_err(),
        outbox.horizon().await.map(drop).unwrap_err(),
        letters.list(None, 1).await.map(drop).unwrap_err(),
        source.settler().lag().await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotApplied);
        assert!(error.to_string().contains("was moved or removed"), "{error}");
    }
    file.move_back();
    letters.list(None, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_processes_no_message_while_its_file_has_gone() {
    let file = MovableFile::new();
    let mut connection = Connection::open(&file.path).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    // The last message moves the file away.
    let (path, other) = (file.path.clone(), file.other());
    let handler = move |_: &Transaction<'_>, jobs: &[Job], entries: &mut [Entry]| {
        if jobs[0].key.as_bytes() == [3] {
            fs::rename(&path, &other).unwrap();
        }
        Ok(vec![String::new(); entries.len()])
    };
    let process = SqliteLedger::new(Terms::new("shop").unwrap()).process::<String, _>(connection, handler);
    let verdict = async |n| process.process(vec![job(n)]).await.remove(0);
    assert_eq!(verdict(1).await, Verdict::Done { caught: false });
    file.move_away();
    assert!(matches!(verdict(2).await, Verdict::Pause { .. }));
    file.move_back();
    assert_eq!(verdict(2).await, Verdict::Done { caught: false }, "it was not processed before");
    assert!(matches!(verdict(3).await, Verdict::Pause { .. }));
}
