//! Concurrent calls that share statements.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::NotApplied;
use hapax_core::machine::{Begun, Claim, Completed, Grant, Renewed};
use hapax_core::store::Protocol;
use hapax_core::{Owner, Result, Store};
use hapax_stores::Postgres;
use hapax_testkit::servers::{PgBouncer, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;

use super::{POSTGRES, schema, store};
use crate::support::{DAY, FIRST, Operation, SECOND, expect_error, test, until, with_timeout};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("calls_share_statements", POSTGRES, share_statements),
        test("twins_in_a_batch_have_one_grant", POSTGRES, twins),
        test("batches_of_the_same_records_never_wait_for_each_other", POSTGRES, opposite_order),
        test("a_caller_that_gives_up_disturbs_no_other_of_its_batch", POSTGRES, one_gives_up),
        test("a_refused_call_fails_alone", POSTGRES, refused),
        test("a_part_of_a_refused_batch_whose_callers_gave_up_is_not_sent", POSTGRES, refused_and_gone),
        test("a_locked_record_delays_no_other_of_its_batch", POSTGRES, locked),
        test("large_answers_are_sent_in_several_statements", POSTGRES, large),
        test("a_single_call_is_prepared_unless_a_pooler_is_in_between", "pgbouncer", prepared),
    ]
}

fn operations(count: usize) -> Vec<Operation> {
    (0..count).map(|n| Operation::new(&format!("together {n}"))).collect()
}

async fn grants(store: &Postgres, operations: &[Operation]) -> Vec<Grant> {
    join_all(operations.iter().map(|operation| operation.grant(store, FIRST))).await
}

async fn renew(store: &Postgres, grant: &Grant) -> Result<Renewed> {
    store.renew(&grant.rk, &Claim::from(grant)).await
}

/// Counts the statements that write records.
const COUNTED: &str = "
    create sequence inserts;
    create sequence updates;
    grant usage on sequence inserts, updates to public;
    create function counted() returns trigger language plpgsql set search_path from current as
        'begin perform nextval(tg_argv[0]::regclass); return null; end';
    create trigger counted_inserts after insert on hapax_record execute function counted('inserts');
    create trigger counted_updates after update on hapax_record execute function counted('updates')";

async fn share_statements() {
    let (schema, operations) = (schema().await, operations(1_000));
    let store = store(&schema.url());
    store.read(&operations[0].0.record_key()).await.unwrap();
    schema.admin().batch_execute(COUNTED).await.unwrap();
    let grants = grants(&store, &operations).await;
    let renewed = grants.iter().map(|grant| renew(&store, grant));
    assert!(join_all(renewed).await.into_iter().all(|renewed| matches!(renewed, Ok(Renewed::Yes))));
    let completed = operations.iter().zip(&grants).map(|(operation, grant)| operation.complete(&*store, grant, "done"));
    assert!(join_all(completed).await.into_iter().all(|completed| matches!(completed, Ok(Completed::Done))));
    join_all(operations.iter().map(|operation| operation.assert_replays(&*store, "done"))).await;
    let select = "select (select last_value from inserts), (select last_value from updates)";
    let row = schema.admin().query_one(select, &[]).await.unwrap();
    // The first calls are sent alone, one on each connection; then up to 256 share a statement.
    let (inserts, updates): (i64, i64) = (row.get(0), row.get(1));
    assert!(inserts < 40 && updates < 80, "{inserts} and {updates} statements");
}

async fn twins() {
    let (schema, operations) = (schema().await, operations(50));
    let store = store(&schema.url());
    let begins = (0..2_000_u32).map(|n| {
        let (operation, store) = (operations[n as usize % operations.len()], &store);
        let mut owner = Owner([0; 16]);
        owner.0[..4].copy_from_slice(&n.to_be_bytes());
        async move { operation.begin(&**store, owner).await.unwrap() }
    });
    let begun = join_all(begins).await;
    let granted = begun.iter().filter(|begun| matches!(begun, Begun::Granted(_))).count();
    let busy = begun.iter().filter(|begun| matches!(begun, Begun::Busy(_))).count();
    assert_eq!((granted, busy), (50, 1_950));
}

