//! The ledger on PostgreSQL: what its suite cannot see, because other databases do not have it.

use std::time::Duration;

use hapax_core::gate::{Provenance, Reason, Refused, RunResult};
use hapax_core::ledger::{Call, Claimed, Terms, Work};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{Gate, Identity, Key, OnLapse, Policy, Repeatable, Scope, Settings, testing};
use hapax_stores::{PostgresLedger, PostgresUrl};
use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;
use tokio_postgres::NoTls;

use super::ledger_guard::connect;
use super::{POSTGRES, schema, store};
use crate::support::with_timeout;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_role_with_few_rights_runs_operations", POSTGRES, few_rights),
        servers::test("a_runner_reads_committed_rows_under_every_default_of_its_role", POSTGRES, isolation),
        servers::test("runs_that_are_dropped_while_they_wait_block_no_later_one", POSTGRES, dropped_while_waiting),
        servers::test("a_claim_that_is_gone_without_events_undoes_the_effect", POSTGRES, claim_gone),
        servers::test("a_server_that_may_lose_effects_is_reported", POSTGRES, findings),
        servers::test("stricter_transactions_of_the_caller_conflict_and_run_again", POSTGRES, strict_transactions),
        servers::test(
            "serializable_transactions_of_callers_that_find_each_other_busy_both_commit",
            POSTGRES,
            busy_transactions,
        ),
        servers::test("ledgers_in_two_schemas_do_not_block_each_other", POSTGRES, two_schemas),
        servers::test("a_handler_claims_and_finishes_in_another_ledger", POSTGRES, another_ledger),
        servers::test("record_and_row_of_an_operation_have_the_same_bytes", POSTGRES, behind_gate),
        servers::test("a_delivery_that_is_dropped_at_any_wait_has_its_effect_once", POSTGRES, dropped),
    ]
}

pub(super) fn terms() -> Terms {
    Terms::new("transfers").unwrap()
}

pub(super) fn call(key: &str) -> Call {
    let scope = Scope::tenant("transfers", "acme").unwrap();
    Identity::plain().call(&scope, &Key::new(key).unwrap()).into()
}

pub(super) fn ledger(url: &str, terms: Terms) -> PostgresLedger {
    let url: PostgresUrl = url.parse().unwrap();
    PostgresLedger::connect(&url, terms).unwrap()
}

pub(super) async fn run(ledger: &PostgresLedger, key: &str) -> Result<RunResult<String>, Refused<String>> {
    ledger.run(call(key), async |_, _| Ok(String::from("done"))).await
}

/// Without events the finish leaves together with COMMIT, so the server has to undo the effect by itself.
async fn claim_gone() {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    ledger.create_tables().await.unwrap();
    let name = schema.name();
    let table = format!("create table {name}.effect (id integer); grant insert on {name}.effect to {name}");
    schema.admin().batch_execute(&table).await.unwrap();
    let effect = format!("rollback; begin; insert into {name}.effect values (1)");
    for keys in [&["one"][..], &["two", "three"]] {
        let work = keys.iter().map(|key| Work { call: call(key), ordering_key: None, is_redelivered: false }).collect();
        let results = ledger
            .run_batch(work, async |transaction, entries| {
                transaction.batch_execute(&effect).await.expect("the role may insert");
                Ok(entries.iter().map(|_| String::from("done")).collect())
            })
            .await;
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let count = format!("select count(*) from {name}.effect");
        assert_eq!(schema.admin().query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 0);
    }
}

/// The rights in the documents are enough for a runner.
async fn few_rights() {
    let schema = schema().await;
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let (name, role) = (schema.name(), format!("{}_app", schema.name()));
    let rights = concat!(
        include_str!("../../../../../docs/ledger_rights.sql"),
        include_str!("../../../../../docs/ledger_runner_rights.sql")
    );
    let rights = rights.replace("SCHEMA", name).replace("SERVICE", &role);
    schema.admin().batch_execute(&format!("create role {role} login; {rights}")).await.unwrap();
    let url = schema.url().replace(&format!("//{name}@"), &format!("//{role}@"));
    let ledger = ledger(&url, terms().max_attempts(2));
    let emitted = ledger
        .run(call("emits"), async |_, entry| {
            entry.emit(hapax_core::ledger::Event::new("transfers", "5"))?;
            Ok(String::from("done"))
        })
        .await;
    assert_eq!(emitted.unwrap().provenance, Provenance::Fresh);
    assert_eq!(run(&ledger, "emits").await.unwrap().provenance, Provenance::Replayed);
    let work = ["one", "two"].map(|key| Work { call: call(key), ordering_key: None, is_redelivered: false }).into();
    let batch = ledger.run_batch(work, async |_, entries| Ok(vec![String::from("done"); entries.len()])).await;
    assert!(batch.iter().all(Result::is_ok), "{batch:?}");
    let failed: Result<RunResult<String>, _> =
        ledger.run(call("fails"), async |_, _| Err(String::from("no").into())).await;
    assert!(failed.is_err());
    let counted = format!("select attempts from {name}.hapax_attempt");
    let counted = schema.admin().query_one(&counted, &[]).await.unwrap();
    assert_eq!(counted.get::<_, i32>(0), 1, "the role may count attempts");
    ledger.sweep(0).await.expect_err("the role may not delete");
}

