//! Steps that share one transaction of SQLite.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, io};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use hapax_core::machine::Change;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{ErrorKind, RecordKey, Result, Store, Timestamp, Token};
use hapax_stores::{Sqlite, SqliteSettings};
use rusqlite::Connection;

use crate::disk::wait_until_closed;
use crate::sqlite::{begin, open};

fn rk(key: u32) -> RecordKey {
    begin(key).call.record_key()
}

async fn grant(store: &Sqlite, key: u32) -> Result<Token> {
    match store.begin(&begin(key)).await? {
        Inserted::Granted(grant) => Ok(grant.token),
        Inserted::Found(seen) => panic!("key {key} was granted before: {seen:?}"),
    }
}

/// Starts all steps while another connection holds the file's write lock. The first group takes the lock after the last
/// step is queued, so the steps run in at most two groups, in this order.
async fn run_in_groups<T>(path: &Path, steps: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let other = Connection::open(path).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let mut steps = join_all(steps);
    assert!((&mut steps).now_or_never().is_none(), "the file is locked, so every step waits");
    other.execute_batch("rollback").unwrap();
    steps.await
}

#[tokio::test]
async fn a_failed_commit_is_unknown_and_the_next_group_works() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let (store, other) = (open(&path).unwrap(), Connection::open(&path).unwrap());
    // SQLite checks a deferred foreign key at the commit.
    let orphan = "create table parent (id integer primary key);
        create table child (parent integer references parent (id) deferrable initially deferred);
        create trigger orphan after insert on hapax_record begin insert into child values (1); end";
    other.execute_batch(orphan).unwrap();
    let error = store.begin(&begin(1)).await.expect_err("the commit fails");
    assert_eq!(error.kind(), ErrorKind::Unknown, "a failed commit may have reached the disk: {error:?}");
    other.execute_batch("drop trigger orphan").unwrap();
    assert!(matches!(store.begin(&begin(1)).await, Ok(Inserted::Granted(_))));
}

