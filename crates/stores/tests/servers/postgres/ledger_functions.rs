//! The ledger in SQL: what its suite cannot see, because the other doors do not have it.

use hapax_core::gate::Provenance;
use hapax_core::ledger::{Call, Claimed, Terms};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{Fingerprint, Rule};
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::ledger::{call, ledger, run, terms};
use super::{POSTGRES, schema};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("rows_of_sql_and_of_rust_are_the_same", POSTGRES, same_rows),
        servers::test("twins_in_sql_have_one_effect_under_every_isolation", POSTGRES, twins),
        servers::test("a_snapshot_without_the_row_of_the_twin_is_a_conflict", POSTGRES, snapshots),
        servers::test("the_functions_need_few_rights_and_no_search_path", POSTGRES, few_rights),
        servers::test("the_functions_refuse_what_they_cannot_keep", POSTGRES, refusals),
        servers::test("the_functions_use_the_key_also_when_the_tables_grow", POSTGRES, growing_tables),
        servers::test("an_operation_that_is_closed_is_dead_in_sql", POSTGRES, dead),
        servers::test("an_operation_that_has_ended_is_not_busy_in_sql", POSTGRES, two_replays),
        servers::test("serializable_transactions_that_find_each_other_busy_both_commit_in_sql", POSTGRES, busy_twins),
        servers::test("a_refusal_can_be_recorded_in_sql_without_its_effect", POSTGRES, refusal),
        servers::test("a_claim_of_another_transaction_cannot_be_finished_in_sql", POSTGRES, foreign_claim),
        servers::test("a_prepared_transaction_has_finished_its_operation", POSTGRES, prepared),
        servers::test("an_ended_operation_is_replayed_in_rust_while_a_copy_reads_it", POSTGRES, replayed_while_read),
    ]
}

/// A schema with the tables, and a connection of its owner.
async fn with_tables() -> (PostgresSchema, Client) {
    let schema = schema().await;
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let (name, owner) = (schema.name(), connect(&schema, schema.name()).await);
    owner.batch_execute(&format!("set search_path to {name}; create table effect (n integer)")).await.unwrap();
    (schema, owner)
}

async fn connect(schema: &PostgresSchema, role: &str) -> Client {
    let url = schema.url().split_once('?').unwrap().0.replace(&format!("//{}@", schema.name()), &format!("//{role}@"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}

/// The outcome and the answer of a claim.
async fn once(client: &Client, key: &str, fingerprint: Option<&str>) -> Result<(String, Option<Vec<u8>>), SqlState> {
    let operation = call(key).operation().to_string();
    let once = "select outcome, answer from hapax_once('transfers', $1::text::uuid, $2)";
    let row = client.query_one(once, &[&operation, &fingerprint]).await.map_err(|error| code(&error))?;
    Ok((row.get(0), row.get(1)))
}

fn code(error: &tokio_postgres::Error) -> SqlState {
    error.code().cloned().unwrap_or_else(|| panic!("{error:?}"))
}

async fn done(client: &Client, key: &str, response: &[u8]) -> Result<(), SqlState> {
    let operation = call(key).operation().to_string();
    let done = "select hapax_done('transfers', $1::text::uuid, $2)";
    client.query_one(done, &[&operation, &response]).await.map(drop).map_err(|error| code(&error))
}

/// All columns but the id of the transaction, the time and the operation.
async fn same_rows() {
    let (schema, owner) = with_tables().await;
    let ledger = ledger(&schema.url(), terms());
    for (n, fingerprint) in [(1, Some(Fingerprint::from_parts(Rule(255), [0xa7; 12]))), (2, None)] {
        let (rust, sql) = (format!("rust-{n}"), format!("sql-{n}"));
        let given = fingerprint.map(|fingerprint| fingerprint.to_string());
        let rust = Call::new(call(&rust).operation()).fingerprint(fingerprint.unwrap_or(Fingerprint::NONE));
        ledger.run(rust, async |_, _| Ok(String::from("d\u{f6}ne"))).await.unwrap();
        owner.batch_execute("begin").await.unwrap();
        assert_eq!(once(&owner, &sql, given.as_deref()).await, Ok(("fresh".into(), None)));
        done(&owner, &sql, "d\u{f6}ne".as_bytes()).await.unwrap();
        owner.batch_execute("commit").await.unwrap();
    }
    let kinds = "select count(*), rule, encode(fingerprint, 'hex') from hapax_ledger
                  group by verdict, rule, fingerprint, namespace, answer order by rule";
    let rows = owner.query(kinds, &[]).await.unwrap();
    let kinds: Vec<(i64, i16, String)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(kinds, [(2, 0, "00".repeat(12)), (2, 255, "a7".repeat(12))]);
}

/// Eight clients try each of 20 operations until it has an answer.
async fn twins() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let (schema, owner) = with_tables().await;
        let clients: Vec<Client> =
            futures_util::future::join_all((0..8).map(|_| connect(&schema, schema.name()))).await;
        let transfers = clients.iter().map(|client| async {
            client.batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
            for n in 0..20 {
                let mut answer = None;
                for _ in 0..10_000 {
                    answer = transfer(client, level, n).await;
                    if answer.is_some() {
                        break;
                    }
                }
                assert_eq!(answer, Some(n.to_string().into_bytes()), "{level}");
            }
        });
        futures_util::future::join_all(transfers).await;
        let row = owner.query_one("select count(*), count(distinct n) from effect", &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (20, 20), "{level}");
    }
}

