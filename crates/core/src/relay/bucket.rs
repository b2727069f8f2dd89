mod counts;
mod held;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::chaos::Mutant;
use crate::outbox::{OpenRow, OutgoingEvent, ParkedRow, ReadStart, RowId};
use crate::relay::deferred::{DeferredRow, DeferredRows, topic_number};
pub(super) use held::{FailingRoom, StartedRow, TakenRow};
use held::{HeldKey, HeldRow, RowPhase};

/// How many rows of one ordering key are held at most. They are published one after the other, so more would only take
/// room from other keys.
const MAX_HELD_OF_KEY: usize = 64;

/// How long after its time a deferred row waits for reads of other rows, at most. Then it sets the cursor back, but
/// only once in such a time, so that reads get to the rows behind it.
const LATEST_RETRY: Duration = Duration::from_secs(30);

/// The bytes for deferred rows, where the room for rows that have failed is smaller.
const MIN_DEFERRED_BYTES: usize = 16 << 10;

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
    /// Keys that this relay parks, and whether the database has confirmed it. A read that began before that may still
    /// show them as not parked.
    parked: HashMap<Bytes, bool>,
    /// Rows that have failed and are not held.
    deferred: DeferredRows,
    /// Rows that were marked since the last read began. That read may still show them as open.
    just_marked: HashSet<RowId>,
    /// Every row before it was decided before it was read, so none can appear there, unless rows become open again.
    cursor: ReadStart,
    /// How far the cursor was.
    furthest: ReadStart,
    /// Whether the last read began there.
    began_furthest: bool,
    /// Deferred rows that have waited for long set the cursor back after this time.
    late_due: Duration,
    /// How often reading has begun anew.
    restarts: u64,
    bytes: usize,
    in_flight: usize,
    /// The number of held rows that have failed, and their bytes.
    failing: usize,
    failing_bytes: usize,
}

impl BucketRows {
    /// From where the next rows are read. It goes back when skipped rows are to be read again.
    pub(super) fn cursor(&self) -> ReadStart {
        self.cursor
    }

    /// Notes that a read begins: it sees every mark and every parking so far. Rows that were deferred until now are
    /// read, while fewer than `most` rows that have failed are held.
    ///
    /// That sets the cursor back. The next such rows come only after a read from where it was, so that many rows that
    /// fail do not keep later rows from being read, or if they have waited for long.
    pub(super) fn begin_read(&mut self, now: Duration, most: usize) {
        self.just_marked.clear();
        self.parked.retain(|_, is_confirmed| !*is_confirmed);
        let began_there_before = std::mem::replace(&mut self.began_furthest, self.cursor >= self.furthest);
        let has_read_there = began_there_before && self.began_furthest;
        let has_late = self.deferred.first_due().is_some_and(|due| due.saturating_add(LATEST_RETRY) <= now);
        let reads_late = has_late && now >= self.late_due;
        if !has_read_there && !reads_late {
            return;
        }
        let free = most.saturating_sub(self.failing);
        if let Some(first) = self.deferred.wake(now, free, self.cursor) {
            self.cursor = self.cursor.min(ReadStart::at(first));
            self.began_furthest = false;
            self.late_due = now.saturating_add(LATEST_RETRY);
        }
    }

    /// Ends a read from the cursor. `end`: where the rows begin that it did not show; None if there are no further
    /// rows. `decided`: up to which row all were decided before the read began.
    ///
    /// The cursor does not pass a row that is not decided. Otherwise a transaction could commit there after the read,
    /// and the next read would show a later row of its ordering key, but not this one. Returns whether it moved.
    pub(super) fn end_read(&mut self, end: Option<ReadStart>, decided: RowId) -> bool {
        let (before, decided) = (self.cursor, ReadStart::behind(decided));
        self.forget_missing(before, end);
        self.cursor = before.max(end.unwrap_or(decided).min(decided));
        self.furthest = self.furthest.max(self.cursor);
        self.cursor > before
    }

