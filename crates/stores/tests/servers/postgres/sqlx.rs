//! The ledger in transactions of sqlx: what its suite cannot see, because the other doors do not have it.

use std::future::pending;
use std::time::Duration;

use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::{Claimed, Entry, Terms};
use hapax_core::{Error, ErrorKind};
use hapax_stores::{SqlxLedger, SqlxRunner};
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection};

use super::ledger::{call, ledger, terms};
use super::{POSTGRES, schema};
use crate::support::{until, with_timeout};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("sqlx_claims_nothing_outside_of_a_transaction", POSTGRES, outside),
        servers::test("sqlx_reports_missing_tables_and_rights", POSTGRES, unusable),
        servers::test("a_run_on_sqlx_that_is_dropped_leaves_its_pool_without_its_transaction", POSTGRES, dropped),
        servers::test("a_savepoint_of_a_handler_on_sqlx_that_is_left_open_commits_nothing", POSTGRES, left_open),
        servers::test("a_runner_on_sqlx_without_tables_or_a_database_says_so", POSTGRES, unusable_runner),
    ]
}

async fn connect(schema: &PostgresSchema, role: &str) -> PgConnection {
    let url = schema.url().split_once('?').unwrap().0.replace(&format!("//{}@", schema.name()), &format!("//{role}@"));
    PgConnection::connect(&url).await.unwrap()
}

fn sqlx_ledger(schema: &str) -> SqlxLedger {
    SqlxLedger::new(terms()).in_schema(schema).unwrap()
}

async fn claim(ledger: &SqlxLedger, connection: &mut PgConnection) -> Result<(), Error> {
    let claimed = ledger.claim::<String>(connection, &call("one")).await?;
    assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
    Ok(())
}

async fn outside() {
    let schema = schema().await;
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let mut connection = connect(&schema, schema.name()).await;
    let ledger = sqlx_ledger(schema.name());
    let error = claim(&ledger, &mut connection).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    // The connection works, and the operation is new.
    let mut transaction = connection.begin().await.unwrap();
    claim(&ledger, &mut transaction).await.unwrap();
}

async fn unusable() {
    let schema = schema().await;
    let mut connection = connect(&schema, schema.name()).await;
    let without_tables = claim(&sqlx_ledger(schema.name()), &mut connection).await.unwrap_err();
    assert_eq!(without_tables.kind(), ErrorKind::Unusable, "{without_tables:?}");
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let role = format!("{}_stranger", schema.name());
    let grant = format!("create role {role} login; grant usage on schema {} to {role}", schema.name());
    schema.admin().batch_execute(&grant).await.unwrap();
    let mut stranger = connect(&schema, &role).await;
    let without_rights = claim(&sqlx_ledger(schema.name()), &mut stranger).await.unwrap_err();
    assert_eq!(without_rights.kind(), ErrorKind::Unusable, "{without_rights:?}");
    let wrong = SqlxLedger::new(Terms::new("transfers").unwrap()).in_schema("a\"b").unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

/// A runner with one connection.
async fn runner(schema: &PostgresSchema) -> SqlxRunner {
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let table = format!("create table {0}.effect (key text not null); grant all on {0}.effect to {0}", schema.name());
    schema.admin().batch_execute(&table).await.unwrap();
    runner_at(schema, schema.url().split_once('?').unwrap().0)
}

fn runner_at(schema: &PostgresSchema, url: &str) -> SqlxRunner {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy(url).unwrap();
    sqlx_ledger(schema.name()).runner(pool)
}

async fn effects(schema: &PostgresSchema) -> i64 {
    let count = format!("select count(*) from {}.effect", schema.name());
    schema.admin().query_one(&count, &[]).await.unwrap().get(0)
}

async fn dropped() {
    let schema = schema().await;
    let runner = runner(&schema).await;
    let waiting = async |transaction: &mut PgConnection, _: &mut Entry| {
        transaction.execute("insert into effect values ('dropped')").await?;
        pending().await
    };
    let given_up = with_timeout(Duration::from_millis(300), runner.run::<String, _>(call("one"), waiting)).await;
    assert!(given_up.is_none(), "{given_up:?}");
    // The only connection of the pool is replaced, and the server has rolled back the transaction.
    let writing = async |transaction: &mut PgConnection, _: &mut Entry| {
        transaction.execute("insert into effect values ('kept')").await?;
        Ok(String::from("done"))
    };
    until("the operation is free", async || runner.run(call("one"), writing).await.is_ok()).await;
    assert_eq!(effects(&schema).await, 1);
    let replayed = runner.run(call("one"), writing).await.unwrap();
    assert_eq!((replayed.provenance, &*replayed.answer), (Provenance::Replayed, "done"));
}

async fn left_open() {
    let schema = schema().await;
    let runner = runner(&schema).await;
    let nested = async |transaction: &mut PgConnection, _: &mut Entry| {
        let mut savepoint = transaction.begin().await?;
        savepoint.execute("insert into effect values ('nested')").await?;
        savepoint.commit().await?;
        Ok(String::from("done"))
    };
    assert!(runner.run(call("nested"), nested).await.is_ok());
    let forgetful = async |transaction: &mut PgConnection, _: &mut Entry| {
        let mut savepoint = transaction.begin().await?;
        savepoint.execute("insert into effect values ('forgotten')").await?;
        std::mem::forget(savepoint);
        Ok(String::from("done"))
    };
    let refused = runner.run(call("forgotten"), forgetful).await.unwrap_err();
    assert!(matches!(refused.reason, Reason::NotApplied { .. }), "{refused:?}");
    assert_eq!(effects(&schema).await, 1);
    until("the operation is free", async || runner.run(call("forgotten"), nested).await.is_ok()).await;
    assert_eq!(effects(&schema).await, 2);
}

async fn unusable_runner() {
    let schema = schema().await;
    let url = schema.url().split_once('?').unwrap().0.to_owned();
    let none = url.replace("/postgres", "/no_such_database");
    for url in [url, none] {
        let handler = async |_: &mut PgConnection, _: &mut Entry| Ok(String::from("done"));
        let refused = runner_at(&schema, &url).run(call("one"), handler).await.unwrap_err();
        assert!(matches!(refused.reason, Reason::Store(ErrorKind::Unusable)), "{url}: {refused:?}");
    }
}
