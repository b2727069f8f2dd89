//! The task of the driver behind a connection. The driver panics on some messages, and its task then ends for good.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use hapax_core::Result;
use hapax_net::url::ServerUrl;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};
use tracing::error;

use super::connect::{self, PATIENCE};
use super::denials::Denials;

/// A connection whose driver is replaced when it has died.
pub(super) struct Driver {
    url: ServerUrl,
    current: RwLock<Driving>,
    replacing: Mutex<()>,
}

/// A driver that has connected.
#[derive(Clone)]
pub(super) struct Driving {
    pub(super) client: Client,
    /// JetStream on it. Each further one would start a task.
    pub(super) jetstream: Context,
    pub(super) denials: Denials,
    /// Its sender lives as long as the task of the driver.
    pub(super) death: watch::Receiver<()>,
    /// How often the drivers before it had connected.
    pub(super) earlier: u64,
}

impl Driving {
    fn is_dead(&self) -> bool {
        self.death.has_changed().is_err()
    }

    fn connects(&self) -> u64 {
        self.earlier + self.client.statistics().connects.load(Ordering::Relaxed)
    }
}

impl Driver {
    pub(super) async fn connect(url: &ServerUrl) -> Result<Self> {
        let current = RwLock::new(connect::start_driver(url).await?);
        Ok(Self { url: url.clone(), current, replacing: Mutex::new(()) })
    }

    /// The connection. Its driver may be dead.
    pub(super) fn client(&self) -> Client {
        self.current.read().client.clone()
    }

    /// What the server denies.
    pub(super) fn denials(&self) -> Denials {
        self.current.read().denials.clone()
    }

    /// How often the connection has been made.
    pub(super) fn connects(&self) -> u64 {
        self.current.read().connects()
    }

    /// The connection, with a driver that is not known to be dead.
    ///
    /// # Errors
    /// `NotApplied` if the driver is dead and no server can be reached.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn alive(&self) -> Result<Client> {
        let is_dead = || self.current.read().is_dead();
        if is_dead() {
            let _one_at_a_time = self.replacing.lock().await;
            if is_dead() {
                error!("the driver of the connection to NATS has ended, perhaps by a panic; it is replaced");
                let next = connect::start_driver(&self.url).await?;
                let mut current = self.current.write();
                *current = Driving { earlier: current.connects(), ..next };
            }
        }
        Ok(self.client())
    }

    /// The API of JetStream on the connection.
    pub(super) async fn context(&self) -> Result<Context> {
        Ok(self.connected(PATIENCE).await?.1)
    }

    /// The connection, with a driver that is not known to be dead, and JetStream on it, which waits for a reply as long
    /// as its patience.
    ///
    /// # Errors
    /// As [`alive`](Self::alive).
    pub(super) async fn connected(&self, patience: Duration) -> Result<(Client, Context)> {
        self.alive().await?;
        let Driving { client, jetstream: mut context, .. } = self.current.read().clone();
        context.set_timeout(patience);
        Ok((client, context))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("connects", &self.connects()).finish_non_exhaustive()
    }
}
