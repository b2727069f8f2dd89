//! The ledger suite's setup of Spanner.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use hapax_core::ledger::{Call, CallResult, Claimed, Entry, Event, HandlerFailure, Terms, Work};
use hapax_core::runtime::Tokio;
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{Spanner, SpannerEntry, SpannerLedger, SpannerTables, SpannerTransaction, SpannerUrl};
use hapax_testkit::servers::SpannerServer;
use hapax_testkit::{
    Execute, LedgerBackend, LedgerCapability, LedgerContents, LedgerSession, LedgerSetup, Script, Snapshot,
    StoredAttempts, StoredEntry, StoredEvent,
};
use tokio::sync::Mutex;

pub(crate) fn backend() -> LedgerBackend {
    let backend =
        LedgerBackend::new("spanner", || async { Box::new(SpannerDatabase::new().await) as Box<dyn LedgerSetup> });
    backend.requiring("spanner").lacking(&[
        (LedgerCapability::LostReply, "a commit without an answer is sent again, which tests of servers show"),
        (LedgerCapability::ForeignKeysOff, "foreign keys cannot be off"),
        (LedgerCapability::Savepoints, "Spanner has no savepoints"),
        (LedgerCapability::RepeatableRead, "the ledger needs transactions that are serializable"),
        (LedgerCapability::ReadOnly, "a transaction cannot be made read-only"),
    ])
}

struct SpannerDatabase {
    _server: Arc<SpannerServer>,
    url: SpannerUrl,
    database: Spanner,
}

/// The emulator of the cases that run at once. The transaction that runs wins against the one that begins.
async fn server() -> Arc<SpannerServer> {
    static SERVER: Mutex<Weak<SpannerServer>> = Mutex::const_new(Weak::new());
    let mut shared = SERVER.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let options = ["--abort_current_transaction_probability", "0"];
    let server = Arc::new(SpannerServer::start(&options).await.expect("the server starts"));
    *shared = Arc::downgrade(&server);
    server
}

impl SpannerDatabase {
    async fn new() -> Self {
        let server = server().await;
        let url: SpannerUrl = server.new_database().parse().expect("the URL is valid");
        let tables = SpannerTables::connect(&url).expect("the URL can be used");
        assert_eq!(tables.create().await.expect("the database is new"), [1, 2, 3]);
        let database = Spanner::with(&url, Arc::new(Tokio::current())).expect("the URL can be used");
        for table in [include_str!("effect.sql"), include_str!("taken.sql")] {
            database.change_table(table).await.expect("the tables are new");
        }
        let terms = Terms::new("setup").expect("the namespace is allowed");
        let ledger = SpannerLedger::connect(&url, terms).expect("the URL can be used");
        let transaction = ledger.transaction().await.expect("there is a session");
        transaction.execute("INSERT INTO taken (id) VALUES (1)").await.expect("the table is empty");
        transaction.commit().await.expect("nothing else runs");
        Self { _server: server, url, database }
    }

    async fn texts(&self, sql: &str) -> Vec<Vec<String>> {
        self.database.texts(sql).await.expect("the statement fits the tables")
    }
}

fn operation(hex: &str) -> OperationId {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("it is hexadecimal");
    OperationId::from_bytes(std::array::from_fn(|n| byte(2 * n)))
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

#[async_trait(?Send)]
impl LedgerSetup for SpannerDatabase {
    async fn session(&self, terms: Terms) -> Box<dyn LedgerSession> {
        // A client of its own: the emulator runs one transaction of a client at a time.
        let ledger = SpannerLedger::connect(&self.url, terms).expect("the URL can be used");
        Box::new(SpannerSession { ledger, transaction: RefCell::default(), entries: RefCell::default() })
    }

    async fn contents(&self) -> LedgerContents {
        let effects = self.texts("SELECT namespace, operation FROM effect").await;
        let rows = self.texts(include_str!("rows.sql")).await;
        let events = self.texts(include_str!("events.sql")).await;
        let attempts = self.texts(include_str!("attempts.sql")).await;
        LedgerContents {
            effects: effects.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect(),
            rows: rows
                .iter()
                .map(|row| StoredEntry {
                    namespace: row[0].clone(),
                    operation: operation(&row[1]),
                    is_open: row[2] == "1",
                    verdict: (!row[3].is_empty()).then(|| number(&row[3])),
                    answer: row[4].clone(),
                })
                .collect(),
            events: events
                .iter()
                .map(|row| StoredEvent {
                    namespace: row[0].clone(),
                    operation: operation(&row[1]),
                    id: *operation(&row[2]).as_bytes(),
                    number: number(&row[3]),
                    payload_len: number(&row[4]),
                })
                .collect(),
            attempts: attempts
                .iter()
                .map(|row| StoredAttempts {
                    namespace: row[0].clone(),
                    operation: operation(&row[1]),
                    attempts: number(&row[2]),
                    is_dead: row[3] == "1",
                })
                .collect(),
        }
    }

    async fn refuse_events(&self) {
        let sql = "ALTER TABLE hapax_outbox ADD CONSTRAINT refuse CHECK (seq < 0)";
        self.database.change_table(sql).await.expect("the constraint is new");
    }

    fn resets(&self) -> &'static [&'static str] {
        &[]
    }
}

