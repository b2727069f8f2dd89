//! The suite's setup of SQLite.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::{Sqlite, SqliteSettings};
use hapax_testkit::{Backend, Capability, ClockStep, ManualClock, Setup, StoredPart};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) fn backend() -> Backend {
    Backend::new("sqlite", setup).sequences(100).lacking(LACKING)
}

pub(crate) async fn setup() -> Box<dyn Setup> {
    Box::new(SqliteSetup::new())
}

pub(crate) const LACKING: &[(Capability, &str)] =
    &[(Capability::RoomToComplete, "a full disk refuses completions too; the gate keeps them in its journal")];

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
        // A case counts the records in the file, so none may vanish by itself.
        let settings = SqliteSettings::default().sweep_every(None);
        let store = Sqlite::with(&path, Arc::clone(&clock) as _, settings).expect("the file can be created");
        Self { path, clock, store: Arc::new(store), _directory: directory }
    }

    fn execute(&self, sql: &str, parameters: impl rusqlite::Params) {
        let connection = Connection::open(&self.path).expect("the file exists");
        let changed = connection.execute(sql, parameters).expect("the statement fits the schema");
        assert_eq!(changed, 1, "the statement changes exactly one row");
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

    async fn step_clock(&self, step: ClockStep) {
        match step {
            ClockStep::Forward(by) => self.clock.forward(by),
            ClockStep::Back(by) => self.clock.back(by),
        }
    }

    /// Replaces the fingerprint, or changes the first letter of the answer.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let edit = match part {
            StoredPart::Header => "fingerprint = zeroblob(12)",
            StoredPart::Answer => "answer = cast('T' || substr(cast(answer as text), 2) as blob)",
        };
        self.execute(&format!("update hapax_record set {edit} where rk = ?1"), [rk.as_bytes()]);
    }

    async fn put_golden(&self) {
        self.execute(include_str!("golden_v1.sql"), []);
    }
}
