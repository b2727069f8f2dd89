//! Lists of records: the first page among a million records beside the first among a thousand, and the latency of
//! requests while a client reads the whole list.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use hapax_core::Store;
use hapax_core::runtime::Tokio;
use hapax_stores::{Redis, Sqlite, SqliteSettings};
use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::server_process::{ServerProcess, free_address};
use crate::subjects::{FreshCalls, full_cycle_with};

/// The records of the small store.
const FEW: usize = 1_000;
const IN_FLIGHT: usize = 512;
const ANSWER_BYTES: usize = 256;
/// The first pages of one batch.
const PAGES: usize = 50;
/// The entries of a page, as `hapax keys list` asks for them.
const PAGE: usize = 500;
/// A payment every 4 ms: far from the limit of the machine, so that the latency is that of a request.
const PAUSE: Duration = Duration::from_millis(4);
const REQUESTS: u32 = 2_000;

/// The subjects on SQLite and Redis among this many records.
pub(crate) fn among(many: usize) -> anyhow::Result<Vec<Subject>> {
    let bench = Rc::new(KeysBench::start()?);
    let redis = [(); 2].map(|()| bench.runtime.block_on(RedisServer::start(redis_options())));
    let [few, all] = redis;
    let (few, all) = (few?, all?);
    bench.runtime.block_on(async {
        fill(&Redis::with(&few.url().parse()?, Arc::new(Tokio::current()))?, FEW).await?;
        fill(&Redis::with(&all.url().parse()?, Arc::new(Tokio::current()))?, many).await
    })?;
    let redis = [bench.gateway(few.url())?, bench.gateway(all.url())?].map(Rc::new);
    let sqlite = [bench.sqlite("few", FEW)?, bench.sqlite("many", many)?].map(Rc::new);
    bench.redis.borrow_mut().extend([few, all]);
    let [redis_few, redis_many] = redis;
    let [sqlite_few, sqlite_many] = sqlite;
    Ok(vec![
        first_page("keys list, first page, SQLite", &bench, &sqlite_few, &sqlite_many),
        first_page("keys list, first page, Redis", &bench, &redis_few, &redis_many),
        beside_a_scan("gateway during a full scan, SQLite", &bench, &sqlite_many),
        beside_a_scan("gateway during a full scan, Redis", &bench, &redis_many),
    ])
}

fn redis_options() -> RedisServerOptions {
    RedisServerOptions::new(RedisKind::Redis).with_system_clock()
}

type LoadClient = Client<HttpConnector, Full<Bytes>>;

/// What all subjects share. It lives as long as they do.
struct KeysBench {
    runtime: Runtime,
    folder: TempDir,
    api: ServerProcess,
    client: LoadClient,
    redis: RefCell<Vec<RedisServer>>,
    /// The number of the next key.
    next: RefCell<u64>,
}

/// A gateway, and its admin address.
struct MeasuredGateway {
    process: ServerProcess,
    admin: SocketAddr,
}

impl KeysBench {
    fn start() -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let client = new_client();
        let api = ServerProcess::start("api", |command, address| {
            command.arg("api").arg(address.to_string());
            Ok(())
        })?;
        let (redis, next) = (RefCell::default(), RefCell::default());
        Ok(Self { runtime, folder: tempfile::tempdir()?, api, client, redis, next })
    }

    fn sqlite(&self, name: &str, count: usize) -> anyhow::Result<MeasuredGateway> {
        let path = self.folder.path().join(name);
        self.runtime.block_on(async {
            fill(&Sqlite::with(&path, Arc::new(Tokio::current()), SqliteSettings::default())?, count).await
        })?;
        self.gateway(format!("sqlite://{}", path.display()))
    }

    fn gateway(&self, store: String) -> anyhow::Result<MeasuredGateway> {
        let (upstream, admin) = (format!("http://{}", self.api.address), free_address()?);
        let process = ServerProcess::start("../hapax", move |command, address| {
            command.args(["gateway", "--upstream", &upstream, "--store", &store, "--listen", &address.to_string()]);
            command.args(["--admin", &admin.to_string()]).env("HAPAX_LOG", "warn");
            Ok(())
        })?;
        Ok(MeasuredGateway { process, admin })
    }

    /// Sends a payment every 4 ms, whether the one before it was answered or not. Returns the 99th percentile of the
    /// time from when it was due to its answer.
    async fn p99_of_payments(&self, public: SocketAddr) -> anyhow::Result<Duration> {
        let (begun, mut answers) = (tokio::time::Instant::now(), JoinSet::new());
        for number in 0..REQUESTS {
            let due = begun + PAUSE * number;
            tokio::time::sleep_until(due).await;
            let sent = send(&self.client, self.payment(public)?);
            answers.spawn(async move { sent.await.map(|_| due.elapsed()) });
        }
        let mut times = Vec::new();
        while let Some(time) = answers.join_next().await {
            times.push(time??);
        }
        times.sort_unstable();
        Ok(times[times.len() * 99 / 100])
    }

    fn payment(&self, public: SocketAddr) -> anyhow::Result<Request<Full<Bytes>>> {
        *self.next.borrow_mut() += 1;
        let key = format!("{}-{}", std::process::id(), self.next.borrow());
        let request = Request::post(format!("http://{public}/charges")).header("authorization", "Bearer bench");
        let request = request.header("content-type", "application/json").header("idempotency-key", key);
        Ok(request.body(Full::from("{\"amount\":500,\"currency\":\"eur\"}"))?)
    }
}

