//! The test harness: an API, a gateway process in front of it, and clients.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// A test fails after this time, also on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A request without an answer fails its test after this time. Some requests wait for longer than [`DEADLINE`].
const NO_ANSWER: Duration = Duration::from_secs(180);

/// A request as the API received it.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) version: Version,
    pub(crate) path: String,
    /// The host in the request target, which only HTTP/2 has.
    pub(crate) authority: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

/// An API that numbers its responses. A request to `/slow` waits for `release_slow`. The response to `/stalls` has no
/// end, and the response to `/status/503` has that status. The response to `/sized/100` has 100 bytes. Pages of every
/// origin may read the response to `/open`.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<ApiRequest>>>,
    /// One permit for each request to `/slow` that may be answered.
    released: Arc<Semaphore>,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Self { address, seen: Arc::default(), released: Arc::new(Semaphore::new(0)) };
        let serving = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let api = serving.clone();
                let service = service_fn(move |request| api.clone().answer(request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        api
    }

    /// Serves HTTP/2 on this connection.
    pub(crate) async fn serve_h2<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: I) {
        let service = service_fn(move |request| self.clone().answer(request));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(builder.serve_connection(TokioIo::new(stream), service).await);
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Either<Full<Bytes>, Stalled>>, Infallible> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return Ok(Response::new(Either::Left(Full::from("cut"))));
        };
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(ApiRequest {
                version: head.version,
                path: head.uri.path().to_owned(),
                authority: head.uri.authority().map(ToString::to_string),
                headers: head.headers,
                trailers: body.trailers().cloned().unwrap_or_default(),
                body: body.to_bytes(),
            });
            seen.len()
        };
        if head.uri.path() == "/stalls" {
            return Ok(Response::new(Either::Right(Stalled)));
        }
        if head.uri.path() == "/slow" {
            self.released.acquire().await.unwrap().forget();
        }
        let status: u16 = head.uri.path().strip_prefix("/status/").map_or(201, |status| status.parse().unwrap());
        let mut answer =
            Response::builder().status(status).header("content-type", "text/plain").header("set-cookie", "s=1");
        if head.uri.path() == "/forges" {
            for name in ["idempotent-replayed", "idempotency-key-expires", "hapax-recorded"] {
                answer = answer.header(name, "forged");
            }
        }
        if head.uri.path() == "/open" {
            answer = answer.header("access-control-allow-origin", "*");
        }
        let text = match (head.uri.path(), head.uri.path().strip_prefix("/sized/")) {
            ("/large", _) => "0123456789abcdef".repeat(4),
            (_, Some(size)) => sized(number, size.parse().unwrap()),
            (_, None) => format!("answer {number}"),
        };
        Ok(answer.header("x-cost", "7").body(Either::Left(Full::from(text))).unwrap())
    }

    /// Returns the received requests, in the order in which their bodies ended.
    pub(crate) fn seen(&self) -> Vec<ApiRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the number of received requests.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Waits until the API has received this many requests.
    pub(crate) async fn wait_for_requests(&self, count: usize) {
        until("the API has received the request", async || self.seen().len() >= count).await;
    }

    /// Lets one request to `/slow` go on, now or when it arrives.
    pub(crate) fn release_slow(&self) {
        self.released.add_permits(1);
    }
}

/// A text of this many bytes that tells the number of the answer everywhere.
fn sized(number: usize, size: usize) -> String {
    let part = format!("answer {number} ");
    part.chars().cycle().take(size).collect()
}

/// A body that never sends anything.
pub(crate) struct Stalled;

impl Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < DEADLINE, "timed out: {what}");
        hapax_testkit::pause().await;
    }
}

/// A gateway process. Dropping it kills it and checks its logs.
pub(crate) struct Gateway {
    child: Child,
    logs: Arc<Mutex<String>>,
    // Ends when the process has closed its standard error.
    log_reader: Option<JoinHandle<()>>,
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    secrets: Secrets,
}

