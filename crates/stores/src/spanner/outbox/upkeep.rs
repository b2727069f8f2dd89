use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{
    OutboxCounts, OutboxUpkeep, OutgoingEvent, ParkedKey, ReadStart, Reopened, Rewinds, RowId, RowState,
};
use hapax_core::{EventId, Result, Timestamp};

use super::place::{LAST_MICROSECOND, PlaceStart, RowPlace};
use super::{SpannerOutbox, of_events, rows};
use crate::errors::not_applied;
use crate::spanner::database::SpannerTables;
use crate::spanner::messages::{DeletedRows, KeySet, Mutation, MutationKind, SqlList, SqlValue};
use crate::spanner::transactions::TransactionEnd;
use crate::spanner::values::{SqlStatement, columns};

/// How many rows of each bucket one call of a republication looks at, at most.
const LOOKED_AT: usize = 200;

/// The largest age of a row that a statement can name.
const LONGEST_AGE: Duration = Duration::from_hours(24 * 365 * 100);

#[async_trait]
impl OutboxUpkeep for SpannerOutbox {
    async fn counts(&self, limit: u64) -> Result<OutboxCounts> {
        let statement = SqlStatement::new(include_str!("counts.sql"));
        let rows = self.api.read(&statement.integer("most", i64::try_from(limit).unwrap_or(i64::MAX))).await?;
        let row = rows.first().ok_or_else(|| not_applied("Spanner has not answered with a row"))?;
        let [open, oldest, parked_keys, now] = columns::<4>(&row.values)?;
        let oldest = oldest.as_text()?.map(|_| oldest.as_time()).transpose()?;
        let now = now.as_time()?;
        Ok(OutboxCounts {
            open: open.as_integer()?.unsigned_abs(),
            oldest: oldest.map(|Timestamp(oldest)| Duration::from_micros(now.0.saturating_sub(oldest))),
            parked_keys: parked_keys.as_integer()?.unsigned_abs(),
        })
    }

    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>> {
        let since = after.map_or(0, |after| micros(after.parked_at));
        let statement = SqlStatement::new(include_str!("parked.sql")).integer("since", since);
        let statement = statement.bytes("okey", after.map_or(&[], |after| &after.key)).integer("most", count(limit));
        self.api.read(&statement).await?.iter().map(rows::parked_key).collect()
    }

    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>> {
        let found = self.api.read(&of_events(include_str!("rows.sql"), [id].into_iter())).await?;
        let stored = found.first().map(rows::stored_event).transpose()?;
        Ok(stored.map(|stored| (stored.place.id(), stored.state, stored.event)))
    }

    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>> {
        let statement = SqlStatement::new(include_str!("resume.sql")).bytes("okey", key).integer("most", count(limit));
        self.change(statement, |found| {
            let mut opened = Vec::new();
            let mut rewinds = None;
            for row in &found {
                let [openings, republications, bucket, created_at, number, event] = columns::<6>(&row.values)?;
                rewinds = Some(rows::rewinds([openings, republications])?);
                if bucket.as_text()?.is_some() {
                    opened.push(rows::open(&RowPlace::read([bucket, created_at, number, event])?));
                }
            }
            let Some(Rewinds { openings, republications }) = rewinds else { return Ok(TransactionEnd::Keep(None)) };
            let count = opened.len();
            let changes = match count {
                0 => vec![unpark(key), rows::rewound(Rewinds { openings: openings + 1, republications })],
                _ => opened.into_iter().chain([rows::resumed(key)]).collect(),
            };
            Ok(TransactionEnd::Write(changes, Some(count)))
        })
        .await
    }

    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>> {
        let statement = SqlStatement::new(include_str!("drop.sql")).bytes("okey", key);
        self.change(statement, |found| {
            let Some(row) = found.first() else { return Ok(TransactionEnd::Keep(None)) };
            let [bucket, created_at, number, event, state] = columns::<5>(&row.values)?;
            let place = RowPlace::read([bucket, created_at, number, event])?;
            let is_meant = expected.is_none_or(|expected| expected == place.event);
            Ok(match is_meant && matches!(state.as_integer()?, 0 | 2) {
                true => TransactionEnd::Write(vec![rows::drop_row(&place)], Some(place.event)),
                false => TransactionEnd::Keep(None),
            })
        })
        .await
    }

