//! The worker takes messages from a source, passes each to a [`Process`], and acknowledges it afterwards.
//!
//! A broker may deliver a message again, and then the worker passes it on again. The `Process` recognizes the copy by a
//! ledger (layer 2), or by a gate (layer 1) as in `hapax worker`.
//!
//! ```text
//! Source ──► identity ──► order ──► batch ──► Process ──► rules ─┬─ Finish ──► watermark ──► Settle
//!                                                                ├─ Bury ──► DeadLetters ──► Finish
//!                                                                ├─ GiveBack ─────────────► Settle
//!                                                                └─ Hold, PauseAll, Alone ─► order
//! ```
//!
//! The watermark is for sources that acknowledge a prefix, such as Kafka. Other sources settle each message. A worker
//! that stops gives back what would go to `order` again.
//!
//! ```text
//! identity.rs   key, tenant and fingerprint of a message
//! order.rs      which messages may run now: those of one ordering key one after the other
//! parking.rs    ordering keys that wait for an operator, after a dead letter
//! batches.rs    when a batch starts
//! rules.rs      what happens to a delivery after its job, pure, with numbered rows
//! watermark.rs  how far a lane is finished without a gap
//! room.rs       how many messages and bytes are held
//! lanes.rs      the messages of each lane, and lanes that are taken away
//! settling.rs   settlements that the broker has not confirmed
//! burials.rs    dead letters that are not confirmed
//! extension.rs  the leases of deliveries
//! redrive.rs    the lane of dead letters that are to be processed again
//! reopen.rs     lets the message of a dead letter run again, where a record of the gate forbids it
//! engine.rs     one task that decides, and the tasks that it starts
//! ```

mod batches;
mod burials;
mod engine;
mod extension;
mod identity;
mod lanes;
mod order;
mod parking;
mod redrive;
mod reopen;
mod room;
pub mod rules;
mod settling;
mod watermark;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{DeadLetterStore, DeadLetters, Process, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use engine::Engine;

pub use identity::{Bucket, EVENT_RULE, IdentifiedMessage, KeyRule, MESSAGE_RULE, MessageIdentity, TenantRule};
pub use redrive::RedriveSource;
pub use reopen::{RecordReopener, Reopen, ReopenedLetter};
pub use watermark::Watermark;

/// Settings of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// The number of batches that run at once. Default: 4.
    pub concurrency: usize,
    /// The largest number of messages in a batch. Default: 256.
    pub batch: usize,
    /// How long a message waits for others of its batch. Default: 2 ms.
    pub linger: Duration,
    /// The number of messages of one lane that are held at most. Default: 10,000.
    pub max_held: usize,
    /// About how many bytes of messages are held at most. Each message counts as 1 KiB more than its own bytes, which
    /// is about what the worker needs for it. Default: 64 MiB.
    pub max_held_bytes: usize,
    /// A message becomes a dead letter when it has panicked this many times in a batch of its own. A panic in a batch
    /// with other messages does not count; each of them then runs alone. Default: 8.
    pub max_panics: u32,
    /// How long a worker that stops waits for what runs. Default: 25 s.
    pub drain: Duration,
    /// How long a batch may run until the log says so, every minute. It still runs on. Default: 2 min.
    pub slow_after: Duration,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            concurrency: 4,
            batch: 256,
            linger: Duration::from_millis(2),
            max_held: 10_000,
            max_held_bytes: 64 << 20,
            max_panics: 8,
            drain: Duration::from_secs(25),
            slow_after: Duration::from_secs(120),
        }
    }
}

/// A worker between a source of messages and what processes them.
///
/// Several workers with one source name and one namespace share the work: the broker gives each message to one of them.
/// If it gives a message to two, the ledger or the gate recognizes the copy.
pub struct Worker {
    source: Box<dyn Source>,
    parts: WorkerParts,
}

