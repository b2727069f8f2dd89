//! The tables that keep a transaction with an open claim from its COMMIT, and what breaks them.

use std::sync::atomic::{AtomicU32, Ordering};

use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::{Claimed, Entry, Work};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Inspect, Severity};
use hapax_stores::{PostgresLedger, PostgresTables, PostgresTransaction};
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Row};
use uuid::Uuid;

use super::ledger::{call, ledger, terms};
use super::{POSTGRES, schema, start, store};
use crate::support::until;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("two_guards_at_one_place_are_told_apart", POSTGRES, same_place),
        servers::test("without_triggers_there_is_no_claim", POSTGRES, without_triggers),
        servers::test("tables_of_claims_that_stop_no_commit_are_refused", POSTGRES, broken_guard),
        servers::test("claims_that_an_old_snapshot_keeps_are_reported_until_vacuum_removes_them", POSTGRES, growth),
        servers::test("tables_of_claims_that_are_too_large_are_not_searched_for_rows", POSTGRES, large),
        servers::test("a_row_that_appears_meanwhile_is_replayed", POSTGRES, row_meanwhile),
        servers::test("a_handler_that_ends_the_operation_of_its_runner_is_counted", POSTGRES, own_operation),
    ]
}

pub(super) async fn with_tables() -> (PostgresSchema, PostgresLedger, Client) {
    with_tables_in(schema().await).await
}

async fn with_tables_in(schema: PostgresSchema) -> (PostgresSchema, PostgresLedger, Client) {
    let ledger = ledger(&schema.url(), terms().max_attempts(3));
    ledger.create_tables().await.unwrap();
    let client = connect(&schema, schema.name()).await;
    client.batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
    (schema, ledger, client)
}

