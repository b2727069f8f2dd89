//! Real servers follow the commands of a test, and never outlive it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hapax_testkit::ClockStep;
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{self, DynamoDbServer, RedisKind, RedisServer, RedisServerOptions, RespValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes this process start a server of the given kind, and then wait to be killed.
const PARENT_OF: &str = "HAPAX_TEST_PARENT_OF";

fn main() -> ExitCode {
    if let Ok(name) = env::var(PARENT_OF) {
        return run_parent(&name);
    }
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            servers::test("a_server_replies_on_its_port_and_socket", name, move || replies(kind)),
            servers::test("a_killed_server_is_down_until_it_is_restarted", name, move || kill(kind)),
            servers::test("a_terminated_server_exits_with_success", name, move || terminate(kind)),
            servers::test("a_paused_server_does_not_reply_until_it_is_resumed", name, move || pause(kind)),
            servers::test("a_clock_steps_in_both_directions_and_survives_a_restart", name, move || step_clock(kind)),
            servers::test("the_system_clock_cannot_be_stepped", name, move || use_system_clock(kind)),
            servers::test("a_password_is_required_and_used", name, move || use_password(kind)),
            servers::test("the_error_for_a_wrong_argument_contains_the_log", name, move || pass_wrong_argument(kind)),
            servers::test("many_servers_start_concurrently", name, move || start_many(kind)),
            servers::test("a_dropped_server_ends", name, move || drop_server(kind)),
            servers::test("a_cut_request_is_executed_or_not_as_configured", name, move || cut_requests(kind)),
            servers::test("a_server_dies_with_the_process_that_started_it", name, move || kill_parent(kind)),
        ]
    });
    let dynamodb = servers::test("an_idle_server_gets_the_next_table_and_is_not_seen_from_elsewhere", "dynamodb", idle);
    servers::main(each.chain([dynamodb]))
}

async fn idle() {
    let first = DynamoDbServer::table().await.unwrap();
    let (address, name) = (first.server().address(), first.name().to_owned());
    let second = DynamoDbServer::table().await.unwrap();
    assert_ne!(second.server().address(), address, "a test may step the clock of its server");
    drop(first);
    let third = DynamoDbServer::table().await.unwrap();
    assert_eq!(third.server().address(), address);
    assert_ne!(third.name(), name, "its table is empty");
    // It cannot be told to listen on one address only.
    assert!(refuses(SocketAddr::from(([127, 0, 0, 2], address.port()))));
    third.server().kill();
    drop(third);
    DynamoDbServer::table().await.expect("a killed server is not used again");
}

async fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(RedisServerOptions::new(kind)).await.unwrap()
}

async fn text(server: &RedisServer, words: &[&str]) -> String {
    server.command(words).await.unwrap().text()
}

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn replies(kind: RedisKind) {
    let begun = Instant::now();
    let server = start(kind).await;
    println!("{} replies after {:?}", kind.name(), begun.elapsed());
    assert!(TcpStream::connect(server.address()).is_ok());
    assert_eq!(server.url(), format!("redis://{}/0", server.address()));
    assert_eq!(text(&server, &["SET", "a", "b"]).await, "OK");
    assert_eq!(server.command(&["GET", "a"]).await.unwrap(), RespValue::Bulk("b".into()));
    let info = text(&server, &["INFO", "server"]).await;
    let pid = server.pid().unwrap();
    assert!(info.contains(&format!("\r\nprocess_id:{pid}\r\n")), "{info}");
    assert_eq!(info.contains("\r\nvalkey_version:"), kind == RedisKind::Valkey, "{info}");
    assert!(info.contains(&format!(":{}\r\n", servers::required(kind.name()).unwrap())), "{info}");
}

async fn kill(kind: RedisKind) {
    let options = RedisServerOptions::new(kind).with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = RedisServer::start(options).await.unwrap();
    let (address, first) = (server.address(), server.pid());
    assert_eq!(text(&server, &["SET", "kept", "yes"]).await, "OK");
    server.kill();
    assert!(refuses(address));
    assert_eq!(server.pid(), None);
    assert!(server.command(&["PING"]).await.is_err());
    server.restart().await.unwrap();
    assert_eq!(server.address(), address);
    assert_ne!(server.pid(), first);
    assert!(TcpStream::connect(address).is_ok());
    assert_eq!(text(&server, &["GET", "kept"]).await, "yes");
}