/// What a worker uses.
struct WorkerParts {
    process: Arc<dyn Process>,
    dead: Arc<dyn DeadLetters>,
    /// The store of the dead letters whose ordering keys wait. None if no key waits.
    parked: Option<Arc<dyn DeadLetterStore>>,
    identity: MessageIdentity,
    settings: WorkerSettings,
    runtime: Arc<dyn Runtime>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerEnd {
    /// The number of messages that were still being processed, or whose end the broker did not confirm. They arrive
    /// again at another worker. A broker that acknowledges a prefix, such as Kafka, confirms positions: one that is not
    /// confirmed counts as one message.
    pub unfinished: usize,
}

impl Worker {
    /// Starts to build a worker.
    pub fn builder(source: Box<dyn Source>, process: Arc<dyn Process>, dead: Arc<dyn DeadLetters>) -> WorkerBuilder {
        let settings = WorkerSettings::default();
        WorkerBuilder { source, process, dead, parked: None, identity: None, settings, runtime: None }
    }

    /// Processes messages until `shutdown` ends. Then it starts nothing new, waits for what runs, settles it, and
    /// closes the source.
    ///
    /// # Errors
    /// - What the source returned, if calling it again does not help.
    /// - `Unusable` if the system has no thread left for the heartbeat of a source with leases.
    ///
    /// # Cancel safety
    /// If dropped, jobs that run go on and are not acknowledged. They arrive again.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<WorkerEnd> {
        Engine::start(&*self.source, self.parts)?.run(self.source, shutdown).await
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("source", &self.source)
            .field("process", &self.parts.process)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Worker`]; see [`Worker::builder`].
#[derive(Debug)]
pub struct WorkerBuilder {
    source: Box<dyn Source>,
    process: Arc<dyn Process>,
    dead: Arc<dyn DeadLetters>,
    parked: Option<Arc<dyn DeadLetterStore>>,
    identity: Option<MessageIdentity>,
    settings: WorkerSettings,
    runtime: Option<Arc<dyn Runtime>>,
}

impl WorkerBuilder {
    /// How messages are identified. It must be given: it has the namespace.
    #[must_use]
    pub fn identity(mut self, identity: MessageIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Lets the messages of an ordering key wait while this source has a dead letter of that key. The wait ends when an
    /// operator removes the letter, or when its redrive ends well. Without this call, the later messages of the key go
    /// on. A batch has at most one message of a key.
    ///
    /// `letters` must be the store into which the `dead` of [`Worker::builder`] writes. With another store no key ever
    /// waits, and nothing checks that.
    ///
    /// Messages that wait count towards `max_held` and `max_held_bytes`. A source that acknowledges a prefix commits
    /// nothing behind them. [`build`](Self::build) refuses a store that does not tell the ordering keys of its letters.
    #[must_use]
    pub fn park(mut self, letters: Arc<dyn DeadLetterStore>) -> Self {
        self.parked = Some(letters);
        self
    }

    /// Uses these settings.
    #[must_use]
    pub fn settings(mut self, settings: WorkerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Uses this runtime instead of the tokio runtime in which `build` is called. Its clock must be that of the source.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Builds the worker.
    ///
    /// # Errors
    /// - `Invalid` without an identity.
    /// - `Invalid` if `concurrency`, `batch`, `max_held`, `max_held_bytes` or `max_panics` is 0.
    /// - `Invalid` after [`park`](Self::park) with a store that does not tell the ordering keys of its letters. Redis
    ///   does not.
    /// - `Invalid` without a runtime and without the feature `tokio`.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if no runtime was given.
    pub fn build(self) -> Result<Worker> {
        let invalid = |message| Error::new(ErrorKind::Invalid, message);
        let identity = self.identity.ok_or_else(|| invalid("a worker needs an identity, which has its namespace"))?;
        let settings = self.settings;
        let WorkerSettings { concurrency, batch, max_held, max_held_bytes, max_panics, .. } = settings;
        if [concurrency, batch, max_held, max_held_bytes].contains(&0) || max_panics == 0 {
            return Err(invalid("concurrency, batch, max_held, max_held_bytes and max_panics must be above 0"));
        }
        if self.parked.as_ref().is_some_and(|letters| !letters.tells_ordering_keys()) {
            // Otherwise every key would wait for ever.
            return Err(invalid(
                "a worker that parks ordering keys needs dead letters that tell which keys they belong to: keep them \
                 in PostgreSQL or SQLite, or do not park",
            ));
        }
        let runtime = self.runtime.map_or_else(crate::gate::current_runtime, Ok)?;
        let (process, dead, parked) = (self.process, self.dead, self.parked);
        let parts = WorkerParts { process, dead, parked, identity, settings, runtime };
        Ok(Worker { source: self.source, parts })
    }
}
