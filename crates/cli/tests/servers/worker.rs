//! `hapax worker` on NATS JetStream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use hapax_testkit::servers::{self, NatsServer, Trial};

use crate::harness::{Api, DEADLINE, free_address, hapax, until};
use crate::raw_http::RawConnection;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_message_of_a_stream_reaches_the_service_once", "nats", stream),
        servers::test("a_worker_whose_broker_is_away_at_its_start_waits_and_is_not_ready", "nats", broker_away),
        servers::test("dead_letters_are_published_to_a_subject", "nats", published_dead_letters),
        servers::test("a_message_that_cannot_be_read_is_a_dead_letter", "nats", unreadable_messages),
        servers::test("a_message_that_may_not_be_looked_at_is_named_in_the_log", "nats", unreadable_without_the_right),
    ]
}

async fn stream() {
    let (server, api) = (NatsServer::shared().await.unwrap(), Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let mut nats = NatsClient::connect(server.address());
    nats.request("$JS.API.STREAM.CREATE.cli-orders", "", r#"{"name":"cli-orders","subjects":["cli-orders.>"]}"#);
    for key in ["order-1", "order-2", "order-1"] {
        nats.request("cli-orders.new", &format!("NATS/1.0\r\nIdempotency-Key: {key}\r\n\r\n"), "five");
    }
    let store = format!("sqlite://{}", directory.path().join("records.db").display());
    let source = format!("nats://{}/cli-orders?durable=billing", server.address());
    let mut command = hapax();
    command.args(["worker", "--source", &source, "--target", &format!("http://{}/transfers", api.address)]);
    command.args(["--store", &store, "--admin", &free_address().to_string()]);
    let worker = RunningWorker::start(command);
    until("every message is acknowledged", async || {
        let info = nats.request("$JS.API.CONSUMER.INFO.cli-orders.billing", "", "");
        let info: serde_json::Value = serde_json::from_str(info.trim()).unwrap();
        info["ack_floor"]["stream_seq"] == 3
    })
    .await;
    drop(worker);
    assert_eq!(api.count(), 2);
}

/// Of the source and of the dead letters.
async fn broker_away() {
    let (server, api) = (NatsServer::start(&[]).await.unwrap(), Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let mut nats = NatsClient::connect(server.address());
    for stream in ["away", "dead"] {
        let config = format!(r#"{{"name":"{stream}","subjects":["{stream}.>"]}}"#);
        nats.request(&format!("$JS.API.STREAM.CREATE.{stream}"), "", &config);
    }
    nats.request("away.new", "NATS/1.0\r\nIdempotency-Key: order-1\r\n\r\n", "five");
    server.terminate().await.unwrap();
    let (mut command, admin) = (hapax(), free_address());
    let file = directory.path().join("records.db").display().to_string();
    command.args(["worker", "--source", &format!("nats://{}/away?durable=billing", server.address())]);
    command.args(["--target", &format!("http://{}/transfers", api.address), "--store", &format!("sqlite://{file}")]);
    command.args(["--dead-letter", &format!("nats://{}", server.address()), "--dead-letter-topic", "dead.{topic}"]);
    command.args(["--admin", &admin.to_string()]);
    let worker = RunningWorker::start(command);
    let ready = async || {
        let mut page = RawConnection::to(admin).await;
        page.send_bytes(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        page.read_response().await.map(|page| (page.status, page.text())).unwrap_or_default()
    };
    until("the worker listens", async || TcpStream::connect(admin).is_ok()).await;
    until("it says what it waits for", async || {
        let (status, reason) = ready().await;
        status == 503 && reason.contains("the broker of the dead letters: ")
    })
    .await;
    server.restart().await.unwrap();
    api.wait_for_requests(1).await;
    until("it is ready", async || ready().await.0 == 200).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
}

async fn published_dead_letters() {
    let (server, api) = (NatsServer::shared().await.unwrap(), Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let mut nats = NatsClient::connect(server.address());
    for (stream, more) in [("cli-lost", ""), ("cli-dead", r#","allow_direct":true"#)] {
        let config = format!(r#"{{"name":"{stream}","subjects":["{stream}.>"]{more}}}"#);
        nats.request(&format!("$JS.API.STREAM.CREATE.{stream}"), "", &config);
    }
    nats.request("cli-lost.new", "NATS/1.0\r\nColour: red\r\n\r\n", "five");
    nats.request("cli-lost.new", "NATS/1.0\r\nIdempotency-Key: order-1\r\n\r\n", "six");
    let mut command = hapax();
    let file = directory.path().join("records.db").display().to_string();
    command.args(["worker", "--source", &format!("nats://{}/cli-lost?durable=billing", server.address())]);
    command.args(["--target", &format!("http://{}/status/422", api.address), "--store", &format!("sqlite://{file}")]);
    command.args(["--dead-letter", &format!("nats://{}", server.address()), "--admin", &free_address().to_string()]);
    command.args(["--dead-letter-topic", "cli-dead.{namespace}.{topic}"]);
    let worker = RunningWorker::start(command);
    until("every message is acknowledged", async || {
        let info = nats.request("$JS.API.CONSUMER.INFO.cli-lost.billing", "", "");
        let info: serde_json::Value = serde_json::from_str(info.trim()).unwrap();
        info["ack_floor"]["stream_seq"] == 2
    })
    .await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("nothing redrives them"), "{log}");
    let mut letters = [1, 2].map(|sequence| {
        let letter = nats.request("$JS.API.DIRECT.GET.cli-dead", "", &format!(r#"{{"seq":{sequence}}}"#));
        assert!(letter.contains("Nats-Subject: cli-dead.billing.dead-letters\r\n"), "{letter}");
        let reason = letter.lines().find_map(|line| line.strip_prefix("Hapax-Dead-Reason: ")).unwrap().to_owned();
        (reason, letter)
    });
    letters.sort();
    let [(missing, keyless), (rejected, keyed)] = &letters;
    assert_eq!([missing, rejected], ["key-missing", "rejected"]);
    assert!(keyless.contains("Colour: red\r\n") && keyless.trim().ends_with("five"), "{keyless}");
    assert!(keyed.contains("Original-Idempotency-Key: order-1\r\n") && keyed.trim().ends_with("six"), "{keyed}");
}

/// Headers at which the driver panics, and others at which it drops the connection.
const BROKEN: [&str; 3] = ["NATS/1.0\r\nname: a\rb\r\n\r\n", "NATS/1.0\r\nna me: value\r\n\r\n", "NATS/1.0 4\r\n\r\n"];

async fn unreadable_messages() {
    let (server, api) = (NatsServer::shared().await.unwrap(), Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let mut nats = NatsClient::connect(server.address());
    nats.request("$JS.API.STREAM.CREATE.cli-broken", "", r#"{"name":"cli-broken","subjects":["cli-broken.>"]}"#);
    for (number, headers) in BROKEN.iter().enumerate() {
        nats.request("cli-broken.new", headers, "five");
        // Others are processed, also if they begin like an answer of the server.
        let status = ["", " 404", " 409 Consumer Deleted"][number];
        let headers = format!("NATS/1.0{status}\r\nIdempotency-Key: order-{number}\r\n\r\n");
        nats.request("cli-broken.new", &headers, "five");
    }
    let file = format!("sqlite://{}", directory.path().join("records.db").display());
    let mut command = hapax();
    command.args(["worker", "--source", &format!("nats://{}/cli-broken?durable=billing", server.address())]);
    command.args(["--target", &format!("http://{}/transfers", api.address), "--store", &file]);
    command.args(["--dead-letter", &file, "--admin", &free_address().to_string()]);
    let worker = RunningWorker::start(command);
    until("every message is acknowledged", async || {
        let info = nats.request("$JS.API.CONSUMER.INFO.cli-broken.billing", "", "");
        let info: serde_json::Value = serde_json::from_str(info.trim()).unwrap();
        info["ack_floor"]["stream_seq"] == 6
    })
    .await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(api.count(), 3);
    let listed = hapax().args(["dead", "list", "--json", "--database", &file]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.matches(r#""reason":"unreadable""#).count(), 3, "{listed}");
}

async fn unreadable_without_the_right() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("nats.conf");
    let rights = r#"permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] } }"#;
    let users = format!("{{ user: me, password: open, {rights} }}, {{ user: admin, password: open }}");
    std::fs::write(&configuration, format!("authorization {{ users: [ {users} ] }}\nno_auth_user: admin\n")).unwrap();
    let server = NatsServer::start(&["-c", &configuration.display().to_string()]).await.unwrap();
    let (api, mut nats) = (Api::start().await, NatsClient::connect(server.address()));
    nats.request("$JS.API.STREAM.CREATE.cli-secret", "", r#"{"name":"cli-secret","subjects":["cli-secret.>"]}"#);
    nats.request("cli-secret.new", "NATS/1.0\r\nIdempotency-Key: order-1\r\n\r\n", "five");
    nats.request("cli-secret.new", BROKEN[0], "five");
    let mut command = hapax();
    let source = format!("nats://me:open@{}/cli-secret?durable=billing&ack-wait=1", server.address());
    let file = format!("sqlite://{}", directory.path().join("records.db").display());
    command.args(["worker", "--source", &source, "--target", &format!("http://{}/transfers", api.address)]);
    command.args(["--store", &file, "--admin", &free_address().to_string()]);
    let worker = RunningWorker::start(command);
    until("the message has come several times", async || {
        let info = nats.request("$JS.API.CONSUMER.INFO.cli-secret.billing", "", "");
        let info: serde_json::Value = serde_json::from_str(info.trim()).unwrap();
        info["delivered"]["consumer_seq"].as_u64() > Some(4) && api.count() == 1
    })
    .await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("STREAM.MSG.GET.cli-secret") && log.contains("`nats stream get cli-secret 2`"), "{log}");
}

/// A worker process, killed when dropped.
pub(crate) struct RunningWorker {
    child: Child,
    log: Option<JoinHandle<String>>,
}

impl RunningWorker {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        // Read all the time: a process blocks once the pipe of its log is full.
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            log
        });
        Self { child, log: Some(log) }
    }

    /// Ends it by SIGTERM. Returns its exit code and its log.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let code = self.child.wait().unwrap().code();
        (code, self.log.take().unwrap().join().unwrap())
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As much of the protocol of NATS as a request needs.
pub(crate) struct NatsClient {
    stream: BufReader<TcpStream>,
    /// Its own: tests share a server, and each would get the replies to the others.
    inbox: String,
}

impl NatsClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let inbox = format!("_INBOX.cli-{}", stream.local_addr().unwrap().port());
        let mut client = Self { stream: BufReader::new(stream), inbox };
        client.line();
        client.send(&format!("CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB {} 1\r\n", client.inbox));
        client
    }

    /// Sends a request with these headers, which may be empty, and returns the reply.
    pub(crate) fn request(&mut self, subject: &str, headers: &str, body: &str) -> String {
        let (inbox, head, all) = (&self.inbox, headers.len(), headers.len() + body.len());
        self.send(&match head {
            0 => format!("PUB {subject} {inbox} {all}\r\n{body}\r\n"),
            _ => format!("HPUB {subject} {inbox} {head} {all}\r\n{headers}{body}\r\n"),
        });
        loop {
            let line = self.line();
            if line.starts_with("PING") {
                self.send("PONG\r\n");
            } else if line.starts_with("MSG") || line.starts_with("HMSG") {
                let length: usize = line.split_whitespace().last().unwrap().parse().unwrap();
                let mut reply = vec![0; length + 2];
                self.stream.read_exact(&mut reply).unwrap();
                return String::from_utf8(reply).unwrap();
            }
        }
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the server has closed the connection");
        line
    }
}
