//! The relay of layer 3: publishes the open rows of an outbox, in the order of each ordering key, and marks them.
//!
//! ```text
//! Outbox::read ──► bucket.rs ──► Sink::publish ─┬─ Yes ──────────────────► Outbox::mark
//!                  (order of a key)             ├─ NotPublished, Unknown ─► later, under the same id
//!                                               └─ Refused ──────────────► Outbox::park: this key only
//! ```
//!
//! ```text
//! engine.rs    one task that decides: it owns the buckets, and lends them to its parts
//! claims.rs    which relay has which bucket: records in the store of the same database
//! reader.rs    reads open rows
//! rules.rs     when the outbox is read next: the numbered rows of rules.md; pure
//! publisher.rs has rows published that may be published now
//! writes.rs    marks rows, parks keys, and sets rows aside
//! upkeep.rs    counts rows, and removes old ones
//! calls.rs     the calls that the engine waits for
//! buckets.rs   the buckets that a relay has
//! bucket.rs    the rows of one bucket that are held, and which may be published now; pure
//! topics.rs    topics of which the sink takes nothing now, and which reads leave out; pure
//! deferred.rs  rows that have failed and leave the room to others; pure
//! decided.rs   up to which row no transaction that is still open can add one; pure
//! share.rs     how many buckets each relay takes; pure
//! ```
//!
//! Only claims, publisher and writes delay a relay that stops.
//!
//! A row is published before it is marked. If the relay dies in between, it is published again under the same event id:
//! a broker may recognize the id, and a consumer with a ledger always does.

mod bucket;
mod buckets;
mod calls;
mod claims;
mod decided;
mod deferred;
mod engine;
mod publisher;
mod reader;
mod rules;
mod share;
mod topics;
mod upkeep;
mod writes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::outbox::{Outbox, OutboxUpkeep, Sink};
use crate::record::Millis;
use crate::runtime::Runtime;
use crate::store::Store;
pub use claims::{bucket_records, member_records};
pub use decided::DecidedRows;
use engine::RelayEngine;

const LONGEST_DRAIN: Duration = Duration::from_secs(3600);
const SHORTEST_RETENTION: Duration = Duration::from_secs(60);
const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Settings of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// How long a bucket stays with a relay that has died, at least 1 s. Default: 10 s.
    pub lease: Millis,
    /// The number of events that are being published at once. Default: 1,024.
    pub max_in_flight: usize,
    /// About how many rows are held at most. Default: 16,384.
    pub max_held: usize,
    /// About how many bytes of events are held at most. Default: 64 MiB.
    pub max_held_bytes: usize,
    /// How long published rows are kept. None: for ever. Default: 30 days.
    pub retention: Option<Duration>,
    /// How long a relay that stops waits for what it publishes. Default: 25 s.
    pub drain: Duration,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            lease: Millis(10_000),
            max_in_flight: 1024,
            max_held: 16_384,
            max_held_bytes: 64 << 20,
            retention: Some(Duration::from_secs(30 * 24 * 3600)),
            drain: Duration::from_secs(25),
        }
    }
}

/// A relay between an outbox and a sink.
///
/// Several relays of one database share the work: each bucket belongs to one of them at a time.
pub struct Relay {
    parts: RelayParts,
}

/// What a relay uses.
struct RelayParts {
    outbox: Arc<dyn Outbox>,
    upkeep: Option<Arc<dyn OutboxUpkeep>>,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    settings: RelaySettings,
    runtime: Arc<dyn Runtime>,
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayEnd {
    /// The number of events whose publication or mark was not confirmed. They are published again, under the same ids.
    pub unconfirmed: usize,
}

impl Relay {
    /// Starts to build a relay. `store` keeps its records in the database of the outbox.
    pub fn builder(outbox: Arc<dyn Outbox>, store: Arc<dyn Store>, sink: Arc<dyn Sink>) -> RelayBuilder {
        RelayBuilder { outbox, store, sink, upkeep: None, settings: RelaySettings::default(), runtime: None }
    }

    /// Publishes events until `shutdown` ends. Then it starts nothing new, waits for what is in flight, marks it, gives
    /// its buckets back and closes the sink.
    ///
    /// # Errors
    /// - `Unusable` if the tables of the outbox are missing, or may not be used. A relay that has read them before goes
    ///   on: a restore may remove them for a moment.
    /// - `Unusable` if the system has no thread left for the heartbeat.
    ///
    /// # Cancel safety
    /// If dropped, events in flight may or may not be published; they are published again under the same ids.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<RelayEnd> {
        RelayEngine::start(self.parts)?.run(shutdown).await
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("outbox", &self.parts.outbox)
            .field("sink", &self.parts.sink)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Relay`]; see [`Relay::builder`].
#[derive(Debug)]
pub struct RelayBuilder {
    outbox: Arc<dyn Outbox>,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    upkeep: Option<Arc<dyn OutboxUpkeep>>,
    settings: RelaySettings,
    runtime: Option<Arc<dyn Runtime>>,
}

impl RelayBuilder {
    /// Counts rows for metrics, and removes old published rows. Without it neither happens.
    #[must_use]
    pub fn upkeep(mut self, upkeep: Arc<dyn OutboxUpkeep>) -> Self {
        self.upkeep = Some(upkeep);
        self
    }

    /// Uses these settings.
    #[must_use]
    pub fn settings(mut self, settings: RelaySettings) -> Self {
        self.settings = settings;
        self
    }

    /// Uses this runtime instead of the tokio runtime in which `build` is called.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Builds the relay.
    ///
    /// # Errors
    /// - `Invalid` if a setting that counts something is 0, or the lease is shorter than 1 s.
    /// - `Invalid` if the drain is longer than an hour, or the retention is not between a minute and 100 years.
    /// - `Invalid` if rows are kept for a shorter time than the broker recognizes their ids: a published row is the
    ///   only thing from which a broker that lost its tail can be filled again.
    /// - `Invalid` without a runtime and without the feature `tokio`.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if no runtime was given.
    pub fn build(self) -> Result<Relay> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
        let settings = self.settings;
        if settings.max_in_flight == 0 || settings.max_held == 0 || settings.max_held_bytes == 0 {
            return invalid("a relay cannot do anything with a room of 0");
        }
        if settings.drain > LONGEST_DRAIN {
            return invalid("a relay that stops waits for at most an hour");
        }
        if settings.retention.is_some_and(|kept| !(SHORTEST_RETENTION..=LONGEST_RETENTION).contains(&kept)) {
            return invalid("published rows are kept for a minute to 100 years, or for ever");
        }
        if settings.lease < Millis(1000) {
            return invalid("the lease of a relay is at least 1 s");
        }
        let is_too_short = |(kept, window)| kept < window && !Mutant::RetentionBelowWindow.is_on();
        if settings.retention.zip(self.sink.window()).is_some_and(is_too_short) {
            return invalid("published rows are kept at least as long as the sink recognizes a repeated event");
        }
        let runtime = self.runtime.map_or_else(crate::gate::current_runtime, Ok)?;
        let Self { outbox, store, sink, upkeep, .. } = self;
        Ok(Relay { parts: RelayParts { outbox, upkeep, store, sink, settings, runtime } })
    }
}
