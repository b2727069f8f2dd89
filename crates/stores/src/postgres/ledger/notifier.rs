//! Wakes the relays after a commit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::{self, Runtime};
use parking_lot::Mutex;

use crate::postgres::pool::ConnectionPool;

/// The time between two notifications.
const NOTIFY_EVERY: Duration = Duration::from_millis(20);

/// How long one may take. A relay also looks by itself, so a failure needs no other answer.
const NOTIFY_WITHIN: Duration = Duration::from_secs(1);

/// Sends `notify` on a connection of its own: in the transaction of the event it would make commits wait for each
/// other.
pub(super) struct RelayNotifier {
    pool: ConnectionPool,
    runtime: Arc<dyn Runtime>,
    state: Mutex<NotifierState>,
}

#[derive(Clone, Copy)]
enum NotifierState {
    Idle,
    /// A task sends a notification, or waits until it may send the next one.
    Running,
    /// The same, and rows were committed meanwhile.
    Due,
}

impl RelayNotifier {
    /// `pool` has one connection, which opens for the first notification.
    pub(super) fn new(pool: ConnectionPool, runtime: Arc<dyn Runtime>) -> Self {
        Self { pool, runtime, state: Mutex::new(NotifierState::Idle) }
    }

    /// Notes that rows were committed, and returns at once.
    pub(super) fn note_commit(self: &Arc<Self>) {
        let mut state = self.state.lock();
        match *state {
            NotifierState::Idle => {
                *state = NotifierState::Running;
                self.runtime.spawn(Box::pin(Arc::clone(self).notify()));
            }
            NotifierState::Running | NotifierState::Due => *state = NotifierState::Due,
        }
    }

    /// Notifies until no commit is left of which nobody was told.
    async fn notify(self: Arc<Self>) {
        loop {
            let sent = self.pool.query(include_str!("notify.sql"), &[]);
            drop(runtime::timeout(&*self.runtime, NOTIFY_WITHIN, sent).await);
            self.runtime.sleep(NOTIFY_EVERY).await;
            let mut state = self.state.lock();
            match *state {
                NotifierState::Due => *state = NotifierState::Running,
                NotifierState::Idle | NotifierState::Running => {
                    *state = NotifierState::Idle;
                    return;
                }
            }
        }
    }
}

impl fmt::Debug for RelayNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayNotifier")
    }
}
