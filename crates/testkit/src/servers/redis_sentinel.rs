//! A master of Redis or Valkey with a replica, and three sentinels that replace the one by the other.

use std::fs;
use std::io;
use std::net::SocketAddr;

use futures_util::future::try_join_all;
use parking_lot::Mutex;

use super::process::{DEADLINE, PORTS, poll};
use super::redis::{RedisKind, RedisServer, RedisServerOptions};
use super::redis_tls::{RedisTls, RedisTlsFolder};
use super::resp::RespValue;
use crate::{ClockStep, ports};

/// The name that the sentinels have for the master.
const MASTER: &str = "main";

/// The options of a master with sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSentinelOptions {
    kind: RedisKind,
    password: Option<String>,
    sentinel_password: Option<String>,
    tls: Option<RedisTls>,
    down_after_millis: u32,
    arguments: Vec<String>,
    has_system_clock: bool,
}

impl RedisSentinelOptions {
    /// Servers without persistence that demand a replica for each write. The sentinels take a server for down after a
    /// day.
    pub fn new(kind: RedisKind) -> Self {
        let (password, sentinel_password, tls) = (None, None, None);
        Self {
            kind,
            password,
            sentinel_password,
            tls,
            down_after_millis: 24 * 3_600_000,
            arguments: Vec::new(),
            has_system_clock: false,
        }
    }

    /// Adds arguments for both servers, which override those of [`new`](Self::new).
    #[must_use]
    pub fn with_args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Starts the servers with the clock of the system, which cannot be stepped.
    #[must_use]
    pub fn with_system_clock(mut self) -> Self {
        self.has_system_clock = true;
        self
    }

    /// Lets the sentinels take a server for down after so many milliseconds without a reply.
    #[must_use]
    pub fn down_after(mut self, millis: u32) -> Self {
        self.down_after_millis = millis;
        self
    }

    /// Sets the passwords of the default users of the servers and of the sentinels.
    #[must_use]
    pub fn with_passwords(mut self, of_servers: &str, of_sentinels: &str) -> Self {
        self.password = Some(of_servers.to_owned());
        self.sentinel_password = Some(of_sentinels.to_owned());
        self
    }

    /// Lets all speak nothing but TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: RedisTls) -> Self {
        self.tls = Some(tls);
        self
    }

    fn server(&self, tls: &RedisTlsFolder) -> RedisServerOptions {
        // Longer than any step of the clock.
        let long = ["--repl-timeout", "1000000000", "--min-replicas-max-lag", "1000000000"];
        let always = ["--min-replicas-to-write", "1", "--repl-diskless-sync-delay", "0"];
        let mut options = tls.apply(RedisServerOptions::new(self.kind).with_args(&long).with_args(&always));
        if let Some(password) = &self.password {
            options = options.with_password(password).with_args(&["--masterauth", password]);
        }
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let options = options.with_args(&arguments);
        if self.has_system_clock { options.with_system_clock() } else { options }
    }

    fn sentinel(&self, tls: &RedisTlsFolder, address: SocketAddr) -> io::Result<RedisServer> {
        let options = tls.apply(RedisServerOptions::new(self.kind).with_system_clock());
        let options = match &self.sentinel_password {
            Some(password) => options.with_password(password),
            None => options,
        };
        RedisServer::sentinel_at(options, address)
    }

    /// The file in which a sentinel finds the master, and in which it writes what it learns.
    fn configuration(&self, master: SocketAddr) -> String {
        let auth = self.password.iter().map(|password| format!("sentinel auth-pass {MASTER} {password}\n"));
        let auth: String = auth.collect();
        let own = self.sentinel_password.iter().map(|password| format!("sentinel sentinel-pass {password}\n"));
        let own: String = own.collect();
        format!(
            "sentinel monitor {MASTER} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {MASTER} {}\n\
             sentinel failover-timeout {MASTER} 5000\n{auth}{own}",
            master.port(),
            self.down_after_millis,
        )
    }
}

/// Two servers and three sentinels. They end when it is dropped.
#[derive(Debug)]
pub struct RedisSentinels {
    options: RedisSentinelOptions,
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    tls: RedisTlsFolder,
}

/// Those that no test uses now.
static IDLE: Mutex<Vec<RedisSentinels>> = Mutex::new(Vec::new());

/// An empty master with sentinels that no other test uses meanwhile. When it is dropped, the next test gets it.
#[derive(Debug)]
pub struct LentRedisSentinels(Option<RedisSentinels>);