async fn isolation() {
    let schema = schema().await;
    let role = schema.name();
    schema
        .admin()
        .batch_execute(&format!("alter role {role} set default_transaction_isolation = serializable"))
        .await
        .unwrap();
    let level = ledger(&schema.url(), terms())
        .run(call("one"), async |transaction, _| {
            Ok(transaction.query_one("show transaction_isolation", &[]).await?.get::<_, String>(0))
        })
        .await;
    assert_eq!(level.unwrap().answer, "read committed");
}

/// The server reads a ROLLBACK only after the statement before it, which waits.
async fn dropped_while_waiting() {
    let schema = schema().await;
    let ledger = ledger(&format!("{}&connections=1", schema.url()), terms());
    run(&ledger, "first").await.unwrap();
    schema.admin().batch_execute("select pg_advisory_lock(7)").await.unwrap();
    let waiting = ledger.run(call("waits"), async |transaction, _| {
        transaction.batch_execute("select pg_advisory_xact_lock(7)").await?;
        Ok(String::from("never"))
    });
    assert!(with_timeout(Duration::from_millis(200), waiting).await.is_none());
    let next = with_timeout(Duration::from_secs(30), run(&ledger, "next")).await;
    assert_eq!(next.expect("another connection is free").unwrap().provenance, Provenance::Fresh);
    schema.admin().batch_execute("select pg_advisory_unlock(7)").await.unwrap();
}

async fn findings() {
    let options = PostgresServerOptions::new().with_args(&["-c", "synchronous_commit=off"]);
    let server = PostgresServer::start(options).await.unwrap();
    let ledger = ledger(&server.url(), terms());
    ledger.create_tables().await.unwrap();
    let found = ledger.check(1_000_000).await.unwrap();
    let texts: Vec<&str> = found.iter().map(|finding| &*finding.message).collect();
    assert!(texts.iter().any(|text| text.starts_with("synchronous_commit is off")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("more than half of the server's table")), "{texts:?}");
    server.client().await.unwrap().batch_execute("alter table hapax_ledger set unlogged").await.unwrap();
    let found = ledger.check(1).await.unwrap();
    assert!(found.iter().any(|finding| finding.message.contains("unlogged")), "{found:?}");
}

/// The handler of a gate runs the ledger, in the task that the gate spawns.
async fn behind_gate() {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    let policy = Policy::default().on_lapse(OnLapse::Retry(Repeatable::behind(&ledger)));
    let gate = Gate::builder(store(&schema.url()), Settings::default().policy(policy)).build().unwrap();
    let call = Identity::plain().call(&Scope::tenant("transfers", "acme").unwrap(), &Key::new("one").unwrap());
    let handler = move |attempt| async move {
        let result = ledger
            .run(Call::from(&attempt), async |transaction, entry| {
                let row = transaction.query_one("select pg_current_xact_id()::text", &[]).await?;
                Ok(format!("{} in {}", entry.operation(), row.get::<_, &str>(0)))
            })
            .await;
        result.map(|result| result.answer).map_err(Refused::into_failure)
    };
    let answer = gate.run(call, handler.clone()).await.unwrap().answer;
    let stored = format!("set search_path to {}", schema.name());
    schema.admin().batch_execute(&stored).await.unwrap();
    let stored = "select r.answer = l.answer, l.answer from hapax_record r, hapax_ledger l";
    let bytes = async || {
        let row = schema.admin().query_one(stored, &[]).await.unwrap();
        (row.get::<_, bool>(0), row.get::<_, Vec<u8>>(1))
    };
    let first = bytes().await;
    assert_eq!(first, (true, answer.clone().into_bytes()));
    schema.admin().batch_execute("delete from hapax_record").await.unwrap();
    let again = gate.run(call, handler).await.unwrap();
    assert_eq!((again.answer, again.provenance), (answer, Provenance::Fresh));
    assert_eq!(bytes().await, first);
}