async fn terminate(kind: RedisKind) {
    let server = start(kind).await;
    assert_eq!(server.terminate().await.unwrap().code(), Some(0));
    assert!(refuses(server.address()));
    assert_eq!(server.terminate().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

async fn pause(kind: RedisKind) {
    let server = start(kind).await;
    server.pause().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(100), server.command(&["PING"])).await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(TcpStream::connect(server.address()).is_ok());
    server.resume().unwrap();
    assert_eq!(text(&server, &["PING"]).await, "PONG");
    // Pause again: the second pause must wait for its own signal.
    server.pause().unwrap();
    server.kill();
    assert!(server.pause().is_err());
}

async fn seconds(server: &RedisServer) -> i64 {
    let RespValue::Array(time) = server.command(&["TIME"]).await.unwrap() else {
        panic!("TIME replies with two values")
    };
    time[0].text().parse().unwrap()
}

async fn step_clock(kind: RedisKind) {
    let hour = 3600;
    let server = start(kind).await;
    let before = seconds(&server).await;
    assert_eq!(text(&server, &["SET", "short", "x", "EX", "1800"]).await, "OK");
    assert_eq!(text(&server, &["SET", "long", "x", "EX", "5400"]).await, "OK");
    server.step_clock(ClockStep::Forward(Duration::from_secs(3600))).unwrap();
    let after = seconds(&server).await - before;
    assert!((hour..hour + 600).contains(&after), "{after}");
    assert_eq!(server.command(&["GET", "short"]).await.unwrap(), RespValue::Nil);
    assert_eq!(text(&server, &["GET", "long"]).await, "x");
    server.step_clock(ClockStep::Back(Duration::from_micros(2 * 3_600_000_000 - 1))).unwrap();
    let after = seconds(&server).await - before;
    assert!((-hour..600 - hour).contains(&after), "{after}");
    let rest: i64 = text(&server, &["TTL", "long"]).await.parse().unwrap();
    assert!((5400 + hour - 600..=5400 + hour).contains(&rest), "{rest}");
    server.restart().await.unwrap();
    let after = seconds(&server).await - before;
    assert!((-hour..600 - hour).contains(&after), "{after}");
    assert!(server.step_clock(ClockStep::Forward(Duration::MAX)).is_err());
}

async fn use_system_clock(kind: RedisKind) {
    let server = RedisServer::start(RedisServerOptions::new(kind).with_system_clock()).await.unwrap();
    let error = server.step_clock(ClockStep::Forward(Duration::from_secs(1))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(text(&server, &["PING"]).await, "PONG");
}

async fn use_password(kind: RedisKind) {
    let server = RedisServer::start(RedisServerOptions::new(kind).with_password("open")).await.unwrap();
    assert_eq!(server.url(), format!("redis://:open@{}/0", server.address()));
    assert_eq!(text(&server, &["PING"]).await, "PONG");
    assert_eq!(text(&server, &["CONFIG", "SET", "requirepass", "changed"]).await, "OK");
    assert!(text(&server, &["PING"]).await.starts_with("NOAUTH"));
}

async fn pass_wrong_argument(kind: RedisKind) {
    let error =
        RedisServer::start(RedisServerOptions::new(kind).with_args(&["--no-such-thing", "x"])).await.unwrap_err();
    assert!(error.to_string().contains("no-such-thing"), "{error}");
}

async fn start_many(kind: RedisKind) {
    let started = futures_util::future::join_all((0..16).map(|_| start(kind))).await;
    for server in &started {
        let info = text(server, &["INFO", "server"]).await;
        assert!(info.contains(&format!("process_id:{}\r\n", server.pid().unwrap())));
        assert!(info.contains(&format!("tcp_port:{}\r\n", server.address().port())));
    }
}

async fn drop_server(kind: RedisKind) {
    let server = start(kind).await;
    let (address, folder) = (server.address(), server.data_folder().to_owned());
    assert!(folder.join("log").exists());
    drop(server);
    assert!(refuses(address));
    assert!(!folder.exists());
}

async fn cut_requests(kind: RedisKind) {
    let server = start(kind).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    for (at, executed) in [(CutPoint::Unsent, "0"), (CutPoint::Answered, "1"), (CutPoint::Sent, "2")] {
        proxy.inject(NetworkFault::cut(at, "INCR").times(1));
        let mut client = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        client.read_exact(&mut pong).await.unwrap();
        client.write_all(b"INCR count\r\n").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let begun = Instant::now();
        // Only a request that was cut after it was sent may still be in flight.
        while text(&server, &["INCRBY", "count", "0"]).await != executed {
            assert!(at == CutPoint::Sent && begun.elapsed() < DEADLINE, "{at:?}");
        }
    }
    assert_eq!(proxy.counts().cuts, 3);
}

async fn kill_parent(kind: RedisKind) {
    let mut parent = Command::new(env::current_exe().unwrap());
    let mut parent = parent.env(PARENT_OF, kind.name()).stdout(Stdio::piped()).spawn().unwrap();
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
    std::fs::remove_dir_all(folder).unwrap();
    assert!(answered);
}

/// Starts a server from a thread that ends, prints its address and folder, and waits.
fn run_parent(name: &str) -> ExitCode {
    let kind = RedisKind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = std::thread::spawn(move || {
        let server = runtime.block_on(start(kind));
        runtime.block_on(text(&server, &["PING"]));
        server
    })
    .join()
    .unwrap();
    println!("{}\n{}", server.address(), server.data_folder().display());
    loop {
        std::thread::park();
    }
}
