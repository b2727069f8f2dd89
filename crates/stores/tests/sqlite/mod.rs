//! How the suite sets SQLite up.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::Sqlite;
use hapax_testkit::{Backend, Capability, ManualClock, Setup, Step};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) fn backend() -> Backend {
    Backend::new("sqlite", || async { Box::new(SqliteSetup::new()) as Box<dyn Setup> })
        .sequences(100)
        .lacking(&[(Capability::RoomToComplete, "a full disk refuses completions as well; the gate keeps them")])
}

struct SqliteSetup {
    path: PathBuf,
    clock: Arc<ManualClock>,
    store: Arc<Sqlite>,
    _directory: TempDir,
}

impl SqliteSetup {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the file");
        let path = directory.path().join("hapax.db");
        let clock = Arc::new(ManualClock::new());
        let store = Sqlite::open(&path, Arc::clone(&clock) as _).expect("the file can be made");
        Self { path, clock, store: Arc::new(store), _directory: directory }
    }

    fn meddle(&self, sql: &str, parameters: impl rusqlite::Params) {
        let connection = Connection::open(&self.path).expect("the file is there");
        let changed = connection.execute(sql, parameters).expect("the statement fits the schema");
        assert_eq!(changed, 1, "the meddling met one row");
    }
}

#[async_trait]
impl Setup for SqliteSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.clock.forward(seen.lease_left);
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.clock.forward(seen.life_left);
    }

    async fn step_clock(&self, step: Step) {
        match step {
            Step::Forward(by) => self.clock.forward(by),
            Step::Back(by) => self.clock.back(by),
        }
    }

    async fn corrupt(&self, rk: &RecordKey) {
        self.meddle("update hapax_record set fingerprint = x'00' where rk = ?1", [rk.as_bytes()]);
    }

    async fn put_golden(&self) {
        self.meddle(include_str!("golden_v1.sql"), []);
    }
}
