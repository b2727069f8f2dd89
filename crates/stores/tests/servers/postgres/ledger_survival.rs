//! What a ledger keeps through a crash of its server, a dump and a publication.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hapax_core::ErrorKind;
use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::{CallResult, Work};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_stores::PostgresLedger;
use hapax_testkit::servers::{self, PostgresServer};
use libtest_mimic::Trial;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::ledger::{call, ledger, run, terms};
use super::ledger_guard::with_tables;
use super::{POSTGRES, start};
use crate::support::until;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_killed_server_keeps_what_has_ended_and_no_open_claim", POSTGRES, killed),
        servers::test("a_restored_dump_replays_what_has_ended_and_claims_anew", POSTGRES, dumped),
        servers::test("a_publication_of_all_tables_stops_no_operation", POSTGRES, published),
        servers::test("a_transaction_with_the_number_of_a_restored_row_is_refused_once", POSTGRES, numbered_again),
    ]
}

const OPERATIONS: u32 = 1_000;

/// Runs these operations in batches, each of which writes an effect. Returns how many of them ran now.
async fn run_batches(ledger: &PostgresLedger) -> usize {
    let numbers: Vec<u32> = (0..OPERATIONS).collect();
    let mut fresh = 0;
    for numbers in numbers.chunks(250) {
        let work = numbers.iter().map(|number| call(&format!("order {number}")));
        let work = work.map(|call| Work { call, ordering_key: None, is_redelivered: false }).collect();
        let results = ledger
            .run_batch(work, async |transaction, entries| {
                let insert = format!("insert into effect select generate_series(1, {})", entries.len());
                transaction.batch_execute(&insert).await?;
                Ok(vec![String::from("done"); entries.len()])
            })
            .await;
        let ran = results.into_iter().map(|result| result.expect("the batch runs").provenance);
        fresh += ran.filter(|provenance| *provenance == Provenance::Fresh).count();
    }
    fresh
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("select count(*) from {table}"), &[]).await.unwrap().get(0)
}

/// A database of its own on the shared server.
struct OwnDatabase {
    server: Arc<PostgresServer>,
    name: String,
}

impl OwnDatabase {
    async fn create() -> Self {
        let server = PostgresServer::shared().await.unwrap();
        let name = format!("{}_database", server.schema().await.unwrap().name());
        let database = Self { server, name };
        database.also("").await;
        database
    }

    /// Creates another database, whose name has this end. Returns the name.
    async fn also(&self, end: &str) -> String {
        let name = format!("{}{end}", self.name);
        self.server.client().await.unwrap().batch_execute(&format!("create database {name}")).await.unwrap();
        name
    }

    fn url(&self, name: &str) -> String {
        format!("postgres://postgres@{}/{name}", self.server.address())
    }