/// Two processes complete, renew and release the same records, in opposite orders.
async fn opposite_order() {
    let (schema, operations) = (schema().await, operations(300));
    let (one, other) = (store(&schema.url()), store(&schema.url()));
    let grants = grants(&one, &operations).await;
    let deadlocks = || async {
        let select = "select deadlocks from pg_stat_database where datname = current_database()";
        schema.admin().query_one(select, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = deadlocks().await;
    for round in 0..10 {
        let forth = grants.iter().map(|grant| renew(&one, grant));
        let back = grants.iter().rev().map(|grant| renew(&other, grant));
        let (forth, back) = tokio::join!(join_all(forth), join_all(back));
        assert!(forth.into_iter().chain(back).all(|renewed| matches!(renewed, Ok(Renewed::Yes))), "round {round}");
    }
    let release = |store: &Arc<Postgres>, grant: &Grant| {
        let (store, grant) = (Arc::clone(store), *grant);
        async move { Protocol::over(&*store).release(&grant.rk, &Claim::from(&grant), DAY).await }
    };
    let complete = |store: &Arc<Postgres>, (operation, grant): (&Operation, &Grant)| {
        let (store, operation, grant) = (Arc::clone(store), *operation, *grant);
        async move { operation.complete(&*store, &grant, "done").await }
    };
    let pairs = || operations.iter().zip(&grants);
    let (completed, released) = tokio::join!(
        join_all(pairs().map(|pair| complete(&one, pair))),
        join_all(grants.iter().rev().map(|grant| release(&other, grant))),
    );
    assert!(completed.iter().all(Result::is_ok), "{completed:?}");
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    assert_eq!(deadlocks().await, before);
}

/// Holds every insert until the lock is given back.
const HELD: &str = "
    create function held() returns trigger language plpgsql as
        'begin perform pg_advisory_xact_lock_shared(31); return null; end';
    create trigger held after insert on hapax_record execute function held()";

async fn one_gives_up() {
    let (schema, operations) = (schema().await, operations(100));
    let store = store(&schema.url());
    store.read(&operations[0].0.record_key()).await.unwrap();
    schema.admin().batch_execute(HELD).await.unwrap();
    schema.admin().batch_execute("select pg_advisory_lock(31)").await.unwrap();
    // Often one batch has all calls.
    let waiting = "select from pg_locks where locktype = 'advisory' and objid = 31 and not granted";
    let batch_waits = until("a batch waits", || async { schema.admin().execute(waiting, &[]).await.unwrap() >= 1 });
    let begin = |n: usize| {
        let (operation, store) = (operations[n], Arc::clone(&store));
        async move {
            with_timeout(if n.is_multiple_of(2) { GIVES_UP } else { PATIENT }, operation.begin(&*store, FIRST)).await
        }
    };
    let release = async {
        batch_waits.await;
        // The impatient ones have given up by then.
        with_timeout(2 * GIVES_UP, std::future::pending::<()>()).await;
        schema.admin().batch_execute("select pg_advisory_unlock(31)").await.unwrap();
    };
    let (begun, ()) = tokio::join!(join_all((0..operations.len()).map(begin)), release);
    for (n, begun) in begun.into_iter().enumerate() {
        match n % 2 {
            0 => assert!(begun.is_none(), "{n}: {begun:?}"),
            _ => assert!(matches!(begun, Some(Ok(Begun::Granted(_)))), "{n}: {begun:?}"),
        }
    }
}

const GIVES_UP: Duration = Duration::from_millis(200);
const PATIENT: Duration = Duration::from_secs(30);

/// Refuses the insert of two owners.
const REFUSES: &str = "
    alter table hapax_record add constraint no_twos check (get_byte(owner, 0) <> 2)";

async fn refused() {
    let (schema, operations) = (schema().await, operations(300));
    let store = store(&schema.url());
    store.read(&operations[0].0.record_key()).await.unwrap();
    schema.admin().batch_execute(REFUSES).await.unwrap();
    schema.admin().batch_execute(COUNTED).await.unwrap();
    let is_refused = |n: usize| n == 70 || n == 200;
    let begin = |n: usize| operations[n].begin(&*store, if is_refused(n) { SECOND } else { FIRST });
    // Both refused calls are in batches, as the first calls are sent alone.
    for (n, begun) in join_all((0..operations.len()).map(begin)).await.into_iter().enumerate() {
        if is_refused(n) {
            let error = expect_error(begun);
            assert_eq!(error.kind(), NotApplied, "{error:?}");
            assert!(format!("{error:?}").contains("no_twos"), "the cause is shown: {error:?}");
        } else {
            assert!(matches!(begun, Ok(Begun::Granted(_))), "{n}: {begun:?}");
        }
    }
    let row = schema.admin().query_one("select last_value from inserts", &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) < 50, "{} statements", row.get::<_, i64>(0));
}

/// Refuses the first record of every statement. From the second statement on, it first waits for the lock of the test.
const REFUSES_ALL: &str = "
    create sequence statements;
    grant usage on sequence statements to public;
    create function refuse() returns boolean language plpgsql set search_path from current as
        'begin
             if nextval(''statements'') > 1 then perform pg_advisory_xact_lock(7); end if;
             return false;
         end';
    alter table hapax_record add constraint refuses check (refuse()) not valid";

async fn refused_and_gone() {
    let (schema, operations) = (schema().await, operations(10));
    let rk = operations[0].0.record_key();
    store(&schema.url()).read(&rk).await.unwrap();
    schema.admin().batch_execute(REFUSES_ALL).await.unwrap();
    schema.admin().batch_execute("select pg_advisory_lock(7)").await.unwrap();
    let statements =
        async || -> i64 { schema.admin().query_one("select last_value from statements", &[]).await.unwrap().get(0) };
    // Has no connection yet, so the calls are in one batch. Its first half is the second statement.
    let store = store(&format!("{}&connections=1", schema.url()));
    tokio::select! {
        _ = join_all(operations.iter().map(|operation| operation.begin(&*store, FIRST))) => panic!("they wait"),
        () = until("the first half has been sent", async || statements().await == 2) => {}
    }
    schema.admin().batch_execute("select pg_advisory_unlock(7)").await.unwrap();
    // Calls get the connection in the order in which they asked for it.
    for _ in 0..3 {
        store.read(&rk).await.unwrap();
    }
    assert_eq!(statements().await, 2);
}

async fn locked() {
    let (schema, operations) = (schema().await, operations(200));
    let store = store(&schema.url());
    let grants = grants(&store, &operations).await;
    let held = &grants[150].rk.as_bytes()[..];
    schema.admin().batch_execute("begin").await.unwrap();
    schema.admin().execute("select from hapax_record where rk = $1 for update", &[&held]).await.unwrap();
    let complete = |n: usize| operations[n].complete(&*store, &grants[n], "done");
    let (mut others, mut one): (Vec<_>, _) =
        ((0..150).chain(151..200).map(complete).collect(), Box::pin(complete(150)));
    others.insert(150, complete(0));
    let all_others = async {
        for completed in join_all(others).await {
            assert!(matches!(completed, Ok(Completed::Done | Completed::Already)), "{completed:?}");
        }
    };
    // The others first: then the locked one is in the statement of some of them.
    tokio::select! {
        biased;
        () = all_others => {}
        completed = &mut one => panic!("the record is locked: {completed:?}"),
    }
    schema.admin().batch_execute("commit").await.unwrap();
    assert!(matches!(one.await, Ok(Completed::Done)));
}

async fn large() {
    let (schema, operations) = (schema().await, operations(40));
    let store = store(&schema.url());
    let grants = grants(&store, &operations).await;
    let answer = "x".repeat(200_000);
    let completed =
        operations.iter().zip(&grants).map(|(operation, grant)| operation.complete(&*store, grant, &answer));
    assert!(join_all(completed).await.into_iter().all(|completed| matches!(completed, Ok(Completed::Done))));
    join_all(operations.iter().map(|operation| operation.assert_replays(&*store, &answer))).await;
}

/// The server logs the name of each statement that it runs.
async fn prepared() {
    let logging = PostgresServerOptions::new().with_args(&["-c", "log_min_duration_statement=0"]);
    let server = PostgresServer::start(logging).await.unwrap();
    let pooler = PgBouncer::start(&server).await.unwrap();
    let schema = server.schema().await.unwrap();
    let prepared = || {
        let log = std::fs::read_to_string(server.data_folder().join("log")).unwrap();
        log.lines().filter(|line| line.contains("execute s") && line.contains(": -- Inserts the record $1")).count()
    };
    let direct = store(&schema.url());
    Operation::new("direct").cycle(&*direct).await;
    let begins = prepared();
    assert!(begins >= 2, "a new key, and its replay");
    let pooled = store(&schema.url_at(pooler.address()));
    Operation::new("pooled").cycle(&*pooled).await;
    assert_eq!(prepared(), begins, "prepared behind a pooler");
}