fn new_client() -> LoadClient {
    Client::builder(TokioExecutor::new()).build_http()
}

fn send(
    client: &LoadClient,
    request: Request<Full<Bytes>>,
) -> impl Future<Output = anyhow::Result<Bytes>> + Send + 'static {
    let sent = client.request(request);
    async move {
        let response = sent.await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}

/// Reads a page of the list. Returns how many records it has, and the cursor of the next one.
async fn page(
    client: &LoadClient,
    admin: SocketAddr,
    cursor: Option<String>,
) -> anyhow::Result<(usize, Option<String>)> {
    let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    let uri = format!("http://{admin}/api/v1/records?limit={PAGE}{cursor}");
    let page = send(client, Request::get(uri).body(Full::default())?).await?;
    let page: Value = serde_json::from_slice(&page)?;
    let count = page["records"].as_array().context("a page has no records")?.len();
    Ok((count, page["next"].as_str().map(str::to_owned)))
}

/// Reads the whole list, again and again, until `is_over`. Returns the number of records that it has seen. It has a
/// thread and a client of its own, because payments that wait for a page to be parsed would look slow.
fn scan_until(admin: SocketAddr, is_over: &AtomicBool) -> anyhow::Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, mut cursor, mut seen) = (new_client(), None, 0);
        while !is_over.load(Ordering::Relaxed) {
            let (count, next) = page(&client, admin, cursor).await?;
            seen += count;
            cursor = next;
        }
        Ok(seen)
    })
}

/// Begins and completes new keys.
async fn fill(store: &dyn Store, count: usize) -> anyhow::Result<()> {
    let (mut calls, answer) = (FreshCalls::new(), Bytes::from(vec![b'a'; ANSWER_BYTES]));
    let mut left = count;
    while left > 0 {
        let batch = left.min(100_000);
        let cycles = calls.take(batch).into_iter().map(|call| full_cycle_with(store, call, answer.clone()));
        stream::iter(cycles).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        left -= batch;
    }
    Ok(())
}

fn first_page(
    name: &'static str,
    bench: &Rc<KeysBench>,
    few: &Rc<MeasuredGateway>,
    many: &Rc<MeasuredGateway>,
) -> Subject {
    Subject {
        name,
        what: "the first 500 of all records",
        run: first_pages(bench, many),
        limit: Some(Limit {
            what: "the first 500 of 1,000 records",
            run: first_pages(bench, few),
            at_least: Some(0.5),
        }),
    }
}

fn first_pages(bench: &Rc<KeysBench>, gateway: &Rc<MeasuredGateway>) -> MeasuredBatch {
    let (bench, gateway) = (Rc::clone(bench), Rc::clone(gateway));
    Box::new(move || {
        let begun = Instant::now();
        bench.runtime.block_on(async {
            for _ in 0..PAGES {
                let (count, _) = page(&bench.client, gateway.admin, None).await?;
                ensure!(count >= PAGE, "the first page has {count} records");
            }
            anyhow::Ok(())
        })?;
        let took = begun.elapsed() / PAGES as u32;
        Ok(BatchResult { rate: 1.0 / took.as_secs_f64(), note: format!("{:.2} ms", took.as_secs_f64() * 1e3) })
    })
}

/// The rate is that of requests which each take the 99th percentile.
fn beside_a_scan(name: &'static str, bench: &Rc<KeysBench>, gateway: &Rc<MeasuredGateway>) -> Subject {
    Subject {
        name,
        what: "1 divided by the 99th percentile of a POST with a new key, 250 a second, while a client reads all pages",
        run: payments(bench, gateway, true),
        limit: Some(Limit {
            what: "the same without the scan",
            run: payments(bench, gateway, false),
            at_least: Some(0.67),
        }),
    }
}

fn payments(bench: &Rc<KeysBench>, gateway: &Rc<MeasuredGateway>, is_scanned: bool) -> MeasuredBatch {
    let (bench, gateway) = (Rc::clone(bench), Rc::clone(gateway));
    Box::new(move || {
        let (is_over, admin) = (AtomicBool::new(false), gateway.admin);
        let (p99, seen) = thread::scope(|scope| {
            let scan = is_scanned.then(|| scope.spawn(|| scan_until(admin, &is_over)));
            let p99 = bench.runtime.block_on(bench.p99_of_payments(gateway.process.address));
            is_over.store(true, Ordering::Relaxed);
            let seen = scan.map(|scan| scan.join().map_err(|_| anyhow!("the scan panicked"))?).transpose();
            anyhow::Ok((p99?, seen?))
        })?;
        let scanned = seen.map(|seen| format!(", {seen} records listed")).unwrap_or_default();
        let note = format!("p99 {:.2} ms{scanned}", p99.as_secs_f64() * 1e3);
        Ok(BatchResult { rate: 1.0 / p99.as_secs_f64(), note })
    })
}
