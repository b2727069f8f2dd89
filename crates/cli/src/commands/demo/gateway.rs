//! The gateway as a process of its own, and its crashes.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{env, process};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::Script;
use super::board::Board;
use super::chance::{Chance, Topic, fresh_seed};

/// A gateway that runs. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Gateway {
    place: Place,
    child: Child,
}

impl Gateway {
    /// Starts a gateway in front of `upstream` that keeps its files in `folder`.
    pub(super) async fn start(script: &Script, upstream: SocketAddr, folder: &Path) -> Result<Self> {
        let [listen, admin] = free_addresses()?;
        let own = || format!("sqlite://{}", folder.join("hapax.db").display());
        let store = script.store.clone().unwrap_or_else(own);
        // A store that is not of this run alone may still have the records of another run.
        let namespace = format!("demo-{:016x}", fresh_seed());
        let place = Place { upstream, listen, admin, store, namespace, folder: folder.to_owned() };
        let child = place.spawn()?;
        let mut gateway = Self { place, child };
        // It says so as soon as it has looked at its store. One of this run's own may be slow; one that was named should be there.
        let patience = if script.store.is_some() { Patience::None } else { Patience::WithItsStore };
        gateway.ready(patience).await?;
        Ok(gateway)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.place.listen
    }

    /// Kills it again and again, spread over the run and in the midst of traffic. Comes back only to report that it
    /// ended by itself, or did not start again.
    pub(super) async fn torment(&mut self, script: &Script, board: &Board) -> anyhow::Error {
        for crash in 1..=script.crashes {
            let mut chance = Chance::new(script.seed, Topic::Outage, &[crash.into()]);
            let outage = Duration::from_millis(chance.between(0, 150));
            tokio::select! {
                () = board.settled(script.due(crash)) => {}
                error = self.ended() => return error,
            }
            if let Err(error) = self.crash(outage, board).await {
                return error;
            }
        }
        self.ended().await
    }

    /// Ends it for good.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the gateway")
    }

    async fn crash(&mut self, outage: Duration, board: &Board) -> Result<()> {
        // A crash is to hit much. At the end of the traffic there may be little left to hit.
        let _ = timeout(Duration::from_millis(500), board.busy(WORTH_A_CRASH)).await;
        let cut_short = board.running();
        self.child.kill().await.context("cannot kill the gateway")?;
        sleep(outage).await;
        self.child = self.place.spawn()?;
        self.ready(Patience::WithItsStore).await?;
        board.crash(cut_short);
        Ok(())
    }

    /// Waits until it says that it is ready.
    async fn ready(&mut self, patience: Patience) -> Result<()> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let started = Instant::now();
        while started.elapsed() < STARTS_WITHIN {
            let left = STARTS_WITHIN.saturating_sub(started.elapsed());
            match timeout(left, self.place.readiness(&client)).await {
                Ok(Ok(Readiness::Ready)) => return Ok(()),
                Ok(Ok(Readiness::NotReady(why))) if patience == Patience::None => {
                    bail!("the gateway cannot use the store: {why}")
                }
                Ok(Ok(Readiness::NotReady(_)) | Err(_)) | Err(_) => {}
            }
            if self.child.try_wait()?.is_some() {
                return Err(self.ended().await);
            }
            sleep(Duration::from_millis(5)).await;
        }
        let log = self.place.end_of_log();
        bail!("the gateway was not ready within {STARTS_WITHIN:?}; its log ends:\n{log}");
    }

    async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => {
                let log = self.place.end_of_log();
                anyhow!("the gateway ended by itself, {status}; its log ends:\n{log}")
            }
            Err(error) => anyhow!(error).context("cannot watch the gateway"),
        }
    }
}

/// How many running requests a crash waits for: those of half of the clients.
const WORTH_A_CRASH: u64 = 16;

const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Whether a gateway that is not ready may become so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    None,
    WithItsStore,
}

/// What a gateway says of itself.
#[derive(Debug)]
enum Readiness {
    Ready,
    NotReady(String),
}

/// What stays when the gateway is started again.
#[derive(Debug)]
struct Place {
    upstream: SocketAddr,
    listen: SocketAddr,
    admin: SocketAddr,
    store: String,
    namespace: String,
    folder: PathBuf,
}

impl Place {
    fn spawn(&self) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let program = env::current_exe().context("cannot tell which program this is")?;
        let mut command = Command::new(program);
        forget_settings(&mut command);
        command
            .arg("gateway")
            .args(["--upstream", &format!("http://{}", self.upstream)])
            .args(["--listen", &self.listen.to_string()])
            .args(["--admin", &self.admin.to_string()])
            // Not a flag, which anybody on this host can read: it may have a password.
            .env("HAPAX_STORE", &self.store)
            .args(["--namespace", &self.namespace])
            .args(["--data-dir", &self.folder.join("spill").to_string_lossy()])
            .args(["--tenant", "authorization"])
            .args(["--lease", "1s"])
            .args(["--on-lapse", "hold"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        command.spawn().context("cannot start the gateway")
    }

    async fn readiness(&self, client: &Client<HttpConnector, Empty<Bytes>>) -> Result<Readiness> {
        let uri = Uri::try_from(format!("http://{}/readyz", self.admin))?;
        let (head, body) = client.get(uri).await?.into_parts();
        if head.status.is_success() {
            return Ok(Readiness::Ready);
        }
        let said = String::from_utf8_lossy(&body.collect().await?.to_bytes()).trim_end().to_owned();
        Ok(Readiness::NotReady(said.strip_prefix("not ready: ").map(str::to_owned).unwrap_or(said)))
    }

    fn log(&self) -> PathBuf {
        self.folder.join("gateway.log")
    }

    fn end_of_log(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// The gateway of the demo is set up by its flags alone: what the environment says is meant for another one.
fn forget_settings(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let is_setting = name.to_string_lossy().starts_with("HAPAX_");
        if is_setting && name != "HAPAX_LOG" && name != "HAPAX_CHAOS" {
            command.env_remove(name);
        }
    }
    if env::var_os("HAPAX_LOG").is_none() {
        command.env("HAPAX_LOG", "warn");
    }
}

/// Two addresses that stay free while the gateway is away: the system would give a port of its own choice to any
/// connection of the clients meanwhile, so these lie below the ones it chooses from.
fn free_addresses() -> Result<[SocketAddr; 2]> {
    // Spread wide: demos that are started together must not try the same ports.
    let first = process::id().wrapping_mul(7919) % PORTS.len() as u32;
    let mut held = Vec::new();
    for step in 0..PORTS.len() as u32 {
        let port = PORTS.start + ((first + step) % PORTS.len() as u32) as u16;
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if let [listen, admin] = held.as_slice() {
            return Ok([listen.local_addr()?, admin.local_addr()?]);
        }
    }
    bail!("no free port from {} to {}", PORTS.start, PORTS.end);
}

const PORTS: std::ops::Range<u16> = 20_000..32_000;
