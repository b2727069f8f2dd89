//! Tests of the gateway with Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hapax_testkit::servers::{self, RedisKind, RedisServer, RedisServerOptions, Trial};

use crate::harness::{Api, ClientResponse, Gateway, free_address, hapax, until};
use crate::torture::one_effect_a_key;

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    vec![
        servers::test("every_key_has_one_effect_with_two_gateways_and_crashes", redis, two_gateways),
        servers::test("the_server_is_paused_for_ten_seconds", redis, paused_for_ten_seconds),
        servers::test("the_server_is_killed_and_restarted", redis, killed_and_back),
        servers::test("a_gateway_starts_before_its_server", redis, before_its_server),
        servers::test("an_evicting_server_is_refused", redis, one_that_evicts),
        servers::test("the_demo_holds", redis, the_demo_holds),
    ]
}

/// Starts a server that logs every write, so that a crash loses nothing.
async fn start() -> RedisServer {
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_args(&log)).await.unwrap()
}

async fn two_gateways() {
    let directory = tempfile::tempdir().unwrap();
    one_effect_a_key(&start().await.url(), directory.path()).await;
}

async fn before_its_server() {
    let (server, api, directory) = (start().await, Api::start().await, tempfile::tempdir().unwrap());
    server.kill();
    let flags = ["--upstream", &format!("http://{}", api.address), "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), &server.url(), &flags, free_address());
    until("it answers", async || gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 503))
        .await;
    let refused = gateway.post("/charges", "before", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"));
    server.restart().await.unwrap();
    until("it is ready", async || gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 200))
        .await;
    let ran = gateway.post("/charges", "before", "{}").await.unwrap();
    assert_eq!((ran.status, effects(&api)["before"]), (http::StatusCode::CREATED, 1));
}

/// The error names the eviction policy and the remedy, but not the password.
async fn one_that_evicts() {
    let options = RedisServerOptions::new(RedisKind::Redis)
        .with_password("hush-hush")
        .with_args(&["--maxmemory-policy", "allkeys-lru"]);
    let server = RedisServer::start(options).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = hapax();
    gateway.args(["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    gateway.args(["--store", &server.url(), "--data-dir", directory.path().to_str().unwrap()]);
    let output = gateway.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("allkeys-lru") && said.contains("set maxmemory-policy noeviction"), "{said}");
    assert!(!said.contains("hush-hush"), "{said}");
}

async fn the_demo_holds() {
    let server = start().await;
    let flags = ["demo", "--payments", "200", "--crashes", "3", "--seed", "7", "--store"];
    let output = hapax().args(flags).arg(server.url()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("The audit holds"), "{text}");
    assert!(server.command(&["DBSIZE"]).await.unwrap().text().parse::<u32>().unwrap() > 100, "records lie in it");
}

async fn paused_for_ten_seconds() {
    let server = start().await;
    let (stop, resume) = (async || server.pause().unwrap(), async || server.resume().unwrap());
    outage(&server, Duration::from_secs(10), stop, resume).await;
}

async fn killed_and_back() {
    let server = start().await;
    let (kill, restart) = (async || server.kill(), async || server.restart().await.unwrap());
    outage(&server, Duration::from_secs(2), kill, restart).await;
}

/// The number of clients. Each sends requests one after the other, each with a new key.
const CLIENTS: usize = 8;

/// Stops the server during traffic. Meanwhile no request begins, the running one keeps its answer, and afterwards all
/// works again.
async fn outage(server: &RedisServer, lasts: Duration, stop: impl AsyncFnOnce(), back: impl AsyncFnOnce()) {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "2s", "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &server.url(), &flags).await;
    let traffic = Traffic::default();

    let script = async {
        until("the slow request runs", async || api.seen().iter().any(|seen| seen.path == "/slow")).await;
        traffic.has(201, 100).await;
        let stopped = Instant::now();
        stop().await;
        traffic.has(503, CLIENTS).await;
        api.release_slow();
        until("the outage has lasted long enough", async || stopped.elapsed() > lasts).await;
        let (known, returned) = (traffic.count(201), Instant::now());
        back().await;
        traffic.has(201, known + 1).await;
        println!("{} requests refused, service {:?} after the return", traffic.count(503), returned.elapsed());
        traffic.has(201, known + 100).await;
        traffic.over.store(true, Ordering::SeqCst);
    };
    let clients = join_all((0..CLIENTS).map(|client| traffic.send(client, &gateway)));
    let slow = async { gateway.post("/slow", "the-slow-one", "{}").await.unwrap() };
    let ((), told, slow) = tokio::join!(script, clients, slow);

    let told: HashMap<String, ClientResponse> = told.into_iter().flatten().collect();
    judge(&api, &gateway, &told).await;
    assert_eq!(slow.status, 201, "{}", slow.body);
    let copy = gateway.retry_until_settled("/slow", "the-slow-one", "{}").await;
    assert_eq!((copy.status, copy.body), (slow.status, slow.body), "the answer must be replayed");
}

/// Requests that are sent without a pause, counted by their status.
#[derive(Default)]
struct Traffic {
    over: AtomicBool,
    created: AtomicUsize,
    unavailable: AtomicUsize,
}

impl Traffic {
    fn of(&self, status: u16) -> Option<&AtomicUsize> {
        [(201, &self.created), (503, &self.unavailable)]
            .into_iter()
            .find(|(known, _)| *known == status)
            .map(|(_, of)| of)
    }

    fn count(&self, status: u16) -> usize {
        self.of(status).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    async fn has(&self, status: u16, count: usize) {
        until(&format!("{count} answers {status}"), async || self.count(status) >= count).await;
    }

    async fn send(&self, client: usize, gateway: &Gateway) -> Vec<(String, ClientResponse)> {
        let mut told = Vec::new();
        while !self.over.load(Ordering::SeqCst) {
            let key = format!("client-{client}-{}", told.len());
            let got = gateway.post("/charges", &key, "{}").await.expect("the gateway answers");
            if let Some(count) = self.of(got.status.as_u16()) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            told.push((key, got));
        }
        told
    }
}

async fn judge(api: &Api, gateway: &Gateway, told: &HashMap<String, ClientResponse>) {
    let effects = effects(api);
    for (key, got) in told {
        let ran = effects.get(key).copied().unwrap_or(0);
        match got.status.as_u16() {
            201 => assert_eq!(ran, 1, "{key}"),
            503 => {
                assert_eq!((got.problem(), ran), ("store-unavailable", 0), "{key}");
                assert!(got.headers.contains_key("retry-after"), "{key}");
            }
            status => panic!("{key}: {status} {}", got.body),
        }
    }
    for key in told.iter().filter(|(_, got)| got.status == 503).map(|(key, _)| key).take(200) {
        let got = gateway.retry_until_settled("/charges", key, "{}").await;
        assert_eq!(got.status, 201, "a refused request must run now: {key}: {}", got.body);
    }
    assert!(self::effects(api).values().all(|ran| *ran == 1));
}

/// Returns the number of runs of each key.
fn effects(api: &Api) -> HashMap<String, usize> {
    let mut effects = HashMap::new();
    for seen in api.seen() {
        *effects.entry(seen.headers["idempotency-key"].to_str().unwrap().to_owned()).or_default() += 1;
    }
    effects
}