#[tokio::test]
async fn a_group_with_a_refused_step_leaves_nothing_behind() {
    const REFUSED: u32 = 5;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = open(&path).unwrap();
    let refuse = format!(
        "create trigger refuse before insert on hapax_record when hex(new.rk) = '{}'
         begin select raise(abort, 'no'); end",
        rk(REFUSED).to_string().to_uppercase()
    );
    Connection::open(&path).unwrap().execute_batch(&refuse).unwrap();

    // In the middle, so that other steps share its group, wherever the two groups are divided.
    let begun = run_in_groups(&path, (0..=10).map(|key| grant(&store, key).boxed()).collect()).await;
    assert!(begun[5].is_err(), "the trigger refuses it");
    assert!(begun.iter().filter(|begun| begun.is_err()).count() > 1, "its group failed as a whole: {begun:?}");
    for (key, begun) in (0..).zip(&begun) {
        let stored = store.read(&rk(key)).await.unwrap().record.map(|record| record.token);
        match begun {
            Ok(token) => assert_eq!(stored, Some(*token), "key {key}"),
            Err(error) => assert_eq!((error.kind(), stored), (ErrorKind::NotApplied, None), "key {key}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn a_damaged_row_fails_only_the_calls_of_its_own_record() {
    const DAMAGED: u32 = 5;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = open(&path).unwrap();
    grant(&store, DAMAGED).await.unwrap();
    drop(store);
    wait_until_closed(&path).await;
    damage_row(&path, rk(DAMAGED));
    let store = open(&path).unwrap();

    let error = store.begin(&begin(DAMAGED)).await.expect_err("its row is damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
    let begun = run_in_groups(&path, (0..=10).map(|key| grant(&store, key).boxed()).collect()).await;
    for (key, begun) in (0..).zip(&begun) {
        match begun {
            Ok(token) => assert_eq!(store.read(&rk(key)).await.unwrap().record.unwrap().token, *token, "key {key}"),
            Err(error) => assert_eq!((key, error.kind()), (DAMAGED, ErrorKind::Damaged), "{error:?}"),
        }
    }
    assert!(begun[5].is_err(), "its row is damaged: {begun:?}");
}

/// Overwrites the type of the column `state` in the row of this key, so that the row seems to be longer than it is.
fn damage_row(path: &Path, rk: RecordKey) {
    // The header of a row without an answer: its own length, and a byte for the type of each of the 16 columns. The
    // first column has no bytes, so the key follows the header.
    const HEADER: usize = 17;
    let mut bytes = std::fs::read(path).unwrap();
    let is_row = |place: &usize| bytes[*place..].starts_with(rk.as_bytes()) && bytes[place - HEADER] == 17;
    let row = (HEADER..bytes.len()).find(is_row).expect("the file has the row");
    bytes[row - HEADER + 3] = 0x7F;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_token_is_above_those_that_earlier_steps_of_its_group_stored() {
    const PAIRS: u32 = 3;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = open(&path).unwrap();
    let mut swaps = Vec::new();
    for pair in 0..PAIRS {
        grant(&store, pair).await.unwrap();
        let seen = store.read(&rk(pair)).await.unwrap();
        let mut record = seen.record.clone().unwrap();
        // Far above every clock.
        record.token = Token((1 << 60) + 1000 * u64::from(pair));
        swaps.push((seen, Change { record, lifetime: begin(pair).unknown_retention }));
    }
    let mut steps: Vec<BoxFuture<'_, Token>> = Vec::new();
    for (pair, (seen, next)) in (0..).zip(&swaps) {
        let (store, rk) = (&store, rk(pair));
        let swap = async move {
            assert_eq!(store.swap(&rk, seen, next).await.unwrap(), Swapped::Yes);
            next.record.token
        };
        steps.push(swap.boxed());
        steps.push(async move { grant(store, PAIRS + pair).await.unwrap() }.boxed());
    }
    // At most one pair is divided between the two groups.
    let tokens = run_in_groups(&path, steps).await;
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    let mark = store.read(&rk(0)).await.unwrap().token_high_water;
    assert_eq!(Some(mark), tokens.last().copied(), "the group stores its largest token as the mark");
}

/// Tokio's runtime. While it is watched, each reading of its clock checks whether the file's write lock is held.
struct LockWatch {
    inner: Tokio,
    path: PathBuf,
    is_watched: AtomicBool,
    under_lock: AtomicUsize,
    without_lock: AtomicUsize,
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockWatch")
    }
}

impl LockWatch {
    fn look(&self) {
        let other = Connection::open(&self.path).unwrap();
        other.busy_timeout(Duration::ZERO).unwrap();
        let count = if other.execute_batch("begin immediate").is_ok() { &self.without_lock } else { &self.under_lock };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

impl Runtime for LockWatch {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Runtime::sleep(&self.inner, duration)
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.inner.thread(name, task)
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.inner.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.inner.boottime_now()
    }

    fn wall_now(&self) -> Timestamp {
        if self.is_watched.load(Ordering::SeqCst) {
            self.look();
        }
        self.inner.wall_now()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
}

#[tokio::test]
async fn a_group_reads_the_clock_after_it_has_the_lock_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let watch = Arc::new(LockWatch {
        inner: Tokio::current(),
        path: path.clone(),
        is_watched: AtomicBool::new(false),
        under_lock: AtomicUsize::new(0),
        without_lock: AtomicUsize::new(0),
    });
    let store = Sqlite::with(&path, Arc::clone(&watch) as _, SqliteSettings::default().sweep_every(None)).unwrap();
    watch.is_watched.store(true, Ordering::SeqCst);
    for key in 0..3 {
        grant(&store, key).await.unwrap();
    }
    watch.is_watched.store(false, Ordering::SeqCst);
    let readings = (watch.under_lock.load(Ordering::SeqCst), watch.without_lock.load(Ordering::SeqCst));
    assert_eq!(readings, (3, 0), "a lease must not lose the time spent waiting for the lock");
}
