//! What is known of the server apart from its records: whether it still remembers, and whether its clock is ours.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Timestamp, telemetry};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd, pipe};

use super::value;

/// The key that tells a server that remembers from one that has forgotten: it never expires, and its value is never written twice.
pub(super) const SENTINEL: &str = "hx:amnesia";

/// How far the clocks may be apart for a first token to be drawn from ours.
const APART: Duration = Duration::from_secs(1);

/// Shared by all connections to the server.
pub(super) struct Server {
    runtime: Arc<dyn Runtime>,
    sentinel: Mutex<Option<Bytes>>,
    is_apart: AtomicBool,
    /// It was found to have forgotten, and nobody was told yet.
    forgot: AtomicBool,
}

impl Server {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, sentinel: Mutex::default(), is_apart: AtomicBool::default(), forgot: AtomicBool::default() }
    }

    pub(super) fn wall(&self) -> Timestamp {
        self.runtime.wall()
    }

    /// Waits for it, at most this long.
    pub(super) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
        runtime::within(&*self.runtime, limit, future).await
    }

    /// Whether the server's clock was far from ours when it was last looked at.
    pub(super) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Relaxed)
    }

    /// Looks at both, on a connection that is new or once a minute. What the server refuses is left for the checks to say.
    pub(super) async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let mut look = pipe();
        look.ignore_errors().get(SENTINEL).cmd("TIME");
        let before = self.wall();
        let mut replies = connection.send_packed_commands(&look, 0, 2).await?;
        let now = before.plus(self.wall().since(before) / 2);
        if let Some(theirs) = replies.pop().and_then(|time| value::time(time).ok()) {
            let apart = theirs.since(now).max(now.since(theirs));
            self.is_apart.store(apart > APART, Ordering::Relaxed);
        }
        let found = match replies.pop().map(value::text) {
            Some(Ok(Some(found))) => Some(found),
            Some(Ok(None)) => self.leave_sentinel(connection).await?,
            Some(Err(_)) | None => None,
        };
        if let Some(found) = found {
            self.recognise(found);
        }
        Ok(())
    }

    /// Whether the server was found to have forgotten since this was last asked: by whichever connection was the first to see it.
    pub(super) fn has_forgotten(&self) -> bool {
        self.forgot.swap(false, Ordering::Relaxed)
    }

    /// Writes the sentinel, unless somebody else just did. Nothing if the server takes no write now.
    async fn leave_sentinel(&self, connection: &mut MultiplexedConnection) -> Result<Option<Bytes>, RedisError> {
        let mut ours = [0; 16];
        self.runtime.fill(&mut ours);
        let mut leave = cmd("SET");
        leave.arg(SENTINEL).arg(&ours).arg("NX").arg("GET");
        let reply = value::text(connection.send_packed_command(&leave).await?);
        Ok(reply.ok().map(|theirs| theirs.unwrap_or_else(|| Bytes::copy_from_slice(&ours))))
    }

    /// Compares the sentinel with the one that was there before.
    fn recognise(&self, found: Bytes) {
        let before = self.lock().replace(found.clone());
        if before.is_some_and(|before| before != found) {
            self.forgot.store(true, Ordering::Relaxed);
            telemetry::store_forgot();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.sentinel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}
