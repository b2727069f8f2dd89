//! PgBouncer, a pooler between clients and a PostgreSQL server.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::PostgresServer;
use super::process::{PORTS, ServiceProcess, poll};
use crate::ports;

/// PgBouncer in transaction mode, on a free loopback port: each transaction of a client may run in another session of
/// the server. It ends when it is dropped, and at the latest with this process.
#[derive(Debug)]
pub struct PgBouncer {
    address: SocketAddr,
    process: ServiceProcess,
}

/// The pooler that all tests of this process share.
static SHARED: Mutex<Option<Arc<PgBouncer>>> = Mutex::const_new(None);

impl PgBouncer {
    /// Starts a pooler in front of this server.
    ///
    /// # Errors
    ///
    /// If the pooler did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the pooler is killed.
    pub async fn start(server: &PostgresServer) -> io::Result<Self> {
        let mut pooler = Self { address: ports::free()?, process: ServiceProcess::new("pgbouncer")? };
        // Another process may have taken the port since `ports::free` looked: try another one.
        for _ in 1..PORTS {
            match pooler.launch(server).await {
                Err(error) if error.to_string().contains("Address already in use") => pooler.address = ports::free()?,
                launched => return launched.map(|()| pooler),
            }
        }
        pooler.launch(server).await.map(|()| pooler)
    }

    /// The pooler in front of the [shared server](PostgresServer::shared). The first call starts both.
    ///
    /// # Errors
    ///
    /// If one of them did not start.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a later call starts them.
    pub async fn shared() -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock().await;
        if let Some(pooler) = &*shared {
            return Ok(Arc::clone(pooler));
        }
        let server = PostgresServer::shared().await?;
        let pooler = Arc::new(Self::start(&server).await?);
        *shared = Some(Arc::clone(&pooler));
        Ok(pooler)
    }

    /// Ends the shared pooler, so that its folder is removed: a static value is never dropped.
    pub(super) fn end_shared() {
        drop(SHARED.blocking_lock().take());
    }

    /// The TCP address on which the pooler listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    async fn launch(&self, server: &PostgresServer) -> io::Result<()> {
        let configure = |command: &mut Command| {
            let [port, server] = [self.address, server.address()].map(|address| address.port().to_string());
            command.args(["--bind", "127.0.0.1", "--port", &port, "--dir"]).arg(self.process.folder()).arg(server);
        };
        self.process.launch(configure, self.wait_until_up()).await
    }

    /// Waits until the pooler's own log says that it is up. On the port, another process might reply.
    async fn wait_until_up(&self) {
        let mut poll = poll();
        loop {
            poll.tick().await;
            let log = std::fs::read_to_string(self.process.folder().join("log")).unwrap_or_default();
            if log.contains("process up") {
                return;
            }
        }
    }
}
