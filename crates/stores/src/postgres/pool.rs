//! Connections that calls share: each call has one to itself until it gets its reply.

mod call;
mod direct;
mod listen;

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use futures_util::future::{join, select};
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::call_error::PostgresCallError;
use super::timeline::TimelineMonitor;
use super::url::PostgresUrl;
pub(crate) use call::UnansweredCall;

/// How long opening a connection may take: the engine's default timeout of one call, so that a caller learns why a
/// server cannot be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a caller looks for a session while there are as many as there may be.
const PERMIT_PAUSE: Duration = Duration::from_millis(10);

/// How long a connection whose call was cancelled waits for the reply, so that the server is not left with more
/// sessions than the pool may have. Then it is closed all the same.
const DRAIN: Duration = Duration::from_secs(30);

/// A parameter of a statement with its type: statements are sent unnamed, in one round trip, so that a pooler between
/// client and server need not know them.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections to one server, opened when they are needed. A pool sends each statement once and sets no timeout: the
/// caller decides when to give up and when to repeat.
#[derive(Clone)]
pub(crate) struct ConnectionPool {
    connections: managed::Pool<Connector>,
    connector: Arc<ConnectorParts>,
}

/// A connection of a pool. It returns to the pool when it is dropped.
pub(crate) struct PooledConnection(Object<Connector>);

impl ConnectionPool {
    /// Creates a pool for statements of Hapax; it connects at its first call. Where no pooler is in between, the search
    /// path of its sessions has the system's schema only.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    pub(crate) fn new(url: Arc<PostgresUrl>, runtime: Arc<dyn Runtime>, connections: usize) -> Result<Self> {
        Self::build(url, runtime, connections, Use::Own)
    }

    /// Creates a pool as [`ConnectionPool::new`] does, on which handlers run statements, too: they find their tables by
    /// the search path of the role.
    pub(super) fn for_handlers(url: Arc<PostgresUrl>, runtime: Arc<dyn Runtime>, connections: usize) -> Result<Self> {
        Self::build(url, runtime, connections, Use::Handlers)
    }

    /// Creates a pool as [`ConnectionPool::new`] does. The monitor observes each connection before it is used.
    pub(super) fn watched(
        url: Arc<PostgresUrl>,
        runtime: Arc<dyn Runtime>,
        connections: usize,
        monitor: Arc<TimelineMonitor>,
    ) -> Result<Self> {
        Self::build(url, runtime, connections, Use::Watched(monitor))
    }

    fn build(url: Arc<PostgresUrl>, runtime: Arc<dyn Runtime>, connections: usize, used: Use) -> Result<Self> {
        url.config()?;
        let system_tls = url.tls()?.filter(|_| !url.has_tls_files());
        let permits = Arc::new(Semaphore::new(2 * connections));
        let (spares, is_unreplicated) = (Mutex::default(), Arc::default());
        let parts = ConnectorParts { url, system_tls, runtime, permits, spares, used, is_unreplicated };
        let connector = Arc::new(parts);
        let built = managed::Pool::builder(Connector(Arc::clone(&connector))).max_size(connections).build();
        let connections = built.map_err(|source| {
            Error::new(ErrorKind::Unusable, "the pool of connections cannot be created").caused_by(source)
        })?;
        Ok(Self { connections, connector })
    }

    /// Whether a COMMIT on one of these connections has ended before its standby had it.
    pub(super) fn is_unreplicated(&self) -> bool {
        self.connector.is_unreplicated.load(Ordering::Relaxed)
    }

    /// A connection for one caller. Waits while all are in use.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing was sent.
    pub(crate) async fn get(&self) -> Result<PooledConnection, PostgresCallError> {
        match self.connections.get().await {
            Ok(connection) => Ok(PooledConnection(connection)),
            Err(PoolError::Backend(error)) => Err(error),
            // The pool has no timeouts or hooks, and is never closed.
            Err(other) => Err(PostgresCallError::Judged(Error::new(ErrorKind::NotApplied, other.to_string()))),
        }
    }

    /// Runs one statement in a transaction of its own and returns its rows.
    ///
    /// # Cancel safety
    /// If the future is dropped, the statement may or may not be carried out. Its connection is replaced.
    pub(crate) async fn query(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, PostgresCallError> {
        self.begin_call().await?.query(statement, parameters).await
    }

    /// A connection that is replaced if the caller drops it before it has [ended](UnansweredCall::end) its call.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing was sent.
    pub(crate) async fn begin_call(&self) -> Result<UnansweredCall<'_>, PostgresCallError> {
        Ok(UnansweredCall { connection: Some(self.get().await?), pool: self })
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionPool")
    }
}

impl PooledConnection {
    /// Closes the connection instead of returning it to the pool. The server first ends what was sent to it.
    pub(crate) fn discard(self) {
        drop(Object::take(self.0));
    }
}

impl Deref for PooledConnection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0.client
    }
}

/// Opens connections.
struct Connector(Arc<ConnectorParts>);

struct ConnectorParts {
    url: Arc<PostgresUrl>,
    /// The settings of TLS if the URL names no file: the authorities of the system are read once, because that takes
    /// long.
    system_tls: Option<ClientConfig>,
    runtime: Arc<dyn Runtime>,
    /// Bounds the sessions on the server: those of the pool, and those whose calls were cancelled.
    permits: Arc<Semaphore>,
    /// Sessions whose callers gave up before they were open. The next callers get them: otherwise callers whose timeout
    /// is shorter than a connect would never get a connection.
    spares: Mutex<Vec<Session>>,
    used: Use,
    /// Set by a warning of the server.
    is_unreplicated: Arc<AtomicBool>,
}

