//! Tables of the ledger as they were before rows were written once.

use hapax_core::ErrorKind;
use hapax_core::gate::{Provenance, Reason};
use hapax_stores::PostgresTables;
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::ledger::{call, ledger, run, terms};
use super::ledger_guard::{Parameters, connect, query};
use super::{POSTGRES, schema};
use crate::support::until;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_million_rows_of_an_older_release_are_not_rewritten_and_replayed", POSTGRES, replayed),
        servers::test("a_process_of_an_older_release_fails_after_the_migration", POSTGRES, older_process),
        servers::test("a_claim_that_an_older_release_left_open_is_refused", POSTGRES, open_row),
        servers::test("a_ledger_in_use_is_not_migrated_and_its_users_are_named", POSTGRES, in_use),
    ]
}

/// The versions of the tables that an older release has created.
const OLDER: [&str; 7] = [
    include_str!("../../../src/postgres/migrations/0001_records.sql"),
    include_str!("ledger_before/tables.sql"),
    include_str!("../../../src/postgres/migrations/0003_dead.sql"),
    include_str!("../../../src/postgres/migrations/0004_outbox.sql"),
    include_str!("../../../src/postgres/migrations/0005_ledger_functions.sql"),
    include_str!("../../../src/postgres/migrations/0006_outbox_attributes.sql"),
    include_str!("../../../src/postgres/migrations/0007_dead_keys.sql"),
];

/// The statements of the process of an older release.
const OLDER_CLAIM: &str = include_str!("ledger_before/claim.sql");
const OLDER_CLAIM_ONE: &str = include_str!("ledger_before/claim_one.sql");
const OLDER_READ: &str = include_str!("ledger_before/read.sql");
const OLDER_FINISH: &str = include_str!("ledger_before/finish.sql");
const OLDER_FINISH_LAST: &str = include_str!("ledger_before/finish_last.sql");
const OLDER_FINISH_LAST_ONE: &str = include_str!("ledger_before/finish_last_one.sql");

/// The rows of a ledger that is large.
const ROWS: i64 = 1_000_000;

/// A schema with older tables, in which the operation `one` has ended, and a connection of its owner.
async fn older() -> (PostgresSchema, Client) {
    let schema = schema().await;
    let owner = make_older(&schema).await;
    (schema, owner)
}

async fn make_older(schema: &PostgresSchema) -> Client {
    let owner = connect(schema, schema.name()).await;
    owner.batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
    owner.batch_execute(include_str!("../../../src/postgres/migrations/create_versions.sql")).await.unwrap();
    for (version, sql) in (1..).zip(OLDER) {
        let sql = sql.replace("\"SCHEMA\"", schema.name());
        owner.batch_execute(&format!("{sql}; insert into hapax_migration values ({version})")).await.unwrap();
    }
    end(&owner, "one").await;
    owner
}

fn uuid(key: &str) -> Uuid {
    Uuid::from_bytes(*call(key).operation().as_bytes())
}

async fn claim_one(client: &Client, key: &str) {
    let (fingerprint, operation) = (&[0_u8; 12][..], uuid(key));
    let parameters: &Parameters<'_> =
        &[(&"transfers", Type::TEXT), (&operation, Type::UUID), (&0_i16, Type::INT2), (&fingerprint, Type::BYTEA)];
    query(client, OLDER_CLAIM_ONE, parameters).await;
}

async fn claim_both(client: &Client, keys: [&str; 2]) {
    let (fingerprint, operations) = (&[0_u8; 12][..], keys.map(uuid));
    let (rules, fingerprints) = (vec![0_i16; 2], vec![fingerprint; 2]);
    let parameters: &Parameters<'_> = &[
        (&"transfers", Type::TEXT),
        (&&operations[..], Type::UUID_ARRAY),
        (&rules, Type::INT2_ARRAY),
        (&fingerprints, Type::BYTEA_ARRAY),
    ];
    assert!(query(client, OLDER_CLAIM, parameters).await.get::<_, bool>(1), "it is claimed");
}