/// A claim in one schema is open while the same operation runs in another schema of the database.
async fn two_schemas() {
    let (first, second) = (schema().await, schema().await);
    let (here, there) = (ledger(&first.url(), terms()), ledger(&second.url(), terms()));
    here.create_tables().await.unwrap();
    let plain_url = first.url().split_once('?').unwrap().0.to_owned();
    let (mut client, connection) = tokio_postgres::connect(&plain_url, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    let transaction = client.transaction().await.unwrap();
    let claimed = here.claim::<String>(&transaction, &call("one")).await.unwrap();
    assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
    assert_eq!(run(&there, "one").await.unwrap().provenance, Provenance::Fresh);
    let busy = run(&here, "one").await.unwrap_err();
    assert!(matches!(busy.reason, Reason::Busy { .. }), "{busy:?}");
}

/// The handler of one ledger claims an operation of another one, in the same transaction: both operations end with it.
async fn another_ledger() {
    let schema = schema().await;
    let transfers = ledger(&schema.url(), terms());
    let audits = ledger(&schema.url(), Terms::new("audits").unwrap());
    let run = async |key, audit, does_finish: bool| {
        let ran = transfers.run(call(key), async |transaction, _| {
            match transaction.claim::<String>(&audits, &call(audit)).await? {
                Claimed::Fresh(entry) if does_finish => {
                    transaction.finish(entry, &String::from("audited")).await?;
                    Ok(String::from("now"))
                }
                Claimed::Fresh(_not_finished) => Ok(String::from("never")),
                Claimed::Replay(answer) => Ok(answer),
                claimed @ (Claimed::Mismatch | Claimed::Busy | Claimed::Dead) => panic!("{claimed:?}"),
            }
        });
        ran.await.map(|result| result.answer)
    };
    assert_eq!(run("one", "audit", true).await.unwrap(), "now");
    assert_eq!(run("two", "audit", true).await.unwrap(), "audited");
    let reason = run("three", "left open", false).await.unwrap_err().reason;
    assert!(matches!(reason, Reason::NotApplied { .. }), "{reason:?}");
    let rows = format!("select namespace, count(*) from {}.hapax_ledger group by namespace order by 1", schema.name());
    let rows = schema.admin().query(&rows, &[]).await.unwrap();
    let counts: Vec<(&str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(counts, [("audits", 1), ("transfers", 2)]);
}

/// Each delivery is dropped one wait later than the one before, until one is not dropped.
async fn dropped() {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    ledger.create_tables().await.unwrap();
    let effects = format!("{}.effect", schema.name());
    let table = format!("create table {effects} (n bigint); grant all on {effects} to public");
    schema.admin().batch_execute(&table).await.unwrap();
    for n in 1..1000 {
        let insert = format!("insert into {effects} values ({n})");
        let deliver = || {
            let run = ledger.run(call(&format!("order-{n}")), async |transaction, _| {
                transaction.execute(&insert, &[]).await?;
                Ok(String::from("done"))
            });
            async { run.await.map(|result| result.answer) }
        };
        let delivered = testing::drop_at_await(n, deliver).await;
        assert_eq!(delivered.answer.unwrap(), "done", "dropped at wait {n}");
        let count = format!("select count(*) from {effects} where n = {n}");
        let row = schema.admin().query_one(&count, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1, "dropped at wait {n}");
        if delivered.lost.is_some() {
            println!("dropped at each of {} waits", n - 1);
            // For the claim, the effect, and the end with COMMIT.
            return assert!(n > 3, "{n}");
        }
    }
    panic!("a delivery never ends");
}

/// Two transactions of callers claim one operation after the other. The second began before the first committed, so it
/// fails with a conflict under both levels, and replays when it runs again.
async fn strict_transactions() {
    use hapax_core::ErrorKind;
    use tokio_postgres::IsolationLevel::{RepeatableRead, Serializable};
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    ledger.create_tables().await.unwrap();
    let plain_url = schema.url().split_once('?').unwrap().0.to_owned();
    for (level, key) in [(RepeatableRead, "repeatable"), (Serializable, "serializable")] {
        let (mut client, connection) = tokio_postgres::connect(&plain_url, NoTls).await.unwrap();
        Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
        let second = client.build_transaction().isolation_level(level).start().await.unwrap();
        second.query("select 1", &[]).await.unwrap();
        run(&ledger, key).await.unwrap();
        let error = ledger.claim::<String>(&second, &call(key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
        second.rollback().await.unwrap();
        let again = client.build_transaction().isolation_level(level).start().await.unwrap();
        let claimed = ledger.claim::<String>(&again, &call(key)).await.unwrap();
        assert!(matches!(&claimed, Claimed::Replay(answer) if answer == "done"), "{claimed:?}");
    }
}

/// Each of two transactions runs an operation, and finds that of the other one busy. They have no conflict.
async fn busy_transactions() {
    use tokio_postgres::IsolationLevel::Serializable;
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    ledger.create_tables().await.unwrap();
    let mut clients = [connect(&schema, schema.name()).await, connect(&schema, schema.name()).await];
    let mut open = Vec::new();
    for (client, key) in clients.iter_mut().zip(["one", "two"]) {
        let transaction = client.build_transaction().isolation_level(Serializable).start().await.unwrap();
        let claimed = ledger.claim::<String>(&transaction, &call(key)).await.unwrap();
        let Claimed::Fresh(entry) = claimed else { panic!("nothing has committed: {claimed:?}") };
        open.push((transaction, entry));
    }
    for ((transaction, _), key) in open.iter().zip(["two", "one"]) {
        let claimed = ledger.claim::<String>(transaction, &call(key)).await.unwrap();
        assert!(matches!(claimed, Claimed::Busy), "{claimed:?}");
    }
    for (transaction, entry) in open {
        entry.finish(&transaction, &String::from("done")).await.unwrap();
        transaction.commit().await.unwrap();
    }
}
