//! The process of a server, and the folder with its data.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fmt};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::starter;

/// A server that takes longer has failed, even on a slow machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// The interval at which a starting or ending server is polled.
const POLL: Duration = Duration::from_millis(2);

/// How many ports are tried if other processes take them first.
pub(super) const PORTS: usize = 8;

/// The process of one server. It ends when it is dropped, and at the latest with this process.
pub(super) struct ServiceProcess {
    service: &'static str,
    folder: TempDir,
    child: Mutex<Option<Child>>,
}

impl ServiceProcess {
    /// Creates the folder. Nothing runs yet.
    pub(super) fn new(service: &'static str) -> io::Result<Self> {
        Ok(Self { service, folder: new_folder()?, child: Mutex::default() })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Starts the service's script with these arguments and variables, and waits until `up` is ready.
    pub(super) async fn launch(
        &self,
        configure: impl FnOnce(&mut Command),
        up: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let log = File::create(self.log())?;
        let mut command = starter::script(self.service);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        configure(&mut command);
        *self.child() = Some(starter::start(command)?);
        tokio::select! {
            biased;
            up = timeout(DEADLINE, up) => up.map_err(|_| self.failure("the server does not reply")),
            ended = self.wait_until_ended() => {
                *self.child() = None;
                Err(self.failure(&format!("the server ended: {}", ended?)))
            }
        }
    }

    /// Kills the server and its child processes (SIGKILL).
    pub(super) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let children = children(child.id());
            // An error means that the server has already ended.
            let _ = child.kill();
            let _ = child.wait();
            for child in children {
                let _ = kill_process(child, Signal::KILL);
            }
        }
    }

    /// Sends a signal that ends the server, and waits until it has ended.
    pub(super) async fn end(&self, signal: Signal) -> io::Result<ExitStatus> {
        self.signal(signal)?;
        let status = timeout(DEADLINE, self.wait_until_ended()).await.map_err(io::Error::from)??;
        *self.child() = None;
        Ok(status)
    }

    /// Stops the server, and then its child processes (SIGSTOP).
    pub(super) fn pause(&self) -> io::Result<()> {
        let pid = self.signal(Signal::STOP)?;
        // The signal takes effect asynchronously.
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        signal_all(&children(pid.as_raw_nonzero().get().unsigned_abs()), Signal::STOP)
    }

    pub(super) fn resume(&self) -> io::Result<()> {
        let pid = self.signal(Signal::CONT)?;
        signal_all(&children(pid.as_raw_nonzero().get().unsigned_abs()), Signal::CONT)
    }

    /// Waits until the process has ended.
    async fn wait_until_ended(&self) -> io::Result<ExitStatus> {
        let mut poll = poll();
        loop {
            poll.tick().await;
            let mut child = self.child();
            let child = child.as_mut().ok_or_else(not_running)?;
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<Pid> {
        let child = self.child();
        let pid = Pid::from_child(child.as_ref().ok_or_else(not_running)?);
        kill_process(pid, signal)?;
        Ok(pid)
    }

    fn failure(&self, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        // As Redis and PostgreSQL word it, and Erlang.
        let taken = ["already in use", "eaddrinuse", "in use by another", "already a epmd running"];
        let is_taken = taken.iter().any(|words| log.contains(words));
        let kind = if is_taken { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        io::Error::new(kind, format!("{}: {what}; its log:\n{log}", self.service))
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock()
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for ServiceProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.service, self.pid())
    }
}

/// A folder that is removed with its handle.
pub(super) fn new_folder() -> io::Result<TempDir> {
    // Not in /tmp: it may be a small file system in memory.
    let home = env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into());
    tempfile::Builder::new().prefix("hapax-").tempdir_in(home)
}

pub(super) fn poll() -> tokio::time::Interval {
    let mut poll = interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll
}

/// The child processes of a process. There are none where the system does not list them.
fn children(pid: u32) -> Vec<Pid> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
}

/// Sends a signal to those of the processes that still run.
fn signal_all(processes: &[Pid], signal: Signal) -> io::Result<()> {
    for process in processes {
        match kill_process(*process, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn not_running() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the server is not running")
}
