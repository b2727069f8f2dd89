//! Watches the server itself: whether it lost its data, was replaced by another process, or has a different clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Timestamp, telemetry};
use hapax_net::url::Host;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd, pipe};

use super::amnesia::{AmnesiaKey, AmnesiaMarks};
use super::server_info::ServerInfo;
use super::value;
use crate::server_events::{EventCounter, LastValue};

/// While the server's clock differs by less than this, first tokens are drawn from this host's clock.
const MAX_SKEW: Duration = Duration::from_secs(1);

/// The last observations of the server. All connections share them.
pub(super) struct ServerMonitor {
    runtime: Arc<dyn Runtime>,
    marks: AmnesiaMarks,
    /// The server's run id: it changes with a restart, and when a replica takes over from its primary.
    process: LastValue,
    /// The number of the next call of a script.
    calls: AtomicU64,
    /// The number of the next question to the sentinels.
    questions: AtomicU64,
    /// The master that the sentinels named last, with the number of the question, and how often they had named another
    /// one before.
    master: Mutex<Option<(u64, Host)>>,
    switches: AtomicU64,
    has_skew: AtomicBool,
    /// Whether the server's clock was ever compared with this host's.
    is_clock_known: AtomicBool,
    /// Why the sentinel cannot detect a loss of data, if it cannot.
    sentinel_problem: Mutex<Option<&'static str>>,
    pub(super) data_losses: EventCounter,
    pub(super) process_changes: EventCounter,
}

impl ServerMonitor {
    pub(super) fn new(runtime: Arc<dyn Runtime>, marks: AmnesiaMarks) -> Self {
        // Processes begin at different numbers, so that no reply to another process fits a call of this one.
        let mut first_call = [0; 8];
        runtime.fill_random(&mut first_call);
        Self {
            runtime,
            marks,
            process: LastValue::default(),
            calls: AtomicU64::new(u64::from_be_bytes(first_call)),
            questions: AtomicU64::default(),
            master: Mutex::default(),
            switches: AtomicU64::default(),
            has_skew: AtomicBool::default(),
            is_clock_known: AtomicBool::default(),
            sentinel_problem: Mutex::default(),
            data_losses: EventCounter::default(),
            process_changes: EventCounter::default(),
        }
    }

    pub(super) fn wall_now(&self) -> Timestamp {
        self.runtime.wall_now()
    }

    /// The number of a new call: no other call of this process has it.
    pub(super) fn number_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn shared_runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    pub(super) fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// Connections that were opened before the last of these switches lead to a server that is no master any more.
    pub(super) fn switches(&self) -> u64 {
        self.switches.load(Ordering::Acquire)
    }

    /// The number of a new question to the sentinels.
    pub(super) fn begin_question(&self) -> u64 {
        self.questions.fetch_add(1, Ordering::AcqRel)
    }

    /// The sentinels named this master when they were asked this question. Returns the number of switches with this
    /// one, if it is one. Returns nothing if a later question has been answered: this answer may be out of date.
    pub(super) fn note_master(&self, question: u64, named: &Host) -> Option<u64> {
        let mut master = self.master.lock();
        if master.as_ref().is_some_and(|(noted, _)| *noted > question) {
            return None;
        }
        let before = master.replace((question, named.clone()));
        if before.is_some_and(|(_, host)| host != *named) {
            self.switches.fetch_add(1, Ordering::AcqRel);
        }
        Some(self.switches())
    }

    /// The master that the sentinels named last.
    pub(super) fn master(&self) -> Option<Host> {
        self.master.lock().as_ref().map(|(_, host)| host.clone())
    }

