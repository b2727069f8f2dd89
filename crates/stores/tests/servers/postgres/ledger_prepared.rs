//! The statements of a runner that its connections keep prepared.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::gate::{Provenance, Reason};
use hapax_core::ledger::{Claimed, Entry, Work};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Finding, Severity};
use hapax_stores::{PostgresLedger, PostgresTransaction};
use hapax_testkit::servers::{self, PgBouncer, PostgresServer};
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls};

use super::ledger::{call, ledger, run, terms};
use super::ledger_guard::connect;
use super::{POSTGRES, schema, start};
use crate::support::with_timeout;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_runner_prepares_its_statements_unless_a_pooler_is_in_between", "pgbouncer", prepared),
        servers::test("a_runner_waits_for_its_turn_behind_a_busy_pooler", "pgbouncer", busy_pooler),
        servers::test("a_transaction_of_the_caller_prepares_nothing", POSTGRES, callers),
        servers::test("a_runner_whose_names_of_statements_are_taken_prepares_nothing", POSTGRES, taken),
        servers::test("a_runner_whose_statements_cannot_be_prepared_keeps_its_connection", POSTGRES, refused),
        servers::test("a_run_whose_statements_a_migration_has_changed_runs_again_unnamed", POSTGRES, changed),
        servers::test("a_run_whose_prepared_statements_are_lost_runs_again_without_them", POSTGRES, lost),
    ]
}

/// The number of statements that are prepared on the connection. This one is not.
async fn count(client: &Client) -> i64 {
    let rows = client.query_typed("select pg_catalog.count(*) from pg_catalog.pg_prepared_statements", &[]).await;
    rows.unwrap()[0].get(0)
}

/// How many prepared statements a handler of this ledger sees.
pub(super) async fn seen_by_handlers(ledger: &PostgresLedger, key: &str) -> String {
    let run = ledger.run(call(key), async |transaction, _| Ok(count(transaction).await.to_string()));
    run.await.unwrap().answer
}

async fn prepared() {
    let server = start().await;
    let pooler = PgBouncer::start(&server).await.unwrap();
    let schema = server.schema().await.unwrap();
    let direct = ledger(&format!("{}&connections=1", schema.url()), terms());
    assert_eq!(seen_by_handlers(&direct, "one").await, "6");
    assert_eq!(seen_by_handlers(&direct, "two").await, "6", "they are prepared once");
    let pooled = ledger(&schema.url_at(pooler.address()), terms());
    assert_eq!(seen_by_handlers(&pooled, "three").await, "0");
}

/// Both sessions that the pooler has for the role are in transactions of others.
async fn busy_pooler() {
    let schema = schema().await;
    ledger(&schema.url(), terms()).create_tables().await.unwrap();
    let url = schema.url_at(PgBouncer::shared().await.unwrap().address());
    let mut others = Vec::new();
    for _ in 0..2 {
        let (client, connection) = tokio_postgres::connect(url.split_once('?').unwrap().0, NoTls).await.unwrap();
        Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
        client.batch_execute("begin; select 1").await.unwrap();
        others.push(client);
    }
    let ledger = ledger(&url, terms());
    let mut found = Box::pin(ledger.create_tables());
    // Longer than a connect may take.
    assert!(with_timeout(Duration::from_secs(2), found.as_mut()).await.is_none(), "it waits for a session");
    for client in others {
        client.batch_execute("commit").await.unwrap();
    }
    found.await.unwrap();
    assert_eq!(seen_by_handlers(&ledger, "one").await, "0");
}

async fn callers() {
    let schema = schema().await;
    let ledger = ledger(&schema.url(), terms());
    ledger.create_tables().await.unwrap();
    let mut client = connect(&schema, schema.name()).await;
    let transaction = client.transaction().await.unwrap();
    let claimed = ledger.claim::<String>(&transaction, &call("one")).await.unwrap();
    let Claimed::Fresh(entry) = claimed else { panic!("nothing has committed: {claimed:?}") };
    entry.finish(&transaction, &String::from("done")).await.unwrap();
    assert_eq!(count(transaction.client()).await, 0);
}

fn warnings(findings: &[Finding]) -> usize {
    let is_of_prepared = |it: &&Finding| it.severity == Severity::Warn && it.message.contains("prepared statement");
    findings.iter().filter(is_of_prepared).count()
}

/// The handler throws away what the runner has prepared, with the statement that finishes the operations.
async fn lost() {
    for keys in [&["one"][..], &["two", "three"]] {
        let schema = schema().await;
        let ledger = ledger(&format!("{}&connections=1", schema.url()), terms().max_attempts(1));
        ledger.create_tables().await.unwrap();
        assert_eq!(warnings(&ledger.check(1).await.unwrap()), 0);
        let name = schema.name();
        let effects = format!("create table {name}.effect (n integer); grant all on {name}.effect to public");
        schema.admin().batch_execute(&effects).await.unwrap();
        let runs = AtomicU32::new(0);
        let run = async |keys: &[&str]| {
            let work = |key: &&str| Work { call: call(key), ordering_key: None, is_redelivered: false };
            let handler = async |transaction: &PostgresTransaction<'_>, entries: &mut [Entry]| {
                runs.fetch_add(1, Ordering::Relaxed);
                transaction.batch_execute(&format!("insert into {name}.effect values (1); deallocate all")).await?;
                Ok(vec![String::from("done"); entries.len()])
            };
            for result in ledger.run_batch(keys.iter().map(work).collect(), handler).await {
                assert_eq!(result.unwrap().provenance, Provenance::Fresh);
            }
            runs.swap(0, Ordering::Relaxed)
        };
        assert_eq!(run(keys).await, 2, "{keys:?}");
        assert_eq!(run(&["later"]).await, 1, "nothing is prepared any more");
        assert_eq!(warnings(&ledger.check(1).await.unwrap()), 1);
        let counted =
            format!("select (select count(*) from {name}.effect), (select count(*) from {name}.hapax_attempt)");
        let row = schema.admin().query_one(&counted, &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 0), "effects, and failures that were counted");
    }
}

