//! Requests continue and a stop ends in time, also while the log or the store is stuck.

use std::io::{PipeReader, Read, Write, pipe};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rusqlite::Connection;
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::timeout;

use crate::harness::{Api, DEADLINE, Gateway, GatewayClient, free_address, hapax, sqlite, until};
use crate::lifecycle::lock_database;
use crate::tls::Pki;

/// A gateway whose log goes to a pipe that nobody reads.
struct StuckGateway {
    child: Child,
    public: SocketAddr,
    admin: SocketAddr,
    /// The pipe stays open: without a reader, writing would fail instead of blocking.
    unread: PipeReader,
}

impl StuckGateway {
    /// Fills the pipe, so that a thread that writes a line blocks.
    async fn start(api: &Api, flags: &[&str]) -> Self {
        let ((unread, mut log), public, admin) = (pipe().unwrap(), free_address(), free_address());
        let mut command = hapax();
        command.args(["gateway", "--store", "memory:", "--upstream", &format!("http://{}", api.address)]);
        command.args(["--listen", &public.to_string(), "--admin", &admin.to_string()]).args(flags);
        let child = command.stderr(log.try_clone().unwrap()).spawn().unwrap();
        let stuck = Self { child, public, admin, unread };
        let ready = GatewayClient::of(admin);
        until("the gateway is ready", async || ready.get("/readyz").await.is_some_and(|got| got.status == 200)).await;
        fcntl_setfl(&log, OFlags::NONBLOCK).unwrap();
        for chunk in [4096, 1] {
            while log.write(&vec![b'\n'; chunk]).is_ok() {}
        }
        fcntl_setfl(&log, OFlags::empty()).unwrap();
        stuck
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the process has ended. Calls the function before each look.
    async fn wait_for_exit(&mut self, before_look: impl Fn(&Self)) -> ExitStatus {
        let mut status = None;
        until("the gateway has ended", async || {
            before_look(self);
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for StuckGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_while_nobody_reads_the_log_and_lost_lines_are_counted() {
    let api = Api::start().await;
    let mut gateway = StuckGateway::start(&api, &[]).await;
    let client = GatewayClient::of(gateway.public);
    // Each of them is in the access log: together more than the gateway keeps.
    let long = "x".repeat(7000);
    const REQUESTS: usize = 1500;
    let answered = async {
        for number in 0..REQUESTS {
            let got = client.post(&format!("/charges/{long}"), &format!("key-{number}"), "{}").await;
            assert_eq!(got.unwrap().status, 201);
        }
    };
    timeout(DEADLINE, answered).await.expect("no request waits for the log");
    let admin = GatewayClient::of(gateway.admin);
    until("the metric counts lost lines", async || {
        let page = admin.get("/metrics").await.unwrap().body;
        let lost = page.lines().find_map(|line| line.strip_prefix("hapax_log_lines_lost_total "));
        lost.unwrap().parse::<usize>().unwrap() > 0
    })
    .await;
    let mut unread = gateway.unread.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut log = String::new();
        unread.read_to_string(&mut log).map(|_| log).unwrap()
    });
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_for_exit(|_| ()).await.code(), Some(0));
    let log = reader.join().unwrap();
    // The pipe was full of empty lines.
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let lost: Vec<_> = lines.iter().filter_map(|line| line["lost"].as_u64()).collect();
    let written = lines.iter().filter(|line| line["target"] == "hapax::access").count();
    assert!(written > REQUESTS / 2 && written < REQUESTS, "{written}");
    assert!(*lost.last().unwrap() >= u64::try_from(REQUESTS - written).unwrap(), "{written} {lost:?}");
    assert!(lines.last().unwrap()["message"].as_str().unwrap().starts_with("stopped; "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_log_nobody_reads_ends_at_the_limit_of_its_drain() {
    let api = Api::start().await;
    let mut gateway = StuckGateway::start(&api, &["--drain", "1s"]).await;
    // The lines of a reload and of a request cannot be written.
    gateway.signal(Signal::HUP);
    let client = GatewayClient::of(gateway.public);
    let post = tokio::spawn(async move { client.post("/charges", "key-1", "{}").await });
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_for_exit(|_| ()).await.code(), Some(1));
    post.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_signal_ends_a_gateway_whose_log_nobody_reads() {
    let api = Api::start().await;
    let mut gateway = StuckGateway::start(&api, &["--drain", "1h"]).await;
    gateway.signal(Signal::HUP);
    // Two signals that are pending at the same time are one.
    let ended = gateway.wait_for_exit(|gateway| gateway.signal(Signal::TERM)).await;
    assert_eq!(ended.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_signal_ends_a_start_that_waits_for_a_key_or_certificate_in_a_pipe() {
    for name in ["key", "cert", "ca"] {
        let (pki, public, admin) = (Pki::new(), free_address(), free_address());
        std::fs::remove_file(pki.path(name)).unwrap();
        assert!(Command::new("mkfifo").args(["-m", "600", &pki.path(name)]).status().unwrap().success());
        let mut command = hapax();
        command.args(["gateway", "--store", "memory:", "--upstream", "https://127.0.0.1:9", "--drain", "1h"]);
        command.args(["--listen", &public.to_string(), "--admin", &admin.to_string()]);
        command.args([
            "--tls-cert",
            &pki.path("cert"),
            "--tls-key",
            &pki.path("key"),
            "--upstream-ca",
            &pki.path("ca"),
        ]);
        let (unread, log) = pipe().unwrap();
        let mut gateway = StuckGateway { child: command.stderr(log).spawn().unwrap(), public, admin, unread };
        let mut writer = None;
        // Succeeds when the gateway has opened the pipe.
        until("the gateway reads the file", async || {
            writer = rustix::fs::open(pki.path(name), OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
            writer.is_some()
        })
        .await;
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait_for_exit(|_| ()).await.code(), Some(0), "{name}");
    }
}

/// Starts a gateway whose store does not confirm a release. The file is locked until the connection is dropped.
async fn gateway_with_unconfirmed_release(api: &Api, directory: &Path, flags: &[&str]) -> (Gateway, Connection) {
    let flags = [&["--store-timeout", "300ms", "--upstream-timeout", "2s"], flags].concat();
    let gateway = Gateway::start(api.address, &sqlite(directory), &flags).await;
    // The API does not answer in time, so the outcome is unknown, and the locked file takes no abandonment.
    let (answer, lock) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        lock_database(directory)
    });
    assert_eq!(answer.unwrap().problem(), "upstream-timeout");
    (gateway, lock)
}

fn last_line(logs: &str) -> Value {
    serde_json::from_str(logs.lines().last().unwrap()).unwrap()
}

/// Waits until this gateway shows this line among its metrics.
async fn wait_for_metric(gateway: &Gateway, line: &str) {
    until(line, async || {
        let page = gateway.get(gateway.admin, "/metrics").await;
        page.is_some_and(|got| got.body.lines().any(|shown| shown == line))
    })
    .await;
}

/// One copy waits in the process of the first attempt, and one in another process.
#[tokio::test(flavor = "multi_thread")]
async fn copies_that_wait_get_in_progress_when_their_gateway_stops_h17() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (flags, store) = (["--wait", "10min", "--drain", "10min"], sqlite(directory.path()));
    let gateway = Gateway::start(api.address, &store, &flags).await;
    let other = Gateway::start(api.address, &store, &flags).await;
    let copies = async {
        api.wait_for_requests(1).await;
        let stop = async {
            wait_for_metric(&gateway, "hapax_followers 1").await;
            wait_for_metric(&other, "hapax_in_flight 1").await;
            gateway.terminate();
            other.terminate();
        };
        let (here, there) = (gateway.post("/slow", "key-1", "{}"), other.post("/slow", "key-1", "{}"));
        let (here, there, ()) = tokio::join!(here, there, stop);
        api.release_slow();
        [here, there]
    };
    let (first, copies) = tokio::join!(gateway.post("/slow", "key-1", "{}"), copies);
    for copy in copies {
        let copy = copy.unwrap();
        assert_eq!((copy.status.as_u16(), copy.problem()), (409, "in-progress"));
    }
    assert_eq!(first.unwrap().status, 201);
    for gateway in [gateway, other] {
        let (code, logs) = gateway.wait_for_exit();
        assert_eq!(code, Some(0), "{logs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_ends_without_a_release_that_its_store_does_not_confirm() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (gateway, _lock) = gateway_with_unconfirmed_release(&api, directory.path(), &["--drain", "10s"]).await;
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    let last = last_line(&logs);
    assert_eq!((code, &last["unconfirmed_releases"]), (Some(0), &1.into()), "{last}");
    assert!(last["message"].as_str().unwrap().starts_with("stopped; no requests were running"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_ended_at_once_counts_its_unconfirmed_releases() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--drain", "2h", "--drain-delay", "1h"];
    let (gateway, _lock) = gateway_with_unconfirmed_release(&api, directory.path(), &flags).await;
    gateway.terminate();
    // Two signals that are pending at the same time are one.
    until("the gateway is stopping", async || {
        gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.body.contains("stopping"))
    })
    .await;
    // The attempt ends when the first try to release has failed.
    until("no attempt runs", async || {
        gateway.get(gateway.admin, "/metrics").await.is_some_and(|got| got.body.contains("\nhapax_in_flight 0\n"))
    })
    .await;
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    let last = last_line(&logs);
    assert_eq!((code, &last["unconfirmed_releases"]), (Some(1), &1.into()), "{last}");
    assert!(last["message"].as_str().unwrap().starts_with("stopped at once"), "{last}");
}
