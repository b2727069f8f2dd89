//! What is known of the server apart from its records: whether it still remembers, and whether its clock is ours.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Timestamp, telemetry};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd, pipe};

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
    /// How often it was greeted.
    greetings: AtomicU64,
    is_apart: AtomicBool,
    /// Its clock has been looked at.
    is_known: AtomicBool,
    /// Why its sentinel tells nothing, if so.
    obstacle: Mutex<Option<&'static str>>,
    /// It was found to have forgotten.
    pub(super) forgot: Event,
    /// Another process was found in its place.
    pub(super) changed: Event,
}

/// What was there when it was last looked at, and by which greeting.
#[derive(Default)]
struct Seen(Mutex<(u64, Option<Bytes>)>);

impl Seen {
    /// Whether this is something else than before. What an earlier greeting found tells nothing once a later one was answered.
    fn differs(&self, greeting: u64, found: Bytes) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if greeting < seen.0 {
            return false;
        }
        let (_, before) = std::mem::replace(&mut *seen, (greeting, Some(found.clone())));
        before.is_some_and(|before| before != found)
    }
}

/// Something that happens, and is told once, by whichever check is the first to ask.
#[derive(Default)]
pub(super) struct Event {
    happened: AtomicU64,
    told: AtomicU64,
}

impl Event {
    fn happens(&self) {
        self.happened.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has happened, if nobody was told yet.
    pub(super) fn untold(&self) -> Option<u64> {
        let happened = self.happened.load(Ordering::Relaxed);
        (self.told.swap(happened, Ordering::Relaxed) < happened).then_some(happened)
    }
}

impl Server {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        let (sentinel, process, greetings) = (Seen::default(), Seen::default(), AtomicU64::default());
        let [is_apart, is_known] = [(); 2].map(|()| AtomicBool::default());
        let (obstacle, forgot, changed) = (Mutex::default(), Event::default(), Event::default());
        Self { runtime, sentinel, process, greetings, is_apart, is_known, obstacle, forgot, changed }
    }

    pub(super) fn wall_now(&self) -> Timestamp {
        self.runtime.wall_now()
    }

    /// Waits for it, at most this long.
    pub(super) async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
        runtime::timeout(&*self.runtime, limit, future).await
    }

    /// Whether the server's clock was ever looked at, quickly enough to compare it.
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
        let greeting = self.greetings.fetch_add(1, Ordering::Relaxed);
        let (before, sent) = (self.wall_now(), self.runtime.boottime_now());
        let mut replies = connection.send_packed_commands(&look, 0, 3).await?;
        let trip = self.runtime.boottime_now().saturating_sub(sent);
        // After a longer trip, or one that was left lying, nobody knows when they looked.
        if let Some(theirs) = replies.pop().and_then(|time| value::time(time).ok()).filter(|_| trip <= APART) {
            let now = before.plus(trip / 2);
            let apart = theirs.since(now).max(now.since(theirs));
            self.is_apart.store(apart > APART, Ordering::Relaxed);
            self.is_known.store(true, Ordering::Release);
        }
        if let Some(found) = replies.pop() {
            let sentinel = self.left(found, connection).await?;
            *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = obstacle(&sentinel);
            self.look_at(sentinel, greeting);
        }
        let info = replies.pop().and_then(|info| value::text(info).ok()).flatten().unwrap_or_default();
        if let Some(process) = Info::new(&String::from_utf8_lossy(&info)).process()
            && self.process.differs(greeting, Bytes::copy_from_slice(process.as_bytes()))
        {
            self.changed.happens();
        }
        Ok(())
    }

    /// Why it would not be noticed if the server forgot, if so.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_at(&self, sentinel: Value, greeting: u64) {
        if let Ok(Some(found)) = value::text(sentinel)
            && self.sentinel.differs(greeting, found)
        {
            self.forgot.happens();
            telemetry::store_forgot();
        }
    }

    /// What stands in the sentinel's place: what was found, or else what is left there now.
    async fn left(&self, found: Value, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        if found != Value::Nil {
            return Ok(found);
        }
        let mut ours = [0; 16];
        self.runtime.fill_random(&mut ours);
        let mut leave = cmd("SET");
        leave.arg(SENTINEL).arg(&ours).arg("NX").arg("GET");
        // It shows nothing, unless somebody else was quicker.
        let theirs = connection.send_packed_command(&leave).await?;
        Ok(if theirs == Value::Nil { Value::BulkString(ours.into()) } else { theirs })
    }
}

/// Why the sentinel tells nothing, if it is not only that the server takes no write now.
fn obstacle(sentinel: &Value) -> Option<&'static str> {
    let Value::ServerError(error) = sentinel else { return None };
    match error.code() {
        "WRONGTYPE" => Some(TYPE),
        "NOPERM" => Some(RIGHT),
        _ => None,
    }
}

const TYPE: &str =
    "the key hx:amnesia is of another type, so that nobody would notice if the server lost its records; delete it";

const RIGHT: &str = "the user may not read and write the key hx:amnesia, so that nobody would notice if the server lost its records; \
    give it ~hx:* with +get and +set";

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_greeting_found_is_no_news() {
        let (seen, found) = (Seen::default(), |name: &'static str| Bytes::from_static(name.as_bytes()));
        assert!(!seen.differs(0, found("first")));
        assert!(seen.differs(2, found("second")));
        assert!(!seen.differs(1, found("first")), "it was greeted before the second was");
        assert!(!seen.differs(3, found("second")));
        assert!(seen.differs(4, found("first")));
    }
}
