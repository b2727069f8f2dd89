//! The gateway with a store that fails and recovers.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use hapax::http::TenantPart;
use hapax::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax::store::{Chunk, Finding, Inserted, Memory, Scan, Severity, Swapped};
use hapax::{Error, ErrorKind, Identity, Inspect, RecordKey, Result, Store};
use http::header::AUTHORIZATION;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::Flags;
use crate::config::tests::GatewayFlags;
use crate::serve::history::MetricHistory;
use crate::serve::shutdown::Shutdown;
use crate::serve::signals::StopSignals;

/// How the store responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreState {
    Works,
    /// Every call fails, as with a store that cannot be reached.
    Down,
    /// No call returns.
    Silent,
}

/// A store in memory that can fail.
#[derive(Debug)]
struct FailingStore {
    memory: Arc<Memory>,
    state: Mutex<StoreState>,
    findings: Mutex<Vec<Finding>>,
}

impl FailingStore {
    fn new(state: StoreState) -> Arc<Self> {
        let memory = Arc::new(Memory::new());
        Arc::new(Self { memory, state: Mutex::new(state), findings: Mutex::default() })
    }

    fn set(&self, state: StoreState) {
        *self.state.lock().unwrap() = state;
    }

    fn add_finding(&self, severity: Severity, message: &str) {
        self.findings.lock().unwrap().push(Finding { severity, message: message.into() });
    }

    async fn fail_if_down(&self) -> Result<()> {
        let state = *self.state.lock().unwrap();
        match state {
            StoreState::Works => Ok(()),
            StoreState::Down => Err(Error::new(ErrorKind::NotApplied, "the connection was refused")),
            StoreState::Silent => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Store for FailingStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.fail_if_down().await?;
        self.memory.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.fail_if_down().await?;
        self.memory.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.fail_if_down().await?;
        self.memory.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.fail_if_down().await?;
        self.memory.read(rk).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.fail_if_down().await?;
        self.memory.swap(rk, seen, next).await
    }
}

#[async_trait]
impl Inspect for FailingStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.fail_if_down().await?;
        self.memory.sweep(limit).await
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        self.memory.scan(ask).await
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        self.memory.purge(rk, seen).await
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.fail_if_down().await?;
        Ok(self.findings.lock().unwrap().clone())
    }
}

fn frame(config: &Config) -> ProcessFrame {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    ProcessFrame {
        stop: StopSignals::default(),
        shutdown: Arc::new(Shutdown::new(config.drain_delay, config.drain)),
        history: MetricHistory::start(metrics.clone()),
        metrics,
        admin: config.admin.clone(),
        certificate: None,
    }
}

/// Starts an API that responds "ok" and counts its requests.
async fn api() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, count)
}

/// A gateway in this process.
struct RunningGateway {
    public: SocketAddr,
    admin: SocketAddr,
    /// How many requests the API has received.
    runs: Arc<AtomicUsize>,
}

fn opened(store: &Arc<FailingStore>) -> OpenedGateway {
    let store = OpenedStore { store: Arc::clone(store) as _, inspect: Arc::clone(store) as _ };
    OpenedGateway { trust: tls::unused_config().unwrap(), store, answers: None }
}

/// A free address below the range from which outgoing connections take their ports: until the gateway listens there,
/// any connection of any process could get it.
fn free_address() -> SocketAddr {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let start = usize::try_from(std::process::id()).unwrap() * 97;
    loop {
        let offset = (start + NEXT.fetch_add(1, Ordering::SeqCst)) % 8_000;
        let port = u16::try_from(12_000 + offset).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return SocketAddr::from(([127, 0, 0, 1], port));
        }
    }
}

const OFTEN: CheckIntervals = CheckIntervals { retry: Duration::from_millis(5), check: Duration::from_millis(20) };

