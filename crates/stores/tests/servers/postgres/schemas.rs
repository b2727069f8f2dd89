//! The tables: how they are created, checked and swept.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::broker::DeadLetterStore;
use hapax_core::machine::Claim;
use hapax_core::runtime::Tokio;
use hapax_core::store::{Finding, Inspect, Protocol, Scan, Severity};
use hapax_core::{Owner, Store};
use hapax_stores::{Postgres, PostgresDeadLetters, PostgresTables, PostgresUrl};
use hapax_testkit::ClockStep;
use hapax_testkit::servers::PostgresServer;
use libtest_mimic::Trial;

use super::{POSTGRES, schema, start, store};
use crate::refusals::assert_refused;
use crate::support::{DAY, FIRST, Operation, SECOND, expect_error, test, until};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("ten_processes_create_the_tables_at_once", POSTGRES, ten_at_once),
        test("a_role_without_rights_cannot_keep_tables_from_being_created", POSTGRES, foreign_lock),
        test("a_migration_that_waits_for_a_lock_ends_and_says_so", POSTGRES, held_lock),
        test("a_missing_schema_is_created", POSTGRES, missing_schema),
        test("a_newer_schema_is_refused", POSTGRES, newer_schema),
        test("a_newer_schema_that_only_adds_something_is_used", POSTGRES, compatible_schema),
        test("a_handle_without_migrations_changes_no_schema", POSTGRES, unchanged_schema),
        test("tables_that_were_dropped_are_not_created_again", POSTGRES, dropped_tables),
        test("unlogged_tables_are_refused", POSTGRES, unlogged),
        test("a_strict_isolation_level_is_reported_and_works", POSTGRES, isolation),
        test("a_standby_is_refused_and_shows_nothing", POSTGRES, standby),
        test("a_server_that_accepts_no_writes_applies_nothing", POSTGRES, read_only),
        test("a_renewal_and_a_completion_write_no_index", POSTGRES, no_index_writes),
        test("every_call_uses_an_index_in_tables_of_any_size", POSTGRES, uses_indexes),
        test("a_token_is_above_that_of_a_record_that_another_process_removed", POSTGRES, token_of_removed_record),
        test("a_sweep_skips_records_that_a_call_has_locked", POSTGRES, sweeps_around_locks),
    ]
}

