//! The ledger in transactions of sqlx: what its suite cannot see, because the other doors do not have it.

use hapax_core::ledger::{Claimed, Terms};
use hapax_core::{Error, ErrorKind};
use hapax_stores::SqlxLedger;
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use sqlx::{Connection, PgConnection};

use super::ledger::{call, ledger, terms};
use super::{POSTGRES, schema};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("sqlx_claims_nothing_outside_of_a_transaction", POSTGRES, outside),
        servers::test("sqlx_reports_missing_tables_and_rights", POSTGRES, unusable),
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
