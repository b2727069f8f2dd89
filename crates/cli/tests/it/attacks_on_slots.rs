//! Attacks from one address that hold connections, streams, memory or running requests. Meanwhile clients of another
//! address get their responses, and the gateway keeps room for them.
//!
//! `docs/performance.md` records a run with HAPAX_ATTACKERS=1000 and a release build under "Under attack"; the test
//! uses fewer attackers. It prints the waiting times of the other clients, beside those behind a bare forwarder, and
//! does not judge them.

use std::any::Any;
use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, StreamExt};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

use crate::attacks::{ATTACKING, GATEWAY, WaitTimes, gateway, percentile, runtime};
use crate::forwarder;
use crate::harness::{Gateway, free_address, sqlite, until};
use crate::http2_clients::{FrameClient, start_large_api};
use crate::tls::{Pki, client_config, tls_acceptor};

const ATTACKERS: usize = 40;
const ATTACKER: [u8; 4] = [127, 0, 0, 1];
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The memory in bytes by which a gateway may grow under attack: that of bodies and answers, and 16 MiB.
const GROWTH: u64 = (16 + 64 + 16) << 20;

/// The requests of the other clients, before and during each attack. Their bodies need the memory for bodies.
const PACE: Duration = Duration::from_millis(4);
const BODY: &[u8] = &[b'b'; 16 << 10];

/// How long an attack may take to begin, after which the other clients are measured.
const BEGIN: Duration = Duration::from_secs(20);

/// Where an attack goes.
#[derive(Clone)]
struct Target {
    public: SocketAddr,
    pki: Arc<Pki>,
}

/// One attacker: attacks, then returns what it holds.
type Attack = fn(Target, usize) -> BoxFuture<'static, Vec<Box<dyn Any + Send>>>;

/// The attacks, each with its store and the number of attackers for every thousand. Replays from a file are copies, and
/// those from memory are not.
const ATTACKS: [(&str, Store, usize, Attack); 5] = [
    ("silent HTTP/2", Store::Memory, 1000, |target, _| silent(target).boxed()),
    ("zero-window replays, 100 a connection", Store::File, 20, |target, _| replays(target).boxed()),
    ("dripping uploads", Store::Memory, 1000, |target, number| drips(target, number).boxed()),
    ("resets with invented credentials, 50 a connection", Store::Memory, 100, |target, number| {
        resets(target, number).boxed()
    }),
    ("body room held", Store::Memory, 25, |target, number| holds_body(target, number).boxed()),
];

#[derive(Clone, Copy)]
enum Store {
    Memory,
    File,
}

fn held(one: impl Any + Send) -> Vec<Box<dyn Any + Send>> {
    vec![Box::new(one)]
}

async fn silent(target: Target) -> Vec<Box<dyn Any + Send>> {
    held(FrameClient::silent(ATTACKER, target.public, &target.pki).await)
}

async fn replays(target: Target) -> Vec<Box<dyn Any + Send>> {
    let Some(mut client) = FrameClient::start(ATTACKER, target.public, &target.pki, 0).await else { return Vec::new() };
    for _ in 0..100 {
        client.try_request("POST", "/large", "large", &[("authorization", "attacker")]).await;
    }
    held(client)
}

fn post(number: usize, length: usize) -> Vec<u8> {
    let head = format!(
        "POST /large HTTP/1.1\r\nhost: a\r\nauthorization: attacker\r\nidempotency-key: upload-{number}\r\n\
         content-length: {length}\r\n\r\n"
    );
    head.into_bytes()
}

