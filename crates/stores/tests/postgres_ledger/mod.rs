//! The ledger suite's setup of PostgreSQL: all cases share one server, and each has a schema.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use async_trait::async_trait;
use hapax_core::ledger::{Call, CallResult, Claimed, Entry, Event, HandlerFailure, Terms, Work};
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{Postgres, PostgresEntry, PostgresLedger};
use hapax_testkit::proxy::{CutPoint, FaultRule, NetworkFault, Proxy};
use hapax_testkit::servers::{PostgresSchema, PostgresServer};
use hapax_testkit::{
    ConnectionCut, CutRequest, Execute, LedgerBackend, LedgerCapability, LedgerContents, LedgerSession, LedgerSetup,
    Script, Snapshot, StoredAttempts, StoredEntry, StoredEvent,
};
use tokio_postgres::{Client, IsolationLevel, NoTls, Row, Transaction};

pub(crate) fn backend() -> LedgerBackend {
    let make = || async { Box::new(PostgresDatabase::new().await) as Box<dyn LedgerSetup> };
    LedgerBackend::new("postgres", make)
        .requiring("postgres")
        .lacking(&[(LedgerCapability::ForeignKeysOff, "only a superuser can turn them off")])
}

struct PostgresDatabase {
    server: std::sync::Arc<PostgresServer>,
    schema: PostgresSchema,
}

impl PostgresDatabase {
    async fn new() -> Self {
        let server = PostgresServer::shared().await.expect("the server starts");
        let schema = server.schema().await.expect("the server answers");
        let url = schema.url().parse().expect("the URL is valid");
        // The store creates all tables at its first call.
        let store = Postgres::with(&url, std::sync::Arc::new(Tokio::current())).expect("the URL can be used");
        store.check().await.expect("the tables are new");
        let tables = "create table effect (namespace text not null, operation text not null);
                      create table taken (id integer primary key);
                      insert into taken values (1);";
        let database = Self { server, schema };
        let owner = database.connect().await;
        owner.batch_execute(tables).await.expect("the tables are new");
        database
    }

    /// Connects as the owner of the schema.
    async fn connect(&self) -> Client {
        connect(&self.owner_url(self.server.address())).await.expect("the server answers")
    }

    fn owner_url(&self, address: SocketAddr) -> String {
        format!("postgres://{}@{address}/postgres", self.schema.name())
    }

    fn session_at(&self, address: SocketAddr, terms: Terms) -> PostgresSession {
        let url = self.schema.url_at(address).parse().expect("the URL is valid");
        PostgresSession {
            ledger: PostgresLedger::connect(&url, terms).expect("the URL can be used"),
            owner_url: self.owner_url(address),
            transaction: RefCell::default(),
            entries: RefCell::default(),
            proxy: None,
        }
    }

    async fn rows<T>(&self, sql: &str, read: impl Fn(&Row) -> T) -> Vec<T> {
        let rows = self.schema.admin().query(sql, &[]).await.expect("the statement fits the tables");
        rows.iter().map(read).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no runtime of its own")]
async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Its error is also that of the client's next call.
    tokio::spawn(async { drop(connection.await) });
    Ok(client)
}

fn bytes(row: &Row, column: usize) -> [u8; 16] {
    row.get::<_, Vec<u8>>(column).try_into().expect("an id has 16 bytes")
}

fn operation(row: &Row, column: usize) -> OperationId {
    OperationId::from_bytes(bytes(row, column))
}

#[async_trait(?Send)]
impl LedgerSetup for PostgresDatabase {
    async fn session(&self, terms: Terms) -> Box<dyn LedgerSession> {
        Box::new(self.session_at(self.server.address(), terms))
    }

    async fn session_with_cut(&self, terms: Terms, cut: ConnectionCut) -> Box<dyn LedgerSession> {
        let proxy = Proxy::start(self.server.address()).await.expect("a port is free");
        let at = if cut.is_carried_out { CutPoint::Answered } else { CutPoint::Unsent };
        let (matching, skipped) = match cut.request {
            // With the end of its text: the isolation level in a BEGIN has the word, too.
            CutRequest::Commit => (b"COMMIT\0".to_vec(), 0),
            CutRequest::After(skipped) => (Vec::new(), skipped),
        };
        proxy.inject(FaultRule::from(NetworkFault::Cut { at, matching }).after(skipped).times(1));
        let session = self.session_at(proxy.address(), terms);
        Box::new(PostgresSession { proxy: Some(proxy), ..session })
    }

