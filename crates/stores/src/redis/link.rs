//! One multiplexed connection: opened at its first use, and replaced when the server no longer replies on it.

mod asking;
mod confirmation;
mod opening;

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::BoxFuture;
use hapax_core::{ErrorKind, Result};
use hapax_net::url::Host;
use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value, pipe};
use tokio::sync::{Mutex, Notify};

use super::call_error::RedisCallError;
use super::server_monitor::ServerMonitor;
use super::url::{Deployment, RedisUrl};
use super::value;
use asking::{asking, behind_asking};
use confirmation::{CallGroups, GroupReplies};
use opening::OpenedConnection;

pub(super) use confirmation::{Confirmation, WriteConfirmation};

/// After this many calls in a row that were cancelled before their reply, the connection is replaced.
const MAX_UNANSWERED: u32 = 3;

/// The age of a connection at which a refusal for want of replicas leads to the sentinels again.
const DOUBT: Duration = Duration::from_secs(1);

/// The least time between the beginnings of two attempts to reach the master that sentinels name. Callers would
/// otherwise ask them without a pause while they elect another one.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection that concurrent calls share; calls made at the same time share one write to the socket. A link sends
/// each call once and sets no timeout: the caller decides when to give up and when to repeat.
pub(super) struct Link {
    url: Arc<RedisUrl>,
    monitor: Arc<ServerMonitor>,
    current: RwLock<Option<Arc<LinkConnection>>>,
    /// The attempt to connect. Waiters share it; if one is dropped, the next resumes it. Otherwise callers whose
    /// timeout is shorter than a connect would never get a connection.
    connecting: Mutex<Option<Connecting>>,
    /// When the last attempt began, by the boot-time clock.
    last_attempt: RwLock<Option<Duration>>,
}

type Connecting = BoxFuture<'static, Result<OpenedConnection, RedisCallError>>;

/// How a command comes to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotEntry {
    /// The node has the slot of the key, or there is no cluster.
    Plain,
    /// Another node has the slot and says that the key has moved here. `ASKING` counts for one command, so it goes
    /// before each.
    Asking,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallWay {
    pub(super) entry: SlotEntry,
    /// Whether it may write. Then its reply tells whether the write is confirmed.
    pub(super) writes: bool,
}

impl CallWay {
    pub(super) const READ: Self = Self { entry: SlotEntry::Plain, writes: false };
}

pub(super) struct LinkConnection {
    sender: MultiplexedConnection,
    /// The groups in which calls are sent, if their writes must be confirmed.
    groups: Option<Arc<CallGroups>>,
    switches: u64,
    opened_at: Duration,
    /// Calls that were cancelled since the last reply.
    unanswered: AtomicU32,
    /// Whether the connection broke: it delivers no reply any more.
    is_broken: AtomicBool,
    broken: Notify,
}

impl LinkConnection {
    fn new(opened: OpenedConnection, url: &RedisUrl, monitor: &ServerMonitor) -> Self {
        let OpenedConnection { sender, switches, opened_at } = opened;
        let grouped = |confirmation| CallGroups::new(monitor.shared_runtime(), confirmation, sender.clone());
        Self {
            groups: url.confirmation().map(grouped),
            sender,
            switches,
            opened_at,
            unanswered: AtomicU32::default(),
            is_broken: AtomicBool::default(),
            broken: Notify::default(),
        }
    }

