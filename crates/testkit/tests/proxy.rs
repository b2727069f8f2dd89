//! Each fault of the proxy, observed by a client and by the server.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax_testkit::proxy::{CutPoint, Direction, FaultCounts, FaultRule, NetworkFault, Proxy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a client waits to show that it receives nothing.
const SILENCE: Duration = Duration::from_millis(50);

/// A server that records and echoes every line, and a proxy in front of it.
struct ProxiedServer {
    proxy: Proxy,
    lines: Arc<Mutex<Vec<String>>>,
}

impl ProxiedServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let server = Self { proxy, lines: Arc::clone(&lines) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&lines)));
            }
        });
        server
    }

    async fn with(rule: impl Into<FaultRule>) -> Self {
        let server = Self::start().await;
        server.proxy.inject(rule);
        server
    }

    async fn connect(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.proxy.address()).await.unwrap()))
    }

    /// The lines that the server received.
    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    async fn wait_for_lines(&self, count: usize) {
        let begun = Instant::now();
        while self.lines().len() < count {
            assert!(begun.elapsed() < DEADLINE, "the server received {:?}", self.lines());
            tokio::task::yield_now().await;
        }
    }

    fn counts(&self) -> FaultCounts {
        self.proxy.counts()
    }
}

async fn serve(stream: TcpStream, lines: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        lines.lock().unwrap().push(line.trim_end().to_owned());
        stream.write_all(line.as_bytes()).await?;
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next line, or the error of the connection.
    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match timeout(DEADLINE, self.0.read_line(&mut line)).await.expect("a line or an error arrives")? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    async fn ask(&mut self, line: &str) -> io::Result<String> {
        self.send(line).await;
        self.line().await
    }

    async fn assert_silence(&mut self) {
        let received = timeout(SILENCE, self.0.read_u8()).await;
        assert!(received.is_err(), "{received:?}");
    }
}

