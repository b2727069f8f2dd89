//! Tests of the gateway with Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hapax_testkit::servers::{self, RedisKind, RedisServer, RedisServerOptions, RespValue, Trial};
use tokio::time::timeout;

use crate::harness::{Api, ClientResponse, Gateway, free_address, hapax, until};
use crate::torture::assert_one_effect_per_key;

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    vec![
        servers::test("every_key_has_one_effect_with_two_gateways_and_crashes", redis, two_gateways),
        servers::test("a_pause_of_the_server_loses_nothing", redis, paused_for_ten_seconds),
        servers::test("a_restart_of_the_server_loses_nothing", redis, killed_and_restarted),
        servers::test("a_client_does_not_wait_for_a_server_that_is_silent_h30", redis, silent_server),
        servers::test("a_gateway_starts_before_its_server", redis, before_its_server),
        servers::test("an_evicting_server_is_refused", redis, evicting_server),
        servers::test("an_altered_answer_is_never_given_h31", redis, altered_answer),
    ]
}

/// Starts a server that logs every write, so that a crash loses nothing.
async fn start() -> RedisServer {
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_args(&log)).await.unwrap()
}

async fn two_gateways() {
    let directory = tempfile::tempdir().unwrap();
    assert_one_effect_per_key(&start().await.url(), directory.path()).await;
}

async fn before_its_server() {
    let (server, api, directory) = (start().await, Api::start().await, tempfile::tempdir().unwrap());
    server.kill();
    let flags = ["--upstream", &format!("http://{}", api.address), "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), &server.url(), &flags, free_address());
    until("the gateway is not ready", async || {
        gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 503)
    })
    .await;
    let refused = gateway.post("/charges", "before", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"));
    server.restart().await.unwrap();
    until("the gateway is ready", async || {
        gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 200)
    })
    .await;
    let ran = gateway.post("/charges", "before", "{}").await.unwrap();
    assert_eq!((ran.status, effects(&api)["before"]), (http::StatusCode::CREATED, 1));
}