struct SpannerSession {
    ledger: SpannerLedger,
    transaction: RefCell<Option<Arc<SpannerTransaction>>>,
    entries: RefCell<Vec<SpannerEntry>>,
}

impl SpannerSession {
    fn transaction(&self) -> Result<Arc<SpannerTransaction>, BoxError> {
        self.transaction.borrow().clone().ok_or_else(|| "no transaction is open".into())
    }

    fn entry(&self, operation: OperationId) -> usize {
        let place = self.entries.borrow().iter().position(|entry| entry.operation() == operation);
        place.expect("the operation was claimed")
    }
}

/// The suite's statements in the words of Spanner.
fn translated(sql: &str) -> String {
    match sql.strip_prefix("insert into effect values (").and_then(|rest| rest.strip_suffix(')')) {
        Some(values) => format!("INSERT INTO effect (namespace, operation, id) VALUES ({values}, GENERATE_UUID())"),
        None => sql.replace("insert into taken values", "INSERT INTO taken (id) VALUES"),
    }
}

/// The transaction of a handler.
struct Within<'t>(&'t SpannerTransaction);

#[async_trait(?Send)]
impl Execute for Within<'_> {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.0.execute(&translated(sql)).await.map(drop)?)
    }
}

#[async_trait(?Send)]
impl Execute for SpannerSession {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        // There are no savepoints, so one that is not rolled back to changes nothing.
        if sql.starts_with("savepoint") || sql.starts_with("release savepoint") {
            return self.transaction().map(drop);
        }
        Ok(self.transaction()?.execute(&translated(sql)).await.map(drop)?)
    }
}

#[async_trait(?Send)]
impl LedgerSession for SpannerSession {
    async fn run(&self, call: Call, script: &Script) -> CallResult<String> {
        let handler = async |transaction: &SpannerTransaction, entry: &mut Entry| {
            let handled = script.handle(&Within(transaction), std::slice::from_mut(entry)).await;
            handled.map(|mut answers| answers.remove(0)).map_err(|failed| failed.failure)
        };
        self.ledger.run(call, handler).await
    }

    async fn run_batch(&self, work: Vec<Work>, script: &Script) -> Vec<CallResult<String>> {
        let handler = async |transaction: &SpannerTransaction, entries: &mut [Entry]| {
            script.handle(&Within(transaction), entries).await.map_err(HandlerFailure::from)
        };
        self.ledger.run_batch(work, handler).await
    }

    async fn reopen(&self, operation: OperationId) -> Result<bool> {
        self.ledger.reopen(operation).await
    }

    async fn begin(&self, _snapshot: Snapshot) -> Result<(), BoxError> {
        let transaction = self.ledger.transaction().await?;
        *self.transaction.borrow_mut() = Some(Arc::new(transaction));
        Ok(())
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let transaction = self.transaction().expect("a transaction is open");
        let claimed = self.ledger.claim(&transaction, call).await?;
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
        let transaction = self.transaction().expect("a transaction is open");
        entry.finish(&transaction, &answer.to_owned()).await
    }

    async fn commit(&self) -> Result<(), BoxError> {
        let transaction = self.transaction.borrow_mut().take();
        let transaction = Arc::into_inner(transaction.ok_or("no transaction is open")?).expect("nobody else has it");
        Ok(transaction.commit().await?)
    }

    async fn roll_back(&self) {
        let transaction = self.transaction.borrow_mut().take();
        if let Some(transaction) = transaction.and_then(Arc::into_inner) {
            transaction.roll_back().await;
        }
    }
}
