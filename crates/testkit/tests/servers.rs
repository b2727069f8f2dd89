//! Real servers do what a test asks of them, and never outlive it.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hapax_testkit::Step;
use hapax_testkit::proxy::{Fault, Moment, Proxy};
use hapax_testkit::servers::{self, Kind, Options, RedisServer, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// After this a test has failed, however slow the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Set for a process that shall start a server of this kind, and wait to be killed.
const PARENT_OF: &str = "HAPAX_TEST_PARENT_OF";

fn main() -> ExitCode {
    if let Ok(name) = env::var(PARENT_OF) {
        return be_a_parent(&name);
    }
    servers::main(Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            servers::test("answers_on_its_port_and_its_socket", name, move || answers(kind)),
            servers::test("a_killed_server_is_gone_until_it_is_started_again", name, move || is_killed(kind)),
            servers::test("a_server_that_is_asked_to_end_ends_well", name, move || is_asked_to_end(kind)),
            servers::test("a_paused_server_does_not_answer_until_it_goes_on", name, move || is_paused(kind)),
            servers::test("its_clock_steps_both_ways_and_stays_so", name, move || steps_its_clock(kind)),
            servers::test("a_clock_of_the_machine_does_not_step", name, move || keeps_its_clock(kind)),
            servers::test("a_password_is_demanded_and_known", name, move || has_a_password(kind)),
            servers::test("what_a_server_says_of_a_wrong_argument_is_told", name, move || is_misused(kind)),
            servers::test("many_start_at_once", name, move || many_start(kind)),
            servers::test("a_server_that_is_dropped_is_gone", name, move || is_dropped(kind)),
            servers::test("what_a_proxy_cuts_is_carried_out_or_not_as_it_was_told", name, move || is_cut(kind)),
            servers::test("a_server_dies_with_the_process_that_started_it", name, move || loses_its_parent(kind)),
        ]
    }))
}

async fn start(kind: Kind) -> RedisServer {
    RedisServer::start(Options::new(kind)).await.unwrap()
}

async fn text(server: &RedisServer, words: &[&str]) -> String {
    server.command(words).await.unwrap().text()
}