    async fn begin_republication(&self) -> Result<()> {
        self.change(SqlStatement::new(include_str!("relay.sql")), |found| {
            let Rewinds { openings, republications } = rows::read_rewinds(&found)?;
            let next = Rewinds { openings, republications: republications + 1 };
            Ok(TransactionEnd::Write(vec![rows::rewound(next)], ()))
        })
        .await
    }

    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>> {
        let PlaceStart { time, number, event } = ReadStart::behind(after).into();
        let statement = SqlStatement::new(include_str!("republish.sql"))
            .integer("since", micros(published.start))
            .integer("until", micros(published.end))
            .integer("time", time)
            .integer("seq", number)
            .bytes("event", &event)
            .integer("most", count(limit.min(LOOKED_AT)));
        self.change(statement, |found| {
            let (mut last, mut changes, mut rewinds) = (None, Vec::new(), Rewinds::default());
            for row in &found {
                let [bucket, created_at, number, event, is_meant, openings, republications] =
                    columns::<7>(&row.values)?;
                let place = RowPlace::read([bucket, created_at, number, event])?;
                rewinds = rows::rewinds([openings, republications])?;
                last = Some(place.id());
                changes.extend(is_meant.as_flag()?.then(|| rows::open(&place)));
            }
            let Some(last) = last else { return Ok(TransactionEnd::Keep(None)) };
            let reopened = Some(Reopened { last, rows: changes.len() });
            if changes.is_empty() {
                return Ok(TransactionEnd::Keep(reopened));
            }
            changes.push(rows::rewound(Rewinds { openings: rewinds.openings + 1, ..rewinds }));
            Ok(TransactionEnd::Write(changes, reopened))
        })
        .await
    }

    /// Behind all commits that have ended.
    async fn now(&self) -> Result<Timestamp> {
        Ok(Timestamp(self.settled().await?.0 + 1))
    }

    /// Removes nothing if Spanner does it: then the row deletion policy of the table says when. Without one it reads
    /// the whole table.
    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize> {
        if SpannerTables::of(&self.api).outbox_has_policy().await? {
            return Ok(0);
        }
        let age = i64::try_from(older_than.min(LONGEST_AGE).as_micros()).unwrap_or(i64::MAX);
        let statement = SqlStatement::new(include_str!("sweep.sql")).integer("age", age);
        self.change(statement.integer("most", count(limit)), |found| {
            let keys = found.iter().map(key_of).collect::<Result<Vec<_>>>()?;
            let swept = keys.len();
            Ok(match swept {
                0 => TransactionEnd::Keep(0),
                _ => TransactionEnd::Write(vec![delete("hapax_outbox", keys)], swept),
            })
        })
        .await
    }
}

/// The key of a row of the outbox.
fn key_of(row: &SqlList) -> Result<SqlList> {
    let [bucket, created_at, number, event] = columns::<4>(&row.values)?;
    let place = RowPlace::read([bucket, created_at, number, event])?;
    Ok(SqlList { values: place.key().map(|(_, value)| value).into() })
}

/// The change that ends the parking of a key.
fn unpark(key: &[u8]) -> Mutation {
    delete("hapax_parked", vec![SqlList { values: vec![SqlValue::bytes(key)] }])
}

fn delete(table: &str, keys: Vec<SqlList>) -> Mutation {
    let key_set = Some(KeySet { keys });
    Mutation { kind: Some(MutationKind::Delete(DeletedRows { table: table.to_owned(), key_set })) }
}

fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.0.min(LAST_MICROSECOND)).unwrap_or(i64::MAX)
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