    /// Runs a program of the client, which must succeed.
    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.server.client_program(program).args(arguments).output().expect("the program starts");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Opens claims of a service and of a runner, in transactions that stay open with these clients.
async fn open_claims(clients: [&Client; 2]) {
    let operation = call("open").operation();
    let claims = [
        format!("begin; select hapax_once('transfers', '{operation}', null)"),
        "begin; select hapax_claim('transfers', array[gen_random_uuid(), gen_random_uuid()])".to_owned(),
    ];
    for (client, claim) in clients.into_iter().zip(claims) {
        client.batch_execute(&claim).await.unwrap();
    }
}

async fn killed() {
    let server = start().await;
    let admin = server.client().await.unwrap();
    let before = ledger(&server.url(), terms());
    before.create_tables().await.unwrap();
    admin.batch_execute("create table effect (number integer)").await.unwrap();
    assert_eq!(run_batches(&before).await, OPERATIONS as usize);
    let findings = before.check(1).await.unwrap();
    let clients = [server.client().await.unwrap(), server.client().await.unwrap()];
    open_claims([&clients[0], &clients[1]]).await;
    server.kill();
    server.restart().await.unwrap();
    let (admin, after) = (server.client().await.unwrap(), ledger(&server.url(), terms()));
    for (table, rows) in [("effect", OPERATIONS), ("hapax_ledger", OPERATIONS), ("hapax_guard", 0), ("hapax_open", 0)] {
        assert_eq!(count(&admin, table).await, i64::from(rows), "{table}");
    }
    assert_eq!(after.check(1).await.unwrap(), findings);
    assert_eq!(run_batches(&after).await, 0, "all of them are replayed");
    assert_eq!(run(&after, "open").await.unwrap().provenance, Provenance::Fresh);
    // The ledger of before has connections that are broken.
    until("it works again", async || run(&before, "open").await.is_ok()).await;
    assert_eq!(run(&before, "open").await.unwrap().provenance, Provenance::Replayed);
}

async fn dumped() {
    let database = OwnDatabase::create().await;
    let url = database.url(&database.name);
    let origin = ledger(&url, terms());
    origin.create_tables().await.unwrap();
    assert_eq!(run(&origin, "one").await.unwrap().provenance, Provenance::Fresh);
    let clients = [connect(&url).await, connect(&url).await];
    open_claims([&clients[0], &clients[1]]).await;
    let file = database.server.data_folder().join(format!("{}.sql", database.name));
    let file = file.to_str().expect("the path is a text");
    database.run("pg_dump", &["--file", file, &database.name]);
    let restored = database.also("_restored").await;
    database.run("psql", &["--quiet", "--set=ON_ERROR_STOP=1", "--file", file, &restored]);
    let copy = ledger(&database.url(&restored), terms());
    assert_eq!(copy.check(1).await.unwrap(), origin.check(1).await.unwrap());
    assert_eq!(run(&copy, "one").await.unwrap().provenance, Provenance::Replayed);
    assert_eq!(run(&copy, "open").await.unwrap().provenance, Provenance::Fresh);
    let client = connect(&database.url(&restored)).await;
    for table in ["hapax_guard", "hapax_open"] {
        assert_eq!(count(&client, table).await, 0, "{table}");
    }
    let claim = "select hapax_once('transfers', gen_random_uuid(), null)";
    let unfinished = client.batch_execute(claim).await.unwrap_err();
    assert_eq!(unfinished.code(), Some(&SqlState::FOREIGN_KEY_VIOLATION), "a claim alone cannot commit");
}

async fn published() {
    let database = OwnDatabase::create().await;
    let url = database.url(&database.name);
    let (ledger, client) = (ledger(&url, terms().max_attempts(2)), connect(&url).await);
    ledger.create_tables().await.unwrap();
    let publication = "create table effect (number integer); create publication everything for all tables";
    client.batch_execute(publication).await.unwrap();
    assert_eq!(run(&ledger, "one").await.unwrap().provenance, Provenance::Fresh);
    assert_eq!(run_batches(&ledger).await, OPERATIONS as usize);
    let own = format!(
        "begin; select hapax_once('transfers', '{0}', null), hapax_done('transfers', '{0}', ''); commit",
        call("own").operation()
    );
    client.batch_execute(&own).await.unwrap();
    let failed = ledger.run(call("fails"), async |_, _| Err::<String, _>("the test lets it fail".into())).await;
    failed.expect_err("the handler fails");
    assert_eq!(count(&client, "hapax_attempt").await, 1, "the attempt is counted");
    client.batch_execute("delete from hapax_ledger").await.unwrap();
    assert_eq!(run(&ledger, "one").await.unwrap().provenance, Provenance::Fresh);
}

/// The cluster in which a dump is restored may be younger, so that later transactions get the numbers of restored rows.
/// One that finds a row with its own number takes the row for its own, and the next one replays it.
async fn numbered_again() {
    let (schema, ledger, client) = with_tables().await;
    let (name, operation) = (schema.name(), call("copy 7").operation());
    let results = run_copies(&ledger, "first").await;
    assert!(results.into_iter().all(|result| result.is_ok_and(|done| done.provenance == Provenance::Fresh)));

    client.batch_execute("begin").await.unwrap();
    let number = "select pg_current_xact_id()::text";
    let number: String = client.query_one(number, &[]).await.unwrap().get(0);
    let set = format!("update {name}.hapax_ledger set xact = '{number}' where operation = '{operation}'");
    schema.admin().batch_execute(&set).await.unwrap();
    let once = format!("select outcome from hapax_once('transfers', '{operation}', null)");
    let refused = client.query_one(&once, &[]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    client.batch_execute("rollback; begin").await.unwrap();
    assert_eq!(client.query_one(&once, &[]).await.unwrap().get::<_, &str>(0), "replay");
    client.batch_execute("rollback").await.unwrap();

    // Other tests use numbers, too, so each row gets one of the next.
    let set = format!(
        "update {name}.hapax_ledger l set xact = ((pg_current_xact_id()::text::bigint + n.place)::text)::xid8
           from (select operation, row_number() over () as place from {name}.hapax_ledger) n
          where l.operation = n.operation"
    );
    let tries = AtomicU32::new(0);
    until("a transaction has the number of a row", async || {
        schema.admin().batch_execute(&set).await.unwrap();
        // A ledger that has seen many copies would read the rows before it has a number.
        let new = self::ledger(&schema.url(), terms());
        let fresh = format!("fresh {}", tries.fetch_add(1, Ordering::Relaxed));
        let mut results = run_copies(&new, &fresh).await;
        assert_eq!(results.remove(0).unwrap().provenance, Provenance::Fresh);
        let refused = results.into_iter().filter_map(Result::err);
        let reasons: Vec<_> = refused.map(|refused| refused.reason).collect();
        assert!(reasons.iter().all(|reason| *reason == Reason::Store(ErrorKind::Invalid)), "{reasons:?}");
        assert!(reasons.len() <= 1, "{reasons:?}");
        reasons.len() == 1
    })
    .await;
    let results = run_copies(&ledger, "first").await;
    assert!(results.into_iter().all(|result| result.is_ok_and(|done| done.provenance == Provenance::Replayed)));
}

/// Runs this operation and the copies in one batch.
async fn run_copies(ledger: &PostgresLedger, first: &str) -> Vec<CallResult<String>> {
    let copies = (0..200).map(|number| call(&format!("copy {number}")));
    let calls = [call(first)].into_iter().chain(copies);
    let work = calls.map(|call| Work { call, ordering_key: None, is_redelivered: false }).collect();
    ledger.run_batch(work, async |_, entries| Ok(vec![String::from("done"); entries.len()])).await
}
