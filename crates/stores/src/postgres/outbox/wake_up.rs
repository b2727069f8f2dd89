//! Listens on a connection of its own for the notification that rows were committed.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures_util::future::select;
use hapax_core::runtime::Runtime;
use tokio::sync::{Notify, oneshot};

use crate::postgres::pool::ConnectionPool;

/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// Wakes those who wait for rows. A task listens from the first wait on, until this is dropped.
pub(super) struct WakeUp {
    pool: ConnectionPool,
    runtime: Arc<dyn Runtime>,
    notified: Arc<Notify>,
    begun: Once,
    exists: parking_lot::Mutex<Option<oneshot::Sender<()>>>,
}

impl WakeUp {
    pub(super) fn new(pool: ConnectionPool, runtime: Arc<dyn Runtime>) -> Self {
        let exists = parking_lot::Mutex::default();
        Self { pool, runtime, notified: Arc::default(), begun: Once::new(), exists }
    }

    /// Waits for a notification, or for a new connection: one may have been lost before.
    pub(super) async fn wait(&self) {
        self.begun.call_once(|| self.listen());
        self.notified.notified().await;
    }

    fn listen(&self) {
        let (exists, gone) = oneshot::channel();
        *self.exists.lock() = Some(exists);
        let (pool, runtime, notified) = (self.pool.clone(), Arc::clone(&self.runtime), Arc::clone(&self.notified));
        self.runtime.spawn(Box::pin(async move {
            let listening = Box::pin(async move {
                loop {
                    // The relay also looks from time to time, so a failure needs no other answer.
                    drop(pool.listen(include_str!("listen.sql"), || notified.notify_one()).await);
                    runtime.sleep(PAUSE).await;
                }
            });
            drop(select(listening, gone).await);
        }));
    }
}

impl fmt::Debug for WakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeUp")
    }
}
