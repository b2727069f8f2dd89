//! PostgreSQL servers follow the commands of a test, and never outlive it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hapax_testkit::ClockStep;
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, PostgresServerOptions};
use tokio_postgres::{Client, NoTls};

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes this process start a server, and then wait to be killed.
const PARENT: &str = "HAPAX_TEST_PARENT_OF_POSTGRES";

fn main() -> ExitCode {
    if env::var_os(PARENT).is_some() {
        return run_parent();
    }
    let name = "postgres";
    servers::main([
        servers::test("a_server_syncs_its_commits_and_does_not_run_as_root", name, settings),
        servers::test("a_killed_server_keeps_what_it_committed", name, kill),
        servers::test("a_terminated_server_exits_with_success", name, terminate),
        servers::test("a_paused_server_does_not_reply_until_it_is_resumed", name, pause),
        servers::test("the_error_for_a_wrong_argument_contains_the_log", name, pass_wrong_argument),
        servers::test("a_dropped_server_ends", name, drop_server),
        servers::test("each_schema_has_its_own_tables_and_clock", name, schemas),
        servers::test("what_is_planted_in_a_search_path_is_called_and_counted", name, planted),
        servers::test("a_server_dies_with_the_process_that_started_it", name, kill_parent),
    ])
}

async fn start() -> PostgresServer {
    PostgresServer::start(PostgresServerOptions::new()).await.unwrap()
}

async fn value(client: &Client, query: &str) -> String {
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Whether the address refuses connections soon. A process that a server forks while it is killed has the port a little
/// longer.
fn refuses(address: SocketAddr) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        if TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        thread::yield_now();
    }
    false
}

async fn settings() {
    let server = start().await;
    let client = server.client().await.unwrap();
    assert_eq!(value(&client, "select current_setting('fsync')").await, "on");
    assert_eq!(value(&client, "select current_setting('synchronous_commit')").await, "on");
    assert_eq!(value(&client, "select current_setting('port')").await, server.address().port().to_string());
    let version = value(&client, "select current_setting('server_version')").await;
    assert!(version.starts_with(&servers::required("postgres").unwrap()), "{version}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().unwrap())).unwrap();
    assert!(!status.contains("Uid:\t0"), "{status}");
}

async fn kill() {
    let server = start().await;
    let (address, first) = (server.address(), server.pid());
    let client = server.client().await.unwrap();
    client.batch_execute("create table kept (n int); insert into kept values (7)").await.unwrap();
    for _ in 0..3 {
        server.kill();
        assert!(refuses(address));
        assert_eq!(server.pid(), None);
        assert!(server.client().await.is_err());
        server.restart().await.unwrap();
        assert_eq!(server.address(), address);
        assert_ne!(server.pid(), first);
        assert_eq!(value(&server.client().await.unwrap(), "select n::text from kept").await, "7");
    }
}

async fn terminate() {
    let server = start().await;
    // It does not wait until this client has gone.
    let _client = server.client().await.unwrap();
    assert_eq!(server.terminate().await.unwrap().code(), Some(0));
    assert!(refuses(server.address()));
    assert_eq!(server.terminate().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

async fn pause() {
    let server = start().await;
    let client = server.client().await.unwrap();
    server.pause().unwrap();
    let reply = tokio::time::timeout(Duration::from_millis(100), value(&client, "select 'late'")).await;
    assert!(reply.is_err(), "{reply:?}");
    assert!(TcpStream::connect(server.address()).is_ok());
    server.resume().unwrap();
    assert_eq!(value(&client, "select 'back'").await, "back");
}

async fn pass_wrong_argument() {
    let options = PostgresServerOptions::new().with_args(&["-c", "no_such_thing=1"]);
    let error = PostgresServer::start(options).await.unwrap_err();
    assert!(error.to_string().contains("no_such_thing"), "{error}");
}

async fn drop_server() {
    let server = start().await;
    let (address, folder) = (server.address(), server.data_folder().to_owned());
    assert!(folder.join("data/PG_VERSION").exists());
    drop(server);
    assert!(refuses(address));
    assert!(!folder.exists());
}

async fn schemas() {
    let server = PostgresServer::shared().await.unwrap();
    let (one, other) = (server.schema().await.unwrap(), server.schema().await.unwrap());
    assert_ne!(one.name(), other.name());
    one.step_clock(ClockStep::Forward(Duration::from_secs(7200))).await.unwrap();
    one.step_clock(ClockStep::Back(Duration::from_secs(3600))).await.unwrap();
    for (schema, ahead) in [(&one, 3600), (&other, 0)] {
        let client = owner(schema).await;
        client.batch_execute("create table own (n int)").await.unwrap();
        for name in ["clock_timestamp", "pg_catalog.clock_timestamp"] {
            let now: SystemTime = client.query_one(&format!("select {name}()"), &[]).await.unwrap().get(0);
            let seen = now.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
            assert!(seen.abs_diff(ahead) < 600, "{seen}");
        }
        assert_eq!(value(schema.admin(), "select count(*)::text from own").await, "0");
    }
}

async fn planted() {
    let server = start().await;
    let schema = server.planted_schema().await.unwrap();
    let client = owner(&schema).await;
    for statement in ["select 2::bigint * interval '1 second'", "select pg_backend_pid()", "select sum(1)"] {
        let error = client.query(statement, &[]).await.unwrap_err();
        let message = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(message.contains("was called"), "{statement}: {message}");
    }
    assert!(client.query("select 'a'::text", &[]).await.is_err(), "a planted type");
    assert!(client.query("select from pg_class", &[]).await.is_err(), "a planted table");
    let exact = "select 2::double precision * interval '1 second', pg_catalog.pg_backend_pid()";
    client.query_one(exact, &[]).await.unwrap();
    assert_eq!(schema.planted_calls().await.unwrap(), 3);
}

async fn owner(schema: &PostgresSchema) -> Client {
    let url = schema.url();
    let (url, parameter) = url.split_once('?').unwrap();
    assert_eq!(parameter, format!("schema={}", schema.name()));
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async { drop(connection.await) });
    client
}

async fn kill_parent() {
    let mut parent = Command::new(env::current_exe().unwrap());
    let mut parent = parent.env(PARENT, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let address: SocketAddr = lines.next().unwrap().unwrap().parse().unwrap();
    let folder = lines.next().unwrap().unwrap();
    let answered = TcpStream::connect(address).is_ok();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let killed = Instant::now();
    while !refuses(address) {
        assert!(killed.elapsed() < DEADLINE, "the server is still running");
        hapax_testkit::pause().await;
    }
    // Its processes end a moment later, and may still write.
    while std::fs::remove_dir_all(&folder).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
        assert!(killed.elapsed() < DEADLINE, "a process of the server is still running");
        hapax_testkit::pause().await;
    }
    assert!(answered);
}

/// Starts a server from a thread that ends, prints its address and folder, and waits.
fn run_parent() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = thread::spawn(move || runtime.block_on(start())).join().unwrap();
    println!("{}\n{}", server.address(), server.data_folder().display());
    loop {
        thread::park();
    }
}