async fn finish_one(client: &Client, key: &str) -> Result<(), tokio_postgres::Error> {
    let (operation, answer) = (uuid(key), &b"done"[..]);
    let parameters: &Parameters<'_> =
        &[(&"transfers", Type::TEXT), (&operation, Type::UUID), (&1_i16, Type::INT2), (&answer, Type::BYTEA)];
    client.query_typed(OLDER_FINISH_LAST_ONE, parameters).await.map(drop)
}

/// Finishes both with the statement that events follow, or with the last one of a transaction.
async fn finish_both(client: &Client, sql: &str, keys: [&str; 2]) -> Result<(), tokio_postgres::Error> {
    let (operations, answers) = (keys.map(uuid), vec![&b"done"[..]; 2]);
    let verdicts = vec![1_i16; 2];
    let parameters: &Parameters<'_> = &[
        (&"transfers", Type::TEXT),
        (&&operations[..], Type::UUID_ARRAY),
        (&verdicts, Type::INT2_ARRAY),
        (&answers, Type::BYTEA_ARRAY),
        (&2_i64, Type::INT8),
    ];
    let count = if sql == OLDER_FINISH { 4 } else { 5 };
    client.query_typed(sql, &parameters[..count]).await.map(drop)
}

async fn end(owner: &Client, key: &str) {
    owner.batch_execute("begin").await.unwrap();
    claim_one(owner, key).await;
    finish_one(owner, key).await.unwrap();
    owner.batch_execute("commit").await.unwrap();
}

async fn migrate(schema: &PostgresSchema) -> Result<Vec<i32>, hapax_core::Error> {
    PostgresTables::connect(&schema.url().parse().unwrap()).unwrap().create().await
}

/// Fills the older ledger with rows, without its triggers and with full pages.
async fn fill(schema: &PostgresSchema) {
    let admin = connect(schema, "postgres").await;
    let fill = format!(
        "set search_path to {}; set session_replication_role = replica;
         alter table hapax_ledger set (fillfactor = 100);
         insert into hapax_ledger (operation, namespace, open, verdict, rule, fingerprint, answer)
         select lpad(to_hex(n), 32, '0')::uuid, 'transfers', null, 1, 0, decode(repeat('00', 12), 'hex'), ''
           from generate_series(1, {ROWS}) n;
         alter table hapax_ledger set (fillfactor = 50)",
        schema.name()
    );
    admin.batch_execute(&fill).await.unwrap();
}

