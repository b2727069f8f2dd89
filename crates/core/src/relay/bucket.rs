use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::chaos;
use crate::outbox::{OpenRow, OutgoingEvent, ParkedRow, RowId};

/// How many rows of one ordering key are held at most. They are published one after the other, so more would only take
/// room from other keys.
const MAX_HELD_OF_KEY: usize = 64;

/// A key whose first row has failed this often keeps no other row, so that it leaves the room to other keys.
const ALONE_AFTER: u32 = 3;

/// The rows of one bucket that a relay holds, and which of them may be published now. Pure: it never waits, reads no
/// clock and calls nobody.
///
/// Of one ordering key at most one row is in flight, and it is the one with the smallest id of those that are held. A
/// row stays here until it is marked, so that a read that sees it open again does not start it again.
#[derive(Debug, Default)]
pub(super) struct BucketRows {
    rows: BTreeMap<RowId, HeldRow>,
    keys: HashMap<Bytes, HeldKey>,
    /// The first row of each key that has none in flight, if it may be published now.
    ready: BTreeSet<RowId>,
    /// The first rows of keys that may be published again at this time.
    retries: BTreeSet<(Duration, RowId)>,
    /// The smallest row of a key that was read and not held. No larger row of that key is held.
    skipped: HashMap<Bytes, RowId>,
    /// Keys that this relay has parked. A read that began before may still show them as not parked.
    parked: HashSet<Bytes>,
    /// Rows that were marked since the last read began. That read may still show them as open.
    just_marked: HashSet<RowId>,
    /// Every row up to here was decided before it was read, so none can appear there, unless rows become open again.
    cursor: RowId,
    bytes: usize,
    in_flight: usize,
}

#[derive(Debug)]
struct HeldRow {
    event: Arc<OutgoingEvent>,
    order: Bytes,
    phase: RowPhase,
    failures: u32,
    /// When it may be published again; zero for at once.
    due: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowPhase {
    Waiting,
    InFlight,
    /// The sink has it; the row is not marked yet.
    Published,
}

/// The rows of one ordering key that are not published.
#[derive(Debug, Default)]
struct HeldKey {
    rows: BTreeSet<RowId>,
    in_flight: bool,
    /// The row that is in `ready` or in `retries`.
    offered: Option<RowId>,
}

/// What happened to a row that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenRow {
    /// It is held now.
    New,
    /// It was held before.
    Known,
    /// Its key has enough rows here; it is read again later.
    Skipped,
    /// Its key is parked, so the row is to be set aside.
    Parked,
}

impl BucketRows {
    /// The number of rows that are held.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The bytes of the events that are held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of rows in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The number of rows that were started and are not marked.
    pub(super) fn unconfirmed(&self) -> usize {
        self.rows.values().filter(|row| row.phase != RowPhase::Waiting).count()
    }

    /// Whether every row that was started has been marked.
    pub(super) fn is_settled(&self) -> bool {
        self.rows.values().all(|row| row.phase == RowPhase::Waiting)
    }

    /// From where the next rows are read. It goes back when skipped rows are to be read again.
    pub(super) fn cursor(&self) -> RowId {
        self.cursor
    }

    /// Notes that a read begins: it sees every mark so far.
    pub(super) fn begin_read(&mut self) {
        self.just_marked.clear();
    }

    /// Ends a read from the cursor. `end`: how far it reached; None if there are no further rows. `decided`: up to
    /// which row all were decided before the read began.
    ///
    /// The cursor does not pass a row that is not decided. Otherwise a transaction could commit there after the read,
    /// and the next read would show a later row of its ordering key, but not this one. Returns whether it moved.
    pub(super) fn end_read(&mut self, end: Option<RowId>, decided: RowId) -> bool {
        let end = end.unwrap_or(decided);
        let before = self.cursor;
        self.cursor = before.max(end.min(decided));
        self.cursor > before
    }

    /// Reads everything again, and keeps what is held.
    pub(super) fn restart(&mut self) {
        self.cursor = RowId(0);
    }

    /// Takes a row that was read.
    pub(super) fn take(&mut self, row: OpenRow) -> TakenRow {
        if self.rows.contains_key(&row.id) || self.just_marked.contains(&row.id) {
            return TakenRow::Known;
        }
        let order = match chaos::on("claim_per_row") {
            true => Bytes::copy_from_slice(&row.id.0.to_be_bytes()),
            false => row.event.order(),
        };
        if row.is_parked || self.parked.contains(&order) {
            return TakenRow::Parked;
        }
        if self.skipped.get(&order).is_some_and(|first| *first < row.id) {
            return TakenRow::Skipped;
        }
        let key = self.keys.entry(order.clone()).or_default();
        if key.rows.len() >= MAX_HELD_OF_KEY && key.rows.last() < Some(&row.id) {
            self.skipped.insert(order, row.id);
            return TakenRow::Skipped;
        }
        key.rows.insert(row.id);
        self.bytes += row.event.size();
        let held = HeldRow {
            event: row.event,
            order: order.clone(),
            phase: RowPhase::Waiting,
            failures: 0,
            due: Duration::ZERO,
        };
        self.rows.insert(row.id, held);
        self.offer(&order);
        TakenRow::New
    }