async fn ten_at_once() {
    let schema = schema().await;
    let stores: Vec<_> = (0..10).map(|_| store(&schema.url())).collect();
    for checked in join_all(stores.iter().map(|store| store.check())).await {
        assert_eq!(checked.unwrap(), []);
    }
    let rows = schema.admin().query("select version from hapax_migration", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    Operation::new("one").cycle(&*stores[0]).await;
    Operation::new("one").assert_replays(&*stores[9], "done").await;
}

/// Every role that may connect can hold an advisory lock, such as the one that earlier builds took.
async fn foreign_lock() {
    let schema = schema().await;
    let stranger = PostgresServer::shared().await.unwrap().client().await.unwrap();
    stranger.batch_execute("begin; select pg_advisory_xact_lock(448311353720)").await.unwrap();
    let store = store(&schema.url());
    assert_eq!(store.check().await.unwrap(), []);
    stranger.batch_execute("commit").await.unwrap();
}

async fn held_lock() {
    let schema = schema().await;
    let other = PostgresServer::shared().await.unwrap().client().await.unwrap();
    store(&schema.url()).check().await.unwrap();
    let table = format!("\"{}\".hapax_migration", schema.name());
    other.batch_execute(&format!("delete from {table} where version = 8")).await.unwrap();
    other.batch_execute(&format!("begin; lock table {table} in share mode")).await.unwrap();
    let refused = expect_error(store(&schema.url()).read(&Operation::new("one").0.record_key()).await);
    assert_eq!(refused.kind(), NotApplied, "{refused:?}");
    assert!(refused.to_string().contains("has held a lock that the migration needs"), "{refused}");
    other.batch_execute("rollback").await.unwrap();
}

async fn missing_schema() {
    let server = PostgresServer::shared().await.unwrap();
    let store = store(&format!("{}?schema=Not-There_yet", server.url()));
    Operation::new("one").cycle(&*store).await;
    let client = server.client().await.unwrap();
    let rows = client.query_one("select count(*) from \"Not-There_yet\".hapax_record", &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 1);
}

async fn newer_schema() {
    let schema = schema().await;
    store(&schema.url()).check().await.unwrap();
    schema.admin().batch_execute("insert into hapax_migration (version) values (4711)").await.unwrap();
    let error = expect_error(store(&schema.url()).read(&Operation::new("one").0.record_key()).await);
    assert_eq!(error.kind(), Unusable, "{error:?}");
    assert!(error.to_string().contains("has version 4711, which needs a release that knows version 4711"), "{error}");
}

/// A process of this release runs on, and another one starts.
async fn compatible_schema() {
    let schema = schema().await;
    let running = store(&schema.url());
    running.check().await.unwrap();
    let newer = "insert into hapax_migration (version, needs) values (4711, 8)";
    schema.admin().batch_execute(newer).await.unwrap();
    assert_eq!(running.check().await.unwrap(), []);
    let started = store(&schema.url());
    assert_eq!(started.check().await.unwrap(), []);
    Operation::new("one").cycle(&*started).await;
    let newest = "insert into hapax_migration (version, needs) values (4712, 4711)";
    schema.admin().batch_execute(newest).await.unwrap();
    assert_refused(running.check().await, Unusable, "needs a release that knows version 4711");
}

async fn unchanged_schema() {
    let schema = schema().await;
    let url: PostgresUrl = schema.url().parse().unwrap();
    let looking = Postgres::with(&url.clone().without_migrations(), Arc::new(Tokio::current())).unwrap();
    let letters = PostgresDeadLetters::connect(&url.clone().without_migrations()).unwrap();
    let relations = "select count(*) from pg_class where relnamespace = to_regnamespace($1)";
    let count = async || schema.admin().query_one(relations, &[&schema.name()]).await.unwrap().get::<_, i64>(0);
    let before = count().await;
    assert_refused(looking.scan(&Scan::new(1)).await, Unusable, "lacks version 1, 2, 3, 4, 5, 6, 7, 8");
    assert_refused(letters.list(None, 1).await, Unusable, "this command changes no tables");
    assert_eq!(count().await, before);
    // Tables of an older release are left as they are, too.
    PostgresTables::connect(&url).unwrap().create().await.unwrap();
    schema.admin().batch_execute("delete from hapax_migration where version = 7").await.unwrap();
    assert_refused(looking.scan(&Scan::new(1)).await, Unusable, "lacks version 7");
    schema.admin().batch_execute("insert into hapax_migration (version) values (7)").await.unwrap();
    assert!(looking.scan(&Scan::new(1)).await.unwrap().records.is_empty());
    assert!(letters.list(None, 1).await.unwrap().is_empty());
}

/// New tables would have no records, and every key would be granted again.
async fn dropped_tables() {
    let schema = schema().await;
    let (store, operation) = (store(&schema.url()), Operation::new("one"));
    operation.cycle(&*store).await;
    schema.admin().batch_execute("drop table hapax_record, hapax_store, hapax_migration").await.unwrap();
    assert_refused(operation.begin(&*store, FIRST).await, Unusable, "hapax migrate");
    assert_refused(store.check().await, Unusable, "hapax migrate");
}

async fn unlogged() {
    let schema = schema().await;
    let store = store(&schema.url());
    assert_eq!(store.check().await.unwrap(), []);
    schema.admin().batch_execute("alter table hapax_record set unlogged").await.unwrap();
    let findings = store.check().await.unwrap();
    assert!(has_finding(&findings, Severity::Refuse, "unlogged"), "{findings:?}");
    schema.admin().batch_execute("alter table hapax_record set logged").await.unwrap();
    assert_eq!(store.check().await.unwrap(), []);
}

fn has_finding(findings: &[Finding], severity: Severity, text: &str) -> bool {
    findings.iter().any(|finding| finding.severity == severity && finding.message.contains(text))
}

async fn isolation() {
    let schema = schema().await;
    let alter = format!("alter role {} set default_transaction_isolation = 'serializable'", schema.name());
    schema.admin().batch_execute(&alter).await.unwrap();
    let store = store(&schema.url());
    let findings = store.check().await.unwrap();
    assert!(has_finding(&findings, Severity::Warn, "'serializable'"), "{findings:?}");
    Operation::new("one").cycle(&*store).await;
}

/// A server that is started with this file stays in recovery, as a standby does.
async fn standby() {
    let server = start().await;
    let (before, operation) = (store(&server.url()), Operation::new("one"));
    operation.cycle(&*before).await;
    server.terminate().await.unwrap();
    let data = server.data_folder().join("data");
    std::fs::write(data.join("standby.signal"), "").unwrap();
    server.restart().await.unwrap();
    let (store, rk) = (store(&server.url()), operation.0.record_key());
    let findings = store.check().await.unwrap();
    assert!(has_finding(&findings, Severity::Refuse, "is a standby"), "{findings:?}");
    assert_refused(store.read(&rk).await, NotApplied, "is a standby");
    assert_refused(store.begin(&operation.ask(FIRST)).await, NotApplied, "is a standby");
}

async fn read_only() {
    let schema = schema().await;
    let (healthy, operation) = (store(&schema.url()), Operation::new("one"));
    let grant = operation.grant(&*healthy, FIRST).await;
    let alter = format!("alter role {} set default_transaction_read_only = on", schema.name());
    schema.admin().batch_execute(&alter).await.unwrap();
    let store = store(&schema.url());
    let rk = operation.0.record_key();
    assert_refused(Operation::new("two").begin(&*store, FIRST).await, NotApplied, "accepts no writes");
    assert_refused(store.renew(&rk, &Claim::from(&grant)).await, NotApplied, "accepts no writes");
    assert_refused(operation.complete(&*store, &grant, "no").await, NotApplied, "accepts no writes");
    // A new connection may lead to a server that accepts writes.
    let alter = format!("alter role {} reset default_transaction_read_only", schema.name());
    schema.admin().batch_execute(&alter).await.unwrap();
    until("the store works again", || async { operation.complete(&*store, &grant, "done").await.is_ok() }).await;
    operation.assert_replays(&*healthy, "done").await;
}

/// PostgreSQL counts the updates that stayed on their page and wrote no index.
async fn no_index_writes() {
    let schema = schema().await;
    let store = store(&schema.url());
    for n in 0..50 {
        let operation = Operation::new(&format!("{n}"));
        let grant = operation.grant(&*store, FIRST).await;
        store.renew(&operation.0.record_key(), &Claim::from(&grant)).await.unwrap();
        operation.complete(&*store, &grant, "done").await.unwrap();
    }
    // A session reports its counts at the latest when it ends.
    drop(store);
    let counts = || async {
        let select = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'hapax_record'::regclass";
        let row = schema.admin().query_one(select, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    until("the counts are there", || async { counts().await.0 == 100 }).await;
    assert_eq!(counts().await.1, 100);
}

/// The planner has no statistics of a table that was just filled. (In a table of a page it rightly prefers the page to
/// an index.)
async fn uses_indexes() {
    let schema = schema().await;
    let (store, admin) = (store(&schema.url()), schema.admin());
    self::store(&schema.url()).check().await.unwrap();
    admin.batch_execute("alter table hapax_record set (autovacuum_enabled = off)").await.unwrap();
    admin.batch_execute(FILL).await.unwrap();
    // A session reports its counts at the latest when it ends.
    let sessions = format!("select from pg_stat_activity where usename = '{}'", schema.name());
    let have_ended = || async { admin.execute(&sessions, &[]).await.unwrap() == 0 };
    let scans = "select seq_scan, idx_scan from pg_stat_user_tables where relid = 'hapax_record'::regclass";
    let counts = || async {
        let row = admin.query_one(scans, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    // The creation of an index reads the table.
    until("the first session has ended", have_ended).await;
    let before = counts().await;
    let (operation, other) = (Operation::new("one"), Operation::new("other"));
    operation.cycle(&*store).await;
    let grant = other.grant(&*store, FIRST).await;
    store.renew(&other.0.record_key(), &Claim::from(&grant)).await.unwrap();
    Protocol::over(&*store).release(&other.0.record_key(), &Claim::from(&grant), DAY).await.unwrap();
    let operations: Vec<Operation> = (0..300).map(|n| Operation::new(&format!("together {n}"))).collect();
    join_all(operations.iter().map(|operation| operation.cycle(&*store))).await;
    store.sweep(1000).await.unwrap();
    store.count_unknown().await.unwrap();
    drop(store);
    until("the sessions have ended", have_ended).await;
    let after = counts().await;
    assert!(after.1 >= before.1 + 600, "the calls are not counted: {before:?} {after:?}");
    assert_eq!(after.0, before.0, "a call has read the whole table");
}

const FILL: &str = "insert into hapax_record (rk, state, takeover, rule, fingerprint, token, answer, expiry_s, since, \
    expires_at, record_check) select substr(sha256(n::text::bytea), 1, 16), 2, false, 1, 'twelve bytes', \
    1600000000000000 + n, 'an answer', 4102444800, clock_timestamp(), clock_timestamp() + interval '1 day', 'no check' \
    from generate_series(1, 100000) n";

/// The second process knows the clock, and nothing of the record that came and went while the clock was ahead.
async fn token_of_removed_record() {
    let schema = schema().await;
    let (store, other, operation) = (store(&schema.url()), store(&schema.url()), Operation::new("one"));
    other.read(&operation.0.record_key()).await.unwrap();
    let week = Duration::from_secs(7 * u64::from(DAY.0));
    schema.step_clock(ClockStep::Forward(week)).await.unwrap();
    let removed = operation.grant(&*store, FIRST).await;
    schema.step_clock(ClockStep::Forward(week)).await.unwrap();
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    schema.step_clock(ClockStep::Back(2 * week)).await.unwrap();
    let next = operation.grant(&*other, SECOND).await;
    assert!(next.token > removed.token, "{next:?} after {removed:?}");
}

async fn sweeps_around_locks() {
    let schema = schema().await;
    let store = store(&schema.url());
    for n in 0..20 {
        Operation::new(&format!("{n}")).grant(&*store, FIRST).await;
    }
    schema.step_clock(ClockStep::Forward(Duration::from_secs(u64::from(DAY.0) + 1))).await.unwrap();
    Operation::new("live").grant(&*store, Owner([3; 16])).await;
    let locked = Operation::new("7").0.record_key();
    schema.admin().batch_execute("begin").await.unwrap();
    let lock = "select from hapax_record where rk = $1 for update";
    schema.admin().execute(lock, &[&&locked.as_bytes()[..]]).await.unwrap();
    let mut swept = 0;
    loop {
        let removed = store.sweep(3).await.unwrap();
        assert!(removed <= 3, "a sweep removes no more than it was asked to");
        swept += removed;
        if removed == 0 {
            break;
        }
    }
    assert_eq!(swept, 19);
    schema.admin().batch_execute("commit").await.unwrap();
    assert_eq!(store.sweep(1000).await.unwrap(), 1);
    let left = schema.admin().query_one("select count(*) from hapax_record", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 1, "the live record stays");
}
