//! NATS, Kafka and RabbitMQ servers, alone and in clusters.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use futures_util::future::try_join_all;
use rustix::process::Signal;
use tokio::sync::Mutex;

use super::process::{PORTS, ServiceProcess, poll};
use crate::ports;

mod kinds;

pub use kinds::{Kafka, KafkaServer, Nats, NatsServer, RabbitMq, RabbitMq3, RabbitMq3Server, RabbitMqServer};

/// A kind of broker: [`Nats`], [`Kafka`], [`RabbitMq`], [`RabbitMq3`], [`ElasticMq`](super::ElasticMq),
/// [`PubSub`](super::PubSub) or [`PsTest`](super::PsTest); or [`Minio`](super::Minio) or
/// [`SpannerEmulator`](super::SpannerEmulator), which are started like a broker.
pub trait BrokerKind: Sized + Send + Sync + 'static {
    /// The name of the service, for [`required`](super::required).
    const NAME: &'static str;

    /// What the URL of a server has before its address.
    #[doc(hidden)]
    const URL: &'static str;

    /// The words in the log of a server that is ready.
    #[doc(hidden)]
    const READY: &'static str;

    /// The arguments of the server that tests share.
    #[doc(hidden)]
    const SHARED: &'static [&'static str];

    /// The arguments of one member of a cluster.
    #[doc(hidden)]
    fn member(addresses: &[SocketAddr], index: usize) -> Vec<String>;

    /// The words in the log of a registry that is ready. Members of a cluster look for each other there. None if they
    /// need no registry.
    #[doc(hidden)]
    const REGISTRY_READY: Option<&'static str> = None;

    #[doc(hidden)]
    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>>;
}

/// A broker with its own data. It ends when it is dropped, and at the latest with this process.
pub struct BrokerServer<K> {
    address: SocketAddr,
    arguments: Vec<String>,
    process: ServiceProcess,
    /// Ends with the last member of the cluster.
    _registry: Option<Arc<ServiceProcess>>,
    kind: PhantomData<K>,
}

impl<K: BrokerKind> BrokerServer<K> {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If the server did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server is killed.
    pub async fn start(arguments: &[&str]) -> io::Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let start = async || {
            let server = Self::new(ports::free()?, arguments.clone(), None)?;
            server.launch().await.map(|()| server)
        };
        // Another process may have taken the port since `ports::free` looked: try another one.
        for _ in 1..PORTS {
            match start().await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                started => return started,
            }
        }
        start().await
    }

    /// Starts the members of a cluster and waits until all are ready. The members of a NATS cluster may still be
    /// choosing the leader that creates streams. If all members of a RabbitMQ cluster have ended, they become ready
    /// only together.
    ///
    /// # Errors
    ///
    /// If a server did not start. The error contains its log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the servers are killed.
    pub async fn start_cluster(count: usize) -> io::Result<Vec<Self>> {
        for _ in 1..PORTS {
            match Self::try_cluster(count).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                started => return started,
            }
        }
        Self::try_cluster(count).await
    }

    async fn try_cluster(count: usize) -> io::Result<Vec<Self>> {
        // All are open at the same time, so that no two are the same.
        let listeners = (0..count).map(|_| ports::listen()).collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        drop(listeners);
        let registry = Self::start_registry(second(addresses[0])).await?;
        let member = |index| Self::new(addresses[index], K::member(&addresses, index), registry.clone());
        let servers = (0..count).map(member).collect::<io::Result<Vec<Self>>>()?;
        try_join_all(servers.iter().map(Self::launch)).await?;
        Ok(servers)
    }

    /// The server that all tests of this process share. The first call starts it. Each test uses streams or topics of
    /// its own, and stops nothing.
    ///
    /// # Errors
    ///
    /// If the server did not start.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a later call starts the server.
    pub async fn shared() -> io::Result<Arc<Self>> {
        let mut shared = K::shared().lock().await;
        if let Some(server) = &*shared {
            return Ok(Arc::clone(server));
        }
        let server = Arc::new(Self::start(K::SHARED).await?);
        *shared = Some(Arc::clone(&server));
        Ok(server)
    }

    /// Ends the shared server, so that its folder is removed: a static value is never dropped.
    pub(super) fn end_shared() {
        drop(K::shared().blocking_lock().take());
    }

    async fn start_registry(address: SocketAddr) -> io::Result<Option<Arc<ServiceProcess>>> {
        let Some(ready) = K::REGISTRY_READY else { return Ok(None) };
        let process = ServiceProcess::new(K::NAME)?;
        launch(&process, address, &["--only-registry".to_owned()], ready).await?;
        Ok(Some(Arc::new(process)))
    }

    fn new(address: SocketAddr, arguments: Vec<String>, registry: Option<Arc<ServiceProcess>>) -> io::Result<Self> {
        let process = ServiceProcess::new(K::NAME)?;
        Ok(Self { address, arguments, process, _registry: registry, kind: PhantomData })
    }

    /// The TCP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server: `nats://`, `kafka://`, `amqp://`, `sqs+http://` or `http://` and its address.
    pub fn url(&self) -> String {
        format!("{}{}", K::URL, self.address)
    }

    /// The folder with its data and its log file, `log`.
    pub fn data_folder(&self) -> &Path {
        self.process.folder()
    }

    /// The process id, while the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Asks the server to end (SIGTERM), and waits until it has.
    ///
    /// # Errors
    ///
    /// If it is not running, or does not end.
    ///
    /// # Cancel safety
    ///
    /// The server ends even if the future is dropped.
    pub async fn terminate(&self) -> io::Result<ExitStatus> {
        self.process.end(Signal::TERM).await
    }

    /// Pauses the server (SIGSTOP): the kernel still accepts connections, and the server does not reply.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes the server (SIGCONT).
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
        self.launch().await
    }

    async fn launch(&self) -> io::Result<()> {
        launch(&self.process, self.address, &self.arguments, K::READY).await
    }
}

async fn launch(process: &ServiceProcess, address: SocketAddr, arguments: &[String], ready: &str) -> io::Result<()> {
    let configure = |command: &mut Command| {
        let port = address.port().to_string();
        command.args(["--bind", "127.0.0.1", "--port", &port, "--dir"]).arg(process.folder());
        command.args(arguments);
    };
    process.launch(configure, wait_until_up(process, ready)).await
}

/// Waits until the server's own log says that it is ready. On the port, another process's server might reply.
async fn wait_until_up(process: &ServiceProcess, ready: &str) {
    let mut poll = poll();
    loop {
        poll.tick().await;
        let log = std::fs::read(process.folder().join("log")).unwrap_or_default();
        if String::from_utf8_lossy(&log).contains(ready) {
            return;
        }
    }
}

/// Another address of a server. `ports::free` gives it to nobody else.
fn second(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 10_000)
}

impl<K> fmt::Debug for BrokerServer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.process, self.address)
    }
}
