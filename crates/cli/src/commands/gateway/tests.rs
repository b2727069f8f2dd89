//! The gateway in front of a store that comes and goes.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use hapax::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax::store::{Finding, Inserted, Memory, Severity, Swapped};
use hapax::{Error, ErrorKind, Identity, Inspect, RecordKey, Result, Store};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// How a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    /// It answers errors, as one does that cannot be reached.
    Down,
    /// It does not answer.
    Silent,
}

/// A store in memory that can be away.
#[derive(Debug)]
struct Moody {
    memory: Arc<Memory>,
    mood: Mutex<Mood>,
    findings: Mutex<Vec<Finding>>,
}

impl Moody {
    fn new(mood: Mood) -> Arc<Self> {
        let memory = Arc::new(Memory::new());
        Arc::new(Self { memory, mood: Mutex::new(mood), findings: Mutex::default() })
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn finds(&self, severity: Severity, message: &str) {
        self.findings.lock().unwrap().push(Finding { severity, message: message.into() });
    }

    async fn up(&self) -> Result<()> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well => Ok(()),
            Mood::Down => Err(Error::new(ErrorKind::NotApplied, "the connection was refused")),
            Mood::Silent => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Store for Moody {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.up().await?;
        self.memory.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.up().await?;
        self.memory.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.up().await?;
        self.memory.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.up().await?;
        self.memory.read(rk).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.up().await?;
        self.memory.swap(rk, seen, next).await
    }
}

#[async_trait]
impl Inspect for Moody {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.up().await?;
        self.memory.sweep(limit).await
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.up().await?;
        Ok(self.findings.lock().unwrap().clone())
    }
}

/// An API that says "ok", and counts how often.
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
struct Served {
    public: SocketAddr,
    admin: SocketAddr,
    runs: Arc<AtomicUsize>,
}

