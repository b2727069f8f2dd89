use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, ensure};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions, RedisKind, RedisServer, RedisServerOptions};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::server_process::{ServerProcess, free_address};
use crate::subjects::waiting_copies::beside_copies;

/// The scripts of wrk.
const NEW_KEYS: &str = include_str!("../wrk/new.lua");
const REPLAYS: &str = include_str!("../wrk/replay.lua");
const UNPROTECTED: &str = include_str!("../wrk/get.lua");

const SECONDS: u32 = 2;
const CONNECTIONS: u32 = 64;

/// The gateway on its stores, and nginx, against a forwarder that does nothing else. Client, API and proxy share the
/// cores.
pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let tools = Rc::new(UnpackedTools::unpacked()?);
    let api = Rc::new(api()?);
    let forwarder = Rc::new(forwarder(&api)?);
    let memory = Rc::new(gateway(&api, "memory:".into(), None)?);
    let waiting = Rc::new(gateway_with(&api, "memory:".into(), "10s", None)?);
    let refusing = Rc::new(gateway_with(&api, "memory:".into(), "0s", None)?);
    let logging = Rc::new(gateway(&api, "memory:".into(), Some(tools.folder.path().join("access.log")))?);
    let sqlite = Rc::new(gateway(&api, format!("sqlite://{}", tools.folder.path().join("hapax.db").display()), None)?);
    let redis = Rc::new(gateway(&api, tools.servers.redis.url(), None)?);
    let postgres = Rc::new(gateway(&api, tools.servers.postgres.url(), None)?);
    let nginx = Rc::new(tools.nginx(&api)?);
    let subject = |name, what, proxy: &Rc<ServerProcess>, script: &'static str, at_least| Subject {
        name,
        what,
        run: wrk(&tools, proxy, &api, script),
        limit: Some(Limit {
            what: "the same through a forwarder that does nothing else",
            run: wrk(&tools, &forwarder, &api, script),
            at_least,
        }),
    };
    let access_log = Subject {
        name: "gateway, new keys, memory, with its access log",
        what: "a POST with a new key, and a line of JSON in a file for each request",
        run: wrk(&tools, &logging, &api, NEW_KEYS),
        limit: Some(Limit {
            what: "the same without the log",
            run: wrk(&tools, &memory, &api, NEW_KEYS),
            at_least: Some(0.94),
        }),
    };
    let copies = Subject {
        name: "gateway, new keys, memory, beside 1,000 waiting copies",
        what: "a POST with a new key, while 1,000 clients wait 10 s at a time for the answer to a request that runs",
        run: beside_copies(wrk(&tools, &waiting, &api, NEW_KEYS), &waiting),
        limit: Some(Limit {
            what: "the same while these clients get 409 at once and ask again each second",
            run: beside_copies(wrk(&tools, &refusing, &api, NEW_KEYS), &refusing),
            at_least: None,
        }),
    };
    Ok(vec![
        access_log,
        copies,
        subject("gateway, new keys, memory", "a POST with a new key", &memory, NEW_KEYS, Some(0.75)),
        subject(
            "gateway, new keys, SQLite",
            "a POST with a new key, fsync before each answer",
            &sqlite,
            NEW_KEYS,
            None,
        ),
        subject("gateway, new keys, Redis", "a POST with a new key, on Redis without a log", &redis, NEW_KEYS, None),
        subject(
            "gateway, new keys, PostgreSQL",
            "a POST with a new key, durable before each answer",
            &postgres,
            NEW_KEYS,
            None,
        ),
        subject("gateway, replays, memory", "a POST with the same key", &memory, REPLAYS, None),
        subject("gateway, replays, SQLite", "a POST with the same key", &sqlite, REPLAYS, None),
        subject("gateway, replays, Redis", "a POST with the same key", &redis, REPLAYS, None),
        subject("gateway, replays, PostgreSQL", "a POST with the same key", &postgres, REPLAYS, None),
        subject("gateway, unprotected", "a GET", &memory, UNPROTECTED, Some(0.95)),
        subject("nginx, new keys", "the same POST through nginx as a plain proxy", &nginx, NEW_KEYS, None),
        subject("nginx, unprotected", "the same GET through nginx as a plain proxy", &nginx, UNPROTECTED, None),
    ])
}

/// The server behind each proxy.
fn api() -> anyhow::Result<ServerProcess> {
    ServerProcess::start("api", |command, address| {
        command.arg("api").arg(address.to_string());
        Ok(())
    })
}

/// A proxy that only passes bytes on: the limit of each subject.
fn forwarder(api: &ServerProcess) -> anyhow::Result<ServerProcess> {
    let upstream = api.address.to_string();
    ServerProcess::start("forwarder", move |command, address| {
        command.args(["forwarder", &address.to_string(), &upstream]);
        Ok(())
    })
}

/// A gateway on this store. With a file it writes its access log there.
fn gateway(api: &Rc<ServerProcess>, store: String, log: Option<PathBuf>) -> anyhow::Result<ServerProcess> {
    // The first requests with the replayed key arrive together; all but one wait for the answer.
    gateway_with(api, store, "5s", log)
}

