//! A process that is killed and started again.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};

/// A process that does not listen by then has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// How to start a process.
#[derive(Debug)]
pub(crate) struct ProcessSpec {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    /// With this code it may end by itself during its start, because a server is away. Then it starts again.
    pub(crate) unavailable: Option<i32>,
}

/// A process that always listens on the same port. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct RestartableProcess {
    spec: ProcessSpec,
    child: Mutex<Option<Child>>,
    turn: Mutex<()>,
}

impl RestartableProcess {
    pub(crate) async fn start(spec: ProcessSpec) -> Result<Self> {
        let child = spec.launch().await?;
        Ok(Self { spec, child: Mutex::new(Some(child)), turn: Mutex::default() })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.spec.address
    }

    /// Waits until no other fault of this process is under way. A fault that must know its own time takes its turn.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Kills the process (SIGKILL), and starts it after an outage.
    ///
    /// # Errors
    /// If the process had ended by itself before, or does not start again.
    pub(crate) async fn kill_and_restart(&self, outage: Duration) -> Result<()> {
        let mut child = self.child.lock().await;
        self.spec.start_if_unavailable(&mut child).await?;
        let mut killed = child.take().context("an earlier restart failed")?;
        if let Some(status) = killed.try_wait()? {
            bail!(self.spec.ended(status));
        }
        killed.kill().await?;
        sleep(outage).await;
        *child = Some(self.spec.launch().await?);
        Ok(())
    }

    /// Asks the process to end (SIGTERM), and starts it again once it has.
    ///
    /// # Errors
    /// If it does not end well, or does not start again.
    pub(crate) async fn stop_and_restart(&self) -> Result<()> {
        let mut child = self.child.lock().await;
        self.spec.start_if_unavailable(&mut child).await?;
        let mut stopped = child.take().context("an earlier restart failed")?;
        let status = end(&mut stopped).await?;
        ensure!(status.success(), "{}", self.spec.ended(status));
        *child = Some(self.spec.launch().await?);
        Ok(())
    }

    /// Stops the process for a time (SIGSTOP), and lets it go on.
    pub(crate) async fn pause(&self, length: Duration) -> Result<()> {
        let mut child = self.child.lock().await;
        self.spec.start_if_unavailable(&mut child).await?;
        let id = child.as_ref().and_then(Child::id).context("an earlier restart failed")?;
        signal(id, Signal::STOP)?;
        sleep(length).await;
        signal(id, Signal::CONT)
    }

    /// Starts the process again if it has ended because a server was away. Leaves it alone while it has a fault.
    pub(crate) async fn start_if_unavailable(&self) -> Result<()> {
        let Ok(mut child) = self.child.try_lock() else { return Ok(()) };
        self.spec.start_if_unavailable(&mut child).await
    }

    /// Asks the process to end (SIGTERM), and waits until it has.
    pub(crate) async fn terminate(&self) -> Result<ExitStatus> {
        let mut child = self.child.lock().await;
        end(child.as_mut().context("an earlier restart failed")?).await
    }

    /// Fails if the process has ended by itself.
    pub(crate) async fn check(&self) -> Result<()> {
        let mut child = self.child.lock().await;
        match child.as_mut().context("an earlier restart failed")?.try_wait()? {
            Some(status) => bail!(self.spec.ended(status)),
            None => Ok(()),
        }
    }
}

impl ProcessSpec {
    /// Starts the process until it listens. A service whose database is down ends at once, and starts again.
    async fn launch(&self) -> Result<Child> {
        let begun = Instant::now();
        loop {
            let mut child = self.spawn().with_context(|| format!("{} does not start", self.program.display()))?;
            while child.try_wait()?.is_none() {
                if TcpStream::connect(self.address).await.is_ok() {
                    return Ok(child);
                }
                self.check_deadline(begun)?;
                sleep(Duration::from_millis(10)).await;
            }
            self.check_deadline(begun)?;
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn start_if_unavailable(&self, child: &mut Option<Child>) -> Result<()> {
        let Some(running) = child else { return Ok(()) };
        let ended = running.try_wait()?.and_then(|status| status.code());
        if ended.is_some() && ended == self.unavailable {
            *child = Some(self.launch().await?);
        }
        Ok(())
    }

    fn check_deadline(&self, begun: Instant) -> Result<()> {
        let (name, log) = (self.program.display(), self.log.display());
        ensure!(begun.elapsed() < DEADLINE, "{name} does not listen on {}; its log is {log}", self.address);
        Ok(())
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = dies_with_this_process(&self.program);
        command.args(&self.arguments).env("HAPAX_LOG", "warn").stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log).kill_on_drop(true).spawn()
    }

    fn ended(&self, status: ExitStatus) -> String {
        format!("{} ended by itself, {status}; its log is {}", self.program.display(), self.log.display())
    }
}

/// Asks a process to end, and waits until it has.
async fn end(child: &mut Child) -> Result<ExitStatus> {
    signal(child.id().context("it has ended by itself")?, Signal::TERM)?;
    timeout(DEADLINE, child.wait()).await.context("it does not end")?.map_err(Into::into)
}

fn signal(id: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("a process has an id")?;
    Ok(kill_process(pid, signal)?)
}

/// A command whose process is killed when this one dies, where the system has `setpriv`.
pub fn dies_with_this_process(program: &Path) -> Command {
    let folders = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&folders).any(|folder| folder.join("setpriv").exists()) {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// A binary of this build. A test lies in a folder below the binaries.
///
/// # Errors
/// If it is not built.
pub fn built(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "there is no {name} beside {}; run `cargo build -p hapax-cli -p example-transfer-postgres -p \
             example-worker-kafka` first",
            own.display()
        )
    })
}

/// An address on which nothing listens, below the ports that the system gives to outgoing connections.
pub(crate) fn free_address(random: u32) -> Result<SocketAddr> {
    let mut ports = (0..8000).map(|step| 24_000 + (random + step) % 8000);
    let listener = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, u16::try_from(port).ok()?)).ok());
    Ok(listener.context("every port is taken")?.local_addr()?)
}

/// Creates an empty file.
pub(crate) fn empty_file(path: &Path) -> Result<PathBuf> {
    File::create(path).with_context(|| path.display().to_string())?;
    Ok(path.to_owned())
}