fn refuses(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn answers(kind: Kind) {
    let begun = Instant::now();
    let server = start(kind).await;
    println!("{} answers after {:?}", kind.name(), begun.elapsed());
    assert!(TcpStream::connect(server.address()).is_ok());
    assert_eq!(server.url(), format!("redis://{}/0", server.address()));
    assert_eq!(text(&server, &["SET", "a", "b"]).await, "OK");
    assert_eq!(server.command(&["GET", "a"]).await.unwrap(), Reply::Bulk("b".into()));
    let info = text(&server, &["INFO", "server"]).await;
    let pid = server.pid().unwrap();
    assert!(info.contains(&format!("\r\nprocess_id:{pid}\r\n")), "{info}");
    assert_eq!(info.contains("\r\nvalkey_version:"), kind == Kind::Valkey, "{info}");
    assert!(info.contains(&format!(":{}\r\n", servers::required(kind.name()).unwrap())), "{info}");
}

async fn is_killed(kind: Kind) {
    let options = Options::new(kind).with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
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

async fn is_asked_to_end(kind: Kind) {
    let server = start(kind).await;
    assert_eq!(server.terminate().await.unwrap().code(), Some(0));
    assert!(refuses(server.address()));
    assert_eq!(server.terminate().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

async fn is_paused(kind: Kind) {
    let server = start(kind).await;
    server.pause().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(100), server.command(&["PING"])).await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(TcpStream::connect(server.address()).is_ok());
    server.resume().unwrap();
    assert_eq!(text(&server, &["PING"]).await, "PONG");
    // Again, so that the wait of the first time is not taken for that of the second.
    server.pause().unwrap();
    server.kill();
    assert!(server.pause().is_err());
}

async fn seconds(server: &RedisServer) -> i64 {
    let Reply::Array(time) = server.command(&["TIME"]).await.unwrap() else { panic!("TIME gives two") };
    time[0].text().parse().unwrap()
}

async fn steps_its_clock(kind: Kind) {
    let hour = 3600;
    let server = start(kind).await;
    let before = seconds(&server).await;
    assert_eq!(text(&server, &["SET", "short", "x", "EX", "1800"]).await, "OK");
    assert_eq!(text(&server, &["SET", "long", "x", "EX", "5400"]).await, "OK");
    server.step_clock(Step::Forward(Duration::from_secs(3600))).unwrap();
    let after = seconds(&server).await - before;
    assert!((hour..hour + 600).contains(&after), "{after}");
    assert_eq!(server.command(&["GET", "short"]).await.unwrap(), Reply::Nil);
    assert_eq!(text(&server, &["GET", "long"]).await, "x");
    server.step_clock(Step::Back(Duration::from_micros(2 * 3_600_000_000 - 1))).unwrap();
    let after = seconds(&server).await - before;
    assert!((-hour..600 - hour).contains(&after), "{after}");
    let rest: i64 = text(&server, &["TTL", "long"]).await.parse().unwrap();
    assert!((5400 + hour - 600..=5400 + hour).contains(&rest), "{rest}");
    server.restart().await.unwrap();
    let after = seconds(&server).await - before;
    assert!((-hour..600 - hour).contains(&after), "{after}");
    assert!(server.step_clock(Step::Forward(Duration::MAX)).is_err());
}

async fn keeps_its_clock(kind: Kind) {
    let server = RedisServer::start(Options::new(kind).with_clock_of_the_machine()).await.unwrap();
    let error = server.step_clock(Step::Forward(Duration::from_secs(1))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(text(&server, &["PING"]).await, "PONG");
}

async fn has_a_password(kind: Kind) {
    let server = RedisServer::start(Options::new(kind).with_password("open")).await.unwrap();
    assert_eq!(server.url(), format!("redis://:open@{}/0", server.address()));
    assert_eq!(text(&server, &["PING"]).await, "PONG");
    assert_eq!(text(&server, &["CONFIG", "SET", "requirepass", "changed"]).await, "OK");
    assert!(text(&server, &["PING"]).await.starts_with("NOAUTH"));
}

async fn is_misused(kind: Kind) {
    let error = RedisServer::start(Options::new(kind).with_args(&["--no-such-thing", "x"])).await.unwrap_err();
    assert!(error.to_string().contains("no-such-thing"), "{error}");
}

async fn many_start(kind: Kind) {
    let started = futures_util::future::join_all((0..16).map(|_| start(kind))).await;
    for server in &started {
        let info = text(server, &["INFO", "server"]).await;
        assert!(info.contains(&format!("process_id:{}\r\n", server.pid().unwrap())));
        assert!(info.contains(&format!("tcp_port:{}\r\n", server.address().port())));
    }
}

async fn is_dropped(kind: Kind) {
    let server = start(kind).await;
    let (address, folder) = (server.address(), server.data_folder().to_owned());
    assert!(folder.join("log").exists());
    drop(server);
    assert!(refuses(address));
    assert!(!folder.exists());
}

async fn is_cut(kind: Kind) {
    let server = start(kind).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    for (at, carried_out) in [(Moment::Unsent, "0"), (Moment::Answered, "1"), (Moment::Sent, "2")] {
        proxy.inject(Fault::cut(at, "INCR").times(1));
        let mut client = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        client.read_exact(&mut pong).await.unwrap();
        client.write_all(b"INCR count\r\n").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let begun = Instant::now();
        // Only one that was cut when it was sent may still be under way.
        while text(&server, &["INCRBY", "count", "0"]).await != carried_out {
            assert!(at == Moment::Sent && begun.elapsed() < DEADLINE, "{at:?}");
        }
    }
    assert_eq!(proxy.counts().cuts, 3);
}

async fn loses_its_parent(kind: Kind) {
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
        assert!(killed.elapsed() < DEADLINE, "the server is still there");
        tokio::task::yield_now().await;
    }
    std::fs::remove_dir_all(folder).unwrap();
    assert!(answered);
}

/// Starts a server from a thread that ends, says where it is, and waits.
fn be_a_parent(name: &str) -> ExitCode {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
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
