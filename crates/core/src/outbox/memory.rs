mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::chaos::Mutant;
use crate::error::Result;
use crate::key::EventId;
use crate::outbox::{
    EventRow, Horizon, MarkedRows, OpenRow, OpenRows, Outbox, OutgoingEvent, ParkedKey, ParkedRow, ReadRequest,
    Rewinds, RowId, RowState, bucket_of,
};
use crate::record::Timestamp;
use crate::runtime::Runtime;

/// An outbox in the memory of this process, for tests and simulations. All clones are the same outbox.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use std::sync::Arc;
/// use hapax::outbox::{MemoryOutbox, Outbox, OutgoingEvent, ReadRequest, ReadStart, RowId};
/// use hapax::runtime::Tokio;
/// use hapax::EventId;
///
/// let outbox = MemoryOutbox::new(Arc::new(Tokio::current()));
/// let mut slow = outbox.begin();
/// let event = OutgoingEvent::new(EventId::from_bytes([1; 16]), "transfers", "5");
/// assert_eq!(slow.insert(event), RowId(1));
///
/// let request = ReadRequest::all_buckets(ReadStart::FIRST, 10, 1_000);
/// assert!(outbox.read(&request).await?.rows.is_empty(), "it is not committed");
/// slow.commit();
/// assert_eq!(outbox.read(&request).await?.rows.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryOutbox(Arc<SharedOutbox>);

#[derive(Debug)]
struct SharedOutbox {
    runtime: Arc<dyn Runtime>,
    tables: Mutex<OutboxTables>,
    commits: Notify,
}

#[derive(Debug, Default)]
struct OutboxTables {
    rows: BTreeMap<RowId, MemoryRow>,
    open: BTreeMap<u8, BTreeSet<RowId>>,
    ids: BTreeMap<EventId, RowId>,
    parked: BTreeMap<Bytes, MemoryParking>,
    rewinds: Rewinds,
    /// The largest row id that a transaction has drawn.
    drawn: RowId,
    /// The largest stamp that a transaction has drawn.
    stamp: u64,
    /// The stamps of the transactions that have not ended.
    running: BTreeSet<u64>,
}

#[derive(Debug)]
struct MemoryRow {
    event: Arc<OutgoingEvent>,
    bucket: u8,
    state: RowState,
    /// When it was published or dropped.
    ended_at: Option<Timestamp>,
}

#[derive(Debug)]
struct MemoryParking {
    key: ParkedKey,
    is_being_resumed: bool,
}

impl MemoryOutbox {
    /// No rows, and the wall clock of this runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self(Arc::new(SharedOutbox { runtime, tables: Mutex::default(), commits: Notify::new() }))
    }

    /// Begins a transaction that writes rows.
    pub fn begin(&self) -> MemoryTransaction {
        let mut tables = self.0.tables.lock();
        let stamp = tables.draw_stamp();
        if Mutant::IdBeforeXid.is_on() {
            tables.running.remove(&stamp);
        }
        drop(tables);
        MemoryTransaction { outbox: self.clone(), stamp, rows: Vec::new() }
    }

    /// Writes a row in a transaction of its own.
    ///
    /// # Panics
    /// As [`MemoryTransaction::commit`].
    pub fn insert(&self, event: OutgoingEvent) -> RowId {
        let mut transaction = self.begin();
        let id = transaction.insert(event);
        transaction.commit();
        id
    }

    /// Removes all rows. Ids and stamps are drawn from 1 again, as in a database that is restored from an old backup.
    pub fn restore_empty(&self) {
        let mut tables = self.0.tables.lock();
        *tables = OutboxTables { rewinds: tables.rewinds, ..OutboxTables::default() };
    }

    /// The state of a row. None if there is no such row, or it is not committed.
    pub fn state(&self, id: RowId) -> Option<RowState> {
        self.0.tables.lock().rows.get(&id).map(|row| row.state)
    }
}

/// A transaction of a [`MemoryOutbox`] that has a stamp, and holds the row ids that it drew. Dropped, it is rolled
/// back, and its ids are never used.
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct MemoryTransaction {
    outbox: MemoryOutbox,
    stamp: u64,
    rows: Vec<(RowId, OutgoingEvent)>,
}

impl MemoryTransaction {
    /// Draws the next row id for this event. The outbox sets its time. The row can be read after the commit.
    pub fn insert(&mut self, event: OutgoingEvent) -> RowId {
        let mut tables = self.outbox.0.tables.lock();
        tables.drawn.0 += 1;
        let event = OutgoingEvent { created_at: self.outbox.0.runtime.wall_now(), ..event };
        let id = tables.drawn;
        if Mutant::ReadUncommittedRows.is_on() {
            tables.add(id, event);
        } else {
            self.rows.push((id, event));
        }
        id
    }

    /// Commits the rows, and wakes relays.
    ///
    /// # Panics
    /// If there is a row with the id of one of its events.
    pub fn commit(mut self) {
        let mut tables = self.outbox.0.tables.lock();
        for (id, event) in self.rows.drain(..) {
            tables.add(id, event);
        }
        drop(tables);
        self.outbox.0.commits.notify_waiters();
        // For the relay that begins to wait next.
        self.outbox.0.commits.notify_one();
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        self.outbox.0.tables.lock().running.remove(&self.stamp);
    }
}

