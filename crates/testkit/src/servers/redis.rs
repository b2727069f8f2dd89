//! Redis, and Valkey, which is told apart only by who made it.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, ffi::OsStr};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::resp::{Connection, Reply};
use super::starter;
use crate::{Step, ports};

/// After this a server has failed, however slow the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// How often a server that is to start or to end is asked.
const POLL: Duration = Duration::from_millis(2);

/// So many times another port is tried, if another process was quicker.
const PORTS: usize = 8;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// Its name as a service, for [`required`](super::required).
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }
}

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    kind: Kind,
    password: Option<String>,
    arguments: Vec<String>,
    steps_clock: bool,
}

impl Options {
    /// In memory only, on a free port of this machine alone and on a socket in its folder.
    pub fn new(kind: Kind) -> Self {
        Self { kind, password: None, arguments: Vec::new(), steps_clock: true }
    }

    /// More arguments of the server; they go before those of [`new`](Self::new).
    #[must_use]
    pub fn with_args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// The password of the default user, also in [`RedisServer::url`].
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// The machine's own clock, which costs the server less to read: for measurements.
    #[must_use]
    pub fn with_clock_of_the_machine(mut self) -> Self {
        self.steps_clock = false;
        self
    }
}

/// A server with data of its own. It ends when it is dropped, and with this process at the latest.
#[derive(Debug)]
pub struct RedisServer {
    options: Options,
    address: SocketAddr,
    folder: TempDir,
    /// By how many microseconds its clock is off; the file says it to the server.
    skew: Mutex<i64>,
    skew_file: File,
    child: Mutex<Option<Child>>,
}

impl RedisServer {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It did not start; the error has what it said.
    ///
    /// # Cancel safety
    ///
    /// A server that was started is ended.
    pub async fn start(options: Options) -> io::Result<Self> {
        let home = env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into());
        let folder = tempfile::Builder::new().prefix("hapax-").tempdir_in(home)?;
        let skew_file = File::create(folder.path().join("skew"))?;
        skew_file.write_all_at(&0i64.to_ne_bytes(), 0)?;
        let (skew, child, address) = (Mutex::default(), Mutex::default(), ports::free()?);
        let mut server = Self { options, address, folder, skew, skew_file, child };
        for _ in 1..PORTS {
            match server.launch().await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => server.address = ports::free()?,
                launched => return launched.map(|()| server),
            }
        }
        server.launch().await.map(|()| server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the first database, with the password if there is one.
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}{}/0", self.address)
    }

    /// Its socket: no TLS, no proxy.
    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The folder with its data, and with its log in the file `log`.
    pub fn data_folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Asks the server itself, over its socket, as an operator would.
    ///
    /// # Errors
    ///
    /// No answer. What the server refuses is an answer.
    ///
    /// # Cancel safety
    ///
    /// The server may have carried it out.
    pub async fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<Reply> {
        let exchange = async {
            let mut connection = Connection::new(UnixStream::connect(self.socket_path()).await?);
            if let Some(password) = &self.options.password {
                connection.command(&["AUTH", password]).await?;
            }
            connection.command(words).await
        };
        timeout(DEADLINE, exchange).await.map_err(io::Error::from)?
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            // One that has already ended cannot be killed, and that is what was wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    ///
    /// # Errors
    ///
    /// It does not run, or does not end.
    ///
    /// # Cancel safety
    ///
    /// It ends nevertheless.
    pub async fn terminate(&self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let status = timeout(DEADLINE, self.ended()).await.map_err(io::Error::from)??;
        *self.child() = None;
        Ok(status)
    }

    /// Stops it where it stands (SIGSTOP): the system still accepts connections, and nobody answers them.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn pause(&self) -> io::Result<()> {
        let pid = self.signal(Signal::STOP)?;
        // The signal takes effect a little later.
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Starts it again where it was, with its arguments and what it kept of its data; kills it first if it runs.
    ///
    /// # Errors
    ///
    /// It did not start.
    ///
    /// # Cancel safety
    ///
    /// It is left down, or starting.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill();
        self.launch().await
    }

    /// Steps its wall clock, also across restarts.
    ///
    /// # Errors
    ///
    /// It goes by the clock of the machine, or the step is too long for 64 bits of microseconds.
    pub fn step_clock(&self, step: Step) -> io::Result<()> {
        if !self.options.steps_clock {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it goes by the clock of the machine"));
        }
        let micros = |length: Duration| i64::try_from(length.as_micros()).map_err(io::Error::other);
        let step = match step {
            Step::Forward(length) => micros(length)?,
            Step::Back(length) => -micros(length)?,
        };
        let mut skew = self.skew.lock().unwrap_or_else(PoisonError::into_inner);
        *skew = skew.checked_add(step).ok_or_else(|| io::Error::other("too far"))?;
        self.skew_file.write_all_at(&skew.to_ne_bytes(), 0)
    }

    async fn launch(&self) -> io::Result<()> {
        let log = File::create(self.log())?;
        let mut command = starter::script(self.options.kind.name());
        command.args(self.arguments()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if self.options.steps_clock {
            command.env("HAPAX_SKEW", self.folder.path().join("skew"));
        }
        *self.child() = Some(starter::start(command)?);
        // By the socket in its folder: on the port, a server of another process might answer.
        tokio::select! {
            biased;
            up = timeout(DEADLINE, self.up()) => up.map_err(|_| self.failure("it does not answer")),
            ended = self.ended() => {
                *self.child() = None;
                Err(self.failure(&format!("it ended: {}", ended?)))
            }
        }
    }

    fn arguments(&self) -> Vec<String> {
        let (port, folder, socket) = (self.address.port().to_string(), self.data_folder(), self.socket_path());
        let path = |path: &Path| path.as_os_str().to_string_lossy().into_owned();
        let mut arguments: Vec<String> = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port]
            .map(str::to_owned)
            .into_iter()
            .chain(["--dir".into(), path(folder), "--unixsocket".into(), path(&socket)])
            .collect();
        arguments.extend(self.options.password.iter().flat_map(|password| ["--requirepass".into(), password.clone()]));
        arguments.extend(self.options.arguments.iter().cloned());
        arguments
    }

    /// Waits until it answers, and has its data.
    async fn up(&self) {
        let mut poll = poll();
        loop {
            poll.tick().await;
            match self.command(&["PING"]).await {
                Ok(Reply::Error(error)) if error.starts_with("LOADING") => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    /// Waits until the process is gone.
    async fn ended(&self) -> io::Result<ExitStatus> {
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
        let kind = if log.contains("already in use") { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        io::Error::new(kind, format!("{}: {what}; its log:\n{log}", self.options.kind.name()))
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join(OsStr::new("log"))
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn poll() -> tokio::time::Interval {
    let mut poll = interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll
}

fn not_running() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the server does not run")
}
