//! Every fault of the proxy, seen by a client and by the server behind it.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax_testkit::proxy::{Counts, Direction, Fault, Moment, Proxy, Rule};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// After this a test has failed, however slow the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// For so long nothing comes where nothing may come.
const SILENCE: Duration = Duration::from_millis(50);

/// A server that writes down every line it gets and answers with it, and the proxy before it.
struct World {
    proxy: Proxy,
    lines: Arc<Mutex<Vec<String>>>,
}

impl World {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let world = Self { proxy, lines: Arc::clone(&lines) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&lines)));
            }
        });
        world
    }

    async fn with(rule: impl Into<Rule>) -> Self {
        let world = Self::start().await;
        world.proxy.inject(rule);
        world
    }

    async fn connect(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.proxy.address()).await.unwrap()))
    }

    /// What the server got.
    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    async fn server_gets(&self, count: usize) {
        let begun = Instant::now();
        while self.lines().len() < count {
            assert!(begun.elapsed() < DEADLINE, "the server got {:?}", self.lines());
            tokio::task::yield_now().await;
        }
    }

    fn counts(&self) -> Counts {
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

    /// The next line, or what became of the connection.
    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match timeout(DEADLINE, self.0.read_line(&mut line)).await.expect("something happens")? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    async fn ask(&mut self, line: &str) -> io::Result<String> {
        self.send(line).await;
        self.line().await
    }

    async fn hears_nothing(&mut self) {
        let heard = timeout(SILENCE, self.0.read_u8()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

fn is_reset<T: std::fmt::Debug>(outcome: io::Result<T>) {
    assert_eq!(outcome.expect_err("the connection is reset").kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn without_faults_everything_arrives() {
    let world = World::start().await;
    let mut client = world.connect().await;
    let long = "x".repeat(1_000_000);
    assert_eq!(client.ask("short").await.unwrap(), "short");
    assert_eq!(client.ask(&long).await.unwrap(), long);
    client.0.shutdown().await.unwrap();
    assert_eq!(client.line().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(world.counts(), Counts { connections: 1, ..Counts::default() });
}

#[tokio::test]
async fn latency_holds_up_what_is_sent_and_keeps_its_order() {
    let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(10));
    let world = World::with(Fault::Latency { delay, jitter }).await;
    let mut client = world.connect().await;
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
    assert!(world.counts().held_up >= 4);
}

#[tokio::test]
async fn latency_is_gone_when_it_is_healed() {
    let world = World::with(Fault::Latency { delay: 100 * DEADLINE, jitter: Duration::ZERO }).await;
    world.proxy.heal().await.unwrap();
    assert_eq!(world.connect().await.ask("at once").await.unwrap(), "at once");
    assert_eq!(world.counts().held_up, 0);
}

#[tokio::test]
async fn a_drip_comes_in_portions() {
    let every = Duration::from_millis(5);
    let world = World::with(Fault::Drip { bytes: 3, every }.times(1)).await;
    let mut client = world.connect().await;
    let begun = Instant::now();
    assert_eq!(client.ask("0123456789").await.unwrap(), "0123456789");
    assert!(begun.elapsed() >= 4 * every);
    assert_eq!(world.counts().held_up, 1);
}

#[tokio::test]
async fn a_reset_hits_what_is_open_and_nothing_later() {
    let world = World::start().await;
    let (mut one, mut other) = (world.connect().await, world.connect().await);
    one.ask("a").await.unwrap();
    other.ask("b").await.unwrap();
    world.proxy.reset();
    is_reset(one.line().await);
    is_reset(other.line().await);
    assert_eq!(world.connect().await.ask("c").await.unwrap(), "c");
    assert_eq!(world.counts(), Counts { connections: 3, resets: 2, ..Counts::default() });
}

#[tokio::test]
async fn bytes_to_the_server_are_cut_where_they_were_told_to() {
    let world = World::start().await;
    let mut client = world.connect().await;
    client.ask("before").await.unwrap();
    world.proxy.inject(Fault::ResetAfter { direction: Direction::ToServer, bytes: 9 });
    assert_eq!(client.ask("1234").await.unwrap(), "1234");
    is_reset(client.ask("567890").await);
    assert_eq!(world.lines(), ["before", "1234"]);
    assert_eq!(world.counts().cuts, 1);
}

#[tokio::test]
async fn bytes_to_the_client_are_cut_where_they_were_told_to() {
    let world = World::with(Fault::ResetAfter { direction: Direction::ToClient, bytes: 4 }.times(1)).await;
    let mut client = world.connect().await;
    client.send("123456").await;
    let mut got = [0; 4];
    client.0.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"1234");
    is_reset(client.line().await);
    assert_eq!(world.connect().await.ask("123456").await.unwrap(), "123456");
    assert_eq!((world.lines().len(), world.counts().cuts), (2, 1));
}

#[tokio::test]
async fn a_half_open_connection_loses_what_the_client_sends_for_good() {
    let world = World::start().await;
    let mut client = world.connect().await;
    client.ask("heard").await.unwrap();
    world.proxy.inject(Fault::HalfOpen(Direction::ToServer));
    client.send("lost").await;
    client.hears_nothing().await;
    world.proxy.heal().await.unwrap();
    client.send("lost as well").await;
    client.hears_nothing().await;
    assert_eq!(world.connect().await.ask("heard again").await.unwrap(), "heard again");
    assert_eq!(world.lines(), ["heard", "heard again"]);
    assert_eq!(world.counts().half_open, 1);
}

#[tokio::test]
async fn a_half_open_connection_loses_what_the_server_sends() {
    let world = World::with(Fault::HalfOpen(Direction::ToClient).times(1)).await;
    let mut client = world.connect().await;
    client.send("carried out").await;
    world.server_gets(1).await;
    client.hears_nothing().await;
    client.send("this too").await;
    world.server_gets(2).await;
    client.hears_nothing().await;
    assert_eq!(world.connect().await.ask("heard").await.unwrap(), "heard");
    assert_eq!(world.counts().half_open, 1);
    world.proxy.reset();
    is_reset(client.line().await);
}

#[tokio::test]
async fn a_request_that_is_cut_unsent_never_reaches_the_server() {
    let world = World::with(Fault::cut(Moment::Unsent, "pay").times(1)).await;
    let mut client = world.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    is_reset(client.ask("pay 1").await);
    assert_eq!(world.connect().await.ask("pay 2").await.unwrap(), "pay 2");
    assert_eq!(world.lines(), ["look", "pay 2"]);
    assert_eq!(world.counts().cuts, 1);
}

#[tokio::test]
async fn a_request_that_is_cut_silently_never_reaches_the_server_and_nobody_is_told() {
    let world = World::with(Fault::cut(Moment::Silently, "pay").times(1)).await;
    let mut client = world.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    client.send("pay 1").await;
    client.hears_nothing().await;
    client.send("look again").await;
    client.hears_nothing().await;
    assert_eq!(world.connect().await.ask("pay 2").await.unwrap(), "pay 2");
    assert_eq!(world.lines(), ["look", "pay 2"]);
    assert_eq!(world.counts().cuts, 1);
}

#[tokio::test]
async fn a_request_that_is_cut_when_sent_is_carried_out() {
    let world = World::with(Fault::cut(Moment::Sent, "pay").times(1)).await;
    let mut client = world.connect().await;
    is_reset(client.ask("pay 1").await);
    world.server_gets(1).await;
    assert_eq!(world.lines(), ["pay 1"]);
    assert_eq!(world.counts().cuts, 1);
}

#[tokio::test]
async fn an_answer_that_is_cut_was_carried_out_before() {
    let world = World::with(Fault::cut(Moment::Answered, "pay").times(1)).await;
    let mut client = world.connect().await;
    assert_eq!(client.ask("look").await.unwrap(), "look");
    is_reset(client.ask("pay 1").await);
    assert_eq!(world.lines(), ["look", "pay 1"]);
    assert_eq!(world.counts().cuts, 1);
    assert_eq!(world.connect().await.ask("pay 2").await.unwrap(), "pay 2");
}

#[tokio::test]
async fn a_cut_hits_the_request_it_was_told_to() {
    let world = World::with(Fault::cut(Moment::Unsent, "").after(2).times(1)).await;
    let mut client = world.connect().await;
    assert_eq!(client.ask("1").await.unwrap(), "1");
    assert_eq!(client.ask("2").await.unwrap(), "2");
    is_reset(client.ask("3").await);
    assert_eq!(world.connect().await.ask("4").await.unwrap(), "4");
    assert_eq!(world.lines(), ["1", "2", "4"]);
}

#[tokio::test]
async fn a_request_is_found_also_where_it_comes_in_two_pieces() {
    let world = World::with(Fault::cut(Moment::Unsent, "secret")).await;
    let mut client = world.connect().await;
    client.send("this is sec").await;
    assert_eq!(client.line().await.unwrap(), "this is sec");
    client.0.write_all(b"another sec").await.unwrap();
    client.hears_nothing().await;
    is_reset(client.ask("ret").await);
    assert_eq!(world.lines().len(), 1);
    assert_eq!(world.counts().cuts, 1);
}

#[tokio::test]
async fn new_connections_are_rejected_as_often_as_told() {
    let world = World::start().await;
    let mut open = world.connect().await;
    open.ask("open").await.unwrap();
    world.proxy.inject(Fault::Reject.times(2));
    for _ in 0..2 {
        is_reset(world.connect().await.line().await);
    }
    assert_eq!(world.connect().await.ask("third").await.unwrap(), "third");
    assert_eq!(open.ask("still").await.unwrap(), "still");
    assert_eq!(world.counts(), Counts { connections: 4, rejected: 2, ..Counts::default() });
}

#[tokio::test]
async fn new_connections_are_refused_until_it_is_healed() {
    let world = World::start().await;
    let mut open = world.connect().await;
    open.ask("open").await.unwrap();
    world.proxy.refuse().await;
    let refused = TcpStream::connect(world.proxy.address()).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(open.ask("still").await.unwrap(), "still");
    world.proxy.heal().await.unwrap();
    assert_eq!(world.connect().await.ask("again").await.unwrap(), "again");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_apart() {
    let nothing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nothing).await.unwrap();
    let mut client = Client(BufReader::new(TcpStream::connect(proxy.address()).await.unwrap()));
    is_reset(client.line().await);
    assert_eq!(proxy.counts(), Counts { connections: 1, unreachable: 1, ..Counts::default() });
}

#[tokio::test]
async fn a_proxy_that_is_dropped_takes_its_connections_along() {
    let world = World::start().await;
    let address = world.proxy.address();
    let mut client = world.connect().await;
    client.ask("open").await.unwrap();
    drop(world);
    is_reset(client.line().await);
    let begun = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(begun.elapsed() < DEADLINE, "it still listens");
        tokio::task::yield_now().await;
    }
}