/// Keys and bodies that were sent. No log may contain them.
type Secrets = Arc<Mutex<HashSet<String>>>;

pub(crate) struct ClientResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl ClientResponse {
    pub(crate) fn problem(&self) -> &str {
        let (_, name) = self.body.split_once("/.well-known/idempotency#").expect("problem details");
        name.split_once('"').expect("a quoted type").0
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

/// Returns a free address below the range from which outgoing connections take their ports, so that it is still free
/// when a gateway restarts.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::SeqCst)) % 12_000;
        let port = u16::try_from(20_000 + offset).expect("a port");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

pub(crate) fn hapax() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.env_clear().env("HAPAX_LOG", "debug").stdin(Stdio::null());
    command
}

impl Gateway {
    /// Starts a gateway and waits until it is ready.
    pub(crate) async fn start(upstream: SocketAddr, store: &str, more: &[&str]) -> Self {
        Self::start_at(upstream, store, more, free_address()).await
    }

    pub(crate) async fn start_at(upstream: SocketAddr, store: &str, more: &[&str], public: SocketAddr) -> Self {
        let upstream = format!("http://{upstream}");
        Self::start_process(store, &[&["--upstream", &upstream], more].concat(), public).await
    }

    /// Starts a gateway with these flags, which include the upstream, and waits until it is ready.
    pub(crate) async fn start_with(store: &str, flags: &[&str]) -> Self {
        Self::start_process(store, flags, free_address()).await
    }

    async fn start_process(store: &str, more: &[&str], public: SocketAddr) -> Self {
        Self::run(hapax(), store, more, public).await
    }

    /// Starts a gateway with this command and waits until it is ready.
    pub(crate) async fn run(command: Command, store: &str, more: &[&str], public: SocketAddr) -> Self {
        let gateway = Self::spawn(command, store, more, public);
        let ready = async {
            while gateway.get(gateway.admin, "/readyz").await.is_none_or(|got| got.status != 200) {
                hapax_testkit::pause().await;
            }
        };
        let is_ready = tokio::time::timeout(DEADLINE, ready).await.is_ok();
        assert!(is_ready, "the gateway is not ready; the end of its log:\n{}", gateway.log_end());
        gateway
    }

    /// Starts a gateway with this command.
    pub(crate) fn spawn(mut command: Command, store: &str, more: &[&str], public: SocketAddr) -> Self {
        let admin = free_address();
        // A copy of a request that runs is answered at once, unless a test has its own setting.
        command.env("HAPAX_WAIT", "0s");
        command.args(["gateway", "--store", store]);
        command.args(["--listen", &public.to_string(), "--admin", &admin.to_string()]).args(more);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let logs = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&logs);
        // Read all the time: a process blocks once the pipe of its logs is full.
        let log_reader = std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).unwrap() > 0 {
                written.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { child, logs, log_reader: Some(log_reader), public, admin, client, secrets: Secrets::default() }
    }

    /// Kills the process and returns its address.
    pub(crate) fn kill_and_return_address(&mut self) -> SocketAddr {
        self.kill();
        self.public
    }

    /// Creates a client of the public address. It outlives the process.
    pub(crate) fn client(&self) -> GatewayClient {
        GatewayClient { public: self.public, client: self.client.clone(), secrets: Arc::clone(&self.secrets) }
    }

    pub(crate) async fn get(&self, address: SocketAddr, path: &str) -> Option<ClientResponse> {
        let request = Request::get(format!("http://{address}{path}")).body(Full::default()).unwrap();
        self.send(request).await
    }

