//! Watches whether another server answers at the address of the store: a standby that was promoted, or a backup that
//! was restored. Either begins a new timeline, and may lack the last writes that the store was told of.
//!
//! Every new connection is observed before it is used. So the last write that is looked for on a new timeline was
//! confirmed on the one before. Behind a pooler connections outlive a server, and only the checks observe.

use std::sync::atomic::{AtomicU64, Ordering};

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
    last_write: Mutex<Option<WrittenRecord>>,
    changes: EventCounter,
    losses: EventCounter,
}

/// A write that the server confirmed.
#[derive(Clone, Copy, Debug)]
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
            last_write: Mutex::default(),
            changes: EventCounter::default(),
            losses: EventCounter::default(),
        }
    }

    /// Notes a write that the server confirmed.
    pub(super) fn note_write(&self, written: WrittenRecord) {
        *self.last_write.lock() = Some(written);
    }

    /// Reads the timeline of the server. If it has changed, looks for the last confirmed write. A service that hides
    /// its timeline is not watched.
    pub(super) async fn observe(&self, client: &Client) {
        let observation = self.observations.fetch_add(1, Ordering::Relaxed);
        let read = client.query_typed(include_str!("records/timeline.sql"), &[]).await;
        let row = read.ok().and_then(|rows| rows.into_iter().next());
        // Null on a standby, which the checks refuse.
        let Some(timeline) = row.and_then(|row| row.try_get::<_, Option<String>>("timeline").ok().flatten()) else {
            return;
        };
        let last_write = {
            // Held during the comparison: no later connection may write before the last write is taken.
            let mut last_write = self.last_write.lock();
            if !self.timeline.has_changed(observation, timeline.into()) {
                return;
            }
            last_write.take()
        };
        self.changes.increment();
        if let Some(written) = last_write
            && matches!(self.has_kept(client, &written).await, Ok(false))
        {
            self.losses.increment();
            telemetry::store_forgot();
        }
    }

    async fn has_kept(&self, client: &Client, written: &WrittenRecord) -> Result<bool, Error> {
        let (rk, token) = (&written.rk.as_bytes()[..], stored_token(written.token));
        let parameters: [Parameter<'_>; 3] =
            [(&rk, Type::BYTEA), (&token, Type::INT8), (&written.is_completed, Type::BOOL)];
        match client.query_typed(&self.has_kept, &parameters).await {
            Ok(rows) => rows.first().map_or(Ok(false), |row| row.try_get("has_kept")),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What has happened since the last call. The count makes each message different, so that a repeated event is not
    /// taken for the one already reported.
    pub(super) fn findings(&self) -> Vec<Finding> {
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