    /// Starts the row with the smallest id that may be published now.
    pub(super) fn start(&mut self, now: Duration) -> Option<(RowId, Arc<OutgoingEvent>)> {
        while let Some((due, id)) = self.retries.first().copied().filter(|(due, _)| *due <= now) {
            self.retries.remove(&(due, id));
            self.ready.insert(id);
        }
        let id = self.ready.pop_first()?;
        let row = self.rows.get_mut(&id)?;
        row.phase = RowPhase::InFlight;
        let event = Arc::clone(&row.event);
        self.in_flight += 1;
        if let Some(key) = self.keys.get_mut(&row.order) {
            key.in_flight = true;
            key.offered = None;
        }
        Some((id, event))
    }

    /// When the next row that failed may be published again.
    pub(super) fn next_retry(&self) -> Option<Duration> {
        self.retries.first().map(|(due, _)| *due)
    }

    /// The sink has the row. The next row of its key may be published.
    pub(super) fn publish(&mut self, id: RowId) {
        if let Some(order) = self.land(id, RowPhase::Published) {
            self.end_in_key(id, &order);
        }
    }

    /// The sink may not have the row. It may be published again at the time that the closure gives for the number of
    /// failures so far.
    pub(super) fn fail(&mut self, id: RowId, again_at: impl FnOnce(u32) -> Duration) {
        let Some(order) = self.land(id, RowPhase::Waiting) else { return };
        let Some(row) = self.rows.get_mut(&id) else { return };
        row.failures = row.failures.saturating_add(1);
        row.due = again_at(row.failures);
        if row.failures >= ALONE_AFTER {
            self.keep_first(&order);
        }
        self.offer(&order);
    }

    /// The sink refused the row for good: its key is parked, and no row of it is held any more.
    pub(super) fn park(&mut self, id: RowId, bucket: u8, reason: String) -> Option<ParkedRow> {
        let order = self.land(id, RowPhase::Waiting)?;
        if chaos::on("refused_row_is_skipped") {
            self.forget(id);
            self.end_in_key(id, &order);
            return None;
        }
        for row in self.keys.remove(&order).map(|key| key.rows).unwrap_or_default() {
            self.forget(row);
        }
        self.skipped.remove(&order);
        self.parked.insert(order.clone());
        Some(ParkedRow { id, bucket, key: order, reason })
    }

    /// The row is marked.
    pub(super) fn mark(&mut self, id: RowId) {
        if self.rows.get(&id).is_some_and(|row| row.phase == RowPhase::Published) {
            self.forget(id);
            self.just_marked.insert(id);
        }
    }

    /// Forgets every row that was not started, every parked key, and where it was: rows became open again, so
    /// everything is read again.
    pub(super) fn rewind(&mut self) {
        let waiting = self.rows.iter().filter(|(_, row)| row.phase == RowPhase::Waiting);
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget(id);
        }
        let rows = &self.rows;
        self.keys.retain(|_, key| {
            key.offered = None;
            key.rows.retain(|id| rows.contains_key(id));
            !key.rows.is_empty()
        });
        self.skipped.clear();
        self.parked.clear();
        self.cursor = RowId(0);
    }

    /// Notes that a row is no longer in flight. Returns its key, or None if it was not in flight.
    fn land(&mut self, id: RowId, phase: RowPhase) -> Option<Bytes> {
        let row = self.rows.get_mut(&id).filter(|row| row.phase == RowPhase::InFlight)?;
        row.phase = phase;
        self.in_flight -= 1;
        if let Some(key) = self.keys.get_mut(&row.order) {
            key.in_flight = false;
        }
        Some(row.order.clone())
    }

    /// Ends a row of a key. If the key has no other row here, those that were skipped are read again.
    fn end_in_key(&mut self, id: RowId, order: &Bytes) {
        let Some(key) = self.keys.get_mut(order) else { return };
        key.rows.remove(&id);
        if !key.rows.is_empty() {
            self.offer(order);
            return;
        }
        self.keys.remove(order);
        if let Some(RowId(first)) = self.skipped.remove(order) {
            self.cursor = self.cursor.min(RowId(first - 1));
        }
    }

    /// Forgets all rows of a key but the first; they are read again.
    fn keep_first(&mut self, order: &Bytes) {
        let Some(key) = self.keys.get_mut(order) else { return };
        let Some(first) = key.rows.first().copied() else { return };
        let rest = key.rows.split_off(&RowId(first.0 + 1));
        if let Some(second) = rest.first() {
            self.skipped.insert(order.clone(), *second);
        }
        for id in rest {
            self.forget(id);
        }
    }

    /// Offers the first row of a key for publication, and no other row of it.
    fn offer(&mut self, order: &Bytes) {
        let Some(key) = self.keys.get_mut(order) else { return };
        if let Some(offered) = key.offered.take() {
            self.ready.remove(&offered);
            if let Some(row) = self.rows.get(&offered) {
                self.retries.remove(&(row.due, offered));
            }
        }
        let first = key.rows.first().copied().filter(|_| !key.in_flight);
        let Some((first, row)) = first.and_then(|id| Some((id, self.rows.get(&id)?))) else { return };
        key.offered = Some(first);
        match row.due {
            Duration::ZERO => self.ready.insert(first),
            due => self.retries.insert((due, first)),
        };
    }

    fn forget(&mut self, id: RowId) {
        if let Some(row) = self.rows.remove(&id) {
            self.bytes -= row.event.size();
            self.ready.remove(&id);
            self.retries.remove(&(row.due, id));
        }
    }
}
