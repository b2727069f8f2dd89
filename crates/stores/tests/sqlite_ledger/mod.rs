//! The ledger suite's setup of SQLite.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use hapax_core::ledger::{Call, CallResult, Claimed, Event, HandlerFailure, Terms, Work};
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{SqliteEntry, SqliteLedger};
use hapax_testkit::{
    Execute, LedgerBackend, LedgerCapability, LedgerContents, LedgerSession, LedgerSetup, Script, Snapshot,
    StoredAttempts, StoredEntry, StoredEvent,
};
use rusqlite::{Connection, Row, Transaction};
use tempfile::TempDir;

pub(crate) fn backend() -> LedgerBackend {
    LedgerBackend::new("sqlite", || async { Box::new(SqliteFile::new()) as Box<dyn LedgerSetup> }).lacking(&[
        (LedgerCapability::LostReply, "COMMIT is a function call"),
        (LedgerCapability::RepeatableRead, "a transaction that writes has the newest snapshot, or an error"),
        (LedgerCapability::TransactionIds, "a transaction has no id; a second claim after the finish is a replay"),
        (LedgerCapability::ReadOnly, "a transaction cannot be made read-only"),
    ])
}

struct SqliteFile {
    path: PathBuf,
    _directory: TempDir,
}

impl SqliteFile {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the file");
        let file = Self { path: directory.path().join("service.db"), _directory: directory };
        let mut connection = file.open();
        let wal = connection.query_row("pragma journal_mode = wal", [], |row| row.get::<_, String>(0));
        assert_eq!(wal.expect("a new file"), "wal");
        SqliteLedger::migrate(&mut connection).expect("the tables are new");
        let tables = "create table effect (namespace text not null, operation text not null);
                      create table taken (id integer primary key);
                      insert into taken values (1);";
        connection.execute_batch(tables).expect("the tables are new");
        file
    }

    fn open(&self) -> Connection {
        let connection = Connection::open(&self.path).expect("the file can be opened");
        connection.busy_timeout(Duration::from_millis(1)).expect("a pause can be set");
        // A power failure is no part of the suite.
        connection.pragma_update(None, "synchronous", "off").expect("the setting exists");
        connection
    }

    fn session(&self, terms: Terms, foreign_keys: bool) -> Box<dyn LedgerSession> {
        let connection = self.open();
        connection.pragma_update(None, "foreign_keys", foreign_keys).expect("the setting exists");
        let entries = RefCell::default();
        Box::new(SqliteSession { ledger: SqliteLedger::new(terms), connection: RefCell::new(connection), entries })
    }

    fn rows<T>(&self, sql: &str, read: impl Fn(&Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
        let connection = self.open();
        let mut statement = connection.prepare(sql).expect("the statement fits the tables");
        let rows = statement.query_map([], |row| read(row)).expect("the statement has no parameters");
        rows.collect::<rusqlite::Result<_>>().expect("the rows can be read")
    }
}

fn operation(row: &Row<'_>, column: usize) -> rusqlite::Result<OperationId> {
    row.get(column).map(OperationId::from_bytes)
}

#[async_trait(?Send)]
impl LedgerSetup for SqliteFile {
    async fn session(&self, terms: Terms) -> Box<dyn LedgerSession> {
        self.session(terms, true)
    }

    async fn session_without_foreign_keys(&self, terms: Terms) -> Box<dyn LedgerSession> {
        self.session(terms, false)
    }

