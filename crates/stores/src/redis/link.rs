//! One multiplexed connection: opened at its first use, and replaced when the server no longer replies on it.

use std::fmt;
use std::io;
use std::iter;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::BoxFuture;
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::url::Host;
use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, Value, cmd, pipe};
use tokio::sync::{Mutex, Notify};

use super::call_error::RedisCallError;
use super::sentinel;
use super::server_monitor::ServerMonitor;
use super::url::{Deployment, RedisUrl};
use super::value;

/// After this many calls in a row that were cancelled before their reply, the connection is replaced.
const MAX_UNANSWERED: u32 = 3;

/// How long opening a connection may take, and then its handshake: the engine's default timeout of one call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the answer of the sentinels counts: longer than opening a connection takes. A caller may leave an attempt
/// behind, and another may resume it much later.
const FRESH: Duration = Duration::from_secs(4);

/// The age of a connection at which a refusal for want of replicas leads to the sentinels again.
const DOUBT: Duration = Duration::from_secs(1);

/// A connection that concurrent calls share; calls made at the same time share one write to the socket. A link sends
/// each call once and sets no timeout: the caller decides when to give up and when to repeat.
pub(super) struct Link {
    url: Arc<RedisUrl>,
    monitor: Arc<ServerMonitor>,
    current: RwLock<Option<Arc<LinkConnection>>>,
    /// The attempt to connect. Waiters share it; if one is dropped, the next resumes it. Otherwise callers whose
    /// timeout is shorter than a connect would never get a connection.
    connecting: Mutex<Option<Connecting>>,
}

type Connecting = BoxFuture<'static, Result<OpenedConnection, RedisCallError>>;

struct OpenedConnection {
    sender: MultiplexedConnection,
    /// How often the sentinels had named another master when they named this server.
    switches: u64,
    /// When it was opened, by the boot-time clock.
    opened_at: Duration,
}

/// How a command comes to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotEntry {
    /// The node has the slot of the key, or there is no cluster.
    Plain,
    /// Another node has the slot and says that the key has moved here. `ASKING` counts for one command, so it goes
    /// before each.
    Asking,
}

pub(super) struct LinkConnection {
    sender: MultiplexedConnection,
    switches: u64,
    opened_at: Duration,
    /// Calls that were cancelled since the last reply.
    unanswered: AtomicU32,
    /// Whether the connection broke: it delivers no reply any more.
    is_broken: AtomicBool,
    broken: Notify,
}

impl LinkConnection {
    fn new(OpenedConnection { sender, switches, opened_at }: OpenedConnection) -> Self {
        Self {
            sender,
            switches,
            opened_at,
            unanswered: AtomicU32::default(),
            is_broken: AtomicBool::default(),
            broken: Notify::default(),
        }
    }

    /// Fails all calls that wait for a reply. The driver fails those in its queue; a call not yet queued would wait for
    /// ever.
    fn fail_waiters(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.broken.notify_waiters();
    }
}

impl Link {
    pub(super) fn new(url: Arc<RedisUrl>, monitor: Arc<ServerMonitor>) -> Self {
        Self { url, monitor, current: RwLock::default(), connecting: Mutex::default() }
    }

    /// Sends one command, waits for its reply and passes that to `judge`. If `judge` finds that the reply does not fit
    /// the call, replies and calls are out of step: the connection is discarded, and all calls that wait on it fail.
    pub(super) async fn call<T>(
        &self,
        command: &Cmd,
        judge: impl FnOnce(Value) -> Result<T> + Send,
    ) -> Result<T, RedisCallError> {
        self.call_by(SlotEntry::Plain, command, judge).await
    }

    /// As [`call`](Self::call), at a node of a cluster.
    pub(super) async fn call_by<T>(
        &self,
        entry: SlotEntry,
        command: &Cmd,
        judge: impl FnOnce(Value) -> Result<T> + Send,
    ) -> Result<T, RedisCallError> {
        let connection = self.connection().await?;
        let mut sender = connection.sender.clone();
        let reply = async {
            match entry {
                SlotEntry::Plain => sender.send_packed_command(command).await?.extract_error(),
                SlotEntry::Asking => {
                    let commands = asking([command]);
                    let replies = sender.send_packed_commands(&commands, 0, commands.len()).await?;
                    behind_asking(replies).pop().unwrap_or(Value::Nil).extract_error()
                }
            }
        };
        let judged = judge(self.wait_for_reply(&connection, reply).await?);
        self.finish(&connection, judged.map_err(RedisCallError::Judged))
    }