pub(super) async fn connect(schema: &PostgresSchema, role: &str) -> Client {
    let url = schema.url().split_once('?').unwrap().0.replace(&format!("//{}@", schema.name()), &format!("//{role}@"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}

pub(super) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

pub(super) async fn query(client: &Client, sql: &str, parameters: &Parameters<'_>) -> Row {
    client.query_typed(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).remove(0)
}

const CLAIM: &str = include_str!("../../../src/postgres/ledger/claim.sql");
const CLAIM_ONE: &str = include_str!("../../../src/postgres/ledger/claim_one.sql");
const FINISH: &str = include_str!("../../../src/postgres/ledger/finish.sql");
const FINISH_ONE: &str = include_str!("../../../src/postgres/ledger/finish_one.sql");

pub(super) fn operations(count: u128) -> Vec<Uuid> {
    (0..count).map(|n| Uuid::from_u128((n << 96) + 7)).collect()
}

/// Claims operations as the runner does. Returns the place of the guard.
pub(super) async fn claim(client: &Client, namespace: &str, operations: &[Uuid]) -> String {
    let row = match operations {
        [operation] => query(client, CLAIM_ONE, &[(&namespace, Type::TEXT), (operation, Type::UUID)]).await,
        _ => query(client, CLAIM, &[(&namespace, Type::TEXT), (&operations, Type::UUID_ARRAY)]).await,
    };
    row.get(0)
}

/// Finishes operations as the runner does.
pub(super) async fn finish(
    client: &Client,
    guard: &str,
    namespace: &str,
    operations: &[Uuid],
) -> Result<(), tokio_postgres::Error> {
    let print = &[7_u8; 12][..];
    let (ones, prints) = (vec![1_i16; operations.len()], vec![print; operations.len()]);
    let many: [(&(dyn ToSql + Sync), Type); 7] = [
        (&guard, Type::TEXT),
        (&namespace, Type::TEXT),
        (&operations, Type::UUID_ARRAY),
        (&ones, Type::INT2_ARRAY),
        (&ones, Type::INT2_ARRAY),
        (&prints, Type::BYTEA_ARRAY),
        (&prints, Type::BYTEA_ARRAY),
    ];
    let one: [(&(dyn ToSql + Sync), Type); 7] = [
        (&guard, Type::TEXT),
        (&namespace, Type::TEXT),
        (&operations[0], Type::UUID),
        (&1_i16, Type::INT2),
        (&1_i16, Type::INT2),
        (&print, Type::BYTEA),
        (&print, Type::BYTEA),
    ];
    let (sql, parameters) = if operations.len() == 1 { (FINISH_ONE, &one) } else { (FINISH, &many) };
    client.query_typed(sql, parameters).await.map(drop)
}

/// The first claim is undone, and its place is free for the second one.
async fn same_place() {
    let (schema, _, client) = with_tables().await;
    let operations = operations(3);
    client.batch_execute("begin; savepoint first").await.unwrap();
    let first = claim(&client, "transfers", &operations[..2]).await;
    client.batch_execute("rollback to savepoint first").await.unwrap();
    let vacuum = format!("vacuum {}.hapax_guard", schema.name());
    schema.admin().batch_execute(&vacuum).await.unwrap();
    let second = claim(&client, "transfers", &operations[1..]).await;
    assert_eq!(first, second, "the place is used again");
    let finished = finish(&client, &first, "transfers", &operations[..2]).await.unwrap_err();
    assert_eq!(finished.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
}

async fn without_triggers() {
    let (schema, _, _) = with_tables().await;
    let admin = connect(&schema, "postgres").await;
    let path = format!("set search_path to {}; set session_replication_role = replica", schema.name());
    admin.batch_execute(&path).await.unwrap();
    let operation = operations(1)[0];
    for claim in [
        format!("select hapax_claim_one('transfers', '{operation}')"),
        format!("select hapax_claim('transfers', '{{{operation}}}')"),
        format!("select hapax_once('transfers', '{operation}', null)"),
    ] {
        let error = admin.batch_execute(&claim).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::NOT_NULL_VIOLATION), "{claim}");
    }
}

/// The default of the column `open`.
const DEFAULT: &str = "case when pg_catalog.current_setting('session_replication_role') <> 'replica' then 1 end";

async fn broken_guard() {
    let (schema, ledger, _) = with_tables().await;
    let admin = schema.admin();
    let tables = PostgresTables::connect(&schema.url().parse().unwrap()).unwrap();
    admin.batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
    assert_eq!((ledger.check(1).await.unwrap(), tables.check().await.unwrap()), (vec![], vec![]));
    for table in ["hapax_guard", "hapax_open"] {
        for (add, undo, fault) in faults(table) {
            let message = if fault.starts_with("a trigger") { fault.to_owned() } else { format!("{table} {fault}") };
            assert_refused(&schema, (&ledger, &tables), (&add, &undo), &message).await;
        }
    }
    let check = "alter table hapax_never drop constraint hapax_never_check";
    let undo = "alter table hapax_never add check (false)";
    assert_refused(&schema, (&ledger, &tables), (check, undo), "hapax_never can have rows").await;
}

/// What can be wrong with a table of claims: what does it, what undoes it, and what is said.
fn faults(table: &str) -> Vec<(String, String, &'static str)> {
    let alter = |change: &str| format!("alter table {table} {change}");
    let insert = if table == "hapax_guard" {
        "insert into hapax_guard (operations) values (1)"
    } else {
        "insert into hapax_open (operation, rule, namespace, fingerprint) values (gen_random_uuid(), 0, 'n', '')"
    };
    let (off, on) = (alter("disable trigger all"), alter("enable trigger all"));
    let mut faults = vec![
        (format!("{off}; {insert}; {on}"), format!("delete from {table}"), "has a claim that was committed"),
        (off, on, "a trigger of the key is disabled"),
        (alter("alter open drop not null"), alter("alter open set not null"), "has a column open that may be null"),
        (
            alter("alter open set default 1"),
            alter(&format!("alter open set default ({DEFAULT})")),
            "has a column open whose default",
        ),
    ];
    faults.extend(faults_of_key(table).map(|(add, undo)| (add, undo, "lacks its foreign key")));
    faults
}

/// What can be wrong with the foreign key of a table of claims, and what undoes it.
fn faults_of_key(table: &str) -> [(String, String); 5] {
    let dropped = format!("alter table {table} drop constraint {table}_is_finished");
    let restore = format!(
        "alter table {table} drop constraint if exists key, drop constraint if exists {table}_is_finished,
             add constraint {table}_is_finished foreign key (open) references hapax_never
                 deferrable initially deferred"
    );
    let key = format!("{dropped}; alter table {table} add constraint key foreign key (open) references hapax_never");
    let on_another = "add other smallint constraint key references hapax_never deferrable initially deferred";
    let without_triggers = format!(
        "set allow_system_table_mods = on;
         create table kept as
             select g.* from pg_trigger g join pg_constraint k on k.oid = g.tgconstraint
              where k.conname = '{table}_is_finished' and k.conrelid = '{table}'::regclass;
         delete from pg_trigger g using kept where g.oid = kept.oid"
    );
    [
        (dropped.clone(), restore.clone()),
        (key.clone(), restore.clone()),
        (format!("{key} deferrable initially deferred not valid"), restore.clone()),
        (
            format!("{dropped}; alter table {table} {on_another}"),
            format!("alter table {table} drop column other; {restore}"),
        ),
        (without_triggers, "insert into pg_trigger select * from kept; drop table kept".to_owned()),
    ]
}

async fn assert_refused(
    schema: &PostgresSchema,
    (ledger, tables): (&PostgresLedger, &PostgresTables),
    (add, undo): (&str, &str),
    message: &str,
) {
    schema.admin().batch_execute(add).await.unwrap_or_else(|error| panic!("{add}: {error:?}"));
    let records = store(&schema.url()).check().await.unwrap();
    for findings in [ledger.check(1).await.unwrap(), tables.check().await.unwrap(), records] {
        let is_refused = findings.iter().any(|it| it.severity == Severity::Refuse && it.message.contains(message));
        assert!(is_refused, "{add}: {findings:?}");
    }
    schema.admin().batch_execute(undo).await.unwrap_or_else(|error| panic!("{undo}: {error:?}"));
    assert_eq!(ledger.check(1).await.unwrap(), [], "after {undo}");
}

/// More than a million claims were finished while another session had its snapshot. On a server of its own, because
/// the snapshots of other tests keep these rows, too.
async fn growth() {
    let server = start().await;
    let (schema, ledger, _) = with_tables_in(server.schema().await.unwrap()).await;
    let vacuum = format!("vacuum {}.hapax_guard", schema.name());
    let is_reported = async || {
        schema.admin().batch_execute(&vacuum).await.unwrap();
        let findings = ledger.check(1).await.unwrap();
        findings.iter().any(|it| it.severity == Severity::Warn && it.message.contains("dead rows"))
    };
    let snapshot = connect(&schema, schema.name()).await;
    snapshot.batch_execute("begin isolation level repeatable read; select 1").await.unwrap();
    assert!(!is_reported().await);
    // Without triggers, which would take most of the time.
    let claims = format!(
        "set search_path to {}; set session_replication_role = replica;
         begin; insert into hapax_guard (operations, open) select n, 1 from generate_series(1, 1200000) n;
         delete from hapax_guard; commit",
        schema.name()
    );
    connect(&schema, "postgres").await.batch_execute(&claims).await.unwrap();
    until("the dead rows are reported", &is_reported).await;
    snapshot.batch_execute("commit").await.unwrap();
    until("nothing is reported any more", async || !is_reported().await).await;
}

/// The rows of a large transaction that was rolled back, and one that was committed without triggers.
async fn large() {
    let (schema, ledger, client) = with_tables().await;
    let admin = schema.admin();
    let rows = "insert into hapax_open (operation, rule, namespace, fingerprint)
                select gen_random_uuid(), 0, 'n', decode(repeat('00', 1800), 'hex') from generate_series(1, 80000)";
    client.batch_execute(&format!("begin; {rows}; rollback")).await.unwrap();
    let committed = format!(
        "set search_path to {}; alter table hapax_guard disable trigger all;
         insert into hapax_guard (operations) values (1); alter table hapax_guard enable trigger all",
        schema.name()
    );
    admin.batch_execute(&committed).await.unwrap();
    for (severity, message) in
        [(Severity::Warn, "have more than 128 MiB"), (Severity::Refuse, "has a claim that was committed")]
    {
        let findings = ledger.check(1).await.unwrap();
        let is_expected = findings.iter().all(|it| it.severity == severity && it.message.contains(message));
        assert!(is_expected && findings.len() == 1, "{findings:?}");
        admin.batch_execute("vacuum full hapax_open").await.unwrap();
    }
}

/// Somebody writes the row without the lock of the operation. The effect of the runner is undone.
async fn row_meanwhile() {
    let (schema, ledger, _) = with_tables().await;
    let admin = schema.admin();
    let name = schema.name();
    admin
        .batch_execute(&format!("create table {name}.effect (n integer); grant all on {name}.effect to public"))
        .await
        .unwrap();
    for keys in [&["one"][..], &["two", "three"]] {
        let runs = AtomicU32::new(0);
        let operation = call(keys[0]).operation();
        let insert = format!(
            "insert into {name}.hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
             values ('{operation}', 'transfers', 1, 0, decode(repeat('00', 12), 'hex'), 'theirs')"
        );
        let work = keys.iter().map(|key| Work { call: call(key), ordering_key: None, is_redelivered: false }).collect();
        let results = ledger
            .run_batch(work, async |transaction: &PostgresTransaction<'_>, entries: &mut [Entry]| {
                transaction.batch_execute(&format!("insert into {name}.effect values (1)")).await?;
                if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                    admin.batch_execute(&insert).await.unwrap();
                }
                Ok(vec![String::from("ours"); entries.len()])
            })
            .await;
        let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!((&*results[0].answer, results[0].provenance), ("theirs", Provenance::Replayed));
        assert!(results[1..].iter().all(|result| result.answer == "ours"));
        let effects = format!("delete from {name}.effect returning n");
        assert_eq!(admin.query(&effects, &[]).await.unwrap().len(), keys.len() - 1, "{keys:?}");
    }
}

/// The runner cannot write the row that its own handler has written: once may be bad luck, twice is a failure.
async fn own_operation() {
    let (schema, ledger, _) = with_tables().await;
    let runs = AtomicU32::new(0);
    let refused = ledger.run(call("one"), async |transaction, _| {
        runs.fetch_add(1, Ordering::Relaxed);
        let claimed = transaction.claim::<String>(&ledger, &call("one")).await?;
        let Claimed::Fresh(entry) = claimed else { panic!("nothing has committed: {claimed:?}") };
        transaction.finish(entry, &String::from("own")).await?;
        Ok(String::from("done"))
    });
    let reason = refused.await.unwrap_err().reason;
    assert!(matches!(reason, Reason::NotApplied { .. }), "{reason:?}");
    let counted = format!("select attempts from {}.hapax_attempt", schema.name());
    let row = schema.admin().query_one(&counted, &[]).await.unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), row.get::<_, i32>(0)), (2, 1));
    let rows = format!("select from {}.hapax_ledger", schema.name());
    assert!(schema.admin().query(&rows, &[]).await.unwrap().is_empty());
}
