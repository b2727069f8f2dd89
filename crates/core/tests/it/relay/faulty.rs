//! An outbox whose calls take long, never end, or find locked rows.

use std::collections::BTreeSet;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{
    BUCKETS, EventRow, Horizon, MarkedRows, MemoryOutbox, OpenRows, Outbox, OutboxCounts, OutboxUpkeep, OutgoingEvent,
    ParkedKey, ParkedRow, ReadRequest, Reopened, RowId, RowState,
};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, EventId, Result, Timestamp};
use hapax_testkit::Process;
use parking_lot::Mutex;

/// What is wrong with an outbox, and what was asked of it.
#[derive(Debug, Default)]
pub(super) struct OutboxFaults {
    /// The next call of each of these kinds never ends.
    pub(super) hanging: BTreeSet<&'static str>,
    pub(super) read_takes: Duration,
    /// The database does not exist for a moment, as in a restore.
    pub(super) is_gone: bool,
    /// A read passes over each id behind its cursors, and this long for each, as behind an old transaction.
    pub(super) read_takes_an_id: Duration,
    pub(super) sweep_takes: Duration,
    /// Rows on which another transaction has a lock. A call that parks the key of one fails.
    pub(super) locked: BTreeSet<EventId>,
    /// How long one call takes to park keys.
    pub(super) park_takes: Duration,
    /// Marks are confirmed and lost, as in a crash of the database.
    pub(super) loses_marks: bool,
    pub(super) reads: usize,
    pub(super) sweeps: usize,
    /// How often the relay waited for something to happen.
    pub(super) waits: usize,
}

/// The outbox of one relay.
#[derive(Clone, Debug)]
pub(super) struct FaultyOutbox {
    pub(super) outbox: MemoryOutbox,
    pub(super) runtime: Arc<Process>,
    pub(super) faults: Arc<Mutex<OutboxFaults>>,
}

impl FaultyOutbox {
    async fn call(&self, kind: &'static str) {
        if self.faults.lock().hanging.remove(kind) {
            pending::<()>().await;
        }
    }

    async fn sleep(&self, takes: Duration) {
        if takes > Duration::ZERO {
            self.runtime.sleep(takes).await;
        }
    }
}

#[async_trait]
impl Outbox for FaultyOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        self.faults.lock().reads += 1;
        self.call("read").await;
        if self.faults.lock().is_gone {
            return Err(Error::new(ErrorKind::Unusable, "the server has no such database"));
        }
        let rows = self.outbox.read(request).await?;
        let drawn = self.outbox.horizon().await?.drawn.0;
        let passed: u128 =
            request.cursors.iter().map(|cursor| drawn.saturating_sub(cursor.from.row.0) / u128::from(BUCKETS)).sum();
        let an_id = self.faults.lock().read_takes_an_id;
        let takes = self.faults.lock().read_takes + an_id * u32::try_from(passed).unwrap();
        self.sleep(takes).await;
        Ok(rows)
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        self.call("mark").await;
        if self.faults.lock().loses_marks {
            return Ok(MarkedRows::default());
        }
        let locked = self.faults.lock().locked.clone();
        let (locked, free): (Vec<_>, Vec<_>) = rows.iter().partition(|row| locked.contains(&row.event));
        let marked = self.outbox.mark(&free, republications).await?;
        Ok(MarkedRows { locked, ..marked })
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        self.call("park").await;
        let takes = self.faults.lock().park_takes;
        self.sleep(takes).await;
        if rows.iter().any(|row| self.faults.lock().locked.contains(&row.event)) {
            return Err(Error::new(ErrorKind::NotApplied, "a row is locked"));
        }
        self.outbox.park(rows).await
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        self.call("set_aside").await;
        self.outbox.set_aside(rows).await
    }

    async fn horizon(&self) -> Result<Horizon> {
        self.call("horizon").await;
        self.outbox.horizon().await
    }

    async fn wait_for_rows(&self) {
        self.faults.lock().waits += 1;
        self.outbox.wait_for_rows().await;
    }
}

#[async_trait]
impl OutboxUpkeep for FaultyOutbox {
    async fn counts(&self, limit: u64) -> Result<OutboxCounts> {
        self.outbox.counts(limit).await
    }

    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>> {
        self.outbox.parked(after, limit).await
    }

    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>> {
        self.outbox.find(id).await
    }

    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>> {
        self.outbox.resume(key, limit).await
    }

    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>> {
        self.outbox.drop_refused(key, expected).await
    }

    async fn begin_republication(&self) -> Result<()> {
        self.outbox.begin_republication().await
    }

    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>> {
        self.outbox.republish(published, after, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.outbox.now().await
    }

    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize> {
        self.faults.lock().sweeps += 1;
        let takes = self.faults.lock().sweep_takes;
        self.sleep(takes).await;
        self.outbox.sweep(older_than, limit).await
    }
}
