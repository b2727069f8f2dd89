//! Clusters of Redis or Valkey: three masters, each with a replica.

use std::fmt::Write as _;
use std::fs;
use std::io;

use futures_util::future::try_join_all;
use parking_lot::Mutex;

use super::process::{DEADLINE, PORTS, poll};
use super::redis::{RedisKind, RedisServer, RedisServerOptions};
use super::redis_tls::{RedisTls, RedisTlsFolder};
use super::resp::RespValue;
use crate::{ClockStep, ports};

/// The number of masters. There are as many replicas.
const MASTERS: usize = 3;

/// The number of slots of every cluster.
const SLOTS: usize = 16_384;

/// How far the bus of a cluster is above the port of its server.
const BUS: u16 = 10_000;

/// The options of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisClusterOptions {
    kind: RedisKind,
    password: Option<String>,
    tls: Option<RedisTls>,
    arguments: Vec<String>,
    has_system_clock: bool,
}

impl RedisClusterOptions {
    /// A cluster without persistence, whose nodes never take each other for dead: a test may step its clock.
    pub fn new(kind: RedisKind) -> Self {
        Self { kind, password: None, tls: None, arguments: Vec::new(), has_system_clock: false }
    }

    /// Adds arguments for every node, which override those of [`new`](Self::new).
    #[must_use]
    pub fn with_args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets the password of the default user. [`RedisCluster::url`] contains it.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Starts the servers with the clock of the system, which cannot be stepped.
    #[must_use]
    pub fn with_system_clock(mut self) -> Self {
        self.has_system_clock = true;
        self
    }

    /// Lets the nodes speak nothing but TLS, with each other and with clients.
    #[must_use]
    pub fn with_tls(mut self, tls: RedisTls) -> Self {
        self.tls = Some(tls);
        self
    }

    fn node(&self, tls: &RedisTlsFolder) -> RedisServerOptions {
        let mut options = RedisServerOptions::new(self.kind).with_args(&[
            "--cluster-enabled",
            "yes",
            // Longer than any step of the clock.
            "--cluster-node-timeout",
            "1000000000000",
            "--repl-timeout",
            "1000000000",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        if let Some(password) = &self.password {
            options = options.with_password(password).with_args(&["--masterauth", password]);
        }
        options = tls.apply(options);
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let options = options.with_args(&arguments);
        if self.has_system_clock { options.with_system_clock() } else { options }
    }
}

/// A cluster of six servers. They end when it is dropped.
#[derive(Debug)]
pub struct RedisCluster {
    options: RedisClusterOptions,
    nodes: Vec<RedisServer>,
    tls: RedisTlsFolder,
}

/// The clusters that no test uses now.
static IDLE: Mutex<Vec<RedisCluster>> = Mutex::new(Vec::new());

/// An empty cluster that no other test uses meanwhile. When it is dropped, the next test gets it.
#[derive(Debug)]
pub struct LentRedisCluster(Option<RedisCluster>);

impl RedisCluster {
    /// Starts six servers and waits until they are a cluster.
    ///
    /// # Errors
    ///
    /// If a server did not start, or they do not become a cluster. The error contains a log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the servers are killed.
    pub async fn start(options: RedisClusterOptions) -> io::Result<Self> {
        // Another process may have taken a port since it was free: try others.
        for _ in 1..PORTS {
            match Self::launch(&options).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                launched => return launched,
            }
        }
        Self::launch(&options).await
    }

    async fn launch(options: &RedisClusterOptions) -> io::Result<Self> {
        let tls = RedisTlsFolder::new(options.tls.as_ref())?;
        let addresses = ports::several(2 * MASTERS)?.into_iter();
        let nodes = addresses.map(|address| RedisServer::at(options.node(&tls), address));
        let cluster = Self { options: options.clone(), nodes: nodes.collect::<io::Result<Vec<_>>>()?, tls };
        for (index, node) in cluster.nodes.iter().enumerate() {
            fs::write(node.data_folder().join("nodes.conf"), cluster.configuration(index))?;
        }
        try_join_all(cluster.nodes.iter().map(RedisServer::launch)).await?;
        cluster.wait_until_up().await?;
        Ok(cluster)
    }

    /// The file in which a node finds the others. So they need not be introduced to each other.
    fn configuration(&self, of: usize) -> String {
        let mut lines = String::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let (id, port, shard) = (node_id(index), node.address().port(), index % MASTERS);
            let (role, master) = if index < MASTERS { ("master", "-".into()) } else { ("slave", node_id(shard)) };
            let myself = if index == of { "myself," } else { "" };
            let (bus, epoch) = (port + BUS, shard + 1);
            let _ = write!(lines, "{id} 127.0.0.1:{port}@{bus} {myself}{role} {master} 0 0 {epoch} connected");
            let slots = first_slot(shard)..first_slot(shard + 1);
            let _ =
                if index < MASTERS { writeln!(lines, " {}-{}", slots.start, slots.end - 1) } else { writeln!(lines) };
        }
        let _ = writeln!(lines, "vars currentEpoch {MASTERS} lastVoteEpoch 0");
        lines
    }

