//! A TCP proxy between a client and a server that does to their connections what networks do.
//!
//! It knows no protocol. What it was told to do wrong it counts before it does it, so that a client that saw a fault finds it counted.

mod connection;
mod fault;
mod rules;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub use fault::{Counts, Direction, Fault, Moment, Rule};

use crate::ports;
use rules::Rules;

/// Listens on a port of its own and hands on what it gets. It lives on the runtime on which it was started, and needs its time to pass.
/// All of its connections end when it is dropped.
///
/// ```no_run
/// use hapax_testkit::proxy::{Fault, Moment, Proxy};
///
/// # async fn example(server: std::net::SocketAddr) -> std::io::Result<()> {
/// let proxy = Proxy::start(server).await?;
/// proxy.inject(Fault::cut(Moment::Answered, "EVALSHA").after(2).times(1));
/// // ... the client talks to `proxy.address()`; its third EVALSHA is carried out, and it never learns of it.
/// assert_eq!(proxy.counts().cuts, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// Where new connections lead.
    target: watch::Sender<SocketAddr>,
    rules: Arc<Rules>,
    /// Changes when all connections are to be reset; closed when they are to end.
    resets: watch::Sender<()>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Listens, and hands on to the target.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = ports::listen()?;
        listener.set_nonblocking(true)?;
        let (address, listener) = (listener.local_addr()?, TcpListener::from_std(listener)?);
        let ((resets, _), (target, _)) = (watch::channel(()), watch::channel(target));
        let mut proxy = Self { address, target, rules: Arc::default(), resets, listening: Mutex::default() };
        *proxy.listening.get_mut() = Some(proxy.accept(listener));
        Ok(proxy)
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does this to all connections from now on, those that are open included. Earlier faults stay, and the earliest that cuts wins.
    pub fn inject(&self, rule: impl Into<Rule>) {
        self.rules.add(rule.into());
    }

    /// Leads new connections to another server, as a name does that a replica takes over.
    pub fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Resets all connections that are open.
    pub fn reset(&self) {
        self.resets.send_replace(());
    }

    /// Refuses new connections, as a machine does on which nothing listens. Those that are open go on.
    pub async fn refuse(&self) {
        if let Some(listening) = self.listening.lock().await.take() {
            listening.abort();
            // It was told to end, and has given up the port once it has.
            let _ = listening.await;
        }
    }

    /// Forgets all faults and listens again. A connection from which bytes are missing stays as it is: no network makes up for them.
    ///
    /// # Errors
    ///
    /// It had refused connections, and the port is taken.
    pub async fn heal(&self) -> io::Result<()> {
        self.rules.clear();
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            *listening = Some(self.accept(TcpListener::bind(self.address).await?));
        }
        Ok(())
    }

    /// What has happened since it was started.
    pub fn counts(&self) -> Counts {
        self.rules.counts()
    }

    fn accept(&self, listener: TcpListener) -> JoinHandle<()> {
        let (target, rules, resets) = (self.target.subscribe(), Arc::clone(&self.rules), self.resets.subscribe());
        tokio::spawn(async move {
            loop {
                // One that a client gave up before it was accepted is no reason to stop.
                if let Ok((client, _)) = listener.accept().await {
                    let target = *target.borrow();
                    tokio::spawn(connection::carry(client, target, Arc::clone(&rules), resets.clone()));
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