/// One transaction. Returns its answer, unless it was busy or in a conflict.
async fn transfer(client: &Client, level: &str, n: i32) -> Option<Vec<u8>> {
    let key = format!("order-{n}");
    client.batch_execute(&format!("begin isolation level {level}")).await.unwrap();
    let answer = async {
        let (outcome, answer) = once(client, &key, None).await?;
        if outcome == "fresh" {
            let effect = client.execute("insert into effect values ($1)", &[&n]).await;
            effect.map_err(|error| code(&error))?;
            done(client, &key, n.to_string().as_bytes()).await?;
            client.batch_execute("commit").await.map_err(|error| code(&error))?;
            return Ok(Some(n.to_string().into_bytes()));
        }
        assert!(["busy", "replay"].contains(&&*outcome), "{outcome}");
        Ok(answer)
    };
    let answer: Result<_, SqlState> = answer.await;
    client.batch_execute("rollback").await.unwrap();
    match answer {
        Ok(answer) => answer,
        Err(code) => {
            assert_eq!(code, SqlState::T_R_SERIALIZATION_FAILURE, "{level}");
            None
        }
    }
}

async fn snapshots() {
    let (schema, owner) = with_tables().await;
    for (level, key) in [("repeatable read", "repeatable"), ("serializable", "serializable")] {
        owner.batch_execute(&format!("begin isolation level {level}; select 1 from effect")).await.unwrap();
        run(&ledger(&schema.url(), terms()), key).await.unwrap();
        assert_eq!(once(&owner, key, None).await, Err(SqlState::T_R_SERIALIZATION_FAILURE));
        owner.batch_execute(&format!("rollback; begin isolation level {level}")).await.unwrap();
        assert_eq!(once(&owner, key, None).await, Ok(("replay".into(), Some(b"done".to_vec()))));
        owner.batch_execute("rollback").await.unwrap();
    }
}

/// The rights of `docs/ledger_rights.sql`. What the role puts in the way of the names is not used.
async fn few_rights() {
    let (schema, _owner) = with_tables().await;
    let (name, role) = (schema.name(), format!("{}_service", schema.name()));
    let rights = include_str!("../../../../../docs/ledger_rights.sql");
    let grants = rights.replace("SCHEMA", name).replace("SERVICE", &role);
    schema.admin().batch_execute(&format!("create role {role} login; {grants}")).await.unwrap();
    let service = connect(&schema, &role).await;
    let shadows = "create temp table hapax_ledger (n integer); create temp table hapax_attempt (n integer);
                   set search_path to pg_temp, pg_catalog";
    service.batch_execute(shadows).await.unwrap();
    let operation = call("one").operation();
    let transfer = format!(
        "begin; select {name}.hapax_once('transfers', '{operation}', null);
         select {name}.hapax_done('transfers', '{operation}', 'done');
         select {name}.hapax_emit('transfers', '{operation}', 0, 'topic', 'payload'); commit;"
    );
    service.batch_execute(&transfer).await.unwrap();
    let again = format!("select outcome from {name}.hapax_once('transfers', '{operation}', null)");
    assert_eq!(service.query_one(&again, &[]).await.unwrap().get::<_, &str>(0), "replay");
    for forbidden in [
        "delete from {}.hapax_ledger",
        "update {}.hapax_ledger set verdict = 2",
        "insert into {}.hapax_ledger (xact) values (1::text::xid8)",
        "select * from {}.hapax_outbox",
        "delete from {}.hapax_attempt",
        "select {}.hapax_claim_one('transfers', gen_random_uuid())",
    ] {
        let error = service.batch_execute(&forbidden.replace("{}", name)).await.unwrap_err();
        assert_eq!(code(&error), SqlState::INSUFFICIENT_PRIVILEGE, "{forbidden}");
    }
}