/// Sends a byte every 100 ms, until it is dropped.
async fn drips(target: Target, number: usize) -> Vec<Box<dyn Any + Send>> {
    struct Dripping(JoinHandle<()>);
    impl Drop for Dripping {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let Some(mut wire) = target.http1().await else { return Vec::new() };
    let dripping = tokio::spawn(async move {
        let (mut next, mut ticks) = (post(number, 100_000), interval(Duration::from_millis(100)));
        while wire.write_all(&next).await.is_ok() && wire.flush().await.is_ok() {
            next = vec![b'd'];
            ticks.tick().await;
        }
    });
    held(Dripping(dripping))
}

/// Each request has a credential of its own, and is reset at once.
async fn resets(target: Target, number: usize) -> Vec<Box<dyn Any + Send>> {
    let Some(mut client) = FrameClient::start(ATTACKER, target.public, &target.pki, 0).await else { return Vec::new() };
    for turn in 0..50 {
        let credential = format!("invented-{number}-{turn}");
        client.try_request("POST", "/never", "the-key", &[("authorization", &credential)]).await;
        // Read, so that the gateway has accepted the stream before it is reset.
        client.ping().await;
        client.reset_last().await;
    }
    held(client)
}

/// Sends all of a body but its last byte.
async fn holds_body(target: Target, number: usize) -> Vec<Box<dyn Any + Send>> {
    const LENGTH: usize = 1 << 20;
    let Some(mut wire) = target.http1().await else { return Vec::new() };
    let sent = wire.write_all(&[post(number, LENGTH), vec![b'b'; LENGTH - 1]].concat()).await;
    if sent.is_err() || wire.flush().await.is_err() {
        return Vec::new();
    }
    held(wire)
}

impl Target {
    /// None if the connection is closed at once.
    async fn http1(&self) -> Option<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        crate::http2_clients::connect(ATTACKER, self.public, client_config(&self.pki)).await
    }
}

/// The other clients, at another address.
#[derive(Clone)]
struct Others {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    target: SocketAddr,
}

impl Others {
    fn new(target: &Target) -> Self {
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_local_address(Some(OTHER));
        let connector = HttpsConnectorBuilder::new().with_tls_config(client_config(&target.pki)).https_only();
        let client = Client::builder(TokioExecutor::new()).build(connector.enable_http1().wrap_connector(plain));
        Self { client, target: target.public }
    }

    /// Returns the waiting time of a request; None for a missing or wrong response.
    async fn ask(&self, key: &str) -> Option<Duration> {
        let began = Instant::now();
        let request = Request::post(format!("https://{}/short", self.target))
            .header("authorization", "other")
            .header("idempotency-key", key)
            .body(Full::from(BODY))
            .unwrap();
        let response = timeout(BEGIN, self.client.request(request)).await.ok()?.ok()?;
        let status = response.status();
        response.into_body().collect().await.ok()?;
        (status == 200).then(|| began.elapsed())
    }

    /// Sends requests at a steady pace. A slow response does not delay the next request.
    async fn ask_many(&self, name: &str, count: usize) -> WaitTimes {
        let pace = stream::unfold(interval(PACE), async |mut ticks| Some((ticks.tick().await, ticks)));
        let asked = pace.take(count).enumerate().map(|(number, _)| {
            let key = format!("{name}-{number}");
            async move { self.ask(&key).await }
        });
        asked.buffer_unordered(count).collect().await
    }
}

/// What an attack does to the other clients, and what it holds.
#[derive(Default)]
struct Seen {
    calm: WaitTimes,
    attacked: WaitTimes,
    connections: u64,
    in_flight: u64,
    grown: u64,
}

impl Seen {
    fn lost(&self) -> usize {
        self.calm.iter().chain(&self.attacked).filter(|wait| wait.is_none()).count()
    }

    /// Only the gateway has figures of its own; the forwarder runs in this process.
    fn row(&self, has_own_figures: bool) -> String {
        let [calm, attacked] = [&self.calm, &self.attacked].map(|waits| percentile(waits, 1));
        let (longest, lost) = (percentile(&self.attacked, 0), self.lost());
        let Self { connections, in_flight, grown, .. } = self;
        let own = format!("{connections} | {in_flight} | {}", grown >> 20);
        let own = if has_own_figures { own.as_str() } else { "– | – | –" };
        format!("{own} | {lost} | {calm:.1?} | {attacked:.1?} | {longest:.1?}")
    }
}

/// The gauge with this name.
async fn gauge(gateway: &Gateway, name: &str) -> u64 {
    let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    value.map_or(0, |value| format!("{value:.0}").parse().unwrap_or_default())
}