fn opened(store: &Arc<Moody>) -> OpenedStore {
    OpenedStore { store: Arc::clone(store) as _, inspect: Arc::clone(store) as _ }
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

const OFTEN: CheckIntervals = CheckIntervals { retry: Duration::from_millis(5), check: Duration::from_millis(20) };

impl Served {
    async fn over(store: &Arc<Moody>, secret: Option<Identity>) -> Self {
        let ((upstream, runs), public, admin) = (api().await, free_address().await, free_address().await);
        let config = config(upstream, public, admin, secret);
        let opened = opened(store);
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        tokio::spawn(async move { serve(&config, opened, metrics, OFTEN, std::future::pending()).await });
        let served = Self { public, admin, runs };
        served.until("it listens", async || is_listened_at(public).await && is_listened_at(admin).await).await;
        served
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !holds().await {
            assert!(began.elapsed() < Duration::from_secs(60), "in vain: {what}");
            tokio::task::yield_now().await;
        }
    }

    async fn post(&self, path: &str, key: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nidempotency-key: {key}\r\ncontent-length: 0");
        said(self.public, &head).await
    }

    async fn readiness(&self) -> String {
        said(self.admin, "GET /readyz HTTP/1.1").await
    }

    async fn is_ready(&self) {
        self.until("it is ready", async || self.readiness().await.starts_with("HTTP/1.1 200")).await;
    }

    /// Waits until it is not ready for this reason.
    async fn is_hindered(&self, why: &str) {
        self.until(why, async || {
            let said = self.readiness().await;
            said.starts_with("HTTP/1.1 503") && said.contains(why)
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
    let flags = Flags { config: Some(file.path().to_owned()), ..Flags::default() };
    let mut config = Config::load(&flags).unwrap();
    config.has_secret = secret.is_some();
    config.identity = secret.unwrap_or_default();
    config
}

/// Nobody may be there yet, and a connection to a free port may have got that very port for its own end.
async fn is_listened_at(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != address))
}

/// What is answered to this head, on a connection of its own.
async fn said(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_it_starts_answers_by_route_and_goes_on_by_itself_h28() {
    for (mood, why) in [(Mood::Down, "the connection was refused"), (Mood::Silent, "the store does not reply")] {
        let store = Moody::new(mood);
        let gateway = Served::over(&store, None).await;
        gateway.is_hindered(why).await;
        assert!(said(gateway.admin, "GET /healthz HTTP/1.1").await.starts_with("HTTP/1.1 200"), "it lives");
        let refused = gateway.post("/charges", "k").await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("#store-unavailable"), "{refused}");
        assert!(refused.contains("retry-after: "), "{refused}");
        assert_eq!(gateway.runs(), 0);
        let passed = gateway.post("/repeatable", "k").await;
        assert!(passed.starts_with("HTTP/1.1 201") && passed.contains("hapax-unrecorded: true"), "{passed}");
        assert!(said(gateway.public, "GET /charges HTTP/1.1").await.starts_with("HTTP/1.1 201"));
        store.is(Mood::Well);
        gateway.is_ready().await;
        for replayed in [false, true] {
            let got = gateway.post("/charges", "k").await;
            assert!(got.starts_with("HTTP/1.1 201") && got.contains("idempotent-replayed") == replayed, "{got}");
        }
        assert_eq!(gateway.runs(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_must_not_be_used_is_a_refusal_to_start() {
    let store = Moody::new(Mood::Well);
    store.finds(Severity::Warn, "it forgets at a power failure");
    store.finds(Severity::Refuse, "it evicts records; set noeviction");
    let config = config(free_address().await, free_address().await, free_address().await, None);
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let served = serve(&config, opened(&store), metrics, OFTEN, std::future::ready(())).await;
    let refusal = format!("{:?}", served.expect_err("it must not start"));
    assert!(refusal.contains("it evicts records; set noeviction"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_back_and_must_not_be_used_is_not() {
    let store = Moody::new(Mood::Down);
    let gateway = Served::over(&store, None).await;
    store.finds(Severity::Refuse, "it evicts records; set noeviction");
    store.is(Mood::Well);
    gateway.is_hindered("it evicts records").await;
    assert!(gateway.post("/charges", "k").await.contains("#store-unavailable"));
    assert_eq!(gateway.runs(), 0);
    store.findings.lock().unwrap().clear();
    gateway.is_ready().await;
    assert!(gateway.post("/charges", "k").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_secret_than_the_first_is_seen_when_the_store_comes_back() {
    let store = Moody::new(Mood::Well);
    let first = Served::over(&store, Some(Identity::keyed([1; 32]))).await;
    first.is_ready().await;
    store.is(Mood::Down);
    let (same, other) = (Identity::keyed([1; 32]), Identity::keyed([2; 32]));
    let (same, other) = (Served::over(&store, Some(same)).await, Served::over(&store, Some(other)).await);
    let none = Served::over(&store, None).await;
    store.is(Mood::Well);
    same.is_ready().await;
    other.is_hindered("has another secret").await;
    none.is_hindered("has a secret; name its file").await;
    for wrong in [other, none] {
        assert!(wrong.post("/charges", "k").await.contains("#store-unavailable"));
        assert_eq!(wrong.runs(), 0);
    }
    assert!(same.post("/charges", "k").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_again_without_a_request_once_the_store_is_back() {
    let store = Moody::new(Mood::Well);
    let gateway = Served::over(&store, None).await;
    gateway.is_ready().await;
    store.is(Mood::Silent);
    gateway.is_hindered("the store does not reply").await;
    store.is(Mood::Down);
    for number in 0..6 {
        assert!(gateway.post("/charges", &format!("k{number}")).await.contains("#store-unavailable"));
    }
    gateway.is_hindered("the connection was refused").await;
    store.is(Mood::Well);
    // Nobody sends a request meanwhile: those who ask whether it is ready are why.
    gateway.is_ready().await;
    assert!(gateway.post("/charges", "k0").await.starts_with("HTTP/1.1 201"));
    store.finds(Severity::Refuse, "it evicts records; set noeviction");
    gateway.is_hindered("it evicts records").await;
    assert!(gateway.post("/charges", "k1").await.starts_with("HTTP/1.1 201"), "a process that runs goes on");
}

#[test]
fn callers_are_told_apart_by_the_field_that_names_the_tenant() {
    let account = HeaderName::from_static("x-account");
    assert_eq!(tenant(&Tenant::Authorization), Some(AUTHORIZATION));
    assert_eq!(tenant(&Tenant::Header(account.clone())), Some(account));
    assert_eq!(tenant(&Tenant::None), None);
}