async fn refusals() {
    let (_schema, owner) = with_tables().await;
    let operation = "'00000000-0000-8000-8000-000000000001'";
    let print = "a".repeat(24);
    for (arguments, remedy) in [
        (format!("'', {operation}, null"), "Name the service."),
        (format!("'hapax/own', {operation}, null"), "Name the service."),
        (format!("repeat('x', 256), {operation}, null"), "Name the service."),
        (format!("null, {operation}, null"), "Name the service."),
        ("'transfers', null, null".into(), "Hapax-Operation"),
        (format!("'transfers', {operation}, ''"), "Hapax-Fingerprint"),
        (format!("'transfers', {operation}, '{print}'"), "Hapax-Fingerprint"),
        (format!("'transfers', {operation}, '256:{print}'"), "Hapax-Fingerprint"),
        (format!("'transfers', {operation}, '1:{print}, 2:{print}, 3:{print}'"), "Hapax-Fingerprint"),
        (format!("'transfers', {operation}, '1:{print},'"), "Hapax-Fingerprint"),
    ] {
        assert_refused(&owner, &format!("hapax_once({arguments})"), remedy).await;
    }
    assert_refused(&owner, &format!("hapax_done('transfers', {operation}, null)"), "may be empty").await;
    let unclaimed = format!("select hapax_done('transfers', {operation}, '')");
    let error = owner.batch_execute(&unclaimed).await.unwrap_err();
    assert_eq!(code(&error), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    // Without a transaction, the claim is one of its own, which cannot commit.
    let alone = format!("select hapax_once('transfers', {operation}, null)");
    let error = owner.batch_execute(&alone).await.unwrap_err();
    assert_eq!(code(&error), SqlState::FOREIGN_KEY_VIOLATION);
}

async fn assert_refused(client: &Client, function: &str, remedy: &str) {
    let error = client.batch_execute(&format!("select {function}")).await.unwrap_err();
    let database_error = error.as_db_error().unwrap_or_else(|| panic!("{function}: {error:?}"));
    assert_eq!(*database_error.code(), SqlState::INVALID_PARAMETER_VALUE, "{function}");
    assert!(database_error.hint().is_some_and(|hint| hint.contains(remedy)), "{function}: {database_error:?}");
}

/// A connection keeps the plans that it made when the tables had one page each.
async fn growing_tables() {
    let (_schema, owner) = with_tables().await;
    let transfer = async |key: &str| {
        owner.batch_execute("begin").await.unwrap();
        assert_eq!(once(&owner, key, None).await.unwrap().0, "fresh");
        done(&owner, key, b"").await.unwrap();
        let scans = "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_xact_user_tables
                      where relname in ('hapax_ledger', 'hapax_attempt')";
        let scans: i64 = owner.query_one(scans, &[]).await.unwrap().get(0);
        owner.batch_execute("commit").await.unwrap();
        assert_eq!(scans, 0, "{key}");
    };
    owner.batch_execute("alter table hapax_ledger set (autovacuum_enabled = off)").await.unwrap();
    transfer("first").await;
    for table in ["hapax_ledger", "hapax_attempt"] {
        owner.batch_execute(&format!("vacuum analyze {table}")).await.unwrap();
    }
    for n in 0..10 {
        transfer(&format!("small-{n}")).await;
    }
    let fill = "insert into hapax_ledger (operation, namespace, verdict, rule, fingerprint, answer)
                select gen_random_uuid(), 'transfers', 1, 0, decode(repeat('00', 12), 'hex'), ''
                  from generate_series(1, 10000)";
    owner.batch_execute(fill).await.unwrap();
    transfer("last").await;
}

async fn dead() {
    let (schema, owner) = with_tables().await;
    let ledger = ledger(&schema.url(), Terms::new("transfers").unwrap().max_attempts(1));
    let failed = ledger.run::<String, _>(call("one"), async |_, _| Err(String::from("no").into())).await;
    assert!(failed.is_err());
    assert_eq!(once(&owner, "one", None).await, Ok(("dead".into(), None)));
    assert!(ledger.reopen(call("one").operation()).await.unwrap());
    owner.batch_execute("begin").await.unwrap();
    assert_eq!(once(&owner, "one", None).await, Ok(("fresh".into(), None)));
    owner.batch_execute("rollback").await.unwrap();
}

/// The first copy holds the lock of the operation until its transaction ends.
async fn two_replays() {
    let (schema, owner) = with_tables().await;
    run(&ledger(&schema.url(), terms()), "one").await.unwrap();
    let other = connect(&schema, schema.name()).await;
    other.batch_execute(&format!("set search_path to {}; begin", schema.name())).await.unwrap();
    let replay = Ok(("replay".into(), Some(b"done".to_vec())));
    assert_eq!(once(&other, "one", None).await, replay);
    assert_eq!(once(&owner, "one", None).await, replay);
    assert_eq!(once(&other, "two", None).await.unwrap().0, "fresh");
    assert_eq!(once(&owner, "two", None).await, Ok(("busy".into(), None)));
}

/// Each of two transactions runs an operation, and finds that of the other one busy. They have no conflict.
async fn busy_twins() {
    let (schema, first) = with_tables().await;
    let second = connect(&schema, schema.name()).await;
    second.batch_execute(&format!("set search_path to {}", schema.name())).await.unwrap();
    let both = [(&first, "one", "two"), (&second, "two", "one")];
    for (client, own, _) in both {
        client.batch_execute("begin isolation level serializable").await.unwrap();
        assert_eq!(once(client, own, None).await.unwrap().0, "fresh");
    }
    for (client, _, other) in both {
        assert_eq!(once(client, other, None).await, Ok(("busy".into(), None)));
    }
    for (client, own, _) in both {
        assert_eq!(done(client, own, b"done").await, Ok(()));
        client.batch_execute("commit").await.unwrap();
    }
}

/// Only a superuser who turns the triggers off can commit an open claim.
async fn foreign_claim() {
    let (schema, owner) = with_tables().await;
    let admin = connect(&schema, "postgres").await;
    let name = schema.name();
    let off = format!("set search_path to {name}; alter table hapax_open disable trigger all");
    admin.batch_execute(&off).await.unwrap();
    assert_eq!(once(&admin, "one", None).await.unwrap().0, "fresh");
    assert_eq!(done(&owner, "one", b"").await, Err(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    let open = owner.query_one("select count(*) from hapax_open", &[]).await.unwrap();
    assert_eq!(open.get::<_, i64>(0), 1, "the claim is committed and open");
}

/// Two-phase commit. A claim that is not finished cannot be prepared.
async fn prepared() {
    let server = PostgresServer::start(PostgresServerOptions::new().with_args(&["-c", "max_prepared_transactions=2"]));
    let server = server.await.unwrap();
    ledger(&server.url(), terms()).create_tables().await.unwrap();
    let claimant = server.client().await.unwrap();
    claimant.batch_execute("begin").await.unwrap();
    assert_eq!(once(&claimant, "one", None).await.unwrap().0, "fresh");
    let unfinished = claimant.batch_execute("prepare transaction 'first'").await.unwrap_err();
    assert_eq!(code(&unfinished), SqlState::FOREIGN_KEY_VIOLATION);
    for (end, outcome) in [("rollback prepared 'first'", "fresh"), ("commit prepared 'first'", "replay")] {
        let claimant = server.client().await.unwrap();
        claimant.batch_execute("begin").await.unwrap();
        assert_eq!(once(&claimant, "one", None).await.unwrap().0, "fresh");
        done(&claimant, "one", b"done").await.unwrap();
        claimant.batch_execute("prepare transaction 'first'").await.unwrap();
        server.restart().await.unwrap();
        let other = server.client().await.unwrap();
        assert_eq!(once(&other, "one", None).await, Ok(("busy".into(), None)));
        other.batch_execute(end).await.unwrap();
        other.batch_execute("begin").await.unwrap();
        assert_eq!(once(&other, "one", None).await.unwrap().0, outcome);
        // The next round claims it again.
        other.batch_execute("rollback").await.unwrap();
    }
}

/// A copy that only reads the row holds the lock of its operation, too.
async fn replayed_while_read() {
    let (schema, copy) = with_tables().await;
    let ledger = ledger(&schema.url(), terms());
    run(&ledger, "one").await.unwrap();
    copy.batch_execute("begin").await.unwrap();
    assert_eq!(once(&copy, "one", None).await.unwrap().0, "replay");
    assert_eq!(run(&ledger, "one").await.unwrap().provenance, Provenance::Replayed);
    let mut other = connect(&schema, schema.name()).await;
    let transaction = other.transaction().await.unwrap();
    let claimed = ledger.claim::<String>(&transaction, &call("one")).await.unwrap();
    assert!(matches!(&claimed, Claimed::Replay(answer) if answer == "done"), "{claimed:?}");
}

async fn refusal() {
    let (_schema, owner) = with_tables().await;
    owner.batch_execute("begin").await.unwrap();
    assert_eq!(once(&owner, "one", None).await.unwrap().0, "fresh");
    owner.batch_execute("savepoint claimed; insert into effect values (1)").await.unwrap();
    owner.batch_execute("rollback to savepoint claimed").await.unwrap();
    done(&owner, "one", b"refused: not enough money").await.unwrap();
    owner.batch_execute("commit").await.unwrap();
    assert_eq!(once(&owner, "one", None).await.unwrap().1.unwrap(), b"refused: not enough money");
    let row = owner.query_one("select count(*) from effect", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}
