//! Tables of the ledger as they were before rows were written once.

use hapax_core::ErrorKind;
use hapax_core::gate::{Provenance, Reason};
use hapax_stores::PostgresTables;
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::ledger::{call, ledger, run, terms};
use super::ledger_guard::connect;
use super::{POSTGRES, schema};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("rows_of_an_older_release_are_replayed_after_the_migration", POSTGRES, replayed),
        servers::test("a_process_of_an_older_release_fails_after_the_migration", POSTGRES, older_process),
        servers::test("a_claim_that_an_older_release_left_open_is_refused", POSTGRES, open_row),
        servers::test("a_ledger_in_use_is_not_migrated_and_its_users_are_named", POSTGRES, in_use),
    ]
}

/// The versions of the tables that an older release has created.
const OLDER: [&str; 7] = [
    include_str!("../../../src/postgres/migrations/0001_records.sql"),
    include_str!("ledger_before.sql"),
    include_str!("../../../src/postgres/migrations/0003_dead.sql"),
    include_str!("../../../src/postgres/migrations/0004_outbox.sql"),
    include_str!("../../../src/postgres/migrations/0005_ledger_functions.sql"),
    include_str!("../../../src/postgres/migrations/0006_outbox_attributes.sql"),
    include_str!("../../../src/postgres/migrations/0007_dead_keys.sql"),
];

/// The statements with which an older release claimed and finished one operation.
const OLDER_CLAIM: &str = "insert into hapax_ledger (operation, namespace, rule, fingerprint)
                           values ($1::text::uuid, 'transfers', 0, decode(repeat('00', 12), 'hex'))";
const OLDER_FINISH: &str = "update hapax_ledger set open = null, verdict = 1, answer = 'done'
                             where operation = $1::text::uuid and namespace = 'transfers' and open = 1";

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

async fn end(owner: &Client, key: &str) {
    let operation = call(key).operation().to_string();
    owner.batch_execute("begin").await.unwrap();
    owner.execute(OLDER_CLAIM, &[&operation]).await.unwrap();
    owner.execute(OLDER_FINISH, &[&operation]).await.unwrap();
    owner.batch_execute("commit").await.unwrap();
}

async fn migrate(schema: &PostgresSchema) -> Result<Vec<i32>, hapax_core::Error> {
    PostgresTables::connect(&schema.url().parse().unwrap()).unwrap().create().await
}

async fn replayed() {
    let (schema, owner) = older().await;
    let fill = "insert into hapax_ledger (operation, namespace, open, verdict, rule, fingerprint, answer)
                select gen_random_uuid(), 'transfers', null, 1, 0, decode(repeat('00', 12), 'hex'), ''
                  from generate_series(1, 10000)";
    owner.batch_execute(fill).await.unwrap();
    let file = async || {
        let file = owner.query_one("select pg_relation_filenode('hapax_ledger')::bigint", &[]).await.unwrap();
        file.get::<_, i64>(0)
    };
    let before = file().await;
    assert_eq!(migrate(&schema).await.unwrap(), [8]);
    assert_eq!(file().await, before, "no row is rewritten");
    let ledger = ledger(&schema.url(), terms());
    let copy = run(&ledger, "one").await.unwrap();
    assert_eq!((&*copy.answer, copy.provenance), ("done", Provenance::Replayed));
    assert_eq!(run(&ledger, "two").await.unwrap().provenance, Provenance::Fresh);
    assert_eq!(ledger.check(1).await.unwrap(), []);
}

/// Its claim is a row without an end, which its finish cannot end. If its handler commits, the row is damaged.
async fn older_process() {
    let (schema, owner) = older().await;
    migrate(&schema).await.unwrap();
    let operation = call("two").operation().to_string();
    owner.batch_execute("begin").await.unwrap();
    owner.execute(OLDER_CLAIM, &[&operation]).await.unwrap();
    let error = owner.execute(OLDER_FINISH, &[&operation]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_COLUMN));
    owner.batch_execute("rollback").await.unwrap();
    let ledger = ledger(&schema.url(), terms());
    assert_eq!(run(&ledger, "two").await.unwrap().provenance, Provenance::Fresh);
    owner.execute(OLDER_CLAIM, &[&call("three").operation().to_string()]).await.unwrap();
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
    admin.execute(OLDER_CLAIM, &[&call("two").operation().to_string()]).await.unwrap();
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