/// The migration reads the rows once, before it has its lock, and neither rewrites nor reads them under it.
async fn replayed() {
    let (schema, _) = older().await;
    fill(&schema).await;
    let table = format!("'{}.hapax_ledger'::regclass", schema.name());
    let facts = format!("select pg_relation_filenode({table})::bigint, pg_stat_get_tuples_returned({table})");
    let read = async || {
        let row = schema.admin().query_one(&facts, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let (file, rows_read) = read().await;
    assert_eq!(migrate(&schema).await.unwrap(), [8]);
    // The server counts them when the connection has ended.
    until("the rows that were read are counted", async || read().await.1 - rows_read >= ROWS).await;
    let (file_now, rows_now) = read().await;
    assert_eq!(file_now, file, "no row is rewritten");
    assert!(rows_now - rows_read < 2 * ROWS, "{} rows were read", rows_now - rows_read);
    let ledger = ledger(&schema.url(), terms());
    let copy = run(&ledger, "one").await.unwrap();
    assert_eq!((&*copy.answer, copy.provenance), ("done", Provenance::Replayed));
    assert_eq!(run(&ledger, "two").await.unwrap().provenance, Provenance::Fresh);
    assert_eq!(ledger.check(1).await.unwrap(), []);
}

/// Its claim is a row without an end, which none of its statements can end: nothing that it writes is committed. It
/// still reads what has ended. If its handler commits, the row is damaged.
async fn older_process() {
    let (schema, owner) = older().await;
    migrate(&schema).await.unwrap();
    owner.batch_execute("create table effect (number integer)").await.unwrap();
    let both = ["two", "three"];
    for finish in [OLDER_FINISH_LAST_ONE, OLDER_FINISH, OLDER_FINISH_LAST] {
        owner.batch_execute("begin; insert into effect values (1)").await.unwrap();
        let finished = if finish == OLDER_FINISH_LAST_ONE {
            claim_one(&owner, "two").await;
            finish_one(&owner, "two").await
        } else {
            claim_both(&owner, both).await;
            finish_both(&owner, finish, both).await
        };
        assert_eq!(finished.unwrap_err().code(), Some(&SqlState::UNDEFINED_COLUMN), "{finish}");
        // It sends COMMIT with its last statement.
        owner.batch_execute("commit").await.unwrap();
    }
    assert!(owner.query("select from effect", &[]).await.unwrap().is_empty());
    let operations = [uuid("one"), uuid("two")];
    let parameters: &Parameters<'_> = &[(&"transfers", Type::TEXT), (&&operations[..], Type::UUID_ARRAY)];
    let found = owner.query_typed(OLDER_READ, parameters).await.unwrap();
    assert_eq!(found.iter().map(|row| row.get(0)).collect::<Vec<bool>>(), [true, false]);
    assert_eq!(found[0].get::<_, &[u8]>("answer"), b"done");

    let ledger = ledger(&schema.url(), terms());
    assert_eq!(run(&ledger, "two").await.unwrap().provenance, Provenance::Fresh);
    claim_one(&owner, "three").await;
    assert_eq!(run(&ledger, "three").await.unwrap_err().reason, Reason::Store(ErrorKind::Damaged));
    let once = format!("select hapax_once('transfers', '{}', null)", call("three").operation());
    let error = owner.batch_execute(&once).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DATA_CORRUPTED));
}

async fn open_row() {
    let (schema, owner) = older().await;
    let admin = connect(&schema, "postgres").await;
    let path = format!("set search_path to {}; set session_replication_role = replica", schema.name());
    admin.batch_execute(&path).await.unwrap();
    claim_one(&admin, "two").await;
    let error = migrate(&schema).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    let message = error.to_string();
    assert!(message.contains("committed without its end") && message.contains("delete the row"), "{message}");
    owner.batch_execute("delete from hapax_ledger where open = 1").await.unwrap();
    assert_eq!(migrate(&schema).await.unwrap(), [8]);
}

async fn in_use() {
    let options = PostgresServerOptions::new().with_args(&["-c", "max_prepared_transactions=2"]);
    let server = PostgresServer::start(options).await.unwrap();
    let schema = server.schema().await.unwrap();
    let owner = make_older(&schema).await;
    owner.batch_execute("begin; lock table hapax_ledger in row share mode").await.unwrap();
    let pid: i32 = owner.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let error = migrate(&schema).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    let message = error.to_string();
    assert!(message.contains(&format!("in use by session {pid}; End them")), "{message}");
    let prepare = format!("prepare transaction '{}'", schema.name());
    owner.batch_execute(&prepare).await.unwrap();
    let message = migrate(&schema).await.unwrap_err().to_string();
    assert!(message.contains(&format!("in use by the prepared transaction {}", schema.name())), "{message}");
    owner.batch_execute(&format!("rollback prepared '{}'", schema.name())).await.unwrap();
    // The foreign key of the older table belongs to this one, too.
    owner.batch_execute("begin; lock table hapax_never in row share mode").await.unwrap();
    let message = migrate(&schema).await.unwrap_err().to_string();
    assert!(message.contains(&format!("in use by session {pid}")), "{message}");
    owner.batch_execute("commit").await.unwrap();
    assert_eq!(migrate(&schema).await.unwrap(), [8]);
}
