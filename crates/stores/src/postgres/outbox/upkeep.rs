use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hapax_core::outbox::{OutboxCounts, OutboxUpkeep, OutgoingEvent, ParkedKey, Reopened, RowId, RowState};
use hapax_core::{EventId, Result, Timestamp};
use tokio_postgres::IsolationLevel;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::columns::{self, column, stored_time};
use super::{PostgresOutbox, count, stored};
use crate::event;
use crate::postgres::call_error::PostgresCallError;
use crate::postgres::pool::Parameter;

/// How many pages of 8 KiB one statement of a sweep reads, so that no call waits for long.
const PAGES: u32 = 64;

/// The end of the year 9999 in microseconds. A server cannot add much more to its epoch.
const LAST_MICROSECOND: u64 = 253_402_300_799_999_999;

#[async_trait]
impl OutboxUpkeep for PostgresOutbox {
    async fn counts(&self, limit: u64) -> Result<OutboxCounts> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let row = self.query_one(&self.sql.counts, &[(&limit, Type::INT8)]).await?;
        let number = |name| column::<i64>(&row, name).map(i64::unsigned_abs);
        // The server's clock may have been set back.
        let age = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(OutboxCounts {
            open: number("open")?,
            oldest: column::<Option<f64>>(&row, "oldest")?.map(age),
            parked_keys: number("parked_keys")?,
        })
    }

    async fn parked(&self, after: Option<&ParkedKey>, limit: usize) -> Result<Vec<ParkedKey>> {
        let parked_at: Option<SystemTime> = after.map(|after| stored_time(after.parked_at));
        let key = after.map(|after| &after.key[..]);
        let parameters: [Parameter<'_>; 3] =
            [(&parked_at, Type::TIMESTAMPTZ), (&key, Type::BYTEA), (&count(limit), Type::INT8)];
        self.query(&self.sql.parked, &parameters).await?.iter().map(columns::parked_key).collect()
    }

    async fn find(&self, id: EventId) -> Result<Option<(RowId, RowState, OutgoingEvent)>> {
        let id = Uuid::from_bytes(*id.as_bytes());
        let rows = self.query(&self.sql.find, &[(&id, Type::UUID)]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let row_id = RowId(column::<i64>(row, "id")?.unsigned_abs().into());
        Ok(Some((row_id, event::state(column(row, "state")?)?, columns::event(row)?.0)))
    }

    async fn resume(&self, key: &[u8], limit: usize) -> Result<Option<usize>> {
        self.create_tables().await?;
        let mut call = self.pool.begin_call().await?;
        // Each statement must see what was committed while the one before waited for the lock of the key.
        let begin = call.client_mut().build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let transaction = begin.start().await.map_err(PostgresCallError::Sent)?;
        let query = async |sql: &str, parameters: &[Parameter<'_>]| {
            transaction.query_typed(sql, parameters).await.map_err(PostgresCallError::Sent)
        };
        let parked = query(&self.sql.begin_resume, &[(&key, Type::BYTEA)]).await?;
        let opened = if parked.is_empty() {
            None
        } else {
            Some(query(&self.sql.reopen, &[(&key, Type::BYTEA), (&count(limit), Type::INT8)]).await?.len())
        };
        if opened == Some(0) {
            query(&self.sql.end_resume, &[(&key, Type::BYTEA)]).await?;
        }
        transaction.commit().await.map_err(PostgresCallError::Sent)?;
        call.end();
        Ok(opened)
    }

    async fn drop_refused(&self, key: &[u8], expected: Option<EventId>) -> Result<Option<EventId>> {
        let expected = expected.map(|event| Uuid::from_bytes(*event.as_bytes()));
        let dropped = self.query(&self.sql.drop, &[(&key, Type::BYTEA), (&expected, Type::UUID)]).await?;
        let event = |row| column::<Uuid>(row, "event_id").map(|id| EventId::from_bytes(*id.as_bytes()));
        dropped.first().map(event).transpose()
    }

    async fn begin_republication(&self) -> Result<()> {
        self.query(&self.sql.begin_republication, &[]).await.map(drop)
    }

    async fn republish(&self, published: &Range<Timestamp>, after: RowId, limit: usize) -> Result<Option<Reopened>> {
        let micros = |time: Timestamp| i64::try_from(time.0.min(LAST_MICROSECOND)).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 4] = [
            (&micros(published.start), Type::INT8),
            (&micros(published.end), Type::INT8),
            (&stored(after), Type::INT8),
            (&count(limit), Type::INT8),
        ];
        let row = self.query_one(&self.sql.republish, &parameters).await?;
        let Some(last) = column::<Option<i64>>(&row, "last")? else {
            return Ok(None);
        };
        let rows = usize::try_from(column::<i64>(&row, "opened")?).unwrap_or_default();
        Ok(Some(Reopened { last: RowId(last.unsigned_abs().into()), rows }))
    }

    async fn now(&self) -> Result<Timestamp> {
        columns::time(&self.query_one(&self.sql.now, &[]).await?, "now")
    }

    async fn sweep(&self, older_than: Duration, limit: usize) -> Result<usize> {
        let seconds = older_than.as_secs_f64();
        // From where the last call ended, to the end of the table or to the first pages with old rows.
        loop {
            let from = self.swept_to.load(Ordering::Acquire);
            let to = from.saturating_add(PAGES);
            let (begin, end) = (format!("({from},0)"), format!("({to},0)"));
            let parameters: [Parameter<'_>; 4] =
                [(&begin, Type::TEXT), (&end, Type::TEXT), (&seconds, Type::FLOAT8), (&count(limit), Type::INT8)];
            let row = self.query_one(&self.sql.sweep, &parameters).await?;
            let removed = usize::try_from(column::<i64>(&row, "removed")?).unwrap_or_default();
            let is_end = i64::from(to) >= column::<i64>(&row, "pages")?;
            if removed < limit {
                self.swept_to.store(if is_end { 0 } else { to }, Ordering::Release);
            }
            if removed > 0 || is_end {
                return Ok(removed);
            }
        }
    }
}