impl RedisSentinels {
    /// Starts all and waits until the replica has copied the master and the sentinels know each other.
    ///
    /// # Errors
    ///
    /// If one did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all are killed.
    pub async fn start(options: RedisSentinelOptions) -> io::Result<Self> {
        // Another process may have taken a port since it was free: try others.
        for _ in 1..PORTS {
            match Self::launch(&options).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                launched => return launched,
            }
        }
        Self::launch(&options).await
    }

    async fn launch(options: &RedisSentinelOptions) -> io::Result<Self> {
        let tls = RedisTlsFolder::new(options.tls.as_ref())?;
        let addresses = ports::several(5)?;
        let [master, replica, sentinels @ ..] = &addresses[..] else { unreachable!("five were asked for") };
        let port = master.port().to_string();
        let follows = options.server(&tls).with_args(&["--replicaof", &format!("127.0.0.1 {port}")]);
        let servers = vec![RedisServer::at(options.server(&tls), *master)?, RedisServer::at(follows, *replica)?];
        let sentinels = sentinels.iter().map(|address| options.sentinel(&tls, *address));
        let sentinels = sentinels.collect::<io::Result<Vec<_>>>()?;
        for sentinel in &sentinels {
            fs::write(sentinel.sentinel_file(), options.configuration(*master))?;
        }
        let started = Self { options: options.clone(), servers, sentinels, tls };
        try_join_all(started.servers.iter().map(RedisServer::launch)).await?;
        // A sentinel asks the master for its replicas at its start, and then only every ten seconds.
        wait_until("the replica does not copy its master", || started.has_copied()).await?;
        try_join_all(started.sentinels.iter().map(RedisServer::launch)).await?;
        wait_until("the sentinels do not find each other", || started.has_quorum()).await?;
        Ok(started)
    }

    async fn has_copied(&self) -> bool {
        let copied = self.servers[1].command(&["INFO", "replication"]).await;
        copied.is_ok_and(|info| info.text().contains("master_link_status:up"))
    }

    /// Whether every sentinel knows the others and the replica.
    async fn has_quorum(&self) -> bool {
        for sentinel in &self.sentinels {
            let quorum = sentinel.command(&["SENTINEL", "CKQUORUM", MASTER]).await;
            let replicas = sentinel.command(&["SENTINEL", "REPLICAS", MASTER]).await;
            let knows_replica = matches!(replicas, Ok(RespValue::Array(found)) if !found.is_empty());
            if !knows_replica || !quorum.is_ok_and(|reply| reply.text().starts_with("OK 3 usable")) {
                return false;
            }
        }
        true
    }

    /// An empty one that no other test uses, which is an idle one if there is any with these options.
    ///
    /// # Errors
    ///
    /// If it cannot be started or emptied.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all are killed.
    pub async fn lent(options: RedisSentinelOptions) -> io::Result<LentRedisSentinels> {
        let idle = {
            let mut idle = IDLE.lock();
            let found = idle.iter().position(|sentinels| sentinels.options == options);
            found.map(|found| idle.swap_remove(found))
        };
        let sentinels = match idle {
            Some(sentinels) => sentinels,
            None => Self::start(options).await?,
        };
        sentinels.servers.iter().try_for_each(RedisServer::reset_clock)?;
        sentinels.servers[0].command(&["FLUSHALL"]).await?;
        Ok(LentRedisSentinels(Some(sentinels)))
    }

    /// The server that began as the master, and the one that began as its replica.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The URL with all sentinels, and with the password of the servers if there is one.
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let place = format!("{password}{}/{MASTER}", hosts.join(","));
        match self.tls.authority() {
            None => format!("redis+sentinel://{place}"),
            Some(authority) => format!("rediss+sentinel://{place}?ca={}", authority.display()),
        }
    }

    /// Tells a sentinel to replace the master.
    ///
    /// # Errors
    ///
    /// If it does not reply, or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sentinel may or may not do it.
    pub async fn fail_over(&self) -> io::Result<()> {
        let reply = self.sentinels[0].command(&["SENTINEL", "FAILOVER", MASTER]).await?;
        if let RespValue::Error(error) = reply { Err(io::Error::other(error)) } else { Ok(()) }
    }

    /// Steps the wall clocks of both servers.
    ///
    /// # Errors
    ///
    /// If a step in microseconds exceeds 64 bits.
    pub fn step_clock(&self, step: ClockStep) -> io::Result<()> {
        self.servers.iter().try_for_each(|server| server.step_clock(step))
    }

    /// Ends those that no test uses.
    pub(super) fn end_idle() {
        IDLE.lock().clear();
    }
}

/// Polls until the condition holds.
async fn wait_until<F: Future<Output = bool>>(failure: &'static str, mut holds: impl FnMut() -> F) -> io::Result<()> {
    let held = async {
        let mut poll = poll();
        while !holds().await {
            poll.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, held).await.map_err(|_| io::Error::other(failure))
}

impl std::ops::Deref for LentRedisSentinels {
    type Target = RedisSentinels;

    fn deref(&self) -> &RedisSentinels {
        self.0.as_ref().expect("it goes back only when it is dropped")
    }
}

impl Drop for LentRedisSentinels {
    fn drop(&mut self) {
        IDLE.lock().extend(self.0.take());
    }
}