    /// Sends the commands of a call, each with what must stand before it.
    async fn send<'a>(&self, way: CallWay, commands: impl IntoIterator<Item = &'a Cmd>) -> GroupReplies {
        let commands: Vec<Cmd> = match way.entry {
            SlotEntry::Plain => commands.into_iter().cloned().collect(),
            SlotEntry::Asking => asking(commands),
        };
        let (replies, confirmation) = match &self.groups {
            Some(groups) => groups.send(commands, way.writes).await?,
            None => {
                let mut pipeline = pipe();
                for command in commands {
                    pipeline.add_command(command);
                }
                let replies = self.sender.clone().send_packed_commands(&pipeline, 0, pipeline.len()).await?;
                (replies, Confirmation::Given)
            }
        };
        Ok(match way.entry {
            SlotEntry::Plain => (replies, confirmation),
            SlotEntry::Asking => (behind_asking(replies), confirmation),
        })
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
        Self { url, monitor, current: RwLock::default(), connecting: Mutex::default(), last_attempt: RwLock::default() }
    }

    /// Sends one command that writes nothing, waits for its reply and passes that to `judge`. If `judge` finds that the
    /// reply does not fit the call, replies and calls are out of step: the connection is discarded, and all calls that
    /// wait on it fail.
    pub(super) async fn call<T>(
        &self,
        command: &Cmd,
        judge: impl FnOnce(Value) -> Result<T> + Send,
    ) -> Result<T, RedisCallError> {
        let judge = |reply, _: &Confirmation| judge(reply).map_err(RedisCallError::Judged);
        self.call_by(CallWay::READ, command, judge).await
    }

    /// As [`call`](Self::call), with two commands in one write. An error reply is passed on as a value.
    pub(super) async fn read_pair<T>(
        &self,
        commands: &Pipeline,
        judge: impl FnOnce([Value; 2]) -> Result<T, RedisCallError> + Send,
    ) -> Result<T, RedisCallError> {
        self.call_pair(CallWay::READ, commands, |replies, _| judge(replies)).await
    }

    /// As [`call`](Self::call), also at a node of a cluster, and also for a command that writes. `judge` fails with
    /// the confirmation if the reply shows that it has written.
    pub(super) async fn call_by<T>(
        &self,
        way: CallWay,
        command: &Cmd,
        judge: impl FnOnce(Value, &Confirmation) -> Result<T, RedisCallError> + Send,
    ) -> Result<T, RedisCallError> {
        let connection = self.connection().await?;
        let mut sender = connection.sender.clone();
        let reply = async {
            if connection.groups.is_none() && way.entry == SlotEntry::Plain {
                return Ok((sender.send_packed_command(command).await?.extract_error()?, Confirmation::Given));
            }
            let (mut replies, confirmation) = connection.send(way, [command]).await?;
            Ok((replies.pop().unwrap_or(Value::Nil).extract_error()?, confirmation))
        };
        let (reply, confirmation) = self.wait_for_reply(&connection, reply).await?;
        let judged = judge(reply, &self.confirmed(&connection, confirmation));
        self.finish(&connection, judged)
    }

    /// Sends two commands in one write and passes both replies to `judge`, as [`call_by`](Self::call_by) does. An error
    /// reply is passed on as a value: the other reply tells whether it belongs to this call.
    pub(super) async fn call_pair<T>(
        &self,
        way: CallWay,
        commands: &Pipeline,
        judge: impl FnOnce([Value; 2], &Confirmation) -> Result<T, RedisCallError> + Send,
    ) -> Result<T, RedisCallError> {
        let connection = self.connection().await?;
        let mut sender = connection.sender.clone();
        let replies = async {
            if connection.groups.is_none() && way.entry == SlotEntry::Plain {
                return Ok((sender.send_packed_commands(commands, 0, 2).await?, Confirmation::Given));
            }
            connection.send(way, commands.cmd_iter()).await
        };
        let (replies, confirmation) = self.wait_for_reply(&connection, replies).await?;
        let confirmation = self.confirmed(&connection, confirmation);
        let pair = <[Value; 2]>::try_from(replies).map_err(|_| RedisCallError::Judged(value::unexpected_reply()));
        self.finish(&connection, pair.and_then(|pair| judge(pair, &confirmation)))
    }

    /// A write does not count on a server that the sentinels had replaced when its reply came: a paused server carries
    /// out what it finds in its socket before it learns that it is no master any more.
    fn confirmed(&self, connection: &LinkConnection, confirmation: Confirmation) -> Confirmation {
        if connection.switches == self.monitor.switches() {
            return confirmation;
        }
        Confirmation::Missing("the sentinels have named another master meanwhile".into())
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

    /// When a write on this link counts. `None`: when the server has applied it.
    pub(super) fn confirmation(&self) -> Option<WriteConfirmation> {
        self.url.confirmation()
    }

    /// The node of a cluster behind the link.
    pub(super) fn address(&self) -> Option<&Host> {
        self.url.node()
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
            let start = || {
                let (url, monitor) = (Arc::clone(&self.url), Arc::clone(&self.monitor));
                Box::pin(opening::connect(url, monitor, self.begin_attempt())) as Connecting
            };
            let connected = connecting.get_or_insert_with(start).await;
            // A finished future must not be polled again.
            *connecting = None;
            match connected {
                Ok(opened) => {
                    *self.current.write() = Some(Arc::new(LinkConnection::new(opened, &self.url, &self.monitor)));
                }
                // An attempt that another caller left behind may have failed long ago: try once more.
                Err(_) if is_resumed => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How long a new attempt to connect must rest.
    fn begin_attempt(&self) -> Duration {
        if self.url.deployment() != Deployment::Sentinel {
            return Duration::ZERO;
        }
        let now = self.monitor.runtime().boottime_now();
        let mut last = self.last_attempt.write();
        let rest = last.map_or(Duration::ZERO, |last| (last + ATTEMPT_PAUSE).saturating_sub(now));
        *last = Some(now + rest);
        rest
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

fn broken_pipe() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

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