    /// Sends two commands in one write and passes both replies to `judge`, as [`call_by`](Self::call_by) does. An error
    /// reply is passed on as a value: the other reply tells whether it belongs to this call.
    pub(super) async fn call_pair<T>(
        &self,
        entry: SlotEntry,
        commands: &Pipeline,
        judge: impl FnOnce([Value; 2]) -> Result<T, RedisCallError> + Send,
    ) -> Result<T, RedisCallError> {
        let connection = self.connection().await?;
        let mut sender = connection.sender.clone();
        let replies = match entry {
            SlotEntry::Plain => self.wait_for_reply(&connection, sender.send_packed_commands(commands, 0, 2)).await?,
            SlotEntry::Asking => {
                let commands = asking(commands.cmd_iter());
                let sent = sender.send_packed_commands(&commands, 0, commands.len());
                behind_asking(self.wait_for_reply(&connection, sent).await?)
            }
        };
        let pair = <[Value; 2]>::try_from(replies).map_err(|_| RedisCallError::Judged(value::unexpected_reply()));
        self.finish(&connection, pair.and_then(judge))
    }

    /// Discards the connection if the judged replies do not fit their call, or come from a replica.
    fn finish<T>(
        &self,
        connection: &Arc<LinkConnection>,
        judged: Result<T, RedisCallError>,
    ) -> Result<T, RedisCallError> {
        match judged {
            Err(RedisCallError::Judged(error)) if error.kind() == ErrorKind::Unknown => {
                connection.fail_waiters();
                self.discard(connection);
                Err(RedisCallError::Judged(error))
            }
            Err(RedisCallError::Sent(error)) => Err(self.handle_error(connection, error)),
            judged => judged,
        }
    }

    /// What is known of the server behind the link.
    pub(super) fn monitor(&self) -> &ServerMonitor {
        &self.monitor
    }

    /// The node of a cluster behind the link.
    pub(super) fn address(&self) -> Option<&Host> {
        self.url.node()
    }

    /// The present connection, if there is one.
    pub(super) fn connection_now(&self) -> Option<Weak<LinkConnection>> {
        self.current().map(|connection| Arc::downgrade(&connection))
    }

    /// Whether calls still take this connection.
    pub(super) fn takes(&self, connection: &Weak<LinkConnection>) -> bool {
        self.current.read().as_ref().is_some_and(|current| Weak::ptr_eq(&Arc::downgrade(current), connection))
    }

    /// Connects if there is no connection. A new connection reads the server's clock.
    pub(super) async fn connect(&self) -> Result<(), RedisCallError> {
        self.connection().await.map(drop)
    }

    /// Compares the server's sentinel, process and clock with the last observation.
    pub(super) async fn observe_server(&self) -> Result<(), RedisCallError> {
        let connection = self.connection().await?;
        let mut sender = connection.sender.clone();
        self.wait_for_reply(&connection, self.monitor.observe(&mut sender)).await
    }