fn assert_reset<T: std::fmt::Debug>(outcome: io::Result<T>) {
    assert_eq!(outcome.expect_err("the connection must be reset").kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn without_faults_everything_arrives() {
    let server = ProxiedServer::start().await;
    let mut client = server.connect().await;
    let long = "x".repeat(1_000_000);
    assert_eq!(client.ask("short").await.unwrap(), "short");
    assert_eq!(client.ask(&long).await.unwrap(), long);
    client.0.shutdown().await.unwrap();
    assert_eq!(client.line().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(server.counts(), FaultCounts { connections: 1, ..FaultCounts::default() });
}

#[tokio::test]
async fn latency_delays_bytes_and_keeps_their_order() {
    let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(10));
    let server = ProxiedServer::with(NetworkFault::Latency { delay, jitter }).await;
    let mut client = server.connect().await;
    let begun = Instant::now();
    assert_eq!(client.ask("late").await.unwrap(), "late");
    assert!(begun.elapsed() >= 2 * (delay - jitter));
    for number in 0..20 {
        client.send(&number.to_string()).await;
        tokio::task::yield_now().await;
    }
    for number in 0..20 {
        assert_eq!(client.line().await.unwrap(), number.to_string());
    }
    assert!(server.counts().held_up >= 4);
}

#[tokio::test]
async fn healing_removes_latency() {
    let server = ProxiedServer::with(NetworkFault::Latency { delay: 100 * DEADLINE, jitter: Duration::ZERO }).await;
    server.proxy.heal().await.unwrap();
    assert_eq!(server.connect().await.ask("at once").await.unwrap(), "at once");
    assert_eq!(server.counts().held_up, 0);
}

#[tokio::test]
async fn a_drip_arrives_in_portions() {
    let every = Duration::from_millis(5);
    let server = ProxiedServer::with(NetworkFault::Drip { bytes: 3, every }.times(1)).await;
    let mut client = server.connect().await;
    let begun = Instant::now();
    assert_eq!(client.ask("0123456789").await.unwrap(), "0123456789");
    assert!(begun.elapsed() >= 4 * every);
    assert_eq!(server.counts().held_up, 1);
}

#[tokio::test]
async fn a_reset_closes_only_open_connections() {
    let server = ProxiedServer::start().await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    one.ask("a").await.unwrap();
    other.ask("b").await.unwrap();
    server.proxy.reset();
    assert_reset(one.line().await);
    assert_reset(other.line().await);
    assert_eq!(server.connect().await.ask("c").await.unwrap(), "c");
    assert_eq!(server.counts(), FaultCounts { connections: 3, resets: 2, ..FaultCounts::default() });
}

#[tokio::test]
async fn a_connection_is_reset_after_a_number_of_bytes_to_the_server() {
    let server = ProxiedServer::start().await;
    let mut client = server.connect().await;
    client.ask("before").await.unwrap();
    server.proxy.inject(NetworkFault::ResetAfter { direction: Direction::ToServer, bytes: 9 });
    assert_eq!(client.ask("1234").await.unwrap(), "1234");
    assert_reset(client.ask("567890").await);
    assert_eq!(server.lines(), ["before", "1234"]);
    assert_eq!(server.counts().cuts, 1);
}

#[tokio::test]
async fn a_connection_is_reset_after_a_number_of_bytes_to_the_client() {
    let server =
        ProxiedServer::with(NetworkFault::ResetAfter { direction: Direction::ToClient, bytes: 4 }.times(1)).await;
    let mut client = server.connect().await;
    client.send("123456").await;
    let mut got = [0; 4];
    client.0.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"1234");
    assert_reset(client.line().await);
    assert_eq!(server.connect().await.ask("123456").await.unwrap(), "123456");
    assert_eq!((server.lines().len(), server.counts().cuts), (2, 1));
}

#[tokio::test]
async fn a_half_open_connection_loses_the_clients_bytes_for_ever() {
    let server = ProxiedServer::start().await;
    let mut client = server.connect().await;
    client.ask("heard").await.unwrap();
    server.proxy.inject(NetworkFault::HalfOpen(Direction::ToServer));
    client.send("lost").await;
    client.assert_silence().await;
    server.proxy.heal().await.unwrap();
    client.send("lost as well").await;
    client.assert_silence().await;
    assert_eq!(server.connect().await.ask("heard again").await.unwrap(), "heard again");
    assert_eq!(server.lines(), ["heard", "heard again"]);
    assert_eq!(server.counts().half_open, 1);
}

#[tokio::test]
async fn a_half_open_connection_loses_the_servers_bytes() {
    let server = ProxiedServer::with(NetworkFault::HalfOpen(Direction::ToClient).times(1)).await;
    let mut client = server.connect().await;
    client.send("carried out").await;
    server.wait_for_lines(1).await;
    client.assert_silence().await;
    client.send("this too").await;
    server.wait_for_lines(2).await;
    client.assert_silence().await;
    assert_eq!(server.connect().await.ask("heard").await.unwrap(), "heard");
    assert_eq!(server.counts().half_open, 1);
    server.proxy.reset();
    assert_reset(client.line().await);
}

#[tokio::test]
async fn a_request_cut_unsent_never_reaches_the_server() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Unsent, "pay").times(1)).await;
    let mut client = server.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    assert_reset(client.ask("pay 1").await);
    assert_eq!(server.connect().await.ask("pay 2").await.unwrap(), "pay 2");
    assert_eq!(server.lines(), ["look", "pay 2"]);
    assert_eq!(server.counts().cuts, 1);
}

#[tokio::test]
async fn a_request_cut_silently_never_reaches_the_server_and_causes_no_error() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Silently, "pay").times(1)).await;
    let mut client = server.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    client.send("pay 1").await;
    client.assert_silence().await;
    client.send("look again").await;
    client.assert_silence().await;
    assert_eq!(server.connect().await.ask("pay 2").await.unwrap(), "pay 2");
    assert_eq!(server.lines(), ["look", "pay 2"]);
    assert_eq!(server.counts().cuts, 1);
}