    async fn contents(&self) -> LedgerContents {
        LedgerContents {
            effects: self.rows("select namespace, operation from effect", |row| Ok((row.get(0)?, row.get(1)?))),
            rows: self.rows(
                "select namespace, operation, open, verdict, cast(coalesce(answer, '') as text) from hapax_ledger",
                |row| {
                    Ok(StoredEntry {
                        namespace: row.get(0)?,
                        operation: operation(row, 1)?,
                        is_open: row.get::<_, Option<i64>>(2)?.is_some(),
                        verdict: row.get(3)?,
                        answer: row.get(4)?,
                    })
                },
            ),
            events: self.rows(
                "select namespace, operation, event_id, n, length(payload) from hapax_outbox order by id",
                |row| {
                    Ok(StoredEvent {
                        namespace: row.get(0)?,
                        operation: operation(row, 1)?,
                        id: row.get(2)?,
                        number: row.get(3)?,
                        payload_len: row.get(4)?,
                    })
                },
            ),
            attempts: self.rows("select namespace, operation, attempts, dead_at from hapax_attempt", |row| {
                Ok(StoredAttempts {
                    namespace: row.get(0)?,
                    operation: operation(row, 1)?,
                    attempts: row.get(2)?,
                    is_dead: row.get::<_, Option<i64>>(3)?.is_some(),
                })
            }),
        }
    }

    async fn refuse_events(&self) {
        let trigger = "create trigger refuse before insert on hapax_outbox begin select raise(abort, 'full'); end";
        self.open().execute_batch(trigger).expect("the trigger is new");
    }

    fn resets(&self) -> &'static [&'static str] {
        &["pragma foreign_keys = off", "pragma defer_foreign_keys = off", "pragma ignore_check_constraints = on"]
    }
}

struct SqliteSession {
    ledger: SqliteLedger,
    connection: RefCell<Connection>,
    entries: RefCell<Vec<SqliteEntry>>,
}

impl SqliteSession {
    fn entry(&self, operation: OperationId) -> usize {
        let place = self.entries.borrow().iter().position(|entry| entry.operation() == operation);
        place.expect("the operation was claimed")
    }
}

/// The transaction of a handler.
struct Within<'t>(&'t Transaction<'t>);

#[async_trait(?Send)]
impl Execute for Within<'_> {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.0.execute_batch(sql)?)
    }
}

#[async_trait(?Send)]
impl Execute for SqliteSession {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.connection.borrow().execute_batch(sql)?)
    }
}

#[async_trait(?Send)]
impl LedgerSession for SqliteSession {
    async fn run(&self, call: Call, script: &Script) -> CallResult<String> {
        let mut connection = self.connection.borrow_mut();
        self.ledger.run(&mut connection, call, |transaction, entry| {
            let handled = script.handle(&Within(transaction), std::slice::from_mut(entry)).now_or_never();
            let handled = handled.expect("a script in SQLite does not wait");
            handled.map(|mut answers| answers.remove(0)).map_err(|failed| failed.failure)
        })
    }

    async fn run_batch(&self, work: Vec<Work>, script: &Script) -> Vec<CallResult<String>> {
        let mut connection = self.connection.borrow_mut();
        self.ledger.run_batch(&mut connection, work, |transaction, entries| {
            let handled = script.handle(&Within(transaction), entries).now_or_never();
            handled.expect("a script in SQLite does not wait").map_err(HandlerFailure::from)
        })
    }

    async fn reopen(&self, operation: OperationId) -> Result<bool> {
        self.ledger.reopen(&self.connection.borrow(), operation)
    }

    async fn begin(&self, _snapshot: Snapshot) -> Result<(), BoxError> {
        Ok(self.connection.borrow().execute_batch("begin")?)
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let claimed = self.ledger.claim(&self.connection.borrow(), call)?;
        Ok(claimed.map_entry(|entry| self.entries.borrow_mut().push(entry)))
    }

    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId> {
        let place = self.entry(operation);
        self.entries.borrow_mut()[place].emit(event)
    }

    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId> {
        let place = self.entry(operation);
        self.entries.borrow_mut()[place].emit_ordered(event)
    }

    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()> {
        let place = self.entry(operation);
        let entry = self.entries.borrow_mut().remove(place);
        entry.finish(&self.connection.borrow(), &answer.to_owned())
    }

    async fn commit(&self) -> Result<(), BoxError> {
        let committed = self.connection.borrow().execute_batch("commit");
        if committed.is_err() {
            self.roll_back().await;
        }
        Ok(committed?)
    }

    async fn roll_back(&self) {
        let connection = self.connection.borrow();
        if !connection.is_autocommit() {
            connection.execute_batch("rollback").expect("the transaction is open");
        }
    }
}
