//! Redis and Valkey servers. Valkey is a fork of Redis and is driven in the same way.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::process::{DEADLINE, PORTS, ServiceProcess, poll};
use super::resp::{RespConnection, RespValue};
use super::skew::SkewFile;
use crate::{ClockStep, ports};

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisKind {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl RedisKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// The name of the service, for [`required`](super::required).
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }
}

/// The options of a server.
#[derive(Clone, Debug)]
pub struct RedisServerOptions {
    kind: RedisKind,
    password: Option<String>,
    arguments: Vec<String>,
    steps_clock: bool,
    has_only_tls: bool,
    is_sentinel: bool,
}

impl RedisServerOptions {
    /// A server without persistence, on a free loopback port and a socket in its folder.
    pub fn new(kind: RedisKind) -> Self {
        Self { kind, password: None, arguments: Vec::new(), steps_clock: true, has_only_tls: false, is_sentinel: false }
    }

    /// Adds arguments, which override those of [`new`](Self::new).
    #[must_use]
    pub fn with_args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets the password of the default user. [`RedisServer::url`] contains it.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Speaks nothing but TLS on its port, and on the bus of a cluster. The files are in this folder.
    pub(super) fn with_tls(mut self, folder: &Path) -> Self {
        self.has_only_tls = true;
        let files = [("cert-file", "certificate"), ("key-file", "key"), ("ca-cert-file", "authority")];
        let path = |name| folder.join(name).as_os_str().to_string_lossy().into_owned();
        self.arguments.extend(files.into_iter().flat_map(|(option, name)| [format!("--tls-{option}"), path(name)]));
        self.with_args(&["--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes"])
    }

    /// Uses the machine's clock, which cannot be stepped but is cheaper to read: for measurements.
    #[must_use]
    pub fn with_system_clock(mut self) -> Self {
        self.steps_clock = false;
        self
    }
}

/// A server with its own data. It ends when it is dropped, and at the latest with this process.
#[derive(Debug)]
pub struct RedisServer {
    options: RedisServerOptions,
    address: SocketAddr,
    process: ServiceProcess,
    skew: SkewFile,
}

impl RedisServer {
    /// Starts a server and waits until it replies.
    ///
    /// # Errors
    ///
    /// If the server did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is killed.
    pub async fn start(options: RedisServerOptions) -> io::Result<Self> {
        let mut server = Self::at(options, ports::free()?)?;
        // Another process may have taken the port since `ports::free` looked: try another one.
        for _ in 1..PORTS {
            match server.launch().await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => server.address = ports::free()?,
                launched => return launched.map(|()| server),
            }
        }
        server.launch().await.map(|()| server)
    }

    /// A server at this address, which does not run yet.
    pub(super) fn at(options: RedisServerOptions, address: SocketAddr) -> io::Result<Self> {
        let process = ServiceProcess::new(options.kind.name())?;
        let skew = SkewFile::create(process.folder())?;
        Ok(Self { options, address, process, skew })
    }

    /// A sentinel at this address, which does not run yet. It needs its [`sentinel_file`](Self::sentinel_file).
    pub(super) fn sentinel_at(mut options: RedisServerOptions, address: SocketAddr) -> io::Result<Self> {
        options.is_sentinel = true;
        Self::at(options, address)
    }

    /// The file in which a sentinel keeps what it knows.
    pub(super) fn sentinel_file(&self) -> PathBuf {
        self.data_folder().join("sentinel.conf")
    }

    /// The TCP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of database 0, with the password if there is one.
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}{}/0", self.address)
    }

    /// The path of the server's Unix socket.
    pub fn socket_path(&self) -> PathBuf {
        self.process.folder().join("socket")
    }

    /// The folder with its data and its log file, `log`.
    pub fn data_folder(&self) -> &Path {
        self.process.folder()
    }

    /// The process id, while the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Sends a command over the server's socket, as an operator would.
    ///
    /// # Errors
    ///
    /// If there is no reply. An error reply of the server is a reply.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may or may not execute the command.
    pub async fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<RespValue> {
        let exchange = async {
            let mut connection = RespConnection::new(UnixStream::connect(self.socket_path()).await?);
            if let Some(password) = &self.options.password {
                connection.command(&["AUTH", password]).await?;
            }
            connection.command(words).await
        };
        timeout(DEADLINE, exchange).await.map_err(io::Error::from)?
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Asks the server to end (SIGTERM), and waits until it has.
    ///
    /// # Errors
    ///
    /// If it is not running, or does not end.
    ///
    /// # Cancel safety
    ///
    /// The server ends even if the future is dropped.
    pub async fn terminate(&self) -> io::Result<ExitStatus> {
        self.process.end(Signal::TERM).await
    }

    /// Pauses the server (SIGSTOP): the kernel still accepts connections, and the server does not reply.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes the server (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume(&self) -> io::Result<()> {
        self.process.resume()
    }

    /// Starts the server again on the same port, with the same arguments and its persisted data. Kills it first if it
    /// is running.
    ///
    /// # Errors
    ///
    /// If it did not start.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is down or starting.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill();
        self.launch().await
    }

    /// Steps the server's wall clock. The offset survives restarts.
    ///
    /// # Errors
    ///
    /// If the server uses the machine's clock, or the step in microseconds exceeds 64 bits.
    pub fn step_clock(&self, step: ClockStep) -> io::Result<()> {
        if !self.options.steps_clock {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the server uses the machine's clock"));
        }
        self.skew.step(step)
    }

    /// Takes back all steps of the clock.
    pub(super) fn reset_clock(&self) -> io::Result<()> {
        self.skew.reset()
    }

    /// Starts the server, and waits until it replies.
    pub(super) async fn launch(&self) -> io::Result<()> {
        let configure = |command: &mut std::process::Command| {
            command.args(self.arguments());
            if self.options.steps_clock {
                command.env("HAPAX_SKEW", self.skew.path());
            }
        };
        // Wait for a reply on the socket in the server's folder: on the port, another process's server might reply.
        self.process.launch(configure, self.wait_until_up()).await
    }

    fn arguments(&self) -> Vec<String> {
        let (port, folder, socket) = (self.address.port().to_string(), self.data_folder(), self.socket_path());
        let path = |path: &Path| path.as_os_str().to_string_lossy().into_owned();
        let ports =
            if self.options.has_only_tls { ["--port", "0", "--tls-port", &port] } else { ["--port", &port, "", ""] };
        let always = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let ports = ports.into_iter().filter(|word| !word.is_empty());
        let file = self.options.is_sentinel.then(|| [path(&self.sentinel_file()), "--sentinel".into()]);
        let mut arguments: Vec<String> = always
            .into_iter()
            .chain(ports)
            .map(str::to_owned)
            .chain(["--dir".into(), path(folder), "--unixsocket".into(), path(&socket)])
            .collect();
        arguments.splice(0..0, file.into_iter().flatten());
        arguments.extend(self.options.password.iter().flat_map(|password| ["--requirepass".into(), password.clone()]));
        arguments.extend(self.options.arguments.iter().cloned());
        arguments
    }

    /// Waits until the server replies and has loaded its data.
    async fn wait_until_up(&self) {
        let mut poll = poll();
        loop {
            poll.tick().await;
            match self.command(&["PING"]).await {
                Ok(RespValue::Error(error)) if error.starts_with("LOADING") => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }
}
