//! The gateway process and its crashes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use super::GatewayScenario;
use crate::commands::demo::process;
use crate::commands::demo::progress::Progress;
use crate::commands::demo::random::{RandomStream, RandomTopic, fresh_seed};
use crate::commands::demo::readiness::{Readiness, ReadinessClient};

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub(super) struct GatewayProcess {
    setup: GatewaySetup,
    child: Child,
}

impl GatewayProcess {
    /// Starts a gateway in front of `upstream` that keeps its files in `folder`.
    pub(super) async fn start(scenario: &GatewayScenario, upstream: SocketAddr, folder: &Path) -> Result<Self> {
        let [listen, admin] = process::free_addresses()?;
        let default_store = || format!("sqlite://{}", folder.join("hapax.db").display());
        let store = scenario.store.clone().unwrap_or_else(default_store);
        // A store that outlives the run may still have records of another run, so each run has its own namespace.
        let namespace = format!("demo-{:016x}", fresh_seed());
        let setup = GatewaySetup { upstream, listen, admin, store, namespace, folder: folder.to_owned() };
        let child = setup.spawn()?;
        let mut gateway = Self { setup, child };
        // The gateway creates the file of the run now, which may take a moment. A store that the user names should
        // already work.
        let when_not_ready = if scenario.store.is_some() { WhenNotReady::Fail } else { WhenNotReady::Wait };
        gateway.wait_until_ready(when_not_ready).await?;
        Ok(gateway)
    }

    /// Returns the address for clients.
    pub(super) fn address(&self) -> SocketAddr {
        self.setup.listen
    }

    /// Kills and restarts the gateway several times, spread over the run. Returns only if the gateway exits by itself
    /// or does not start again.
    pub(super) async fn crash_repeatedly(&mut self, scenario: &GatewayScenario, progress: &Progress) -> anyhow::Error {
        for crash in 1..=scenario.crashes {
            let mut random = RandomStream::new(scenario.seed, RandomTopic::Outage, &[crash.into()]);
            let outage = Duration::from_millis(random.in_range(0, 150));
            tokio::select! {
                () = progress.wait_for_settled(scenario.payments_before(crash)) => {}
                error = self.wait_for_exit() => return error,
            }
            if let Err(error) = self.crash(outage, progress).await {
                return error;
            }
        }
        self.wait_for_exit().await
    }

    /// Stops the gateway at the end of the run.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the gateway")
    }

    async fn crash(&mut self, outage: Duration, progress: &Progress) -> Result<()> {
        // A crash should interrupt many requests. Near the end of the run there may be only a few.
        let _ = timeout(Duration::from_millis(500), progress.wait_for_running(RUNNING_BEFORE_CRASH)).await;
        let interrupted = progress.running();
        self.child.kill().await.context("cannot kill the gateway")?;
        sleep(outage).await;
        self.child = self.setup.spawn()?;
        self.wait_until_ready(WhenNotReady::Wait).await?;
        progress.count_crash(interrupted);
        Ok(())
    }

    /// Waits until the gateway reports that it is ready.
    async fn wait_until_ready(&mut self, when_not_ready: WhenNotReady) -> Result<()> {
        let client = ReadinessClient::new();
        let started = Instant::now();
        while started.elapsed() < START_TIMEOUT {
            let left = START_TIMEOUT.saturating_sub(started.elapsed());
            match timeout(left, client.ask(self.setup.admin)).await {
                Ok(Ok(Readiness::Ready)) => return Ok(()),
                Ok(Ok(Readiness::NotReady(why))) if when_not_ready == WhenNotReady::Fail => {
                    bail!("the gateway cannot use the store: {why}")
                }
                Ok(Ok(Readiness::NotReady(_)) | Err(_)) | Err(_) => {}
            }
            // A gateway that has exited never becomes ready: report its exit instead of waiting for the timeout.
            if self.child.try_wait()?.is_some() {
                return Err(self.wait_for_exit().await);
            }
            sleep(Duration::from_millis(5)).await;
        }
        process::show_end_of_log("the gateway", &self.setup.log());
        bail!("the gateway was not ready within {START_TIMEOUT:?}");
    }

    async fn wait_for_exit(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => {
                process::show_end_of_log("the gateway", &self.setup.log());
                anyhow!("the gateway exited by itself, {status}")
            }
            Err(error) => anyhow!(error).context("cannot wait for the gateway process"),
        }
    }
}

/// A crash waits until this many requests are running: half of the concurrent clients.
const RUNNING_BEFORE_CRASH: u64 = 16;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The demo's behaviour while the gateway is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenNotReady {
    /// Fails with the reason that the gateway reports.
    Fail,
    /// Waits until the gateway is ready.
    Wait,
}

/// The settings with which the gateway is started and restarted.
#[derive(Debug)]
struct GatewaySetup {
    upstream: SocketAddr,
    listen: SocketAddr,
    admin: SocketAddr,
    store: String,
    namespace: String,
    folder: PathBuf,
}

impl GatewaySetup {
    fn spawn(&self) -> Result<Child> {
        let mut command = process::command(&self.log())?;
        command
            .arg("gateway")
            .args(["--upstream", &format!("http://{}", self.upstream)])
            .args(["--listen", &self.listen.to_string()])
            .args(["--admin", &self.admin.to_string()])
            // A variable, because every user of this host can read flags, and the URL may contain a password.
            .env("HAPAX_STORE", &self.store)
            .args(["--namespace", &self.namespace])
            .args(["--data-dir", &self.folder.join("spill").to_string_lossy()])
            .args(["--tenant", "authorization"])
            .args(["--lease", "1s"])
            .args(["--on-lapse", "hold"]);
        command.spawn().context("cannot start the gateway")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("gateway.log")
    }
}
