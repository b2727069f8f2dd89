//! What is known of the server apart from its records: whether it still remembers, and whether its clock is ours.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Timestamp, telemetry};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd, pipe};

use super::checks::Info;
use super::value;

/// The key that tells a server that remembers from one that has forgotten: it never expires, and its value is never written twice.
pub(super) const SENTINEL: &str = "hx:amnesia";

/// How far the clocks may be apart for a first token to be drawn from ours.
const APART: Duration = Duration::from_secs(1);

/// Shared by all connections to the server.
pub(super) struct Server {
    runtime: Arc<dyn Runtime>,
    sentinel: Seen,
    /// The process: another one after a restart, and after a replica took the place of its primary.
    process: Seen,
    is_apart: AtomicBool,
    /// Its clock has been looked at.
    is_known: AtomicBool,
    /// It was found to have forgotten, and nobody was told yet.
    forgot: AtomicBool,
    /// Another process was found in its place, and nobody was told yet.
    is_another: AtomicBool,
}

/// What was there when it was last looked at.
#[derive(Default)]
struct Seen(Mutex<Option<Bytes>>);

impl Seen {
    /// Whether this is something else than before.
    fn differs(&self, found: Bytes) -> bool {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(found.clone());
        before.is_some_and(|before| before != found)
    }
}

impl Server {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        let (sentinel, process) = (Seen::default(), Seen::default());
        let [is_apart, is_known, forgot, is_another] = [(); 4].map(|()| AtomicBool::default());
        Self { runtime, sentinel, process, is_apart, is_known, forgot, is_another }
    }

    pub(super) fn wall(&self) -> Timestamp {
        self.runtime.wall()
    }

    /// Waits for it, at most this long.
    pub(super) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
        runtime::within(&*self.runtime, limit, future).await
    }

    /// Whether the server's clock was ever looked at.
    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Whether the server's clock was far from ours when it was last looked at.
    pub(super) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Relaxed)
    }

    /// Looks at all of it, on a connection that is new or once a minute. What the server refuses is left for the checks to say.
    pub(super) async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let mut look = pipe();
        look.ignore_errors().cmd("INFO").arg("server").get(SENTINEL).cmd("TIME");
        let before = self.wall();
        let mut replies = connection.send_packed_commands(&look, 0, 3).await?;
        let now = before.plus(self.wall().since(before) / 2);
        if let Some(theirs) = replies.pop().and_then(|time| value::time(time).ok()) {
            let apart = theirs.since(now).max(now.since(theirs));
            self.is_apart.store(apart > APART, Ordering::Relaxed);
            self.is_known.store(true, Ordering::Release);
        }
        let found = match replies.pop().map(value::text) {
            Some(Ok(Some(found))) => Some(found),
            Some(Ok(None)) => self.leave_sentinel(connection).await?,
            Some(Err(_)) | None => None,
        };
        if found.is_some_and(|found| self.sentinel.differs(found)) {
            self.forgot.store(true, Ordering::Relaxed);
            telemetry::store_forgot();
        }
        let info = replies.pop().and_then(|info| value::text(info).ok()).flatten().unwrap_or_default();
        if let Some(process) = Info::new(&String::from_utf8_lossy(&info)).process()
            && self.process.differs(Bytes::copy_from_slice(process.as_bytes()))
        {
            self.is_another.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the server was found to have forgotten since this was last asked: by whichever connection was the first to see it.
    pub(super) fn has_forgotten(&self) -> bool {
        self.forgot.swap(false, Ordering::Relaxed)
    }

    /// Whether another process was found in its place since this was last asked.
    pub(super) fn is_another(&self) -> bool {
        self.is_another.swap(false, Ordering::Relaxed)
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
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}