impl RunningGateway {
    /// Starts a gateway over this store, and an API for it. Returns once both listeners accept connections.
    async fn start(store: &Arc<FailingStore>, secret: Option<Identity>) -> Self {
        let ((upstream, runs), public, admin) = (api().await, free_address(), free_address());
        let config = config(upstream, public, admin, secret);
        let (opened, frame) = (opened(store), frame(&config));
        let serving = tokio::spawn(async move { serve(&config, opened, frame, OFTEN).await.map_err(drop) });
        let gateway = Self { public, admin, runs };
        let listens = async || {
            assert!(!serving.is_finished(), "it has ended");
            is_listened_at(public).await && is_listened_at(admin).await
        };
        gateway.wait_for("it listens", listens).await;
        gateway
    }

    /// Polls a condition. The limit of 60 s only turns a hang into a failure.
    async fn wait_for(&self, description: &str, mut holds: impl AsyncFnMut() -> bool) {
        let started_at = Instant::now();
        while !holds().await {
            assert!(started_at.elapsed() < Duration::from_secs(60), "timed out: {description}");
            hapax_testkit::pause().await;
        }
    }

    async fn post(&self, path: &str, key: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nidempotency-key: {key}\r\ncontent-length: 0");
        exchange(self.public, &head).await
    }

    async fn readiness(&self) -> String {
        exchange(self.admin, "GET /readyz HTTP/1.1").await
    }

    async fn wait_until_ready(&self) {
        self.wait_for("it is ready", async || self.readiness().await.starts_with("HTTP/1.1 200")).await;
    }

    /// Waits until the gateway is not ready for this reason.
    async fn wait_until_not_ready(&self, why: &str) {
        self.wait_for(why, async || {
            let response = self.readiness().await;
            response.starts_with("HTTP/1.1 503") && response.contains(why)
        })
        .await;
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn config(upstream: SocketAddr, public: SocketAddr, admin: SocketAddr, secret: Option<Identity>) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[gateway]\nupstream = 'http://{upstream}'\nlisten = '{public}'\nadmin = '{admin}'\ntenant = 'none'\n\
         [store]\nurl = 'memory:'\ntimeout = '300ms'\n\
         [[route]]\npath = '/repeatable'\nmethod = 'POST'\nwhen-store-down = 'pass'\n"
    );
    std::fs::write(file.path(), text).unwrap();
    let flags = Flags::<GatewayFlags> { config: Some(file.path().to_owned()), ..Flags::default() };
    let mut config = Config::load(&flags).unwrap();
    config.has_secret = secret.is_some();
    config.identity = secret.unwrap_or_default();
    config
}

/// Whether a server accepts connections at this address. While none listens, the system may give that very port to the
/// client, and the client connects to itself.
async fn is_listened_at(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != address))
}

