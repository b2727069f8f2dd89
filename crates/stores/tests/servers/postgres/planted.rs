//! Another role has put functions, types and operators into the search path: no statement calls them. The suites run
//! under such a path too, where it cannot be pinned.

use std::time::Duration;

use hapax_core::ledger::{Event, LedgerRows, Retention};
use hapax_core::machine::Claim;
use hapax_core::outbox::{Outbox, OutboxUpkeep, ReadRequest, ReadStart, RowId};
use hapax_core::store::{Inspect, Protocol, Scan};
use hapax_core::{Store, Timestamp};
use hapax_stores::{PostgresLedger, PostgresOutbox, PostgresTables, PostgresUrl};
use hapax_testkit::servers::{PgBouncer, PostgresServer};
use libtest_mimic::Trial;

use super::ledger::{call, ledger, terms};
use super::{POSTGRES, start, store};
use crate::support::{DAY, FIRST, Operation, test};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("no_statement_calls_what_another_role_has_planted", "pgbouncer", every_call),
        test("a_statement_of_a_single_call_calls_nothing_that_is_planted", POSTGRES, single_calls),
        test("the_tables_keep_nothing_that_another_role_has_planted", POSTGRES, planted_schema),
        test("the_search_path_is_pinned_unless_a_pooler_or_a_handler_needs_it", "pgbouncer", pinned),
    ]
}

/// Also where an error of a statement is no error of the call: the counter of the planted objects tells.
async fn every_call() {
    let server = PostgresServer::shared().await.unwrap();
    let pooler = PgBouncer::shared().await.unwrap();
    let schema = server.planted_schema().await.unwrap();
    let url = schema.url_at(pooler.address());
    let parsed: PostgresUrl = url.parse().unwrap();
    let tables = PostgresTables::connect(&parsed).unwrap();
    assert!(!tables.missing().await.unwrap().is_empty());
    tables.script().await.unwrap();
    tables.create().await.unwrap();
    records(&url).await;
    let terms = terms().retention(Retention::For(Duration::from_hours(1)), Duration::ZERO).unwrap();
    ledger_calls(&ledger(&url, terms.max_attempts(2))).await;
    assert_eq!(tables.rows_of(&[call("one").operation()]).await.unwrap().len(), 1);
    outbox(&PostgresOutbox::connect(&parsed).unwrap()).await;
    assert_eq!(schema.planted_calls().await.unwrap(), 0);
}

async fn records(url: &str) {
    let store = store(url);
    let (one, two, three) = (Operation::new("one"), Operation::new("two"), Operation::new("three"));
    one.cycle(&*store).await;
    let grant = two.grant(&*store, FIRST).await;
    let (rk, claim) = (two.0.record_key(), Claim::from(&grant));
    store.renew(&rk, &claim).await.unwrap();
    // The check looks for the last write. It would report its loss.
    assert_eq!(store.check().await.unwrap(), []);
    let seen = store.read(&rk).await.unwrap();
    store.purge(&rk, &seen).await.unwrap();
    let grant = three.grant(&*store, FIRST).await;
    Protocol::over(&*store).release(&three.0.record_key(), &Claim::from(&grant), DAY).await.unwrap();
    assert_eq!(store.scan(&Scan::new(10)).await.unwrap().records.len(), 2);
    store.sweep(10).await.unwrap();
    store.count_unknown().await.unwrap();
}

async fn ledger_calls(ledger: &PostgresLedger) {
    for key in ["one", "one"] {
        let ran = ledger.run(call(key), async |_, entry| {
            entry.emit_ordered(Event::new("topic", "1").ordered_by("a"))?;
            Ok(String::from("done"))
        });
        ran.await.unwrap();
    }
    let failed = ledger.run(call("fails"), async |_, _| Err::<String, _>(String::from("no").into())).await;
    assert!(failed.is_err());
    ledger.reopen(call("fails").operation()).await.unwrap();
    assert_eq!(ledger.check(1).await.unwrap(), []);
    ledger.sweep(0).await.unwrap();
}

async fn outbox(outbox: &PostgresOutbox) {
    assert_eq!(outbox.check().await.unwrap(), []);
    outbox.horizon().await.unwrap();
    assert_eq!(outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 10, 1_000)).await.unwrap().rows.len(), 1);
    // A read that is cut numbers its rows.
    let open = outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 10, 0)).await.unwrap();
    assert!(outbox.find(open.rows[0].event.id).await.unwrap().is_some());
    assert_eq!(outbox.counts(10).await.unwrap().open, 1);
    let now = outbox.now().await.unwrap();
    outbox.republish(&(Timestamp(0)..now), RowId(0), 10).await.unwrap();
    outbox.parked(None, 10).await.unwrap();
    outbox.resume(b"a", 10).await.unwrap();
    outbox.drop_refused(b"a", None).await.unwrap();
    outbox.sweep(Duration::from_hours(1), 10).await.unwrap();
}