    /// Forgets skipped rows that a read of this range did not show: they are not open any more. Otherwise the later
    /// rows of their keys would be skipped by each read that begins behind them.
    fn forget_missing(&mut self, start: ReadStart, end: Option<ReadStart>) {
        let (keys, deferred) = (&self.keys, &self.deferred);
        self.skipped.retain(|order, first| {
            let was_read = start.contains(first) && end.is_none_or(|end| !end.contains(first));
            !was_read || keys.contains_key(order) || deferred.is_waiting(*first)
        });
    }

    /// Reads everything again, and keeps what is held.
    pub(super) fn restart(&mut self) {
        self.cursor = ReadStart::FIRST;
        self.restarts += 1;
    }

    /// How often reading has begun anew. A read that began before does not move the cursor.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Takes a row of a read that began there.
    pub(super) fn take(&mut self, row: OpenRow, start: ReadStart) -> TakenRow {
        if self.rows.contains_key(&row.id) || self.just_marked.contains(&row.id) {
            return TakenRow::Known;
        }
        let order = match Mutant::ClaimPerRow.is_on() {
            true => Bytes::copy_from_slice(&row.id.0.to_be_bytes()),
            false => row.event.order(),
        };
        if row.is_parked || self.parked.contains_key(&order) {
            return TakenRow::Parked;
        }
        if let Some(first) = self.skipped.get(&order).copied().filter(|first| *first <= row.id) {
            // A read that begins behind the first one does not show whether that is still open.
            if !start.contains(&first) || self.keys.contains_key(&order) || self.deferred.is_waiting(first) {
                return TakenRow::Skipped;
            }
            self.skipped.remove(&order);
        }
        let key = self.keys.entry(order.clone()).or_default();
        if key.rows.len() >= MAX_HELD_OF_KEY && key.rows.last() < Some(&row.id) {
            self.skipped.insert(order, row.id);
            return TakenRow::Skipped;
        }
        key.rows.insert(row.id);
        self.bytes += row.event.size();
        let deferred = self.deferred.take(row.id);
        if deferred.is_some() {
            self.failing += 1;
            self.failing_bytes += row.event.size();
        }
        let (failures, due) = deferred.map_or((0, Duration::ZERO), |row| (row.failures, row.due));
        let (event, damage) = (row.event, row.damage);
        let held = HeldRow { event, damage, order: order.clone(), phase: RowPhase::Waiting, failures, due };
        self.rows.insert(row.id, held);
        self.offer(&order);
        TakenRow::New
    }

    /// Starts a row that may be published now: one that has failed before, if it may be such a one, or the row with
    /// the smallest id.
    pub(super) fn start(&mut self, now: Duration, may_retry: bool) -> Option<StartedRow> {
        let retry = self.retries.first().copied().filter(|(due, _)| may_retry && *due <= now);
        let id = match retry {
            Some((due, id)) => {
                self.retries.remove(&(due, id));
                id
            }
            None => self.ready.pop_first()?,
        };
        let row = self.rows.get_mut(&id)?;
        row.phase = RowPhase::InFlight;
        let (event, damage) = (Arc::clone(&row.event), row.damage.clone());
        self.in_flight += 1;
        if let Some(key) = self.keys.get_mut(&row.order) {
            key.in_flight = true;
            key.offered = None;
        }
        Some(StartedRow { id, event, damage, is_retry: retry.is_some() })
    }

    /// When the next row that failed may be published again.
    pub(super) fn next_retry(&self) -> Option<Duration> {
        self.retries.first().map(|(due, _)| *due)
    }

    /// The sink has the row. The next row of its key may be published. Returns whether rows are to be read again.
    pub(super) fn publish(&mut self, id: RowId) -> bool {
        let Some(order) = self.land(id, RowPhase::Published) else { return false };
        if let Some(row) = self.rows.get_mut(&id).filter(|row| row.failures > 0) {
            self.failing -= 1;
            self.failing_bytes -= row.event.size();
            row.failures = 0;
        }
        self.end_in_key(id, &order)
    }

