//! Calls whose writes count only when replicas have them.
//!
//! `WAIT` goes behind the calls of a connection, and blocks it: the server reads the next command when the replicas
//! have answered, or the time is up. So calls go in groups, each with one `WAIT`, and a group is sent when the one
//! before has its replies. It has all calls that were made meanwhile.
//!
//! A write whose `WAIT` counts too few replicas was applied by the master, and may be lost with it: its outcome is
//! unknown. `WAIT` counts the replicas of one moment and is no quorum: a replica that did not answer may take over.

use std::mem;
use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value, cmd, pipe};
use tokio::sync::oneshot;

use super::broken_pipe;
use crate::redis::call_error::RedisCallError;

/// At most so many calls share one write to the socket.
const GROUP: usize = 1024;

/// When a write counts as confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) struct WriteConfirmation {
    /// How many replicas must have it.
    pub(in crate::redis) replicas: u16,
    /// How long the server waits for them.
    pub(in crate::redis) millis: u32,
    /// Whether it must be on disk, in the append-only files of the master and of these replicas.
    pub(in crate::redis) on_disk: bool,
}

impl WriteConfirmation {
    /// The command that goes behind a group of writes.
    fn command(self) -> Cmd {
        let mut command = if self.on_disk { cmd("WAITAOF") } else { cmd("WAIT") };
        if self.on_disk {
            command.arg(1);
        }
        command.arg(self.replicas).arg(self.millis);
        command
    }

    /// The same command, which does not wait.
    pub(in crate::redis) fn probe(self) -> Cmd {
        let mut command = if self.on_disk { cmd("WAITAOF") } else { cmd("WAIT") };
        if self.on_disk {
            command.arg(0);
        }
        command.arg(0).arg(1);
        command
    }

    /// Reads the reply: how many replicas have the writes, and before that whether the master has them on disk.
    fn judge(self, reply: Option<Value>) -> Confirmation {
        let count = |reply: &Value| if let Value::Int(count) = reply { Some(*count) } else { None };
        let (local, replicas) = match (self.on_disk, reply) {
            (false, Some(Value::Int(replicas))) => (1, replicas),
            (true, Some(Value::Array(counts))) => match (counts.first().and_then(count), counts.get(1).and_then(count))
            {
                (Some(local), Some(replicas)) => (local, replicas),
                (_, _) => return Confirmation::Missing("the server's reply has another form than expected".into()),
            },
            (_, Some(Value::ServerError(error))) => {
                let error = RedisError::from(error);
                return Confirmation::Missing(
                    format!("the server does not tell which replicas have it: {error}").into(),
                );
            }
            (_, _) => return Confirmation::Missing("the server does not tell which replicas have it".into()),
        };
        if local < 1 {
            return Confirmation::Missing("the server does not have it on disk yet".into());
        }
        if replicas < i64::from(self.replicas) {
            return Confirmation::Missing(format!("{replicas} of {} replicas have it", self.replicas).into());
        }
        Confirmation::Given
    }
}

/// Whether a write can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Confirmation {
    Given,
    /// It was applied, but may be lost, for this reason.
    Missing(Arc<str>),
}

impl Confirmation {
    /// # Errors
    /// If the write may be lost: then its outcome is unknown.
    pub(in crate::redis) fn check(&self) -> Result<(), RedisCallError> {
        let Self::Missing(why) = self else { return Ok(()) };
        let message = format!("the write may be lost: {why}");
        Err(RedisCallError::Unconfirmed(Error::new(ErrorKind::Unknown, message)))
    }
}

/// The calls of a connection, in groups.
pub(super) struct CallGroups {
    runtime: Arc<dyn Runtime>,
    confirmation: WriteConfirmation,
    sender: MultiplexedConnection,
    queue: Mutex<GroupQueue>,
}

#[derive(Default)]
struct GroupQueue {
    waiting: Vec<GroupedCall>,
    /// Whether a task sends groups. It ends when none is left.
    is_sending: bool,
}

struct GroupedCall {
    commands: Vec<Cmd>,
    writes: bool,
    replies: oneshot::Sender<GroupReplies>,
}

/// The replies to the commands of a call, and whether its writes are confirmed.
pub(super) type GroupReplies = Result<(Vec<Value>, Confirmation), RedisError>;

impl CallGroups {
    pub(super) fn new(
        runtime: Arc<dyn Runtime>,
        confirmation: WriteConfirmation,
        sender: MultiplexedConnection,
    ) -> Arc<Self> {
        Arc::new(Self { runtime, confirmation, sender, queue: Mutex::default() })
    }

