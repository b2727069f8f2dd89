use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_testkit::proxy::Proxy;
use hapax_torture::{built, dies_with_this_process};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

use crate::broker::TorturedBroker;
use crate::faults::slow_down;

/// The lease of a bucket.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The number of relays.
pub(crate) const RELAYS: u32 = 3;

/// A relay process, and the network between it and its servers.
pub(crate) struct TorturedRelay {
    child: Child,
    pub(crate) to_database: Proxy,
    pub(crate) to_broker: Proxy,
    arguments: Vec<String>,
}

/// The relay processes.
pub(crate) struct Relays {
    program: PathBuf,
    log: PathBuf,
    running: Vec<TorturedRelay>,
    mutant: Option<String>,
    /// Processes that ended by themselves.
    pub(crate) ended: u32,
}

impl Relays {
    pub(crate) async fn start(
        broker: &TorturedBroker,
        database: SocketAddr,
        folder: &Path,
        mutant: Option<String>,
    ) -> Result<Self> {
        let (program, log) = (built("hapax")?, folder.join("relays.log"));
        let mut relays = Self { program, log, running: Vec::new(), mutant, ended: 0 };
        for _ in 0..RELAYS {
            let to_database = Proxy::start(database).await?;
            let to_broker = Proxy::start(broker.address()).await?;
            [&to_database, &to_broker].into_iter().for_each(slow_down);
            let database = format!("postgres://postgres@{}/postgres", to_database.address());
            let sink = broker.sink(to_broker.address());
            let lease = format!("{}s", LEASE.as_secs());
            let arguments = ["relay", "--database", &database, "--sink", &sink, "--lease", &lease];
            let arguments: Vec<String> =
                arguments.into_iter().chain(["--admin", "127.0.0.1:0"]).map(str::to_owned).collect();
            let child = relays.spawn(&arguments)?;
            relays.running.push(TorturedRelay { child, to_database, to_broker, arguments });
        }
        Ok(relays)
    }

    fn spawn(&self, arguments: &[String]) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = dies_with_this_process(&self.program);
        command.args(arguments).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        command.envs(self.mutant.as_ref().map(|mutant| ("HAPAX_CHAOS", mutant)));
        command.spawn().with_context(|| self.program.display().to_string())
    }

    pub(crate) fn get(&self, place: u32) -> &TorturedRelay {
        &self.running[place as usize % self.running.len()]
    }

    /// Starts those again that have ended.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for place in 0..self.running.len() {
            if self.running[place].child.try_wait()?.is_some() {
                self.ended += 1;
                self.running[place].child = self.spawn(&self.running[place].arguments)?;
            }
        }
        Ok(())
    }

    /// Kills one (SIGKILL), and starts it again.
    pub(crate) async fn kill(&mut self, place: u32) -> Result<()> {
        let place = place as usize % self.running.len();
        self.running[place].child.kill().await?;
        self.running[place].child = self.spawn(&self.running[place].arguments)?;
        Ok(())
    }

    /// Asks all to end. Returns how many did not end with 0.
    ///
    /// # Errors
    /// If one does not end.
    pub(crate) async fn end(&mut self) -> Result<u32> {
        let mut ended_badly = 0;
        for relay in &mut self.running {
            relay.signal(Signal::TERM);
            let ended = timeout(Duration::from_secs(60), relay.child.wait()).await;
            ensure!(ended.is_ok(), "a relay does not end at SIGTERM; the log is {}", self.log.display());
            ended_badly += u32::from(!ended??.success());
        }
        Ok(ended_badly)
    }
}

impl TorturedRelay {
    /// A process that has ended gets no signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}
