//! PostgreSQL servers.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{Client, NoTls};

use super::process::{PORTS, ServiceProcess, poll};
use super::starter;
use crate::{ClockStep, ports};

/// Which PostgreSQL a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostgresRelease {
    /// That of the system's release.
    #[default]
    System,
    /// 17.
    V17,
}

impl PostgresRelease {
    /// The name of the service.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "postgres",
            Self::V17 => "postgres17",
        }
    }
}

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct PostgresServerOptions {
    release: PostgresRelease,
    primary: Option<SocketAddr>,
    arguments: Vec<String>,
}

impl PostgresServerOptions {
    /// A server with the defaults of PostgreSQL, so it syncs every commit to the disk. It listens on a free loopback
    /// port and lets every user in without a password.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server of this release.
    #[must_use]
    pub fn of(mut self, release: PostgresRelease) -> Self {
        self.release = release;
        self
    }

    /// A standby that copies the server at this address, and streams its changes. The primary does not wait for it.
    #[must_use]
    pub fn standby_of(mut self, primary: SocketAddr) -> Self {
        self.primary = Some(primary);
        self
    }

    /// Adds arguments, `-c` and `synchronous_commit=off` for instance.
    #[must_use]
    pub fn with_args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }
}

/// A server with its own data. It ends when it is dropped, and at the latest with this process.
#[derive(Debug)]
pub struct PostgresServer {
    options: PostgresServerOptions,
    address: SocketAddr,
    process: ServiceProcess,
    schemas: AtomicU32,
    /// Set once the clock of the server can be stepped.
    has_clock: OnceCell<()>,
    /// Set once the schema `planted` is there.
    is_planted: OnceCell<()>,
}

/// The server of each release that the tests of this process share.
static SHARED: Mutex<[Option<Arc<PostgresServer>>; 2]> = Mutex::const_new([None, None]);

impl PostgresServer {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// If the server did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is killed.
    pub async fn start(options: PostgresServerOptions) -> io::Result<Self> {
        let (address, process) = (ports::free()?, ServiceProcess::new(options.release.name())?);
        let (has_clock, is_planted) = (OnceCell::new(), OnceCell::new());
        let mut server = Self { options, address, process, schemas: AtomicU32::default(), has_clock, is_planted };
        // Another process may have taken the port since `ports::free` looked: try another one.
        for _ in 1..PORTS {
            match server.launch().await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => server.address = ports::free()?,
                launched => return launched.map(|()| server),
            }
        }
        server.launch().await.map(|()| server)
    }

    /// The server that all tests of this process share. The first call starts it. Each test uses a
    /// [`schema`](Self::schema) of its own, and stops nothing.
    ///
    /// # Errors
    ///
    /// If the server did not start.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a later call starts the server.
    pub async fn shared() -> io::Result<Arc<Self>> {
        Self::shared_of(PostgresRelease::System).await
    }

    /// The server of a release that all tests of this process share, as [`shared`](Self::shared).
    ///
    /// # Errors
    ///
    /// If the server did not start.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a later call starts the server.
    pub async fn shared_of(release: PostgresRelease) -> io::Result<Arc<Self>> {
        let mut servers = SHARED.lock().await;
        let shared = &mut servers[release as usize];
        if let Some(server) = shared {
            return Ok(Arc::clone(server));
        }
        let options = PostgresServerOptions::new().of(release).with_args(&["-c", "max_connections=400"]);
        let server = Arc::new(Self::start(options).await?);
        *shared = Some(Arc::clone(&server));
        Ok(server)
    }

    /// Ends the shared servers, so that their folders are removed: a static value is never dropped.
    pub(super) fn end_shared() {
        *SHARED.blocking_lock() = [None, None];
    }

    /// The TCP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the superuser, for the database `postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }

    /// The folder with its log file, `log`, its socket, and its data in the folder `data`.
    pub fn data_folder(&self) -> &Path {
        self.process.folder()
    }

    /// The process id, while the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Connects as the superuser. The connection ends with the runtime of the caller.
    ///
    /// # Errors
    ///
    /// If the server does not accept the connection.
    pub async fn client(&self) -> io::Result<Client> {
        connect(&self.url()).await
    }

    /// A program of the server's clients, such as `pg_dump`, which connects as the superuser. It may write into the
    /// [folder of the server](Self::data_folder).
    pub fn client_program(&self, program: &str) -> Command {
        let mut command = starter::program(self.options.release.name(), program);
        command.env("PGHOST", self.address.ip().to_string()).env("PGPORT", self.address.port().to_string());
        command.env("PGUSER", "postgres");
        command
    }

    /// Creates an empty schema and a role that owns it. Its clock can be stepped apart from those of other schemas.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may or may not exist.
    pub async fn schema(&self) -> io::Result<PostgresSchema> {
        let name = format!("test_{}", self.schemas.fetch_add(1, Ordering::Relaxed));
        let admin = self.client().await?;
        self.has_clock.get_or_try_init(|| run(&admin, include_str!("clock.sql"))).await?;
        run(&admin, &include_str!("schema.sql").replace("NAME", &name)).await?;
        Ok(PostgresSchema { name, address: self.address, admin })
    }

    /// Creates a schema as [`schema`](Self::schema) does, whose owner has a search path with what another role could
    /// plant there: functions and types before those of the system, and operators that need no conversion. A statement
    /// that calls one of them fails, and counts in [`planted_calls`](PostgresSchema::planted_calls).
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may or may not exist.
    pub async fn planted_schema(&self) -> io::Result<PostgresSchema> {
        let schema = self.schema().await?;
        self.is_planted.get_or_try_init(|| run(&schema.admin, include_str!("planted.sql"))).await?;
        let name = &schema.name;
        run(&schema.admin, &format!("alter role {name} set search_path = planted, pg_catalog, {name}")).await?;
        Ok(schema)
    }

    /// Kills the server and all of its processes (SIGKILL).
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Waits until this standby has everything that its primary has confirmed.
    ///
    /// # Errors
    ///
    /// If one of them does not answer.
    pub async fn catch_up_with(&self, primary: &Self) -> io::Result<()> {
        let (standby, primary) = (self.client().await?, primary.client().await?);
        let flushed = primary.query_one("select pg_current_wal_flush_lsn()::text", &[]).await;
        let flushed: String = flushed.map_err(io::Error::other)?.get(0);
        let replayed = format!("select coalesce(pg_last_wal_replay_lsn() >= '{flushed}', false)");
        let mut poll = poll();
        while !standby.query_one(&replayed, &[]).await.map_err(io::Error::other)?.get::<_, bool>(0) {
            poll.tick().await;
        }
        Ok(())
    }

    /// Makes a standby the primary, and waits until it takes writes.
    ///
    /// # Errors
    ///
    /// If it does not.
    ///
    /// # Cancel safety
    ///
    /// The standby may be promoted even if the future is dropped.
    pub async fn promote(&self) -> io::Result<()> {
        let promoted = self.client().await?.query_one("select pg_promote()", &[]).await.map_err(io::Error::other)?;
        if promoted.get(0) { Ok(()) } else { Err(io::Error::other("the standby is still one")) }
    }

    /// Asks the server to disconnect its clients and to end (SIGINT), and waits until it has ended.
    ///
    /// # Errors
    ///
    /// If it is not running, or does not end.
    ///
    /// # Cancel safety
    ///
    /// The server ends even if the future is dropped.
    pub async fn terminate(&self) -> io::Result<ExitStatus> {
        self.process.end(Signal::INT).await
    }

    /// Pauses the server and all of its processes (SIGSTOP): the kernel still accepts connections, and the server does
    /// not reply.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes the server and its processes (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume(&self) -> io::Result<()> {
        self.process.resume()
    }

    /// Starts the server again on the same port, with the same arguments and its data. Kills it first if it is running.
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
        for _ in 1..RESTARTS {
            match self.launch().await {
                // A killed process may hold the shared memory for another moment.
                Err(error) if error.to_string().contains("is still in use") => {}
                launched => return launched,
            }
        }
        self.launch().await
    }

    async fn launch(&self) -> io::Result<()> {
        let configure = |command: &mut Command| {
            let port = self.address.port().to_string();
            command.args(["--bind", "127.0.0.1", "--port", &port, "--dir"]).arg(self.data_folder());
            if let Some(primary) = self.options.primary {
                command.args(["--standby-of", &primary.to_string()]);
            }
            command.args(&self.options.arguments);
        };
        let _ = fs::remove_file(self.pid_file());
        self.process.launch(configure, self.wait_until_up()).await
    }

    /// Waits until the server's own file says that it accepts connections. On the port, another process's server might
    /// reply.
    async fn wait_until_up(&self) {
        let mut poll = poll();
        loop {
            poll.tick().await;
            let file = fs::read_to_string(self.pid_file()).unwrap_or_default();
            if file.lines().nth(7).is_some_and(|status| matches!(status.trim(), "ready" | "standby")) {
                return;
            }
        }
    }

    fn pid_file(&self) -> std::path::PathBuf {
        self.data_folder().join("data/postmaster.pid")
    }
}

