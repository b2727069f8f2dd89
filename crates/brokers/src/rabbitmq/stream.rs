//! The runtime of the driver, with a stream of ours: TCP, or TLS by `hapax-net`. The driver's own TLS would bring a
//! second implementation.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use futures_util::Stream;
use hapax_net::url::Host;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use tokio_util::either::Either;

/// A connection to a broker.
pub(super) type BrokerStream = Compat<Either<TcpStream, TlsStream<TcpStream>>>;

/// Tokio, which connects to nothing by itself.
#[derive(Clone, Debug)]
pub(super) struct OwnStreams(async_rs::Tokio);

impl OwnStreams {
    pub(super) fn current() -> Self {
        Self(async_rs::Tokio::current())
    }
}

/// Connects to a host.
///
/// # Errors
/// Those of the system, and those of TLS as `InvalidData`.
pub(super) async fn connect(host: &Host, tls: Option<&TlsConnector>) -> io::Result<BrokerStream> {
    let tcp = TcpStream::connect((host.name.as_str(), host.port)).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Either::Left(tcp).compat()) };
    let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
    Ok(Either::Right(tls.connect(name, tcp).await?).compat())
}

impl RuntimeKit for OwnStreams {}

impl Executor for OwnStreams {
    type Task<T: Send + 'static> = <async_rs::Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, future: F) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(&self, body: F) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(body)
    }
}

impl Reactor for OwnStreams {
    type TcpStream = BrokerStream;
    type Sleep = <async_rs::Tokio as Reactor>::Sleep;

    #[expect(refining_impl_trait, reason = "the trait bounds the handle by a private trait; this asks for less")]
    fn register<H: Read + Write + Send + 'static>(&self, _: H) -> io::Result<BrokerStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(&self, _: SocketAddr) -> impl Future<Output = io::Result<BrokerStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