/// As [`gateway`]. A copy of a request that runs waits for its answer for so long.
fn gateway_with(
    api: &Rc<ServerProcess>,
    store: String,
    wait: &'static str,
    log: Option<PathBuf>,
) -> anyhow::Result<ServerProcess> {
    let upstream = format!("http://{}", api.address);
    ServerProcess::start("../hapax", move |command, address| {
        command.args(["gateway", "--upstream", &upstream, "--store", &store, "--listen", &address.to_string()]);
        command.args(["--admin", &free_address()?.to_string(), "--wait", wait]);
        command.env("HAPAX_LOG", if log.is_some() { "info" } else { "warn" });
        if let Some(file) = log {
            command.args(["--log-format", "json", "--log-file"]).arg(file);
        }
        Ok(())
    })
}

/// The servers that have the records of gateways.
struct RecordServers {
    redis: RedisServer,
    postgres: PostgresServer,
}

impl RecordServers {
    fn start() -> anyhow::Result<Self> {
        for service in ["redis", "postgres"] {
            // Unpacks the program, unless it is unpacked already or on PATH.
            Command::new(format!("fixtures/{service}/unpack.sh")).stdout(Stdio::null()).status()?;
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let redis = RedisServerOptions::new(RedisKind::Redis).with_system_clock();
            let postgres = PostgresServer::start(PostgresServerOptions::new()).await?;
            Ok(Self { redis: RedisServer::start(redis).await?, postgres })
        })
    }
}

/// wrk and nginx, as unpacked by the fixtures, and the servers of the stores.
struct UnpackedTools {
    root: PathBuf,
    servers: RecordServers,
    folder: TempDir,
    runs: RefCell<u32>,
}

impl UnpackedTools {
    fn unpacked() -> anyhow::Result<Self> {
        let output =
            Command::new("fixtures/unpack.sh").args(["proxies", "wrk", "nginx"]).stderr(Stdio::inherit()).output();
        let output = output.context("cannot run fixtures/unpack.sh")?;
        ensure!(output.status.success(), "fixtures/unpack.sh cannot unpack wrk and nginx");
        let root = String::from_utf8(output.stdout)?.trim().into();
        let servers = RecordServers::start()?;
        Ok(Self { root, servers, folder: tempfile::tempdir()?, runs: RefCell::default() })
    }

    fn command(&self, program: &str) -> Command {
        let libraries =
            ["usr/lib", "lib"].map(|lib| self.root.join(lib).join(format!("{}-linux-gnu", std::env::consts::ARCH)));
        let mut command = Command::new(self.root.join(program));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("folders without a colon"));
        command
    }

    /// Starts nginx as one process, so that its CPU time is that of the process that serves.
    fn nginx(&self, api: &ServerProcess) -> anyhow::Result<ServerProcess> {
        let folder = self.folder.path();
        ServerProcess::from(free_address()?, |address| {
            let configuration = format!(
                "daemon off; master_process off; pid nginx.pid; error_log stderr error;
                 events {{ worker_connections 1024; }}
                 http {{ access_log off; client_body_temp_path b; proxy_temp_path p;
                   fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
                   upstream api {{ server {}; keepalive 64; }}
                   server {{ listen {address}; location / {{ proxy_pass http://api;
                     proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}",
                api.address
            );
            fs::write(folder.join("nginx.conf"), configuration)?;
            let mut command = self.command("usr/sbin/nginx");
            command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "stderr"]);
            Ok(command)
        })
    }
}

/// A few seconds of load from one thread of wrk. The closure holds the API, which must live as long as the batch.
fn wrk(
    tools: &Rc<UnpackedTools>,
    proxy: &Rc<ServerProcess>,
    api: &Rc<ServerProcess>,
    script: &'static str,
) -> MeasuredBatch {
    let (tools, proxy, api) = (Rc::clone(tools), Rc::clone(proxy), Rc::clone(api));
    Box::new(move || {
        let path = tools.folder.path().join("script.lua");
        fs::write(&path, script)?;
        *tools.runs.borrow_mut() += 1;
        let before = proxy.ticks()?;
        let output = load(&tools, &proxy, &path)?;
        ensure!(!output.contains("Non-2xx") && !output.contains("Socket errors"), "some responses failed: {output}");
        let requests = number(&output, " requests in")?;
        let microseconds = (proxy.ticks()? - before) * 10_000.0 / requests;
        let api_alive = api.ticks().is_ok();
        ensure!(api_alive, "the API has ended");
        Ok(BatchResult {
            rate: number_after(&output, "Requests/sec:")?,
            note: format!("{microseconds:.0} us of CPU a request in the proxy"),
        })
    })
}

fn load(tools: &UnpackedTools, proxy: &ServerProcess, script: &Path) -> anyhow::Result<String> {
    let (seconds, connections) = (format!("-d{SECONDS}s"), format!("-c{CONNECTIONS}"));
    let output = tools
        .command("usr/bin/wrk")
        .args(["-t1", &connections, &seconds, "-s"])
        .arg(script)
        .arg(format!("http://{}/", proxy.address))
        .args(["--", &format!("{}-{}", std::process::id(), tools.runs.borrow())])
        .output()?;
    ensure!(output.status.success(), "wrk: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The number before these words.
fn number(output: &str, words: &str) -> anyhow::Result<f64> {
    let (before, _) =
        output.split_once(words).with_context(|| format!("the output of wrk has no {words:?}: {output}"))?;
    Ok(before.rsplit_once([' ', '\n']).map_or(before, |(_, number)| number).trim().parse()?)
}

fn number_after(output: &str, words: &str) -> anyhow::Result<f64> {
    let (_, after) =
        output.split_once(words).with_context(|| format!("the output of wrk has no {words:?}: {output}"))?;
    Ok(after.lines().next().unwrap_or_default().trim().parse()?)
}