/// The error names the eviction policy and the remedy, but not the password.
async fn evicting_server() {
    let options = RedisServerOptions::new(RedisKind::Redis)
        .with_password("hush-hush")
        .with_args(&["--maxmemory-policy", "allkeys-lru"]);
    let server = RedisServer::start(options).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = hapax();
    gateway.args(["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    gateway.args(["--store", &server.url(), "--data-dir", directory.path().to_str().unwrap()]);
    let output = gateway.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("allkeys-lru") && errors.contains("set maxmemory-policy noeviction"), "{errors}");
    assert!(!errors.contains("hush-hush"), "{errors}");
}

/// One changed byte in the stored answer makes the record unreadable, until the byte is restored.
async fn altered_answer() {
    let (server, api, directory) = (start().await, Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &server.url(), &flags).await;
    let first = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    let RespValue::Array(names) = server.command(&["KEYS", "hx:*"]).await.unwrap() else { panic!("a list of keys") };
    let command = async |words: &[&[u8]]| server.command(words).await.unwrap();
    let mut found = None;
    for name in names {
        let RespValue::Bulk(name) = name else { panic!("a key is bytes") };
        let RespValue::Bulk(value) = command(&[b"GET", &name]).await else { panic!("a value is bytes") };
        if value.ends_with(first.body.as_bytes()) {
            found = Some((name, value));
        }
    }
    let (record, value) = found.expect("the answer is stored");
    let at = value.len() - 1;
    for (byte, is_damaged) in [(value[at] ^ 1, true), (value[at], false)] {
        command(&[b"SETRANGE", &record, at.to_string().as_bytes(), &[byte]]).await;
        // Twice: the first retry must not have changed the record.
        for _ in 0..2 {
            let got = gateway.post("/charges", "payment-17", "{}").await.unwrap();
            if is_damaged {
                assert_eq!((got.status.as_u16(), got.problem()), (500, "record-damaged"));
            } else {
                assert!(got.is_replayed() && got.body == first.body, "{}", got.body);
            }
        }
    }
    assert_eq!(effects(&api)["payment-17"], 1);
}

async fn paused_for_ten_seconds() {
    let server = start().await;
    let (stop, resume) = (async || server.pause().unwrap(), async || server.resume().unwrap());
    outage(&server, Duration::from_secs(10), stop, resume).await;
}

async fn killed_and_restarted() {
    let server = start().await;
    let (kill, restart) = (async || server.kill(), async || server.restart().await.unwrap());
    outage(&server, Duration::from_secs(2), kill, restart).await;
}

/// The server falls silent while a request runs. The lease is longer than the patience of the test.
async fn silent_server() {
    let (server, api, directory) = (start().await, Api::start().await, tempfile::tempdir().unwrap());
    let data = directory.path().to_str().unwrap();
    let flags = ["--lease", "10min", "--record-patience", "300ms", "--data-dir", data];
    let gateway = Gateway::start(api.address, &server.url(), &flags).await;
    let silence = async {
        api.wait_for_requests(1).await;
        server.pause().unwrap();
        api.release_slow();
    };
    let answered = async { tokio::join!(gateway.post("/slow", "the-slow-one", "{}"), silence).0 };
    let first = timeout(Duration::from_secs(60), answered).await.expect("an answer before the lease ends").unwrap();
    assert_eq!((first.status.as_u16(), first.body.as_str()), (201, "answer 1"));
    assert_eq!(first.headers["hapax-recorded"], "pending");
    server.resume().unwrap();
    until("the answer is recorded", async || {
        let got = gateway.post("/slow", "the-slow-one", "{}").await;
        got.is_some_and(|got| got.is_replayed() && got.body == first.body)
    })
    .await;
    assert_eq!(api.seen().len(), 1);
}

/// The number of clients. Each sends requests one after the other, each with a new key.
const CLIENTS: usize = 8;

/// Stops the server during traffic. During the outage no request begins, and the request that runs still gets its
/// response. After the outage every request works again.
async fn outage(server: &RedisServer, length: Duration, stop: impl AsyncFnOnce(), restore: impl AsyncFnOnce()) {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "2s", "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &server.url(), &flags).await;
    let traffic = Traffic::default();

    let script = async {
        until("the slow request runs", async || api.seen().iter().any(|seen| seen.path == "/slow")).await;
        traffic.wait_for(201, 100).await;
        let stopped = Instant::now();
        stop().await;
        traffic.wait_for(503, CLIENTS).await;
        api.release_slow();
        until("the outage has lasted long enough", async || stopped.elapsed() > length).await;
        let (before, restored) = (traffic.count(201), Instant::now());
        restore().await;
        traffic.wait_for(201, before + 1).await;
        println!(
            "{} requests refused; the first success {:?} after the outage",
            traffic.count(503),
            restored.elapsed()
        );
        traffic.wait_for(201, before + 100).await;
        traffic.is_stopped.store(true, Ordering::SeqCst);
    };
    let clients = join_all((0..CLIENTS).map(|client| traffic.send(client, &gateway)));
    let slow = async { gateway.post("/slow", "the-slow-one", "{}").await.unwrap() };
    let ((), responses, slow) = tokio::join!(script, clients, slow);

    let responses: HashMap<String, ClientResponse> = responses.into_iter().flatten().collect();
    assert_responses_fit_effects(&api, &gateway, &responses).await;
    assert_eq!(slow.status, 201, "{}", slow.body);
    let copy = gateway.retry_until_settled("/slow", "the-slow-one", "{}").await;
    assert_eq!((copy.status, copy.body), (slow.status, slow.body), "the answer must be replayed");
}

/// Requests that are sent without a pause, counted by their status.
#[derive(Default)]
struct Traffic {
    is_stopped: AtomicBool,
    created: AtomicUsize,
    unavailable: AtomicUsize,
}

impl Traffic {
    fn counter(&self, status: u16) -> Option<&AtomicUsize> {
        match status {
            201 => Some(&self.created),
            503 => Some(&self.unavailable),
            _ => None,
        }
    }

    fn count(&self, status: u16) -> usize {
        self.counter(status).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    async fn wait_for(&self, status: u16, count: usize) {
        until(&format!("{count} responses with status {status}"), async || self.count(status) >= count).await;
    }

    async fn send(&self, client: usize, gateway: &Gateway) -> Vec<(String, ClientResponse)> {
        let mut responses = Vec::new();
        while !self.is_stopped.load(Ordering::SeqCst) {
            let key = format!("client-{client}-{}", responses.len());
            let got = gateway.post("/charges", &key, "{}").await.expect("the gateway answers");
            if let Some(count) = self.counter(got.status.as_u16()) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            responses.push((key, got));
        }
        responses
    }
}

/// A request ran once if it got 201, and never if it got 503. A retry of a refused request runs.
async fn assert_responses_fit_effects(api: &Api, gateway: &Gateway, responses: &HashMap<String, ClientResponse>) {
    let effects = effects(api);
    for (key, got) in responses {
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
    for key in responses.iter().filter(|(_, got)| got.status == 503).map(|(key, _)| key).take(200) {
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