    async fn contents(&self) -> LedgerContents {
        let effects = "select namespace, operation from effect";
        let rows = "select namespace, uuid_send(operation), open is not null, verdict,
                           convert_from(coalesce(answer, ''), 'UTF8')
                      from hapax_ledger";
        let events = "select namespace, uuid_send(operation), uuid_send(event_id), n, octet_length(payload)
                        from hapax_outbox order by id";
        let attempts = "select namespace, uuid_send(operation), attempts, dead_at is not null from hapax_attempt";
        LedgerContents {
            effects: self.rows(effects, |row| (row.get(0), row.get(1))).await,
            rows: self.rows(rows, entry).await,
            events: self.rows(events, event).await,
            attempts: self.rows(attempts, counted).await,
        }
    }

    async fn refuse_events(&self) {
        let check = "alter table hapax_outbox add constraint refuse check (false) not valid";
        self.schema.admin().batch_execute(check).await.expect("the constraint is new");
    }

    fn resets(&self) -> &'static [&'static str] {
        &["reset all", "set constraints all immediate", "set constraints all deferred", "discard plans"]
    }
}

fn entry(row: &Row) -> StoredEntry {
    StoredEntry {
        namespace: row.get(0),
        operation: operation(row, 1),
        is_open: row.get(2),
        verdict: row.get::<_, Option<i16>>(3).and_then(|verdict| u8::try_from(verdict).ok()),
        answer: row.get(4),
    }
}

fn event(row: &Row) -> StoredEvent {
    StoredEvent {
        namespace: row.get(0),
        operation: operation(row, 1),
        id: bytes(row, 2),
        number: row.get::<_, i32>(3).cast_unsigned(),
        payload_len: row.get::<_, i32>(4).cast_unsigned(),
    }
}

fn counted(row: &Row) -> StoredAttempts {
    StoredAttempts {
        namespace: row.get(0),
        operation: operation(row, 1),
        attempts: row.get::<_, i32>(2).cast_unsigned(),
        is_dead: row.get(3),
    }
}

struct PostgresSession {
    ledger: PostgresLedger,
    owner_url: String,
    transaction: RefCell<Option<Rc<Transaction<'static>>>>,
    entries: RefCell<Vec<PostgresEntry>>,
    proxy: Option<Proxy>,
}

impl PostgresSession {
    fn transaction(&self) -> Rc<Transaction<'static>> {
        Rc::clone(self.transaction.borrow().as_ref().expect("a transaction was begun"))
    }

    fn take_transaction(&self) -> Option<Transaction<'static>> {
        Rc::into_inner(self.transaction.take()?)
    }

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
        Ok(self.0.batch_execute(sql).await?)
    }
}

#[async_trait(?Send)]
impl Execute for PostgresSession {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.transaction().batch_execute(sql).await?)
    }
}

#[async_trait(?Send)]
impl LedgerSession for PostgresSession {
    async fn run(&self, call: Call, script: &Script) -> CallResult<String> {
        let handler = async |transaction: &Transaction<'_>, entry: &mut Entry| {
            let handled = script.handle(&Within(transaction), std::slice::from_mut(entry)).await;
            handled.map(|mut answers| answers.remove(0)).map_err(|failed| failed.failure)
        };
        self.ledger.run(call, handler).await
    }

    async fn run_batch(&self, work: Vec<Work>, script: &Script) -> Vec<CallResult<String>> {
        let handler = async |transaction: &Transaction<'_>, entries: &mut [Entry]| {
            script.handle(&Within(transaction), entries).await.map_err(HandlerFailure::from)
        };
        self.ledger.run_batch(work, handler).await
    }

    async fn reopen(&self, operation: OperationId) -> Result<bool> {
        self.ledger.reopen(operation).await
    }

    /// Begins on a connection of its own, which ends with the runtime.
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        let client: &'static mut Client = Box::leak(Box::new(connect(&self.owner_url).await?));
        let level = match snapshot {
            Snapshot::PerStatement => IsolationLevel::ReadCommitted,
            Snapshot::PerTransaction => IsolationLevel::RepeatableRead,
        };
        let transaction = client.build_transaction().isolation_level(level).start().await;
        *self.transaction.borrow_mut() = Some(Rc::new(transaction?));
        Ok(())
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let claimed = self.ledger.claim(&self.transaction(), call).await?;
        Ok(claimed.map_entry(|entry| self.entries.borrow_mut().push(entry)))
    }

    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId> {
        let place = self.entry(operation);
        self.entries.borrow_mut()[place].emit(event)
    }

    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()> {
        let place = self.entry(operation);
        let entry = self.entries.borrow_mut().remove(place);
        entry.finish(&self.transaction(), &answer.to_owned()).await
    }

    async fn commit(&self) -> Result<(), BoxError> {
        let transaction = self.take_transaction().expect("a transaction was begun");
        Ok(transaction.commit().await?)
    }

    async fn roll_back(&self) {
        if let Some(transaction) = self.take_transaction() {
            // If the connection broke, the server rolls back.
            drop(transaction.rollback().await);
        }
    }

    fn was_cut(&self) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.counts().cuts > 0)
    }
}