impl OutboxTables {
    fn draw_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.running.insert(self.stamp);
        self.stamp
    }

    fn add(&mut self, id: RowId, event: OutgoingEvent) {
        let earlier = self.ids.insert(event.id, id);
        assert_eq!(earlier, None, "the event {} is in the outbox already", event.id);
        let bucket = bucket_of(&event.order());
        self.open.entry(bucket).or_default().insert(id);
        self.rows.insert(id, MemoryRow { event: Arc::new(event), bucket, state: RowState::Open, ended_at: None });
    }

    /// Gives a row another state. Does nothing if it has none of these states.
    fn change(&mut self, id: RowId, from: &[RowState], to: RowState, at: Timestamp) -> bool {
        let Some(row) = self.rows.get_mut(&id).filter(|row| from.contains(&row.state)) else {
            return false;
        };
        row.state = to;
        row.ended_at = matches!(to, RowState::Published | RowState::Dropped).then_some(at);
        let open = self.open.entry(row.bucket).or_default();
        if to == RowState::Open {
            open.insert(id);
        } else {
            open.remove(&id);
        }
        true
    }

    /// Parks the key of a row. Returns false if the row is gone.
    fn park(&mut self, row: &ParkedRow, now: Timestamp) -> bool {
        let is_unpublished = |stored: &&MemoryRow| matches!(stored.state, RowState::Open | RowState::Aside);
        let stored = self.rows.get(&row.id).filter(is_unpublished).filter(|stored| stored.event.id == row.event);
        let Some(event) = stored.map(|stored| Arc::clone(&stored.event)) else {
            return false;
        };
        let key = ParkedKey {
            key: row.key.clone(),
            row: row.id,
            event: event.id,
            topic: event.topic.clone(),
            reason: row.reason.clone(),
            parked_at: now,
        };
        self.parked.entry(row.key.clone()).or_insert(MemoryParking { key, is_being_resumed: false });
        self.change(row.id, &[RowState::Open], RowState::Aside, now);
        true
    }

    fn open_row(&self, id: RowId) -> OpenRow {
        let row = &self.rows[&id];
        let is_parked = self.parked.contains_key(&row.event.order());
        let mut event = Arc::clone(&row.event);
        if self.rewinds.republications > 0 {
            Arc::make_mut(&mut event).republications = self.rewinds.republications;
        }
        OpenRow { id, bucket: row.bucket, is_parked, damage: None, event }
    }

    /// The ordering key of a row. None if another event is in it.
    fn order(&self, row: &EventRow) -> Option<Bytes> {
        self.rows.get(&row.id).filter(|stored| stored.event.id == row.event).map(|stored| stored.event.order())
    }
}

#[async_trait]
impl Outbox for MemoryOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        let tables = self.0.tables.lock();
        let mut found: Vec<(usize, u8, RowId)> = Vec::new();
        for cursor in &request.cursors {
            let Some(ids) = tables.open.get(&cursor.bucket) else { continue };
            let ids = ids.range(cursor.from).filter(|id| !request.leaves_out(&tables.rows[*id].event));
            let limit = usize::try_from(cursor.limit).unwrap_or(usize::MAX);
            found.extend(ids.take(limit).enumerate().map(|(index, id)| (index, cursor.bucket, *id)));
        }
        // The first row of each bucket, then the second of each.
        found.sort_unstable();
        let (count, mut rows, mut sum) = (found.len(), Vec::new(), 0_usize);
        for (_, _, id) in found {
            let row = tables.open_row(id);
            sum = sum.saturating_add(row.event.size());
            if sum > request.bytes && !rows.is_empty() {
                break;
            }
            rows.push(row);
        }
        rows.sort_unstable_by_key(|row| row.id);
        Ok(OpenRows { is_cut: rows.len() < count, rows, rewinds: tables.rewinds })
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        if tables.rewinds.republications != republications && !Mutant::LateMarkCounts.is_on() {
            return Ok(MarkedRows { is_rewound: true, ..MarkedRows::default() });
        }
        let from: &[RowState] = match Mutant::MarkAnyState.is_on() {
            true => &[RowState::Open, RowState::Aside, RowState::Dropped],
            false => &[RowState::Open],
        };
        let mut mark =
            |row: &EventRow| tables.order(row).is_some() && tables.change(row.id, from, RowState::Published, now);
        Ok(MarkedRows { marked: rows.iter().filter(|row| mark(row)).count(), ..MarkedRows::default() })
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        let gone = rows.iter().map(ParkedRow::named).zip(rows).filter(|(_, row)| !tables.park(row, now));
        Ok(gone.map(|(named, _)| named).collect())
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        for row in rows {
            let parked = tables.order(row).and_then(|key| tables.parked.get(&key));
            if parked.is_some_and(|parked| !parked.is_being_resumed) {
                tables.change(row.id, &[RowState::Open], RowState::Aside, now);
            }
        }
        Ok(())
    }

    async fn horizon(&self) -> Result<Horizon> {
        let mut tables = self.0.tables.lock();
        let drawn = tables.drawn;
        let stamp = tables.draw_stamp();
        let settled = tables.running.first().copied().unwrap_or(stamp);
        tables.running.remove(&stamp);
        Ok(Horizon { drawn, stamp, settled })
    }

    async fn wait_for_rows(&self) {
        self.0.commits.notified().await;
    }
}