/// Attacks a gateway, or a forwarder if there is none. The other clients ask before the attack, and from its start
/// until it holds all that it can get.
async fn run(attack: Attack, attackers: usize, target: &Target, gateway: Option<&Gateway>, count: usize) -> Seen {
    let others = Others::new(target);
    assert!(others.ask("first").await.is_some(), "the other clients must be served");
    others.ask_many("warm", count).await;
    let mut seen = Seen { calm: others.ask_many("calm", count).await, ..Seen::default() };
    let (base, has_begun) = (gateway.map_or(0, Gateway::resident), Arc::new(AtomicBool::new(false)));
    let (began, attacked) = (Arc::clone(&has_begun), target.clone());
    let attacking = std::thread::spawn(move || {
        let runtime = runtime(ATTACKING);
        let attackers = join_all((0..attackers).map(|number| runtime.spawn(attack(attacked.clone(), number))));
        let held = runtime.block_on(async { timeout(BEGIN, attackers).await.ok() });
        began.store(true, Ordering::SeqCst);
        (runtime, held)
    });
    let mut rounds_after = 0;
    for round in 0.. {
        rounds_after += usize::from(has_begun.load(Ordering::SeqCst));
        seen.attacked.extend(others.ask_many(&format!("attacked-{round}"), count / 5).await);
        if let Some(gateway) = gateway {
            seen.grown = seen.grown.max(gateway.resident().saturating_sub(base));
            seen.connections = seen.connections.max(gauge(gateway, "hapax_gateway_connections").await);
            seen.in_flight = seen.in_flight.max(gauge(gateway, "hapax_in_flight").await);
        }
        if rounds_after > 5 {
            break;
        }
    }
    let (runtime, held) = attacking.join().unwrap();
    drop(held);
    runtime.shutdown_background();
    seen
}

#[test]
fn other_addresses_are_served_while_one_address_holds_all_that_it_can_get() {
    let recorded: Option<usize> = env::var("HAPAX_ATTACKERS").ok().map(|attackers| attackers.parse().unwrap());
    let (thousandths, count) = (recorded.unwrap_or(ATTACKERS), if recorded.is_some() { 500 } else { 50 });
    let (serving, forwarding, others) = (runtime(0), runtime(GATEWAY), runtime(0));
    let (api, pki) = (serving.block_on(start_large_api()), Arc::new(Pki::new()));
    println!(
        "| attack | of | connections | in flight | grown by, MiB | lost by others | p99 calm | attacked | longest |"
    );
    for (name, store, of_thousand, attack) in ATTACKS {
        let directory = tempfile::tempdir().unwrap();
        let store = match store {
            Store::Memory => "memory:".to_owned(),
            Store::File => sqlite(directory.path()),
        };
        let attackers = (thousandths * of_thousand / 1000).max(2);
        let (upstream, cert, key) = (format!("http://{}", api.address), pki.path("cert"), pki.path("key"));
        let flags = ["--upstream", &upstream, "--tls-cert", &cert, "--tls-key", &key];
        let gateway = others.block_on(Gateway::run(gateway(), &store, &flags, free_address()));
        let target = Target { public: gateway.public, pki: Arc::clone(&pki) };
        let seen = others.block_on(run(attack, attackers, &target, Some(&gateway), count));
        println!("| {name} | {attackers} | {} |", seen.row(true));
        if recorded.is_some() {
            let listener = forwarding.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let target = Target { public: listener.local_addr().unwrap(), pki: Arc::clone(&pki) };
            let acceptor = tls_acceptor(&pki, &["h2", "http/1.1"]);
            let serving = forwarding.spawn(forwarder::serve_tls(listener, api.address, acceptor));
            let forwarded = others.block_on(run(attack, attackers, &target, None, count));
            println!("| {name}, a forwarder | {attackers} | {} |", forwarded.row(false));
            serving.abort();
        }
        assert_eq!(seen.lost(), 0, "{name}: a request of another address got no response");
        assert!(seen.grown <= GROWTH, "{name}: grown by {} MiB", seen.grown >> 20);
        others.block_on(until("the gateway still answers", async || {
            gateway.get(gateway.admin, "/healthz").await.is_some_and(|got| got.status == 200)
        }));
    }
}