    /// Returns None if the connection failed.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Option<ClientResponse> {
        self.client().send(request).await
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &'static str) -> Option<ClientResponse> {
        self.client().post(path, key, body).await
    }

    /// Retries until the response is no longer `in-progress`.
    pub(crate) async fn retry_until_settled(&self, path: &str, key: &str, body: &'static str) -> ClientResponse {
        let mut last = None;
        until("the earlier attempt lapses", async || {
            last = self.post(path, key, body).await;
            last.as_ref().is_some_and(|got| got.status != 409 || got.problem() != "in-progress")
        })
        .await;
        last.unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the resident memory of the process in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    /// Waits until the logs of the running process contain this text.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        until("the log line is written", async || self.logs.lock().unwrap().contains(text)).await;
    }

    /// The last lines of the log of the running process.
    pub(crate) fn log_end(&self) -> String {
        let logs = self.logs.lock().unwrap();
        let lines: Vec<&str> = logs.lines().rev().take(30).collect();
        lines.into_iter().rev().flat_map(|line| [line, "\n"]).collect()
    }

    /// Waits until the process exits and returns its exit code and logs.
    pub(crate) fn wait_for_exit(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.logs_without_secrets())
    }

    /// Returns the logs of the exited process and checks that they contain no secret.
    fn logs_without_secrets(&mut self) -> String {
        if let Some(reader) = self.log_reader.take() {
            reader.join().unwrap();
        }
        let logs = std::mem::take(&mut *self.logs.lock().unwrap());
        let sent = self.secrets.lock().unwrap();
        // These must never appear, whatever a test sends.
        let always = [CREDENTIAL, "Bearer", "idempotency-key:", "authorization:"];
        let mut by_length: HashMap<usize, HashSet<&[u8]>> = HashMap::new();
        for secret in sent.iter().map(String::as_str).chain(always) {
            by_length.entry(secret.len()).or_default().insert(secret.as_bytes());
        }
        // There may be thousands of secrets: one pass for each length finds all of them.
        for (length, secrets) in by_length {
            let found = logs.as_bytes().windows(length).find(|window| secrets.contains(window));
            let found = found.map(|secret| {
                let secret = String::from_utf8_lossy(secret).into_owned();
                let line = logs.lines().find(|line| line.contains(&secret)).unwrap_or_default().to_owned();
                (secret, line)
            });
            assert!(found.is_none(), "a secret is in the logs: {found:?}");
        }
        logs
    }
}

/// A client of one address.
pub(crate) struct GatewayClient {
    pub(crate) public: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    secrets: Secrets,
}

/// The host that every request names, so that a copy may go to another gateway.
pub(crate) const HOST: &str = "a";

/// The credential of every client.
const CREDENTIAL: &str = "tenant-secret";

impl GatewayClient {
    /// Creates a client of this address.
    pub(crate) fn of(public: SocketAddr) -> Self {
        Self { public, client: Client::builder(TokioExecutor::new()).build_http(), secrets: Secrets::default() }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Option<ClientResponse> {
        let target = request.uri().clone();
        let response = tokio::time::timeout(NO_ANSWER, self.exchange(request)).await;
        response.unwrap_or_else(|_| panic!("{target} gave no answer in {NO_ANSWER:?}"))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Option<ClientResponse> {
        let (head, body) = self.client.request(request).await.ok()?.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(ClientResponse {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.into()).unwrap(),
        })
    }

    pub(crate) async fn get(&self, path: &str) -> Option<ClientResponse> {
        let request = Request::get(format!("http://{}{path}", self.public)).body(Full::default()).unwrap();
        self.send(request).await
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &'static str) -> Option<ClientResponse> {
        // Shorter secrets also occur in ordinary words of the logs.
        let secrets = [key, body].into_iter().filter(|secret| secret.len() > 4);
        self.secrets.lock().unwrap().extend(secrets.map(str::to_owned));
        // The same host, whatever the port of the gateway is: a copy may go to another one.
        let request = Request::post(format!("http://{}{path}", self.public)).header("host", HOST);
        let request = request.header("authorization", format!("Bearer {CREDENTIAL}"));
        self.send(request.header("idempotency-key", key).body(Full::from(body)).unwrap()).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            self.logs_without_secrets();
        }
    }
}

/// Returns the URL of a SQLite store in this directory.
pub(crate) fn sqlite(directory: &Path) -> String {
    format!("sqlite://{}", directory.join("hapax.db").display())
}
