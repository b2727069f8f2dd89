use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::key::EventId;
use crate::outbox::memory::{MemoryOutbox, MemoryRow};
use crate::outbox::{
    EventRow, OutboxCounts, OutboxUpkeep, OutgoingEvent, ParkedKey, ReadStart, Reopened, RowId, RowState,
};
use crate::record::Timestamp;

#[async_trait]
impl OutboxUpkeep for MemoryOutbox {
    async fn counts(&self, limit: u64) -> Result<OutboxCounts> {
        let now = self.0.runtime.wall_now();
        let tables = self.0.tables.lock();
        let open = u64::try_from(tables.open.values().map(BTreeSet::len).sum::<usize>()).unwrap_or(u64::MAX).min(limit);
        let rows = tables.open.values().flatten().map(|id| tables.open_row(*id));
        let oldest = rows.filter(|row| !row.is_parked).map(|row| now.since(row.event.created_at)).max();
        Ok(OutboxCounts { open, oldest, parked_keys: u64::try_from(tables.parked.len()).unwrap_or(u64::MAX) })
    }

    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>> {
        let tables = self.0.tables.lock();
        let mut keys: Vec<ParkedKey> = tables.parked.values().map(|parked| parked.key.clone()).collect();
        keys.sort_unstable_by(|one, other| in_list(one).cmp(&in_list(other)));
        let behind = keys.into_iter().filter(|key| after.is_none_or(|after| in_list(key) > in_list(after)));
        Ok(behind.take(limit).collect())
    }

    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>> {
        let tables = self.0.tables.lock();
        let Some(row_id) = tables.ids.get(&id) else {
            return Ok(None);
        };
        let row = &tables.rows[row_id];
        Ok(Some((*row_id, row.state, (*row.event).clone())))
    }

    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        let Some(parked) = tables.parked.get_mut(key) else {
            return Ok(None);
        };
        parked.is_being_resumed = true;
        let is_aside = |row: &MemoryRow| row.state == RowState::Aside && row.event.order() == key;
        let aside = tables.rows.iter().filter(|(_, row)| is_aside(row)).map(|(id, _)| *id);
        let ids: Vec<RowId> = aside.take(limit).collect();
        for id in &ids {
            tables.change(*id, &[RowState::Aside], RowState::Open, now);
        }
        if ids.is_empty() {
            tables.parked.remove(key);
            tables.rewinds.openings += 1;
        }
        Ok(Some(ids.len()))
    }

    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        let parked = tables.parked.get(key).map(|parked| EventRow { id: parked.key.row, event: parked.key.event });
        let is_meant = |row: &EventRow| expected.is_none_or(|event| event == row.event) && tables.order(row).is_some();
        let Some(row) = parked.filter(is_meant) else {
            return Ok(None);
        };
        let is_dropped = tables.change(row.id, &[RowState::Open, RowState::Aside], RowState::Dropped, now);
        Ok(is_dropped.then_some(row.event))
    }

    async fn begin_republication(&self) -> Result<()> {
        self.0.tables.lock().rewinds.republications += 1;
        Ok(())
    }

    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        let behind = tables.rows.range(ReadStart::behind(after));
        let is_meant = |row: &MemoryRow| row.ended_at.is_some_and(|ended_at| published.contains(&ended_at));
        let looked_at: Vec<(RowId, bool)> = behind.take(limit).map(|(id, row)| (*id, is_meant(row))).collect();
        let meant = looked_at.iter().filter(|(_, is_meant)| *is_meant);
        let opened = meant.filter(|(id, _)| tables.change(*id, &[RowState::Published], RowState::Open, now)).count();
        tables.rewinds.openings += u64::from(opened > 0);
        Ok(looked_at.last().map(|(last, _)| Reopened { last: *last, rows: opened }))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.0.runtime.wall_now())
    }

    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize> {
        let now = self.0.runtime.wall_now();
        let mut tables = self.0.tables.lock();
        let is_old = |row: &MemoryRow| row.ended_at.is_some_and(|ended_at| now.since(ended_at) > older_than);
        let old = tables.rows.iter().filter(|(_, row)| is_old(row)).map(|(id, row)| (*id, row.event.id));
        let old: Vec<(RowId, EventId)> = old.take(limit).collect();
        for (id, event) in &old {
            tables.rows.remove(id);
            tables.ids.remove(event);
        }
        Ok(old.len())
    }
}

/// Orders the list of parked keys.
fn in_list(key: &ParkedKey) -> (Timestamp, &Bytes) {
    (key.parked_at, &key.key)
}