    /// Sends the commands of a call with the next group. If the future is dropped before that, they are not sent.
    pub(super) async fn send(self: &Arc<Self>, commands: Vec<Cmd>, writes: bool) -> GroupReplies {
        let (replies, replied) = oneshot::channel();
        let is_first = {
            let mut queue = self.queue.lock();
            queue.waiting.push(GroupedCall { commands, writes, replies });
            !mem::replace(&mut queue.is_sending, true)
        };
        if is_first {
            // The guard is made first, so that a task which never runs fails the calls.
            let mut task = GroupTask { groups: Arc::clone(self), is_over: false };
            self.runtime.spawn(Box::pin(async move {
                while let Some(group) = task.next() {
                    task.groups.send_group(group).await;
                }
            }));
        }
        replied.await.unwrap_or_else(|_| Err(broken_pipe()))
    }

    async fn send_group(&self, mut group: Vec<GroupedCall>) {
        let mut commands = pipe();
        let counts: Vec<_> = group.iter().map(|call| call.commands.len()).collect();
        for command in group.iter_mut().flat_map(|call| mem::take(&mut call.commands)) {
            commands.add_command(command);
        }
        let writes = group.iter().any(|call| call.writes);
        if writes {
            commands.add_command(self.confirmation.command());
        }
        let sent = self.sender.clone().send_packed_commands(&commands, 0, commands.len()).await;
        match sent {
            Err(error) => group.into_iter().for_each(|call| drop(call.replies.send(Err(error.clone())))),
            Ok(mut replies) => {
                let confirmation = if writes { self.confirmation.judge(replies.pop()) } else { Confirmation::Given };
                let mut replies = replies.into_iter();
                for (call, count) in group.into_iter().zip(counts) {
                    let own = replies.by_ref().take(count).collect();
                    // Its caller may have given up.
                    let _ = call.replies.send(Ok((own, confirmation.clone())));
                }
            }
        }
    }
}

/// The task that sends the groups of a connection.
struct GroupTask {
    groups: Arc<CallGroups>,
    is_over: bool,
}

impl GroupTask {
    /// The calls that wait, without those that were given up.
    fn next(&mut self) -> Option<Vec<GroupedCall>> {
        let mut queue = self.groups.queue.lock();
        queue.waiting.retain(|call| !call.replies.is_closed());
        let count = queue.waiting.len().min(GROUP);
        queue.is_sending = count > 0;
        self.is_over = count == 0;
        (count > 0).then(|| queue.waiting.drain(..count).collect())
    }
}

impl Drop for GroupTask {
    /// A task that was dropped with its runtime fails the calls that wait, instead of leaving them for ever.
    fn drop(&mut self) {
        if !self.is_over {
            let left = {
                let mut queue = self.groups.queue.lock();
                queue.is_sending = false;
                mem::take(&mut queue.waiting)
            };
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(replicas: u16, on_disk: bool, reply: &[u8]) -> Confirmation {
        let confirmation = WriteConfirmation { replicas, millis: 100, on_disk };
        confirmation.judge(Some(redis::parse_redis_value(reply).expect("the reply is well formed")))
    }

    #[test]
    fn a_write_is_confirmed_by_as_many_replicas_as_demanded() {
        for (replicas, on_disk, reply, is_given) in [
            (1, false, b":1\r\n".as_slice(), true),
            (1, false, b":2\r\n", true),
            (2, false, b":1\r\n", false),
            (1, false, b":0\r\n", false),
            (0, true, b"*2\r\n:1\r\n:0\r\n", true),
            (1, true, b"*2\r\n:1\r\n:1\r\n", true),
            (1, true, b"*2\r\n:0\r\n:1\r\n", false),
            (1, true, b"*2\r\n:1\r\n:0\r\n", false),
            (1, true, b":1\r\n", false),
            (1, true, b"*0\r\n", false),
            (1, false, b"$-1\r\n", false),
            (1, false, b"-UNBLOCKED force unblock from blocking operation\r\n", false),
        ] {
            let found = judged(replicas, on_disk, reply);
            assert_eq!(found == Confirmation::Given, is_given, "{replicas} {on_disk} {reply:?}: {found:?}");
        }
        assert_ne!(WriteConfirmation { replicas: 1, millis: 1, on_disk: false }.judge(None), Confirmation::Given);
    }

    #[test]
    fn an_unconfirmed_write_is_unknown() {
        assert!(Confirmation::Given.check().is_ok());
        let error = Error::from(judged(2, false, b":1\r\n").check().expect_err("one is too few"));
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains("1 of 2 replicas have it"), "{error}");
    }
}