/// Sends this head on a new connection and returns the response.
async fn exchange(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_without_its_store_and_recovers_h28() {
    for (state, why) in
        [(StoreState::Down, "the connection was refused"), (StoreState::Silent, "the store does not reply")]
    {
        let store = FailingStore::new(state);
        let gateway = RunningGateway::start(&store, None).await;
        gateway.wait_until_not_ready(why).await;
        assert!(exchange(gateway.admin, "GET /healthz HTTP/1.1").await.starts_with("HTTP/1.1 200"), "it must be alive");
        let refused = gateway.post("/charges", "k").await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("#store-unavailable"), "{refused}");
        assert!(refused.contains("retry-after: "), "{refused}");
        assert_eq!(gateway.runs(), 0);
        let passed = gateway.post("/repeatable", "k").await;
        assert!(passed.starts_with("HTTP/1.1 201") && passed.contains("hapax-unrecorded: true"), "{passed}");
        assert!(exchange(gateway.public, "GET /charges HTTP/1.1").await.starts_with("HTTP/1.1 201"));
        store.set(StoreState::Works);
        gateway.wait_until_ready().await;
        for replayed in [false, true] {
            let answer = gateway.post("/charges", "k").await;
            assert!(
                answer.starts_with("HTTP/1.1 201") && answer.contains("idempotent-replayed") == replayed,
                "{answer}"
            );
        }
        // The one that passed, the GET and the first of the two copies.
        assert_eq!(gateway.runs(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_store_prevents_the_start() {
    let store = FailingStore::new(StoreState::Works);
    store.add_finding(Severity::Warn, "it forgets at a power failure");
    store.add_finding(Severity::Refuse, "it evicts records; set noeviction");
    let config = config(free_address(), free_address(), free_address(), None);
    let served = serve(&config, opened(&store), frame(&config), OFTEN).await;
    let refusal = format!("{:?}", served.expect_err("it must not start"));
    assert!(refusal.contains("it evicts records; set noeviction"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_store_is_not_used_after_it_comes_back() {
    let store = FailingStore::new(StoreState::Down);
    let gateway = RunningGateway::start(&store, None).await;
    store.add_finding(Severity::Refuse, "it evicts records; set noeviction");
    store.set(StoreState::Works);
    gateway.wait_until_not_ready("it evicts records").await;
    assert!(gateway.post("/charges", "k").await.contains("#store-unavailable"));
    assert_eq!(gateway.runs(), 0);
    store.findings.lock().unwrap().clear();
    gateway.wait_until_ready().await;
    assert!(gateway.post("/charges", "k").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_detected_when_the_store_comes_back() {
    let store = FailingStore::new(StoreState::Works);
    let first = RunningGateway::start(&store, Some(Identity::keyed([1; 32]))).await;
    first.wait_until_ready().await;
    store.set(StoreState::Down);
    let (same, other) = (Identity::keyed([1; 32]), Identity::keyed([2; 32]));
    let (same, other) =
        (RunningGateway::start(&store, Some(same)).await, RunningGateway::start(&store, Some(other)).await);
    let none = RunningGateway::start(&store, None).await;
    store.set(StoreState::Works);
    same.wait_until_ready().await;
    other.wait_until_not_ready("has another secret").await;
    none.wait_until_not_ready("has a secret; name its file").await;
    for wrong in [other, none] {
        assert!(wrong.post("/charges", "k").await.contains("#store-unavailable"));
        assert_eq!(wrong.runs(), 0);
    }
    assert!(same.post("/charges", "k").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_becomes_ready_again_without_a_request() {
    let store = FailingStore::new(StoreState::Works);
    let gateway = RunningGateway::start(&store, None).await;
    gateway.wait_until_ready().await;
    store.set(StoreState::Silent);
    gateway.wait_until_not_ready("the store does not reply").await;
    store.set(StoreState::Down);
    // Enough failures to open the breaker, which then refuses begins until a trial call succeeds.
    for number in 0..6 {
        assert!(gateway.post("/charges", &format!("k{number}")).await.contains("#store-unavailable"));
    }
    gateway.wait_until_not_ready("the connection was refused").await;
    store.set(StoreState::Works);
    // No request is sent in the meantime, so the trial calls alone must notice that the store is back.
    gateway.wait_until_ready().await;
    assert!(gateway.post("/charges", "k0").await.starts_with("HTTP/1.1 201"));
    store.add_finding(Severity::Refuse, "it evicts records; set noeviction");
    gateway.wait_until_not_ready("it evicts records").await;
    assert!(gateway.post("/charges", "k1").await.starts_with("HTTP/1.1 201"), "a running gateway must keep working");
}

#[test]
fn the_tenant_rule_names_the_field_of_the_tenant() {
    let account = HeaderName::from_static("x-account");
    assert_eq!(tenant(&Tenant::Authorization), Some(AUTHORIZATION));
    assert_eq!(tenant(&Tenant::Header(account.clone())), Some(account.clone()));
    assert_eq!(tenant(&Tenant::None), None);
    let parts = vec![TenantPart::OptionalHeader(account), TenantPart::Authorization];
    assert_eq!(tenant(&Tenant::Parts(parts)), Some(AUTHORIZATION), "the first that is always there");
}