    async fn wait_for_reply<T>(
        &self,
        connection: &Arc<LinkConnection>,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisCallError> {
        // Register before checking the flag, so that a concurrent `fail_waiters` is not missed.
        let mut broken = pin!(connection.broken.notified());
        broken.as_mut().enable();
        if connection.is_broken.load(Ordering::Acquire) {
            return Err(RedisCallError::NotSent(broken_pipe()));
        }
        let mut wait = ReplyWait { link: self, connection, has_reply: false };
        // `select` polls `broken` first: on a broken connection a reply may belong to another call.
        let reply = match select(broken, pin!(sent)).await {
            Either::Left(((), _)) => Err(broken_pipe()),
            Either::Right((reply, _)) => reply,
        };
        wait.has_reply = true;
        reply.map_err(|error| self.handle_error(connection, error))
    }

    /// Discards a connection that broke, or that leads to a server which is now a replica.
    fn handle_error(&self, connection: &Arc<LinkConnection>, error: RedisError) -> RedisCallError {
        let error = RedisCallError::Sent(error);
        if !error.is_server_reply() {
            connection.fail_waiters();
            self.discard(connection);
        } else if error.is_from_replica() || self.may_be_replaced(connection, &error) {
            // The same name may lead to the new primary, so the next call connects again.
            self.discard(connection);
        }
        error
    }

    /// Whether the sentinels may have named another master. A master that is cut off from them and from its replicas
    /// does not know, and refuses writes. They are asked once in a while, not for each refusal.
    fn may_be_replaced(&self, connection: &LinkConnection, error: &RedisCallError) -> bool {
        let age = || self.monitor.runtime().boottime_now().saturating_sub(connection.opened_at);
        self.url.deployment() == Deployment::Sentinel && error.is_without_replicas() && age() >= DOUBT
    }

    /// Returns the current connection, or opens one.
    async fn connection(&self) -> Result<Arc<LinkConnection>, RedisCallError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut connecting = self.connecting.lock().await;
        loop {
            // Another caller may have connected while this one waited for the lock.
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let is_resumed = connecting.is_some();
            let start = || Box::pin(connect(Arc::clone(&self.url), Arc::clone(&self.monitor))) as Connecting;
            let connected = connecting.get_or_insert_with(start).await;
            // A finished future must not be polled again.
            *connecting = None;
            match connected {
                Ok(opened) => *self.current.write() = Some(Arc::new(LinkConnection::new(opened))),
                // An attempt that another caller left behind may have failed long ago: try once more.
                Err(_) if is_resumed => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The present connection, unless it leads to a server that the sentinels do not name any more.
    fn current(&self) -> Option<Arc<LinkConnection>> {
        let switches = self.monitor.switches();
        self.current.read().clone().filter(|connection| connection.switches == switches)
    }

    /// Sends no further calls on this connection. Calls that wait on it can still get their replies.
    fn discard(&self, connection: &Arc<LinkConnection>) {
        let mut current = self.current.write();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }
}

/// The commands, each behind an `ASKING` of its own.
fn asking<'a>(commands: impl IntoIterator<Item = &'a Cmd>) -> Pipeline {
    let mut asking = pipe();
    for command in commands {
        asking.cmd("ASKING").add_command(command.clone());
    }
    asking
}

/// The replies to the commands, each of which stands behind the one to its `ASKING`. A node that refuses `ASKING` names
/// the old node for the command, and that one names this node again, so the refusal is the answer.
fn behind_asking(replies: Vec<Value>) -> Vec<Value> {
    let mut replies = replies.into_iter();
    let next = || {
        Some(match (replies.next()?, replies.next()?) {
            (refused @ Value::ServerError(_), Value::ServerError(moved)) if moved.code() == "MOVED" => refused,
            (_, reply) => reply,
        })
    };
    iter::from_fn(next).collect()
}

fn broken_pipe() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

async fn connect(url: Arc<RedisUrl>, monitor: Arc<ServerMonitor>) -> Result<OpenedConnection, RedisCallError> {
    match url.deployment() {
        Deployment::Single | Deployment::Cluster => {
            let sender = open(&url, &monitor).await?;
            Ok(OpenedConnection { sender, switches: monitor.switches(), opened_at: monitor.runtime().boottime_now() })
        }
        Deployment::Sentinel => connect_to_master(&url, &monitor).await,
    }
}

async fn connect_to_master(url: &RedisUrl, monitor: &ServerMonitor) -> Result<OpenedConnection, RedisCallError> {
    let (question, begun) = (monitor.begin_question(), monitor.runtime().boottime_now());
    let late = || {
        let message = "the sentinels named the master too long ago";
        RedisCallError::Judged(Error::new(ErrorKind::NotApplied, message))
    };
    let master = sentinel::master(url, monitor.runtime()).await.map_err(RedisCallError::Judged)?;
    // A switch that is noticed after this makes the connection an old one.
    let switches = monitor.note_master(question, &master).ok_or_else(late)?;
    let sender = open(&url.at(master), monitor).await?;
    let opened_at = monitor.runtime().boottime_now();
    if opened_at.saturating_sub(begun) > FRESH {
        return Err(late());
    }
    Ok(OpenedConnection { sender, switches, opened_at })
}

async fn open(url: &RedisUrl, monitor: &ServerMonitor) -> Result<MultiplexedConnection, RedisCallError> {
    let (client, database) = url.client().map_err(RedisCallError::Judged)?;
    // No response timeout: only the engine sets the deadline of a call.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let failed = |error| RedisCallError::NotConnected(error, url.transport());
    let connected = async {
        let mut sender = client.get_multiplexed_async_connection_with_config(&config).await?;
        let handshake = async {
            let role = match url.deployment() {
                Deployment::Single | Deployment::Cluster => None,
                Deployment::Sentinel => Some(sender.send_packed_command(&cmd("ROLE")).await?.extract_error()?),
            };
            if database != 0 {
                sender.send_packed_command(cmd("SELECT").arg(database)).await?.extract_error()?;
            }
            monitor.observe(&mut sender).await.map(|()| role)
        };
        let finished = monitor.timeout(CONNECT_TIMEOUT, handshake).await;
        let role = finished.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        Ok((sender, role))
    };
    let (sender, role) = connected.await.map_err(failed)?;
    role.map_or(Ok(()), sentinel::expect_master)?;
    Ok(sender)
}

/// The length of the queue to the connection's task. A caller that finds the queue full waits for a free place.
const PIPELINE: usize = 1024;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// Counts a call that is dropped before its reply against its connection.
struct ReplyWait<'a> {
    link: &'a Link,
    connection: &'a Arc<LinkConnection>,
    has_reply: bool,
}

impl Drop for ReplyWait<'_> {
    fn drop(&mut self) {
        if self.has_reply {
            self.connection.unanswered.store(0, Ordering::Relaxed);
        } else if self.connection.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_UNANSWERED {
            self.link.discard(self.connection);
        }
    }
}