    /// Waits until every node sees all slots and every replica has its master's data.
    async fn wait_until_up(&self) -> io::Result<()> {
        let up = async {
            let mut poll = poll();
            loop {
                poll.tick().await;
                let mut up = 0;
                while up < self.nodes.len() && is_up(&self.nodes[up]).await {
                    up += 1;
                }
                if up == self.nodes.len() {
                    return;
                }
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, up).await;
        in_time.map_err(|_| io::Error::other("the servers do not become a cluster"))
    }

    /// An empty cluster that no other test uses, which is an idle one if there is any with these options.
    ///
    /// # Errors
    ///
    /// If it cannot be started or emptied.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the servers are killed.
    pub async fn lent(options: RedisClusterOptions) -> io::Result<LentRedisCluster> {
        let idle = {
            let mut idle = IDLE.lock();
            let found = idle.iter().position(|cluster| cluster.options == options);
            found.map(|found| idle.swap_remove(found))
        };
        let cluster = match idle {
            Some(cluster) => cluster,
            None => Self::start(options).await?,
        };
        for master in cluster.masters() {
            master.reset_clock()?;
            master.command(&["FLUSHALL"]).await?;
        }
        for replica in cluster.replicas() {
            replica.reset_clock()?;
        }
        Ok(LentRedisCluster(Some(cluster)))
    }

    /// The nodes that began as masters. The second has the slots behind those of the first.
    pub fn masters(&self) -> &[RedisServer] {
        &self.nodes[..MASTERS]
    }

    /// The nodes that began as replicas, in the order of their masters.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.nodes[MASTERS..]
    }

    /// All nodes, the masters first.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The URL, with the first and the last master as seeds, and with the password if there is one.
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let [first, _, last] = self.masters() else { unreachable!("there are three masters") };
        let seeds = format!("{password}{},{}", first.address(), last.address());
        match self.tls.authority() {
            None => format!("redis+cluster://{seeds}"),
            Some(authority) => format!("rediss+cluster://{seeds}?ca={}", authority.display()),
        }
    }

    /// The slot of a key, and the place in [`nodes`](Self::nodes) of the master that had it when the cluster started.
    ///
    /// # Errors
    ///
    /// If the first node does not reply.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop.
    pub async fn place_of(&self, key: &[u8]) -> io::Result<(u16, usize)> {
        let reply = self.nodes[0].command(&[b"CLUSTER".as_slice(), b"KEYSLOT", key]).await?;
        let RespValue::Integer(slot) = reply else { return Err(io::Error::other(format!("{reply:?}"))) };
        let slot = u16::try_from(slot).map_err(io::Error::other)?;
        let place = (0..MASTERS).rfind(|place| first_slot(*place) <= usize::from(slot)).unwrap_or_default();
        Ok((slot, place))
    }

    /// Begins to move a slot between two nodes, at their places in [`nodes`](Self::nodes): keys that are missing at the
    /// old node are asked for at the new one.
    ///
    /// # Errors
    ///
    /// If a node does not reply, or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, one of the nodes may not know.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        self.order(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &node_id(from)]).await?;
        self.order(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &node_id(to)]).await
    }

    /// Moves the keys of a slot that is on its way.
    ///
    /// # Errors
    ///
    /// If a node does not reply, or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each key is at one of the nodes.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        loop {
            let listed = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).await?;
            let RespValue::Array(keys) = listed else { return Err(io::Error::other(format!("{listed:?}"))) };
            if keys.is_empty() {
                return Ok(());
            }
            let keys = keys.iter().filter_map(|key| if let RespValue::Bulk(key) = key { Some(&key[..]) } else { None });
            self.move_some(&keys.collect::<Vec<_>>(), from, to).await?;
        }
    }

    /// Moves some keys of a slot that is on its way.
    ///
    /// # Errors
    ///
    /// If a node does not reply, or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each key is at one of the nodes.
    pub async fn move_some(&self, keys: &[&[u8]], from: usize, to: usize) -> io::Result<()> {
        let port = self.nodes[to].address().port().to_string();
        let mut words: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"5000"];
        words.extend(self.options.password.iter().flat_map(|password| [b"AUTH", password.as_bytes()]));
        words.push(b"KEYS");
        words.extend(keys);
        self.order(from, &words).await
    }

    /// Gives a slot whose keys have moved to its new node. The old node and the third master learn it, too.
    ///
    /// # Errors
    ///
    /// If a node does not reply, or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some nodes may not know.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let third = (0..MASTERS).find(|place| *place != from && *place != to);
        for place in [to, from].into_iter().chain(third) {
            self.order(place, &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &node_id(to)]).await?;
        }
        Ok(())
    }

    async fn order<W: AsRef<[u8]>>(&self, place: usize, words: &[W]) -> io::Result<()> {
        let reply = self.nodes[place].command(words).await?;
        if let RespValue::Error(error) = reply { Err(io::Error::other(error)) } else { Ok(()) }
    }

    /// Steps the wall clocks of all nodes.
    ///
    /// # Errors
    ///
    /// If a step in microseconds exceeds 64 bits.
    pub fn step_clock(&self, step: ClockStep) -> io::Result<()> {
        self.nodes.iter().try_for_each(|node| node.step_clock(step))
    }

    /// Ends the clusters that no test uses.
    pub(super) fn end_idle() {
        IDLE.lock().clear();
    }
}

async fn is_up(node: &RedisServer) -> bool {
    let has = async |words: &[&str], line: &str| match node.command(words).await {
        Ok(reply) => reply.text().lines().any(|found| found == line),
        Err(_) => false,
    };
    has(&["CLUSTER", "INFO"], "cluster_state:ok").await
        && !has(&["INFO", "replication"], "master_link_status:down").await
}

fn node_id(place: usize) -> String {
    format!("{:040x}", place + 1)
}

fn first_slot(shard: usize) -> usize {
    SLOTS * shard / MASTERS
}

impl std::ops::Deref for LentRedisCluster {
    type Target = RedisCluster;

    fn deref(&self) -> &RedisCluster {
        self.0.as_ref().expect("the cluster goes back only when it is dropped")
    }
}

impl Drop for LentRedisCluster {
    fn drop(&mut self) {
        IDLE.lock().extend(self.0.take());
    }
}
