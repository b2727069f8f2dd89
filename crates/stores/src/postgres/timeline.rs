//! Watches whether the server at the address of the store has lost writes that it had confirmed: a standby was
//! promoted, a backup was restored, or a crash lost the last commits.
//!
//! Every new connection is observed before it is used, and so is one connection in each check. The last write that was
//! confirmed must still be there. Behind a pooler connections outlive a server, and only the checks observe.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join;
use hapax_core::store::{Finding, Severity};
use hapax_core::{RecordKey, Token, telemetry};
use parking_lot::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::pool::Parameter;
use super::row::stored_token;
use super::schema::Schema;
use crate::server_events::{EventCounter, LastValue};

/// The last observations of the server. All connections of a store share them.
pub(super) struct TimelineMonitor {
    has_kept: String,
    timeline: LastValue,
    /// How many observations have begun.
    observations: AtomicU64,
    writes: Mutex<ConfirmedWrites>,
    changes: EventCounter,
    losses: EventCounter,
}

/// What the server has confirmed, as far as the monitor needs it.
#[derive(Default)]
struct ConfirmedWrites {
    last: Option<WrittenRecord>,
    /// The write that observations look for, until one of them gets an answer. Later writes do not replace it: they may
    /// be on another server.
    sought: Option<WrittenRecord>,
    /// The write whose loss was counted last.
    lost: Option<WrittenRecord>,
}

/// A write that the server confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrittenRecord {
    pub(super) rk: RecordKey,
    pub(super) token: Token,
    pub(super) is_completed: bool,
}

impl TimelineMonitor {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            has_kept: schema.qualify(include_str!("records/has_kept.sql")),
            timeline: LastValue::default(),
            observations: AtomicU64::default(),
            writes: Mutex::default(),
            changes: EventCounter::default(),
            losses: EventCounter::default(),
        }
    }

    /// Notes a write that the server confirmed.
    pub(super) fn note_write(&self, written: WrittenRecord) {
        self.writes.lock().last = Some(written);
    }

    /// Reads the timeline of the server, and looks for the last confirmed write. Without an answer, the next
    /// observation looks for the same write.
    ///
    /// # Cancel safety
    /// The next observation looks for the same write.
    pub(super) async fn observe(&self, client: &Client) {
        let observation = self.observations.fetch_add(1, Ordering::Relaxed);
        let sought = {
            let mut writes = self.writes.lock();
            writes.sought = writes.sought.or(writes.last);
            writes.sought
        };
        let (timeline, is_kept) = join(timeline(client), self.is_kept(client, sought)).await;
        if timeline.is_some_and(|timeline| self.timeline.has_changed(observation, timeline.into())) {
            self.changes.increment();
        }
        if let (Some(sought), Ok(is_kept)) = (sought, is_kept) {
            self.conclude(sought, is_kept);
        }
    }

    fn conclude(&self, sought: WrittenRecord, is_kept: bool) {
        let mut writes = self.writes.lock();
        writes.sought = writes.sought.filter(|other| *other != sought);
        // Two observations may have looked for it at the same time.
        if is_kept || writes.lost == Some(sought) {
            return;
        }
        writes.lost = Some(sought);
        writes.last = writes.last.filter(|last| *last != sought);
        drop(writes);
        self.losses.increment();
        telemetry::store_forgot();
    }

    async fn is_kept(&self, client: &Client, sought: Option<WrittenRecord>) -> Result<bool, Error> {
        let Some(written) = sought else { return Ok(true) };
        let (rk, token) = (&written.rk.as_bytes()[..], stored_token(written.token));
        let parameters: [Parameter<'_>; 3] =
            [(&rk, Type::BYTEA), (&token, Type::INT8), (&written.is_completed, Type::BOOL)];
        match client.query_typed(&self.has_kept, &parameters).await {
            Ok(rows) => rows.first().map_or(Ok(false), |row| row.try_get("has_kept")),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What has happened since the last call.
    pub(super) fn findings(&self) -> Vec<Finding> {
        // The count makes each message different, so that a repeated event is not taken for the one already reported.
        let lost = self.losses.take_unreported().map(|times| {
            format!(
                "the server has lost records since the last check; their operations may run again \
                 (times seen by this process: {times})"
            )
        });
        let changed = self.changes.take_unreported().map(|times| {
            format!(
                "the server has another timeline: a standby was promoted, or a backup was restored, and it may lack \
                 the last confirmed writes; their operations may run again (times seen by this process: {times})"
            )
        });
        let messages = lost.into_iter().chain(changed);
        messages.map(|message| Finding { severity: Severity::Warn, message }).collect()
    }
}

/// The timeline of the server. `None` on a standby, which the checks refuse, and from a service that hides it.
async fn timeline(client: &Client) -> Option<String> {
    let rows = client.query_typed(include_str!("records/timeline.sql"), &[]).await.ok()?;
    rows.first()?.try_get("timeline").ok()?
}
