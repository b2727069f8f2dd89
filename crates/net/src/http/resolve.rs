use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use hapax_core::runtime::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// Resolves the name of a host, once for each connection. The connection goes to one of these addresses and to no
/// other one.
#[async_trait]
pub trait ResolveHost: fmt::Debug + Send + Sync + 'static {
    /// The addresses of the host.
    ///
    /// # Errors
    /// Why there are none.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// Asks the system, as every program does.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl ResolveHost for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// What the connector calls.
#[derive(Clone)]
pub(crate) struct HostResolver(pub(crate) Arc<dyn ResolveHost>);

impl Service<Name> for HostResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = resolver.resolve(name.as_str()).await?;
            // The connector sets the port.
            Ok(addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect::<Vec<_>>().into_iter())
        })
    }
}
