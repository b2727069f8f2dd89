//! What a ledger does about errors of the server that no other database has: conflicts, missing rights, cancelled
//! statements.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_core::gate::{Failure, Provenance, Reason};
use hapax_core::ledger::{Claimed, Entry, Work};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{ErrorKind, Result};
use hapax_stores::{PostgresLedger, PostgresTransaction};
use hapax_testkit::servers::{self, PostgresSchema};
use libtest_mimic::Trial;
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, NoTls};

use super::ledger::{call, ledger, run, terms};
use super::{POSTGRES, schema};
use crate::support::{until, with_timeout};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_deadlock_in_a_handler_is_run_again_and_not_counted", POSTGRES, deadlock_in_the_runner),
        servers::test("a_deadlock_in_a_transaction_of_the_caller_runs_again", POSTGRES, deadlock_of_the_caller),
        servers::test("a_serialization_failure_of_the_caller_runs_again", POSTGRES, serialization_failure),
        servers::test("a_handler_that_lacks_a_table_or_a_right_is_not_counted", POSTGRES, missing_in_a_handler),
        servers::test("a_row_that_a_policy_forbids_is_counted", POSTGRES, forbidden_row),
        servers::test("an_attempt_that_cannot_be_counted_stops_the_worker", POSTGRES, uncounted),
        servers::test("a_cancelled_statement_of_a_handler_is_counted", POSTGRES, cancelled),
        servers::test("a_batch_on_a_server_that_takes_no_writes_applies_and_counts_nothing", POSTGRES, read_only),
        servers::test("a_redelivered_call_is_replayed_by_a_server_that_takes_no_writes", POSTGRES, read_first),
        servers::test("a_handler_that_leaves_its_transaction_idle_runs_again", POSTGRES, idle),
    ]
}

/// A schema with two accounts, and a ledger that closes an operation after its first failure.
async fn bank() -> (PostgresSchema, PostgresLedger) {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms().max_attempts(1));
    ledger.create_tables().await.unwrap();
    let tables = format!(
        "set search_path to {0};
         create table account (id integer primary key, balance integer not null);
         insert into account values (1, 10), (2, 10);
         grant all on account to {0}",
        schema.name()
    );
    schema.admin().batch_execute(&tables).await.unwrap();
    (schema, ledger)
}

async fn counted(schema: &PostgresSchema) -> i64 {
    schema.admin().query_one("select count(*) from hapax_attempt", &[]).await.unwrap().get(0)
}

async fn balances(schema: &PostgresSchema) -> [i32; 2] {
    let rows = schema.admin().query("select balance from account order by id", &[]).await.unwrap();
    [rows[0].get(0), rows[1].get(0)]
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url.split_once('?').unwrap().0, NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}

/// Another session that takes the accounts in the other order, once the first account is taken. It never looks for a
/// deadlock, so that the server ends the transaction of the ledger.
struct Opponent<'s> {
    schema: &'s PostgresSchema,
    pid: i32,
    is_first_taken: Notify,
    codes: Mutex<Vec<SqlState>>,
}

impl<'s> Opponent<'s> {
    async fn new(schema: &'s PostgresSchema) -> Self {
        let admin = schema.admin();
        let pid = admin.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let take_second = "set deadlock_timeout = '1h'; begin; update account set balance = balance - 1 where id = 2";
        admin.batch_execute(take_second).await.unwrap();
        Self { schema, pid, is_first_taken: Notify::new(), codes: Mutex::default() }
    }

    async fn run(&self) {
        self.is_first_taken.notified().await;
        let take_first = "update account set balance = balance - 1 where id = 1; commit";
        self.schema.admin().batch_execute(take_first).await.unwrap();
    }

    /// Takes the first account, waits until the opponent waits for it, and takes the second one.
    async fn meet(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let taken = self.take_both(client).await;
        self.codes.lock().unwrap().extend(taken.as_ref().err().and_then(|error| error.code().cloned()));
        taken
    }

    async fn take_both(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let table = format!("{}.account", self.schema.name());
        let take = |id| format!("update {table} set balance = balance + 1 where id = {id}");
        client.batch_execute(&take(1)).await?;
        if self.codes.lock().unwrap().is_empty() {
            self.is_first_taken.notify_one();
            let waits = format!("select from pg_locks where pid = {} and not granted", self.pid);
            while client.query(&waits, &[]).await?.is_empty() {}
        }
        client.batch_execute(&take(2)).await
    }