/// These statements are only sent where the path is pinned, so that no call shows what they would find.
async fn single_calls() {
    let schema = PostgresServer::shared().await.unwrap().planted_schema().await.unwrap();
    store(&schema.url()).check().await.unwrap();
    let record = "pg_catalog.bytea, smallint, boolean, smallint, pg_catalog.bytea, bigint, pg_catalog.bytea, integer, \
                  bigint, bigint, pg_catalog.bytea";
    let completed = "pg_catalog.bytea, bigint, pg_catalog.bytea, smallint, pg_catalog.bytea, pg_catalog.bytea, bigint, \
                     pg_catalog.bytea, bigint, boolean";
    let swapped = format!(
        "{record}, bigint, pg_catalog.bytea, bigint, timestamp with time zone, {}, bigint, pg_catalog.bytea",
        record.trim_start_matches("pg_catalog.bytea, ")
    );
    let admin = schema.admin();
    let path =
        format!("set search_path to planted, pg_catalog, {}; set plan_cache_mode = force_generic_plan", schema.name());
    admin.batch_execute(&path).await.unwrap();
    for (name, types, statement) in [
        ("begin", format!("{record}, bigint"), include_str!("../../../src/postgres/records/begin.sql")),
        (
            "renew",
            "pg_catalog.bytea, bigint, pg_catalog.bytea".into(),
            include_str!("../../../src/postgres/records/renew.sql"),
        ),
        ("complete", completed.into(), include_str!("../../../src/postgres/records/complete.sql")),
        ("swap", swapped, include_str!("../../../src/postgres/records/swap.sql")),
    ] {
        admin.batch_execute(&format!("prepare {name}_call ({types}) as {statement}")).await.unwrap();
        let arguments = vec!["null"; types.split(',').count()].join(", ");
        let explain = format!("explain (verbose) execute {name}_call ({arguments})");
        for row in admin.query(&explain, &[]).await.unwrap() {
            let line: &str = row.get(0);
            assert!(!line.contains("planted."), "{name}: {line}");
        }
    }
}

/// The schema of the tables is one in which another role may create. PostgreSQL keeps what a default, a constraint or
/// an index calls, as it was found when they were created.
async fn planted_schema() {
    let server = start().await;
    let schema = server.planted_schema().await.unwrap();
    let grant = format!("grant create on schema planted to {}", schema.name());
    schema.admin().batch_execute(&grant).await.unwrap();
    let url = schema.url().replace(&format!("?schema={}", schema.name()), "?schema=planted");
    let tables = PostgresTables::connect(&url.parse().unwrap()).unwrap();
    assert!(!tables.create().await.unwrap().is_empty());
    let kept = "select d.classid::regclass::text, p.oid::regprocedure::text
                  from pg_depend d join pg_proc p on d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
                 where p.pronamespace = 'planted'::regnamespace and p.proname !~ '^hapax_'
                   and d.classid <> 'pg_operator'::regclass
                 union all
                select d.classid::regclass::text, o.oid::regoperator::text
                  from pg_depend d join pg_operator o on d.refclassid = 'pg_operator'::regclass and d.refobjid = o.oid
                 where o.oprnamespace = 'planted'::regnamespace";
    let kept = server.client().await.unwrap().query(kept, &[]).await.unwrap();
    let kept: Vec<(String, String)> = kept.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(kept, []);
    assert_eq!(schema.planted_calls().await.unwrap(), 0);
}

/// The clock of the server notes the path of those who ask for the time.
async fn pinned() {
    let server = start().await;
    let pooler = PgBouncer::start(&server).await.unwrap();
    let schema = server.schema().await.unwrap();
    let note = "create table test_clock.path (path text);
                grant insert on test_clock.path to public;
                create or replace function pg_catalog.clock_timestamp() returns timestamptz language plpgsql as $$ begin
                    insert into test_clock.path values (pg_catalog.current_setting('search_path'));
                    return pg_catalog.server_clock_timestamp();
                end $$";
    schema.admin().batch_execute(note).await.unwrap();
    let paths = async || {
        let taken = "with taken as (delete from test_clock.path returning path) select distinct path from taken";
        let taken = schema.admin().query(taken, &[]).await.unwrap();
        taken.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    let own = schema.name().to_owned();
    store(&schema.url()).check().await.unwrap();
    paths().await;
    Operation::new("direct").cycle(&*store(&schema.url())).await;
    assert_eq!(paths().await, ["pg_catalog, pg_temp"]);
    PostgresOutbox::connect(&schema.url().parse().unwrap()).unwrap().now().await.unwrap();
    assert_eq!(paths().await, ["pg_catalog, pg_temp"]);
    Operation::new("pooled").cycle(&*store(&schema.url_at(pooler.address()))).await;
    assert_eq!(paths().await, [&*own]);
    let path = ledger(&schema.url(), terms())
        .run(call("one"), async |transaction, _| {
            Ok(transaction.query_one("show search_path", &[]).await?.get::<_, String>(0))
        })
        .await;
    assert_eq!(path.unwrap().answer, own);
}
