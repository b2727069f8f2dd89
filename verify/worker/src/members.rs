use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_torture::{built, dies_with_this_process};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

/// How the worker processes are started.
pub(crate) struct Members {
    program: PathBuf,
    topic: String,
    database: String,
    log: PathBuf,
    running: Vec<Child>,
    /// Processes that ended by themselves, for instance at a start without a broker.
    pub(crate) ended: u32,
}

impl Members {
    pub(crate) fn start(program: &str, topic: String, database: String, folder: &Path) -> Result<Self> {
        let (program, log) = (built(program)?, folder.join("workers.log"));
        let mut members = Self { program, topic, database, log, running: Vec::new(), ended: 0 };
        for _ in 0..4 {
            members.join()?;
        }
        Ok(members)
    }

    /// Starts one more.
    pub(crate) fn join(&mut self) -> Result<()> {
        let child = self.spawn()?;
        self.running.push(child);
        Ok(())
    }

    fn spawn(&self) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = dies_with_this_process(&self.program);
        command.args([&self.topic, &self.database]).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        command.spawn().with_context(|| self.program.display().to_string())
    }

    /// Starts those again that have ended.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for place in 0..self.running.len() {
            if self.running[place].try_wait()?.is_some() {
                self.ended += 1;
                self.running[place] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Kills one (SIGKILL), and starts another one.
    pub(crate) async fn kill(&mut self, place: u32) -> Result<()> {
        let place = place as usize % self.running.len();
        self.running[place].kill().await?;
        self.running[place] = self.spawn()?;
        Ok(())
    }

    /// Sends a signal to one.
    pub(crate) fn signal(&self, place: u32, signal: Signal) {
        send(&self.running[place as usize % self.running.len()], signal);
    }

    /// Sends a signal to all.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for child in &self.running {
            send(child, signal);
        }
    }

    /// Asks the last one to end. Returns whether it ended well.
    ///
    /// # Errors
    /// If it does not end.
    pub(crate) async fn leave(&mut self) -> Result<bool> {
        let mut child = self.running.pop().context("no worker runs")?;
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        send(&child, Signal::TERM);
        let ended = timeout(Duration::from_secs(60), child.wait()).await;
        ensure!(ended.is_ok(), "a worker does not end at SIGTERM; the log is {}", self.log.display());
        Ok(ended??.success())
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }
}

/// A process that has ended gets no signal.
fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}