    /// Waits for the future, at most `limit`.
    pub(super) async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
        runtime::timeout(&*self.runtime, limit, future).await
    }

    /// Whether the server's clock was ever read in a round trip short enough to compare it.
    pub(super) fn is_clock_known(&self) -> bool {
        self.is_clock_known.load(Ordering::Acquire)
    }

    /// Whether the server's clock was far from this host's clock when they were last compared.
    pub(super) fn has_skew(&self) -> bool {
        self.has_skew.load(Ordering::Relaxed)
    }

    /// Reads the run id, the sentinel and the clock: on every new connection, and at every check. A command that the
    /// server refuses is ignored here; the checks report it.
    pub(super) async fn observe(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let (observation, keys) = self.marks.observe();
        let mut commands = pipe();
        commands.ignore_errors().cmd("INFO").arg("server");
        for key in &keys {
            commands.get(key.name());
        }
        commands.cmd("TIME");
        let (before, sent) = (self.wall_now(), self.runtime.boottime_now());
        let mut replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
        let trip = self.runtime.boottime_now().saturating_sub(sent);
        // `pop` takes the replies from the end: the clock, then the sentinels, then INFO.
        // In a longer round trip, the moment at which the server read its clock is too uncertain to compare.
        if let Some(theirs) = replies.pop().and_then(|time| value::parse_time(time).ok()).filter(|_| trip <= MAX_SKEW) {
            // Assume that the server read its clock halfway through the round trip.
            let now = before.plus(trip / 2);
            let skew = theirs.since(now).max(now.since(theirs));
            self.has_skew.store(skew > MAX_SKEW, Ordering::Relaxed);
            self.is_clock_known.store(true, Ordering::Release);
        }
        let (mut problem, mut has_lost) = (None, false);
        for (key, found) in keys.into_iter().rev().zip(std::iter::from_fn(|| replies.pop())) {
            let sentinel = self.ensure_sentinel(key, found, connection).await?;
            problem = problem.or(sentinel_problem(&sentinel));
            has_lost |= self.compare_sentinel(key, sentinel, observation);
        }
        // Once, however many sentinels are gone.
        if has_lost {
            self.data_losses.increment();
            telemetry::store_forgot();
        }
        *self.sentinel_problem.lock() = problem;
        let info = replies.pop().and_then(|info| value::reply_bytes(info).ok()).flatten().unwrap_or_default();
        if let Some(run_id) = ServerInfo::new(&String::from_utf8_lossy(&info)).run_id()
            && self.process.has_changed(observation, Bytes::copy_from_slice(run_id.as_bytes()))
            && self.marks.has_records()
        {
            self.process_changes.increment();
        }
        Ok(())
    }

    /// Why a loss of data would go unnoticed, if it would.
    pub(super) fn sentinel_problem(&self) -> Option<&'static str> {
        *self.sentinel_problem.lock()
    }

    /// Whether the sentinel has another value than before.
    fn compare_sentinel(&self, key: AmnesiaKey, sentinel: Value, observation: u64) -> bool {
        let value = value::reply_bytes(sentinel).ok().flatten();
        value.is_some_and(|value| self.marks.has_changed(observation, key, value))
    }

    /// Returns the reply to `GET`, or writes a new sentinel if there was none and returns that.
    async fn ensure_sentinel(
        &self,
        key: AmnesiaKey,
        found: Value,
        connection: &mut MultiplexedConnection,
    ) -> Result<Value, RedisError> {
        if found != Value::Nil {
            return Ok(found);
        }
        let mut ours = [0; 16];
        self.runtime.fill_random(&mut ours);
        let mut set = cmd("SET");
        set.arg(key.name()).arg(&ours).arg("NX").arg("GET");
        // The reply is nil unless another process wrote its sentinel first.
        let theirs = connection.send_packed_command(&set).await?;
        Ok(if theirs == Value::Nil { Value::BulkString(ours.into()) } else { theirs })
    }
}

/// Why the sentinel cannot be used. A temporary refusal of writes is no problem: the next observation tries again.
fn sentinel_problem(sentinel: &Value) -> Option<&'static str> {
    let Value::ServerError(error) = sentinel else { return None };
    match error.code() {
        "WRONGTYPE" => Some(WRONG_TYPE),
        "NOPERM" => Some(NO_PERMISSION),
        _ => None,
    }
}

const WRONG_TYPE: &str =
    "the key hx:amnesia is of another type, so a server that loses its records would go unnoticed; delete the key";

const NO_PERMISSION: &str = "the user may not read and write the key hx:amnesia, so a server that loses its records \
    would go unnoticed; give the user ~hx:* with +get and +set";

impl fmt::Debug for ServerMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerMonitor")
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::runtime::Tokio;

    use super::*;

    #[tokio::test]
    async fn an_answer_to_an_earlier_question_names_no_master() {
        let monitor = ServerMonitor::new(Arc::new(Tokio::current()), AmnesiaMarks::of_server());
        let host = |name: &str| Host { name: name.into(), port: 6379 };
        let questions = [(); 3].map(|()| monitor.begin_question());
        assert_eq!(monitor.note_master(questions[0], &host("old")), Some(0));
        assert_eq!(monitor.note_master(questions[2], &host("new")), Some(1));
        assert_eq!(monitor.note_master(questions[1], &host("old")), None, "it was asked before the switch was seen");
        assert_eq!((monitor.note_master(questions[2], &host("new")), monitor.switches()), (Some(1), 1));
    }
}
