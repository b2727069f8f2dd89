//! A TCP proxy between a client and a server, with injected network faults.
//!
//! It knows no protocol. It counts each fault before the fault takes effect, so a client that observed a fault finds it
//! counted.

mod connection;
mod fault;
mod rules;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub use fault::{CutPoint, Direction, FaultCounts, FaultRule, NetworkFault};

use crate::ports;
use rules::FaultRules;

/// Listens on its own port and forwards connections. It needs the tokio runtime on which it was started, with real
/// time. All of its connections are closed when it is dropped.
///
/// ```no_run
/// use hapax_testkit::proxy::{NetworkFault, CutPoint, Proxy};
///
/// # async fn example(server: std::net::SocketAddr) -> std::io::Result<()> {
/// let proxy = Proxy::start(server).await?;
/// proxy.inject(NetworkFault::cut(CutPoint::Answered, "EVALSHA").after(2).times(1));
/// // ... the client talks to `proxy.address()`; the server executes its third EVALSHA, and the reply is lost.
/// assert_eq!(proxy.counts().cuts, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// The server of new connections.
    target: watch::Sender<SocketAddr>,
    rules: Arc<FaultRules>,
    /// A change resets all connections; they also end when the channel is closed.
    resets: watch::Sender<()>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy in front of the target.
    ///
    /// # Errors
    ///
    /// If no port is free.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = ports::listen()?;
        listener.set_nonblocking(true)?;
        let (address, listener) = (listener.local_addr()?, TcpListener::from_std(listener)?);
        let ((resets, _), (target, _)) = (watch::channel(()), watch::channel(target));
        let mut proxy = Self { address, target, rules: Arc::default(), resets, listening: Mutex::default() };
        *proxy.listening.get_mut() = Some(proxy.accept(listener));
        Ok(proxy)
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a fault to all connections, including open ones. Earlier faults stay active; if several cut, the earliest
    /// wins.
    pub fn inject(&self, rule: impl Into<FaultRule>) {
        self.rules.add(rule.into());
    }

    /// Sends new connections to another server, as a host name does after a failover.
    pub fn redirect_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Resets all open connections.
    pub fn reset(&self) {
        self.resets.send_replace(());
    }

    /// Refuses new connections, as if nothing listened on the port. Open connections stay open.
    pub async fn refuse(&self) {
        if let Some(listening) = self.listening.lock().await.take() {
            listening.abort();
            // The port is free only after the aborted task has ended.
            let _ = listening.await;
        }
    }

    /// Removes all faults and listens again. Lost bytes stay lost, as in a real network.
    ///
    /// # Errors
    ///
    /// If the proxy was refusing connections and another process took its port.
    pub async fn heal(&self) -> io::Result<()> {
        self.rules.clear();
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            *listening = Some(self.accept(TcpListener::bind(self.address).await?));
        }
        Ok(())
    }

    /// The faults that have taken effect since the start.
    pub fn counts(&self) -> FaultCounts {
        self.rules.counts()
    }

    fn accept(&self, listener: TcpListener) -> JoinHandle<()> {
        let (target, rules, resets) = (self.target.subscribe(), Arc::clone(&self.rules), self.resets.subscribe());
        tokio::spawn(async move {
            loop {
                // An error here means that a client closed its connection before it was accepted: continue.
                if let Ok((client, _)) = listener.accept().await {
                    let target = *target.borrow();
                    tokio::spawn(connection::forward(client, target, Arc::clone(&rules), resets.clone()));
                }
            }
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.get_mut() {
            listening.abort();
        }
    }
}
