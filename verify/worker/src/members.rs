use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_torture::{built, dies_with_this_process};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

/// What the programs print once they have reached the broker. From then on a worker rides out an outage.
const BEGUN: &str = "consuming ";

/// The worker processes, and how they are started.
pub(crate) struct Members {
    program: PathBuf,
    topic: String,
    database: String,
    folder: PathBuf,
    running: Vec<WorkerProcess>,
    started: u32,
    /// Processes that ended by themselves.
    pub(crate) ended: u32,
    /// Processes that ended because a broker was away at their start, or because the topic was gone.
    pub(crate) unavailable: u32,
}

/// A worker process.
struct WorkerProcess {
    child: Child,
    log: PathBuf,
    /// Whether a broker was away while it started.
    had_no_broker: bool,
    /// Whether the topic was gone while it ran.
    had_no_topic: bool,
}

impl WorkerProcess {
    /// Whether it has reached the broker.
    fn has_begun(&self) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|log| log.lines().any(|line| line.starts_with(BEGUN)))
    }

    /// Whether it may end by itself.
    fn is_excused(&self) -> bool {
        self.had_no_topic || (self.had_no_broker && !self.has_begun())
    }
}

impl Members {
    pub(crate) fn start(program: &str, topic: String, database: String, folder: &Path) -> Result<Self> {
        let (program, folder) = (built(program)?, folder.to_owned());
        let (running, started, ended, unavailable) = (Vec::new(), 0, 0, 0);
        let mut members = Self { program, topic, database, folder, running, started, ended, unavailable };
        for _ in 0..4 {
            members.join()?;
        }
        Ok(members)
    }

    /// Starts one more.
    pub(crate) fn join(&mut self) -> Result<()> {
        let member = self.spawn()?;
        self.running.push(member);
        Ok(())
    }

    fn spawn(&mut self) -> Result<WorkerProcess> {
        self.started += 1;
        let log = self.folder.join(format!("worker-{}.log", self.started));
        let output = File::create(&log)?;
        let mut command = dies_with_this_process(&self.program);
        command.args([&self.topic, &self.database]).stdout(output.try_clone()?).stderr(output).kill_on_drop(true);
        let child = command.spawn().with_context(|| self.program.display().to_string())?;
        Ok(WorkerProcess { child, log, had_no_broker: false, had_no_topic: false })
    }

    /// Notes that a broker is away, or was until now. A worker that has not reached one yet may end.
    pub(crate) fn excuse_starts(&mut self) {
        self.running.iter_mut().for_each(|member| member.had_no_broker = true);
    }

    /// Notes that the topic is gone. A worker may end because of that.
    pub(crate) fn excuse_ends(&mut self) {
        self.running.iter_mut().for_each(|member| member.had_no_topic = true);
    }

    /// Notes that the topic has been there for a while.
    pub(crate) fn expect_no_ends(&mut self) {
        self.running.iter_mut().for_each(|member| member.had_no_topic = false);
    }

    /// Starts those again that have ended.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for place in 0..self.running.len() {
            if self.running[place].child.try_wait()?.is_some() {
                match self.running[place].is_excused() {
                    true => self.unavailable += 1,
                    false => self.ended += 1,
                }
                self.running[place] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Kills one (SIGKILL), and starts another one.
    pub(crate) async fn kill(&mut self, place: u32) -> Result<()> {
        let place = place as usize % self.running.len();
        self.running[place].child.kill().await?;
        self.running[place] = self.spawn()?;
        Ok(())
    }

    /// Sends a signal to one.
    pub(crate) fn signal(&self, place: u32, signal: Signal) {
        send(&self.running[place as usize % self.running.len()].child, signal);
    }

    /// Sends a signal to all.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for member in &self.running {
            send(&member.child, signal);
        }
    }

    /// Asks the last one to end. Returns whether it ended well.
    ///
    /// # Errors
    /// If it does not end.
    pub(crate) async fn leave(&mut self) -> Result<bool> {
        let mut member = self.running.pop().context("no worker runs")?;
        send(&member.child, Signal::TERM);
        let ended = timeout(Duration::from_secs(60), member.child.wait()).await;
        ensure!(ended.is_ok(), "a worker does not end at SIGTERM; the log is {}", member.log.display());
        Ok(ended??.success() || member.is_excused())
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