    async fn assert_deadlock(&self) {
        assert_eq!(*self.codes.lock().unwrap(), [SqlState::T_R_DEADLOCK_DETECTED]);
        assert_eq!((balances(self.schema).await, counted(self.schema).await), ([10, 10], 0));
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn deadlock_in_the_runner() {
    let (schema, ledger) = bank().await;
    let opponent = Opponent::new(&schema).await;
    let run = ledger.run(call("one"), async |transaction, _| {
        opponent.meet(transaction).await?;
        Ok(String::from("done"))
    });
    let both = async { tokio::join!(run, opponent.run()).0 };
    let result = with_timeout(PATIENCE, Box::pin(both)).await.expect("the deadlock is broken");
    assert_eq!(result.unwrap().provenance, Provenance::Fresh);
    opponent.assert_deadlock().await;
}

async fn deadlock_of_the_caller() {
    let (schema, ledger) = bank().await;
    let opponent = Opponent::new(&schema).await;
    let mut client = connect(&schema.url()).await;
    let own = async {
        loop {
            let transaction = client.transaction().await.unwrap();
            let claimed = ledger.claim::<String>(&transaction, &call("one")).await.unwrap();
            let Claimed::Fresh(entry) = claimed else { panic!("nothing has committed: {claimed:?}") };
            if opponent.meet(transaction.client()).await.is_err() {
                // The server has undone the claim.
                let error = entry.finish(&transaction, &String::from("done")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
                transaction.rollback().await.unwrap();
                continue;
            }
            entry.finish(&transaction, &String::from("done")).await.unwrap();
            break transaction.commit().await.unwrap();
        }
    };
    let both = async { tokio::join!(own, opponent.run()) };
    with_timeout(PATIENCE, Box::pin(both)).await.expect("the deadlock is broken");
    opponent.assert_deadlock().await;
}

/// The account changes after the snapshot of the transaction, so the server refuses the transaction's own change.
async fn serialization_failure() {
    let (schema, ledger) = bank().await;
    let mut client = connect(&schema.url()).await;
    let change = format!("update {}.account set balance = balance + 1 where id = 1", schema.name());
    for (level, key) in [(IsolationLevel::RepeatableRead, "one"), (IsolationLevel::Serializable, "two")] {
        for is_disturbed in [true, false] {
            let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
            let claimed = ledger.claim::<String>(&transaction, &call(key)).await.unwrap();
            let Claimed::Fresh(entry) = claimed else { panic!("nothing has committed: {claimed:?}") };
            if is_disturbed {
                schema.admin().batch_execute(&change).await.unwrap();
                let error = transaction.batch_execute(&change).await.unwrap_err();
                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{level:?}");
                let error = entry.finish(&transaction, &String::from("done")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotApplied, "{level:?}");
                transaction.rollback().await.unwrap();
            } else {
                transaction.batch_execute(&change).await.unwrap();
                entry.finish(&transaction, &String::from("done")).await.unwrap();
                transaction.commit().await.unwrap();
            }
        }
    }
    assert_eq!((balances(&schema).await, counted(&schema).await), ([14, 10], 0));
}

async fn missing_in_a_handler() {
    let (schema, ledger) = bank().await;
    let name = schema.name();
    let private = format!("create table {name}.private (id integer); revoke all on {name}.private from public");
    schema.admin().batch_execute(&private).await.unwrap();
    for (statement, code) in [
        (format!("insert into {name}.nothing values (1)"), SqlState::UNDEFINED_TABLE),
        (format!("select nothing from {name}.account"), SqlState::UNDEFINED_COLUMN),
        (format!("insert into {name}.private values (1)"), SqlState::INSUFFICIENT_PRIVILEGE),
    ] {
        let refused = ledger.run(call("one"), async |transaction, _| {
            let error = transaction.batch_execute(&statement).await.unwrap_err();
            assert_eq!(error.code(), Some(&code));
            Err::<String, _>(Failure::from(error))
        });
        assert_eq!(refused.await.unwrap_err().reason, Reason::Store(ErrorKind::Unusable), "{statement}");
    }
    assert_eq!(counted(&schema).await, 0);
    let result = ledger.run(call("one"), async |_, _| Ok(String::from("done"))).await;
    assert_eq!(result.unwrap().provenance, Provenance::Fresh, "the operation is not closed");
}

/// The same code as for a missing right, but it is about one row: only its own message must wait.
async fn forbidden_row() {
    let (schema, ledger) = bank().await;
    let name = schema.name();
    let guarded = format!(
        "create table {name}.guarded (id integer);
         alter table {name}.guarded enable row level security;
         alter table {name}.guarded force row level security;
         create policy small on {name}.guarded with check (id < 10);
         create role {name}_clerk; grant usage on schema {name} to {name}_clerk;
         grant insert on {name}.guarded to {name}_clerk"
    );
    schema.admin().batch_execute(&guarded).await.unwrap();
    let refused = ledger.run(call("one"), async |transaction, _| {
        let insert = format!("set local role {name}_clerk; insert into {name}.guarded values (10)");
        let error = transaction.batch_execute(&insert).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
        Err::<String, _>(Failure::from(error))
    });
    let reason = refused.await.unwrap_err().reason;
    assert!(!matches!(reason, Reason::Store(_)), "{reason:?}");
    assert_eq!(counted(&schema).await, 1);
}

async fn uncounted() {
    let (schema, _) = bank().await;
    let (name, role) = (schema.name(), format!("{}_app", schema.name()));
    let grants = format!(
        "create role {role} login;
         grant usage on schema {name} to {role};
         grant select on hapax_migration, hapax_attempt, hapax_ledger to {role};
         grant select, insert, delete on hapax_guard to {role};
         grant execute on function hapax_claim_one to {role}"
    );
    schema.admin().batch_execute(&grants).await.unwrap();
    let url = schema.url().replace(&format!("//{name}@"), &format!("//{role}@"));
    let ledger = ledger(&url, terms().max_attempts(1));
    let refused = ledger.run(call("one"), async |_, _| Err::<String, _>(Failure::from("it cannot be run"))).await;
    assert_eq!(refused.unwrap_err().reason, Reason::Store(ErrorKind::Unusable));
}

/// The server cannot tell a message that takes too long from a server that is slow: the message must have an end.
async fn cancelled() {
    let (schema, ledger) = bank().await;
    let refused = ledger.run(call("one"), async |transaction, _| {
        transaction.batch_execute("set local statement_timeout = '10ms'; select pg_sleep(600)").await?;
        Ok(String::from("done"))
    });
    assert_eq!(refused.await.unwrap_err().reason, Reason::Dead, "one attempt was allowed");
    assert_eq!(counted(&schema).await, 1);
}

async fn set_read_only(schema: &PostgresSchema, is_on: &str) {
    let alter = format!("alter role {} set default_transaction_read_only = {is_on}", schema.name());
    schema.admin().batch_execute(&alter).await.unwrap();
}

/// A claim has to write. So the row is found only if it is looked for before the claim.
async fn read_first() {
    let (schema, first) = bank().await;
    run(&first, "one").await.unwrap();
    set_read_only(&schema, "on").await;
    let work = vec![Work { call: call("one"), ordering_key: None, is_redelivered: true }];
    let copies = ledger(&schema.url(), terms()).run_batch(work, async |_, _| Ok(vec![String::from("again")])).await;
    let copy = copies.into_iter().next().unwrap().unwrap();
    assert_eq!((&*copy.answer, copy.provenance), ("done", Provenance::Replayed));
}

/// Also the connection is replaced: its host name may lead to another server by now.
async fn read_only() {
    let (schema, _) = bank().await;
    set_read_only(&schema, "on").await;
    let ledger = ledger(&format!("{}&connections=1", schema.url()), terms().max_attempts(1));
    let deposit = async |transaction: &PostgresTransaction<'_>, entries: &mut [Entry]| {
        transaction.batch_execute("update account set balance = balance + 1 where id = 1").await?;
        Ok(vec![String::from("done"); entries.len()])
    };
    let work = || {
        ["one", "two", "three"].map(|key| Work { call: call(key), ordering_key: None, is_redelivered: false }).into()
    };
    for result in ledger.run_batch(work(), deposit).await {
        assert_eq!(result.unwrap_err().reason, Reason::Store(ErrorKind::NotApplied));
    }
    assert_eq!((balances(&schema).await, counted(&schema).await), ([10, 10], 0));
    set_read_only(&schema, "off").await;
    let begun = ledger.run_batch(work(), deposit).await;
    assert!(begun.iter().all(|result| result.as_ref().is_ok_and(|it| it.provenance == Provenance::Fresh)), "{begun:?}");
    assert_eq!((balances(&schema).await, counted(&schema).await), ([11, 10], 0));
}

/// The server ends the session of a transaction that is idle for too long, so that nothing is committed.
async fn idle() {
    let (schema, _) = bank().await;
    let limit = format!("alter role {} set idle_in_transaction_session_timeout = '200ms'", schema.name());
    schema.admin().batch_execute(&limit).await.unwrap();
    let ledger = ledger(&schema.url(), terms().max_attempts(1));
    let runs = AtomicU32::new(0);
    let result = ledger.run(call("one"), async |transaction, _| {
        transaction.execute("update account set balance = balance + 5 where id = 1", &[]).await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let session: i32 = transaction.query_one("select pg_backend_pid()", &[]).await?.get(0);
            let sessions = "select from pg_stat_activity where pid = $1";
            until("the server has ended the session", async || {
                schema.admin().query(sessions, &[&session]).await.unwrap().is_empty()
            })
            .await;
        }
        Ok(String::from("done"))
    });
    assert_eq!(result.await.unwrap().provenance, Provenance::Fresh);
    assert_eq!((runs.load(Ordering::Relaxed), balances(&schema).await), (2, [15, 10]));
}
