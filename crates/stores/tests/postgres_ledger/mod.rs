//! The ledger suite's setups of PostgreSQL, one for each door to the ledger in a transaction of the caller's own: the
//! drivers `tokio_postgres` and `sqlx`, and the functions in SQL. Runners and copies by other ways use the same rows,
//! so each door also replays what the others wrote. The runner is that of `PostgresLedger` or of `SqlxLedger`. All
//! cases of a release share one server, and each has a schema. A ledger cannot choose the search path, which has what
//! another role could plant there.

mod driver;
mod functions;
mod session;
mod sqlx;

use std::net::SocketAddr;

use async_trait::async_trait;
use hapax_core::OperationId;
use hapax_core::ledger::Terms;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_stores::{Postgres, PostgresLedger};
use hapax_testkit::proxy::{CutPoint, FaultRule, NetworkFault, Proxy};
use hapax_testkit::servers::{PgBouncer, PostgresRelease, PostgresSchema, PostgresServer};
use hapax_testkit::{
    ConnectionCut, CutRequest, LedgerBackend, LedgerCapability, LedgerContents, LedgerSession, LedgerSetup,
    StoredAttempts, StoredEntry, StoredEvent,
};
use tokio_postgres::{Client, NoTls, Row};

use session::{DoorOptions, MakeDoor, PostgresSession};

pub(crate) fn backends() -> Vec<LedgerBackend> {
    let (runner, role, release) = (RunnerKind::Driver, LedgerRole::Owner, PostgresRelease::System);
    let driver = LedgerUse { door: driver::door, runner, role, release };
    let functions = LedgerUse { door: functions::door, ..driver };
    let sqlx = LedgerUse { door: sqlx::door, ..driver };
    vec![
        backend("postgres", driver),
        backend("postgres_functions", functions),
        backend("postgres_sqlx", sqlx),
        backend(
            "postgres17_service",
            LedgerUse { role: LedgerRole::Service, release: PostgresRelease::V17, ..functions },
        ),
        // The functions keep nothing in a session, and no runner does behind a pooler.
        behind_pgbouncer("pgbouncer_functions", functions),
        behind_pgbouncer("pgbouncer_sqlx", LedgerUse { runner: RunnerKind::Sqlx, ..sqlx }),
    ]
}

/// How a backend uses the ledger.
#[derive(Clone, Copy)]
struct LedgerUse {
    door: MakeDoor,
    runner: RunnerKind,
    role: LedgerRole,
    release: PostgresRelease,
}

#[derive(Clone, Copy)]
enum RunnerKind {
    Driver,
    Sqlx,
}

/// The role that uses the ledger.
#[derive(Clone, Copy)]
enum LedgerRole {
    /// It owns the schema and the tables.
    Owner,
    /// It has the rights in the documents.
    Service,
}

const LACKING: &[(LedgerCapability, &str)] =
    &[(LedgerCapability::ForeignKeysOff, "only a superuser can turn them off")];

fn backend(name: &'static str, used: LedgerUse) -> LedgerBackend {
    let make = move || async move {
        let server = PostgresServer::shared_of(used.release).await.expect("the server starts");
        Box::new(PostgresDatabase::new(used, server.address()).await) as Box<dyn LedgerSetup>
    };
    LedgerBackend::new(name, make).requiring(used.release.name()).lacking(LACKING)
}

fn behind_pgbouncer(name: &'static str, used: LedgerUse) -> LedgerBackend {
    let make = move || async move {
        let pooler = PgBouncer::shared().await.expect("the pooler starts");
        Box::new(PostgresDatabase::new(used, pooler.address()).await) as Box<dyn LedgerSetup>
    };
    LedgerBackend::new(name, make).requiring("pgbouncer").lacking(LACKING)
}

struct PostgresDatabase {
    /// The address of the server, or of a pooler in front of it.
    address: SocketAddr,
    schema: PostgresSchema,
    used: LedgerUse,
}

/// The rights in the documents.
const RIGHTS: &str = concat!(
    include_str!("../../../../docs/ledger_rights.sql"),
    include_str!("../../../../docs/ledger_runner_rights.sql")
);

impl PostgresDatabase {
    async fn new(used: LedgerUse, address: SocketAddr) -> Self {
        let server = PostgresServer::shared_of(used.release).await.expect("the server starts");
        let schema = server.planted_schema().await.expect("the server answers");
        let url = schema.url().parse().expect("the URL is valid");
        // The store creates all tables at its first call.
        let store = Postgres::with(&url, std::sync::Arc::new(Tokio::current())).expect("the URL can be used");
        store.check().await.expect("the tables are new");
        let tables = format!(
            "create table effect (namespace text not null, operation text not null);
             create table taken (id integer primary key);
             insert into taken values (1);
             alter table effect owner to {0};
             alter table taken owner to {0};",
            schema.name()
        );
        schema.admin().batch_execute(&tables).await.expect("the tables are new");
        let database = Self { address, schema, used };
        if let LedgerRole::Service = used.role {
            let (role, name) = (database.role(), database.schema.name());
            let rights = RIGHTS.replace("SCHEMA", name).replace("SERVICE", &role);
            let service = format!(
                "create role {role} login; {rights}
                 alter role {role} set search_path = planted, pg_catalog, {name};
                 grant insert on effect to {role};
                 grant select, insert on taken to {role};"
            );
            database.schema.admin().batch_execute(&service).await.expect("the role is new");
        }
        database
    }

    fn role(&self) -> String {
        match self.used.role {
            LedgerRole::Owner => self.schema.name().to_owned(),
            LedgerRole::Service => format!("{}_service", self.schema.name()),
        }
    }

    fn url_of_role(&self, address: SocketAddr) -> String {
        format!("postgres://{}@{address}/postgres", self.role())
    }

    fn session_at(&self, address: SocketAddr, terms: Terms) -> PostgresSession {
        let url = self.url_of_role(address);
        let with_schema = format!("{url}?schema={}", self.schema.name()).parse().expect("the URL is valid");
        let ledger = PostgresLedger::connect(&with_schema, terms).expect("the URL can be used");
        let options = DoorOptions { ledger: ledger.clone(), url, schema: self.schema.name().to_owned() };
        let runner = match self.used.runner {
            RunnerKind::Driver => None,
            RunnerKind::Sqlx => Some(sqlx::runner(&options)),
        };
        PostgresSession { ledger, runner, door: (self.used.door)(options), proxy: None }
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
        Box::new(self.session_at(self.address, terms))
    }

    async fn session_with_cut(&self, terms: Terms, cut: ConnectionCut) -> Box<dyn LedgerSession> {
        let proxy = Proxy::start(self.address).await.expect("a port is free");
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
        let rows = "select namespace, uuid_send(operation), false, verdict, convert_from(answer, 'UTF8')
                      from hapax_ledger
                     union all
                    select namespace, uuid_send(operation), true, null, '' from hapax_open
                     union all
                    select 'guard', decode(repeat('00', 16), 'hex'), true, null, '' from hapax_guard";
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
