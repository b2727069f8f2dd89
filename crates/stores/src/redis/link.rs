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
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};
use tokio::sync::{Mutex, Notify};

use super::failure::Failure;
use super::server::Server;

/// So many calls in a row that were given up before an answer came mean that none will come on this connection.
const UNANSWERED: u32 = 3;

/// How long a connection may take to be made, and then to be greeted: as long as the engine waits for a call by default.
const CONNECTING: Duration = Duration::from_secs(1);

/// Its calls travel together: whoever calls while others wait shares their write. A call is sent once; nothing is sent again by
/// itself, and how long to wait for an answer is the caller's to say.
pub(super) struct Link {
    client: Client,
    server: Arc<Server>,
    current: RwLock<Option<Arc<Connection>>>,
    /// The connection in the making. Whoever waits for it takes it further, and who gives up leaves it to the next: with callers that
    /// wait for less time than it takes, there would never be one.
    making: Mutex<Option<Making>>,
}

type Making = BoxFuture<'static, Result<MultiplexedConnection, RedisError>>;

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
    pub(super) fn new(client: Client, server: Arc<Server>) -> Self {
        Self { client, server, current: RwLock::default(), making: Mutex::default() }
    }

    /// Sends one command and waits for its reply.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, Failure> {
        let connection = self.connected().await.map_err(Failure::NotSent)?;
        let mut sender = connection.sender.clone();
        let answer = async { sender.send_packed_command(command).await?.extract_error() };
        self.answer(&connection, answer).await
    }

    /// Waits for a connection: then the server's clock has been looked at.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        self.connected().await.map(drop).map_err(Failure::NotSent)
    }

    /// Looks whether the server remembers, and at its clock.
    pub(super) async fn greet(&self) -> Result<(), Failure> {
        let connection = self.connected().await.map_err(Failure::NotSent)?;
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
        let answer = match select(pin!(sent), broke).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => Err(broken()),
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

    /// What was made of a reply. A connection whose reply is not what was asked for is not used again.
    pub(super) fn trusted<T>(&self, judged: Result<T>) -> Result<T> {
        if judged.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unknown) {
            *self.write() = None;
        }
        judged
    }

    async fn connected(&self) -> Result<Arc<Connection>, RedisError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut making = self.making.lock().await;
        loop {
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let is_left_over = making.is_some();
            let make = || Box::pin(connect(self.client.clone(), Arc::clone(&self.server))) as Making;
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

async fn connect(client: Client, server: Arc<Server>) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECTING))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let mut sender = client.get_multiplexed_async_connection_with_config(&config).await?;
    let greeted = server.within(CONNECTING, server.greet(&mut sender)).await;
    greeted.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
    Ok(sender)
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