/// What the connections of a pool are used for.
enum Use {
    /// Statements of Hapax.
    Own,
    /// The same, by a store of records, whose monitor observes each connection.
    Watched(Arc<TimelineMonitor>),
    /// Statements of Hapax, and of handlers.
    Handlers,
}

/// A client with what is known of its connection.
struct Session {
    client: Client,
    /// Whether no pooler is between the client and the server.
    is_direct: bool,
    prepared: HashMap<String, Statement>,
    /// For the task that drives the connection: it ends with the client.
    _exists: oneshot::Sender<()>,
}

impl managed::Manager for Connector {
    type Type = Session;
    type Error = PostgresCallError;

    async fn create(&self) -> Result<Session, PostgresCallError> {
        let parts = &self.0;
        let permit = loop {
            while let Some(spare) = parts.take_spare() {
                if !spare.client.is_closed() {
                    return Ok(spare);
                }
            }
            match Arc::clone(&parts.permits).try_acquire_owned() {
                Ok(permit) => break permit,
                // Either a session ends, or a spare one opens.
                Err(_) => parts.runtime.sleep(PERMIT_PAUSE).await,
            }
        };
        let gone = || PostgresCallError::Judged(Error::new(ErrorKind::NotApplied, "the runtime of the pool has ended"));
        let (reply, opened) = oneshot::channel();
        parts.runtime.spawn(Box::pin(Arc::clone(parts).open_for(reply, permit)));
        opened.await.unwrap_or_else(|_| Err(gone()))
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<PostgresCallError> {
        if session.client.is_closed() { Err(RecycleError::message("the connection is closed")) } else { Ok(()) }
    }
}

impl ConnectorParts {
    fn take_spare(&self) -> Option<Session> {
        self.spares.lock().pop()
    }

    /// Opens a session for the next caller, unless there are too many already.
    fn open_spare(self: Arc<Self>) {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            let (nobody, _) = oneshot::channel();
            let runtime = Arc::clone(&self.runtime);
            runtime.spawn(Box::pin(self.open_for(nobody, permit)));
        }
    }

    /// Opens a session for a caller, or for the next one if that caller gives up.
    async fn open_for(
        self: Arc<Self>,
        caller: oneshot::Sender<Result<Session, PostgresCallError>>,
        permit: OwnedSemaphorePermit,
    ) {
        let opened = runtime::timeout(&*self.runtime, CONNECT_TIMEOUT, self.open(permit)).await;
        let opened = opened.unwrap_or_else(|| {
            Err(PostgresCallError::Judged(Error::new(ErrorKind::NotApplied, "the server does not reply")))
        });
        if let Err(Ok(session)) = caller.send(opened) {
            self.spares.lock().push(session);
        }
    }

    async fn open(&self, permit: OwnedSemaphorePermit) -> Result<Session, PostgresCallError> {
        let mut session = self.connect(permit).await?;
        let pinned = match &self.used {
            Use::Own => direct::pin(&session.client).await,
            Use::Watched(monitor) => join(direct::pin(&session.client), monitor.observe(&session.client)).await.0,
            Use::Handlers => {
                let asked = direct::is_direct(&session.client);
                // A pooler replies when a server process is free, which may take longer than a connect.
                runtime::timeout(&*self.runtime, CONNECT_TIMEOUT / 2, asked).await.unwrap_or(Ok(false))
            }
        };
        session.is_direct = pinned.map_err(PostgresCallError::NotConnected)?;
        Ok(session)
    }

    async fn connect(&self, permit: OwnedSemaphorePermit) -> Result<Session, PostgresCallError> {
        let config = self.url.config().map_err(PostgresCallError::Judged)?;
        let Some(tls) = self.tls()? else {
            let (client, connection) = config.connect(NoTls).await.map_err(PostgresCallError::NotConnected)?;
            return Ok(self.drive(client, connection, permit));
        };
        let connected = config.connect(MakeRustlsConnect::new(tls)).await;
        let (client, connection) = connected.map_err(PostgresCallError::NotConnected)?;
        Ok(self.drive(client, connection, permit))
    }

    /// The settings of TLS. None without it.
    fn tls(&self) -> Result<Option<ClientConfig>, PostgresCallError> {
        match &self.system_tls {
            Some(tls) => Ok(Some(tls.clone())),
            None => self.url.tls().map_err(PostgresCallError::Judged),
        }
    }

    /// Drives the connection in a task. After its client is gone, the task waits for the replies to what was sent.
    fn drive<S, T>(&self, client: Client, mut connection: Connection<S, T>, permit: OwnedSemaphorePermit) -> Session
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (exists, gone) = oneshot::channel();
        let (runtime, is_unreplicated) = (Arc::clone(&self.runtime), Arc::clone(&self.is_unreplicated));
        self.runtime.spawn(Box::pin(async move {
            // The client's calls get the error of the connection.
            let messages = poll_fn(|context| {
                while let Some(Ok(message)) = ready!(connection.poll_message(context)) {
                    if is_of_unreplicated_commit(&message) {
                        is_unreplicated.store(true, Ordering::Relaxed);
                    }
                }
                Poll::Ready(())
            });
            let drained = async {
                // An error, because nothing is ever sent: the client is gone.
                let _ = gone.await;
                runtime.sleep(DRAIN).await;
            };
            let _ = select(pin!(messages), pin!(drained)).await;
            drop(permit);
        }));
        Session { client, is_direct: false, prepared: HashMap::new(), _exists: exists }
    }
}

/// Whether the server warns that a COMMIT has not waited for its standby. No language changes the name of the function.
fn is_of_unreplicated_commit(message: &AsyncMessage) -> bool {
    matches!(message, AsyncMessage::Notice(notice) if notice.routine() == Some("SyncRepWaitForLSN"))
}