/// How often a start is tried again while processes of the killed server still exist.
const RESTARTS: usize = 20;

/// An empty schema of a server, with a role that owns it and a clock of its own.
pub struct PostgresSchema {
    name: String,
    address: SocketAddr,
    admin: Client,
}

impl PostgresSchema {
    /// The name of the schema and of the role that owns it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the owner, with the parameter `schema`.
    pub fn url(&self) -> String {
        self.url_at(self.address)
    }

    /// The URL of the owner at another address: that of a proxy in front of the server.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let name = &self.name;
        format!("postgres://{name}@{address}/postgres?schema={name}")
    }

    /// The connection of a superuser who works in this schema.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Steps the clock that statements of the owner see in `clock_timestamp()`.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or the step in microseconds exceeds 64 bits.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the clock may or may not be stepped.
    pub async fn step_clock(&self, step: ClockStep) -> io::Result<()> {
        let micros = |length: Duration| i64::try_from(length.as_micros()).map_err(io::Error::other);
        let by = match step {
            ClockStep::Forward(length) => micros(length)?,
            ClockStep::Back(length) => -micros(length)?,
        };
        let step = format!(
            "insert into test_clock.skew as s (role, micros) values ('{}', {by})
                 on conflict (role) do update set micros = s.micros + excluded.micros",
            self.name
        );
        run(&self.admin, &step).await
    }

    /// How often something was called that is planted in the search path of a
    /// [planted schema](PostgresServer::planted_schema) of this server.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or has no such schema.
    pub async fn planted_calls(&self) -> io::Result<i64> {
        let calls = "select case when is_called then last_value else 0 end from planted.calls";
        Ok(self.admin.query_one(calls, &[]).await.map_err(io::Error::other)?.get(0))
    }
}

async fn run(client: &Client, sql: &str) -> io::Result<()> {
    client.batch_execute(sql).await.map_err(io::Error::other)
}

impl fmt::Debug for PostgresSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

async fn connect(url: &str) -> io::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
    // Its error is also that of the client's next call.
    tokio::spawn(async { drop(connection.await) });
    Ok(client)
}
