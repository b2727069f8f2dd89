//! One multiplexed connection: made when it is needed, and made anew when it no longer answers.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use futures_util::future::{Either, select};
use hapax_core::runtime::BoxFuture;
use hapax_core::{ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value, cmd};
use tokio::sync::{Mutex, Notify};

use super::failure::Failure;
use super::server::Server;
use super::url::RedisUrl;

/// So many calls in a row that were given up before an answer came mean that none will come on this connection.
const UNANSWERED: u32 = 3;

/// How long a connection may take to be made, and then to be greeted: as long as the engine waits for a call by default.
const CONNECTING: Duration = Duration::from_secs(1);

/// Its calls travel together: whoever calls while others wait shares their write. A call is sent once; nothing is sent again by
/// itself, and how long to wait for an answer is the caller's to say.
pub(super) struct Link {
    url: Arc<RedisUrl>,
    server: Arc<Server>,
    current: RwLock<Option<Arc<Connection>>>,
    /// The connection in the making. Whoever waits for it takes it further, and who gives up leaves it to the next: with callers that
    /// wait for less time than it takes, there would never be one.
    making: Mutex<Option<Making>>,
}

type Making = BoxFuture<'static, Result<MultiplexedConnection, Failure>>;

struct Connection {
    sender: MultiplexedConnection,
    /// Calls that were given up since the last answer.
    unanswered: AtomicU32,
    /// It broke: nothing is answered on it any more.
    is_broken: AtomicBool,
    broke: Notify,
}

impl Connection {
    fn new(sender: MultiplexedConnection) -> Self {
        Self { sender, unanswered: AtomicU32::default(), is_broken: AtomicBool::default(), broke: Notify::default() }
    }

    /// The driver tells the calls that it has taken up; one that was just on its way to it would wait for ever.
    fn tell_that_it_broke(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.broke.notify_waiters();
    }
}

impl Link {
    pub(super) fn new(url: Arc<RedisUrl>, server: Arc<Server>) -> Self {
        Self { url, server, current: RwLock::default(), making: Mutex::default() }
    }

    /// Sends one command, waits for its reply and has it judged. A connection whose reply is not what was asked for is not used again,
    /// and whoever waits on it is told that it broke. A reply that came to another thread by then was believed: of "nothing was there"
    /// nobody can tell whose it is.
    pub(super) async fn call<T>(
        &self,
        command: &Cmd,
        judge: impl FnOnce(Value) -> Result<T> + Send,
    ) -> Result<T, Failure> {
        let connection = self.connected().await?;
        let mut sender = connection.sender.clone();
        let answer = async { sender.send_packed_command(command).await?.extract_error() };
        let judged = judge(self.answer(&connection, answer).await?);
        if judged.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unknown) {
            connection.tell_that_it_broke();
            self.forget(&connection);
        }
        judged.map_err(Failure::Judged)
    }

    /// Waits for a connection: then the server's clock has been looked at.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        self.connected().await.map(drop)
    }

    /// Looks whether the server remembers, and at its clock.
    pub(super) async fn greet(&self) -> Result<(), Failure> {
        let connection = self.connected().await?;
        let mut sender = connection.sender.clone();
        self.answer(&connection, self.server.greet(&mut sender)).await
    }

    async fn answer<T>(
        &self,
        connection: &Arc<Connection>,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Failure> {
        let mut broke = pin!(connection.broke.notified());
        broke.as_mut().enable();
        if connection.is_broken.load(Ordering::Acquire) {
            return Err(Failure::NotSent(broken()));
        }
        let mut waiting = Waiting { link: self, connection, is_over: false };
        // In this order: a reply that is there may be another call's, once the connection has broken.
        let answer = match select(broke, pin!(sent)).await {
            Either::Left(((), _)) => Err(broken()),
            Either::Right((answer, _)) => answer,
        };
        waiting.is_over = true;
        answer.map_err(|error| self.failed(connection, error))
    }

    fn failed(&self, connection: &Arc<Connection>, error: RedisError) -> Failure {
        let failure = Failure::Sent(error);
        if !failure.was_answered() {
            connection.tell_that_it_broke();
            self.forget(connection);
        } else if failure.was_demoted() {
            self.forget(connection);
        }
        failure
    }

    async fn connected(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut making = self.making.lock().await;
        loop {
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let is_left_over = making.is_some();
            let make = || Box::pin(connect(Arc::clone(&self.url), Arc::clone(&self.server))) as Making;
            let made = making.get_or_insert_with(make).await;
            *making = None;
            match made {
                Ok(sender) => *self.write() = Some(Arc::new(Connection::new(sender))),
                // It may have failed long ago.
                Err(_) if is_left_over => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Arc<Connection>>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses this connection no more. Calls that wait on it can still be answered.
    fn forget(&self, connection: &Arc<Connection>) {
        let mut current = self.write();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }
}

fn broken() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

async fn connect(url: Arc<RedisUrl>, server: Arc<Server>) -> Result<MultiplexedConnection, Failure> {
    let (client, database) = url.client().map_err(Failure::Judged)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECTING))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let made = async {
        let mut sender = client.get_multiplexed_async_connection_with_config(&config).await?;
        let greeting = async {
            if database != 0 {
                sender.send_packed_command(cmd("SELECT").arg(database)).await?.extract_error()?;
            }
            server.greet(&mut sender).await
        };
        let greeted = server.timeout(CONNECTING, greeting).await;
        greeted.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        Ok(sender)
    };
    made.await.map_err(|error| Failure::NotMade(error, url.by()))
}

/// How many calls may wait for the connection's task to take them up before further ones wait in line.
const PIPELINE: usize = 1024;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// A call that waits for its answer. Dropped before that, it counts against the connection.
struct Waiting<'a> {
    link: &'a Link,
    connection: &'a Arc<Connection>,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_over {
            self.connection.unanswered.store(0, Ordering::Relaxed);
        } else if self.connection.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED {
            self.link.forget(self.connection);
        }
    }
}
