//! A process of the pipeline that can be killed and paused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::process;

/// How a process is started and started again.
#[derive(Debug, Clone)]
pub(super) struct MemberSetup {
    /// For people: `worker 1`.
    pub(super) name: String,
    pub(super) log: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Variables, because every user of this host can read arguments.
    pub(super) variables: Vec<(&'static str, String)>,
    /// Whether it is started again if it cannot start.
    pub(super) is_restarted: bool,
    /// It is ready when it listens here. A process without an address is ready at once.
    pub(super) address: Option<SocketAddr>,
}

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct PipelineProcess {
    pub(super) setup: MemberSetup,
    child: Child,
    pub(super) suffered: Suffered,
}

/// The faults of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Suffered {
    pub(super) kills: u32,
    pub(super) pauses: u32,
}

/// A fault of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessFault {
    /// `kill -9`, and a new start after this time.
    Kill(Duration),
    /// No progress for this time, which is longer than a lease.
    Pause(Duration),
}

impl PipelineProcess {
    /// Starts a process and waits until it is ready.
    pub(super) async fn start(setup: MemberSetup) -> Result<Self> {
        let child = spawn(&setup)?;
        let mut member = Self { setup, child, suffered: Suffered::default() };
        member.wait_until_ready().await?;
        Ok(member)
    }

    /// Suffers a fault, and runs again afterwards.
    pub(super) async fn suffer(&mut self, fault: ProcessFault) -> Result<()> {
        self.check()?;
        match fault {
            ProcessFault::Kill(outage) => {
                self.kill().await?;
                sleep(outage).await;
                self.child = spawn(&self.setup)?;
                self.suffered.kills += 1;
                self.wait_until_ready().await
            }
            ProcessFault::Pause(time) => {
                self.signal(Signal::STOP)?;
                sleep(time).await;
                self.signal(Signal::CONT)?;
                self.suffered.pauses += 1;
                Ok(())
            }
        }
    }

    /// Kills the process.
    pub(super) async fn kill(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.setup.name))
    }

    /// Refuses a process that has ended by itself, unless it is to be started again.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        if self.setup.is_restarted && status.code() == Some(CANNOT_START) {
            self.child = spawn(&self.setup)?;
            return Ok(());
        }
        process::show_end_of_log(&self.setup.name, &self.setup.log);
        Err(anyhow!("{} exited by itself, {status}", self.setup.name))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let id = id.with_context(|| format!("{} has ended", self.setup.name))?;
        kill_process(id, signal).with_context(|| format!("cannot signal {}", self.setup.name))
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let Some(address) = self.setup.address else { return Ok(()) };
        let started = Instant::now();
        while started.elapsed() < START_TIMEOUT {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(());
            }
            self.check()?;
            sleep(Duration::from_millis(5)).await;
        }
        process::show_end_of_log(&self.setup.name, &self.setup.log);
        bail!("{} did not listen within {START_TIMEOUT:?}", self.setup.name);
    }
}

/// The exit code of a process that cannot start.
const CANNOT_START: i32 = 3;

const START_TIMEOUT: Duration = Duration::from_secs(60);

fn spawn(setup: &MemberSetup) -> Result<Child> {
    let mut command: Command = process::command(&setup.log)?;
    command.args(&setup.arguments).envs(setup.variables.iter().map(|(name, value)| (name, value)));
    command.spawn().with_context(|| format!("cannot start {}", setup.name))
}