    /// The sink may not have the row. It may be published again at the time that the closure gives for the number of
    /// failures so far. The rows behind it are not held any more, and if there is no room for it, or others wait for
    /// that, it is not held either.
    pub(super) fn fail(&mut self, id: RowId, room: FailingRoom, again_at: impl FnOnce(u32) -> Duration) {
        let Some(order) = self.land(id, RowPhase::Waiting) else { return };
        let Some(row) = self.rows.get_mut(&id) else { return };
        if row.failures == 0 {
            self.failing += 1;
            self.failing_bytes += row.event.size();
        }
        row.failures = row.failures.saturating_add(1);
        row.due = again_at(row.failures);
        let topic = row.event.ordering_key.is_none().then(|| topic_number(&row.event));
        let deferred = DeferredRow { failures: row.failures, due: row.due, topic };
        let is_full = self.failing >= room.rows && (room.is_left_out || self.deferred.len() > 0);
        let is_over = is_full || self.failing > room.rows || self.failing_bytes > room.bytes || row.due > room.until;
        let is_first = self.keys.get(&order).is_some_and(|key| key.rows.first() == Some(&id));
        let has_room = room.is_left_out || self.deferred.bytes() < room.bytes.max(MIN_DEFERRED_BYTES);
        if !(is_first && is_over && has_room) {
            self.keep_first(&order);
            return self.offer(&order);
        }
        for row in self.keys.remove(&order).map(|key| key.rows).unwrap_or_default() {
            self.forget(row);
        }
        if !room.is_left_out {
            self.skipped.insert(order, id);
            self.deferred.add(id, deferred);
        }
    }

    /// Forgets the deferred rows without a key of this event's topic: reads leave them out.
    pub(super) fn leave_out(&mut self, event: &OutgoingEvent) {
        let forgotten = self.deferred.forget(topic_number(event));
        self.skipped.retain(|_, first| !forgotten.contains(first));
    }

    /// The sink refused the row for good: its key is parked, and no row of it is held any more.
    pub(super) fn park(&mut self, id: RowId, bucket: u8, reason: String) -> Option<ParkedRow> {
        let event = self.rows.get(&id)?.event.id;
        let order = self.land(id, RowPhase::Waiting)?;
        if Mutant::RefusedRowIsSkipped.is_on() {
            self.forget(id);
            self.end_in_key(id, &order);
            return None;
        }
        for row in self.keys.remove(&order).map(|key| key.rows).unwrap_or_default() {
            self.forget(row);
        }
        self.skipped.remove(&order);
        self.parked.insert(order.clone(), false);
        Some(ParkedRow { id, event, bucket, key: order, reason })
    }

    /// The database has parked the key: each read that begins from now on shows it.
    pub(super) fn confirm_parked(&mut self, order: &Bytes) {
        if let Some(is_confirmed) = self.parked.get_mut(order) {
            *is_confirmed = true;
        }
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
        self.deferred = DeferredRows::default();
        self.just_marked.clear();
        self.furthest = ReadStart::FIRST;
        self.restart();
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

    /// Ends a row of a key. If the key has no other row here, those that were skipped are read again. Returns whether
    /// there are such rows.
    fn end_in_key(&mut self, id: RowId, order: &Bytes) -> bool {
        let Some(key) = self.keys.get_mut(order) else { return false };
        key.rows.remove(&id);
        if !key.rows.is_empty() {
            self.offer(order);
            return false;
        }
        self.keys.remove(order);
        let first = self.skipped.get(order).copied().filter(|first| !self.deferred.is_waiting(*first));
        if let Some(first) = first {
            self.cursor = self.cursor.min(ReadStart::at(first));
        }
        first.is_some()
    }

    /// Forgets all rows of a key but the first; they are read again.
    fn keep_first(&mut self, order: &Bytes) {
        let Some(key) = self.keys.get_mut(order) else { return };
        let Some(first) = key.rows.pop_first() else { return };
        let rest = std::mem::replace(&mut key.rows, BTreeSet::from([first]));
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
            if row.failures > 0 {
                self.failing -= 1;
                self.failing_bytes -= row.event.size();
            }
            self.ready.remove(&id);
            self.retries.remove(&(row.due, id));
        }
    }
}