/// A function is missing for a while.
async fn refused() {
    let schema = schema().await;
    let ledger = ledger(&format!("{}&connections=1", schema.url()), terms());
    ledger.create_tables().await.unwrap();
    let (admin, name) = (schema.admin(), schema.name());
    let find = format!("select pid from pg_stat_activity where usename = '{name}'");
    let sessions = async || {
        let rows = admin.query(&find, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    let (before, rename) = (sessions().await, format!("alter function {name}.hapax_finish_one rename to hapax_absent"));
    assert_eq!(before.len(), 1);
    admin.batch_execute(&rename).await.unwrap();
    for _ in 0..3 {
        let refused = run(&ledger, "one").await.unwrap_err();
        assert_eq!(refused.reason, Reason::Store(ErrorKind::Unusable));
        assert_eq!(sessions().await, before);
    }
    let undo = format!("alter function {name}.hapax_absent rename to hapax_finish_one");
    admin.batch_execute(&undo).await.unwrap();
    assert_eq!(seen_by_handlers(&ledger, "one").await, "6", "those that could be prepared before are closed");
    assert_eq!(sessions().await, before);
}

/// The function of the finish returns something else by now.
async fn changed() {
    let schema = schema().await;
    let ledger = ledger(&format!("{}&connections=1", schema.url()), terms().max_attempts(1));
    assert_eq!(seen_by_handlers(&ledger, "one").await, "6");
    let migration = format!(
        "alter function {0}.hapax_finish_one rename to hapax_finish_before;
         create function {0}.hapax_finish_one(tid, text, uuid, smallint, smallint, bytea, bytea) returns boolean
         language sql as 'select {0}.hapax_finish_before($1, $2, $3, $4, $5, $6, $7); select true'",
        schema.name()
    );
    schema.admin().batch_execute(&migration).await.unwrap();
    assert_eq!(run(&ledger, "two").await.unwrap().provenance, Provenance::Fresh);
    assert_eq!(warnings(&ledger.check(1).await.unwrap()), 1);
}

/// The driver numbers the statements of a process. The next ones are taken on each connection of this pooler.
async fn taken() {
    let schema = schema().await;
    let client = connect(&schema, schema.name()).await;
    let _newest = client.prepare("select 1").await.unwrap();
    let newest = "select max(substr(name, 2)::integer) from pg_prepared_statements";
    let newest: i32 = client.query_typed(newest, &[]).await.unwrap()[0].get(0);
    let names: String = (newest..newest + 1_000).map(|n| format!("prepare s{n} as select 1;")).collect();
    let pooler = start_pooler(PostgresServer::shared().await.unwrap().address(), names).await.unwrap();
    let ledger = ledger(&format!("{}&connections=1", schema.url_at(pooler)), terms().max_attempts(1));
    assert_eq!(seen_by_handlers(&ledger, "one").await, "1000", "only those of the pooler");
    assert_eq!(warnings(&ledger.check(1).await.unwrap()), 1);
}

/// Starts a pooler that greets its clients with the number of the server process, and has used the connection before.
async fn start_pooler(server: SocketAddr, used: String) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Tokio::current().spawn(Box::pin(async move {
        while let Ok((client, _)) = listener.accept().await {
            let used = used.clone();
            Tokio::current().spawn(Box::pin(async move { drop(pass_on(client, server, &used).await) }));
        }
    }));
    Ok(address)
}

async fn pass_on(mut client: TcpStream, server: SocketAddr, used: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let length = client.read_i32().await?;
    let mut start_up = vec![0; usize::try_from(length).unwrap() - 4];
    client.read_exact(&mut start_up).await?;
    server.write_i32(length).await?;
    server.write_all(&start_up).await?;
    let greeting = read_until_ready(&mut server).await?;
    server.write_u8(b'Q').await?;
    server.write_i32(i32::try_from(used.len()).unwrap() + 5).await?;
    server.write_all(used.as_bytes()).await?;
    server.write_u8(0).await?;
    read_until_ready(&mut server).await?;
    client.write_all(&greeting).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads messages up to the one that says that the server is ready.
async fn read_until_ready(server: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        let (kind, length) = (server.read_u8().await?, server.read_i32().await?);
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        server.read_exact(&mut body).await?;
        read.push(kind);
        read.extend(length.to_be_bytes());
        read.extend(body);
        if kind == b'Z' {
            return Ok(read);
        }
    }
}