#[tokio::test]
async fn a_request_cut_after_it_was_sent_is_executed() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Sent, "pay").times(1)).await;
    let mut client = server.connect().await;
    assert_reset(client.ask("pay 1").await);
    server.wait_for_lines(1).await;
    assert_eq!(server.lines(), ["pay 1"]);
    assert_eq!(server.counts().cuts, 1);
}

#[tokio::test]
async fn a_request_whose_reply_is_cut_was_executed() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Answered, "pay").times(1)).await;
    let mut client = server.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    assert_reset(client.ask("pay 1").await);
    assert_eq!(server.lines(), ["look", "pay 1"]);
    assert_eq!(server.counts().cuts, 1);
    assert_eq!(server.connect().await.ask("pay 2").await.unwrap(), "pay 2");
}

#[tokio::test]
async fn a_cut_skips_earlier_requests() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Unsent, "").after(2).times(1)).await;
    let mut client = server.connect().await;
    assert_eq!(client.ask("1").await.unwrap(), "1");
    assert_eq!(client.ask("2").await.unwrap(), "2");
    assert_reset(client.ask("3").await);
    assert_eq!(server.connect().await.ask("4").await.unwrap(), "4");
    assert_eq!(server.lines(), ["1", "2", "4"]);
}

#[tokio::test]
async fn a_match_is_found_across_two_pieces() {
    let server = ProxiedServer::with(NetworkFault::cut(CutPoint::Unsent, "secret")).await;
    let mut client = server.connect().await;
    client.send("this is sec").await;
    assert_eq!(client.line().await.unwrap(), "this is sec");
    client.0.write_all(b"another sec").await.unwrap();
    client.assert_silence().await;
    assert_reset(client.ask("ret").await);
    assert_eq!(server.lines().len(), 1);
    assert_eq!(server.counts().cuts, 1);
}

#[tokio::test]
async fn a_limited_number_of_connections_is_rejected() {
    let server = ProxiedServer::start().await;
    let mut open = server.connect().await;
    open.ask("open").await.unwrap();
    server.proxy.inject(NetworkFault::Reject.times(2));
    for _ in 0..2 {
        assert_reset(server.connect().await.line().await);
    }
    assert_eq!(server.connect().await.ask("third").await.unwrap(), "third");
    assert_eq!(open.ask("still").await.unwrap(), "still");
    assert_eq!(server.counts(), FaultCounts { connections: 4, rejected: 2, ..FaultCounts::default() });
}

#[tokio::test]
async fn new_connections_are_refused_until_the_proxy_is_healed() {
    let server = ProxiedServer::start().await;
    let mut open = server.connect().await;
    open.ask("open").await.unwrap();
    server.proxy.refuse().await;
    let refused = TcpStream::connect(server.proxy.address()).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(open.ask("still").await.unwrap(), "still");
    server.proxy.heal().await.unwrap();
    assert_eq!(server.connect().await.ask("again").await.unwrap(), "again");
}

#[tokio::test]
async fn an_unreachable_server_is_counted() {
    let nothing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nothing).await.unwrap();
    let mut client = Client(BufReader::new(TcpStream::connect(proxy.address()).await.unwrap()));
    assert_reset(client.line().await);
    assert_eq!(proxy.counts(), FaultCounts { connections: 1, unreachable: 1, ..FaultCounts::default() });
}

#[tokio::test]
async fn dropping_the_proxy_closes_its_connections() {
    let server = ProxiedServer::start().await;
    let address = server.proxy.address();
    let mut client = server.connect().await;
    client.ask("open").await.unwrap();
    drop(server);
    assert_reset(client.line().await);
    let begun = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(begun.elapsed() < DEADLINE, "the proxy still listens");
        tokio::task::yield_now().await;
    }
}
