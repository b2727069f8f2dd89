use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::outbox::{
    EventRow, MarkedRows, OpenRow, OpenRows, OutboxCounts, OutgoingEvent, ParkedKey, ParkedRow, ReadRequest, Reopened,
    Rewinds, RowId, RowState, bucket_of,
};
use hapax_core::{EventId, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::event::{self, StoredEventColumns};

/// Reads in one snapshot, if the connection is in a transaction.
pub(super) fn read(connection: &Connection, request: &ReadRequest) -> rusqlite::Result<OpenRows> {
    let left_out: serde_json::Value =
        request.left_out.iter().map(|left| vec![&*left.namespace, &*left.topic]).collect();
    let left_out = left_out.to_string();
    let rewinds = read_rewinds(connection)?;
    let mut found: Vec<(usize, i64, usize)> = Vec::new();
    let mut statement = connection.prepare_cached(include_str!("open.sql"))?;
    for cursor in &request.cursors {
        let parameters = params![cursor.bucket, stored(cursor.from.row), cursor.limit, left_out, cursor.from.is_behind];
        let rows = statement.query_map(parameters, |row| {
            Ok((row.get(0)?, usize::try_from(row.get::<_, i64>(1)?).unwrap_or(usize::MAX)))
        })?;
        for (place, row) in rows.enumerate() {
            let (id, size) = row?;
            found.push((place, id, size));
        }
    }
    // The first row of each bucket, then the second of each.
    found.sort_unstable();
    let (count, mut rows, mut sum) = (found.len(), Vec::new(), 0_usize);
    for (_, id, size) in found {
        sum = sum.saturating_add(size);
        if sum > request.bytes && !rows.is_empty() {
            break;
        }
        rows.push(row(connection, id, |row| open_row(row, rewinds.republications))?);
    }
    rows.sort_unstable_by_key(|row| row.id);
    Ok(OpenRows { is_cut: rows.len() < count, rows, rewinds })
}

fn read_rewinds(connection: &Connection) -> rusqlite::Result<Rewinds> {
    let count = |row: &Row<'_>, column| row.get(column).map(i64::unsigned_abs);
    connection
        .prepare_cached(include_str!("rewinds.sql"))?
        .query_row([], |row| Ok(Rewinds { openings: count(row, 0)?, republications: count(row, 1)? }))
}

fn row<T>(connection: &Connection, id: i64, read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    connection.prepare_cached(include_str!("row.sql"))?.query_row([id], read)
}

fn open_row(row: &Row<'_>, republications: u64) -> rusqlite::Result<OpenRow> {
    let (event, damage) = outgoing(row)?;
    let event = OutgoingEvent { republications, ..event };
    Ok(OpenRow {
        id: row_id(row.get("id")?),
        bucket: row.get("bucket")?,
        is_parked: row.get("is_parked")?,
        damage,
        event: Arc::new(event),
    })
}

/// The event, and why it cannot be published: SQLite stores bytes that are no text, and writers fill columns freely.
fn outgoing(row: &Row<'_>) -> rusqlite::Result<(OutgoingEvent, Option<String>)> {
    let mut damage = None;
    let mut text = |name: &str| -> rusqlite::Result<Option<String>> {
        let stored = row.get_ref(name)?.as_bytes_or_null()?;
        if stored.is_some_and(|stored| std::str::from_utf8(stored).is_err()) {
            damage = Some(event::not_utf8(name));
        }
        Ok(stored.map(lossy))
    };
    let mut columns = StoredEventColumns {
        id: row.get("event_id")?,
        namespace: text("namespace")?.unwrap_or_default(),
        operation: None,
        number: row.get("n")?,
        topic: text("topic")?.unwrap_or_default(),
        ordering_key: row.get("okey")?,
        kind: text("type")?,
        source: text("source")?,
        content_type: text("content_type")?,
        headers: text("headers")?.unwrap_or_default(),
        payload: row.get("payload")?,
        created_at: time(row.get("created_at")?),
    };
    match row.get_ref("operation")?.as_blob_or_null()?.map(<[u8; 16]>::try_from) {
        None => {}
        Some(Ok(operation)) => columns.operation = Some(operation),
        Some(Err(_)) => damage = Some(NOT_16_BYTES.to_owned()),
    }
    Ok((columns.into(), damage))
}

const NOT_16_BYTES: &str = "the operation of the row has not 16 bytes; drop the row, and emit the event again";

fn lossy(stored: &[u8]) -> String {
    String::from_utf8_lossy(stored).into_owned()
}

/// Carries out a statement that is kept for later calls. Returns how many rows it changed.
pub(super) fn execute(connection: &Connection, sql: &str, parameters: impl Params) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute(parameters)
}

pub(super) fn mark(
    connection: &Connection,
    rows: &[EventRow],
    republications: u64,
    now: Timestamp,
) -> rusqlite::Result<MarkedRows> {
    if read_rewinds(connection)?.republications != republications {
        return Ok(MarkedRows { is_rewound: true, ..MarkedRows::default() });
    }
    let sql = include_str!("mark.sql");
    let mark = |row: &EventRow| execute(connection, sql, params![stored(row.id), row.event.as_bytes(), millis(now)]);
    Ok(MarkedRows { marked: rows.iter().map(mark).sum::<rusqlite::Result<_>>()?, ..MarkedRows::default() })
}

/// Returns false if the row is published, dropped or gone.
/// Returns the rows that are gone.
pub(super) fn park(connection: &Connection, rows: &[ParkedRow], now: Timestamp) -> rusqlite::Result<Vec<EventRow>> {
    let mut gone = Vec::new();
    for row in rows {
        let (id, event) = (stored(row.id), row.event.as_bytes());
        execute(connection, include_str!("park.sql"), params![id, event, row.reason, millis(now)])?;
        execute(connection, include_str!("put_aside.sql"), params![id, event])?;
        let mut is_unpublished = connection.prepare_cached(include_str!("is_unpublished.sql"))?;
        if !is_unpublished.query_row(params![id, event], |row| row.get::<_, bool>(0))? {
            gone.push(row.named());
        }
    }
    Ok(gone)
}

pub(super) fn set_aside(connection: &Connection, rows: &[EventRow]) -> rusqlite::Result<()> {
    let sql = include_str!("set_aside.sql");
    rows.iter().try_for_each(|row| execute(connection, sql, params![stored(row.id), row.event.as_bytes()]).map(drop))
}

pub(super) fn drawn(connection: &Connection) -> rusqlite::Result<RowId> {
    connection.query_row(include_str!("drawn.sql"), [], |row| row.get(0)).map(row_id)
}

pub(super) fn counts(connection: &Connection, limit: u64, now: Timestamp) -> rusqlite::Result<OutboxCounts> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.query_row(include_str!("counts.sql"), [limit], |row| {
        let oldest: Option<i64> = row.get(2)?;
        Ok(OutboxCounts {
            open: row.get::<_, i64>(0)?.unsigned_abs(),
            parked_keys: row.get::<_, i64>(1)?.unsigned_abs(),
            oldest: oldest.map(|created_at| now.since(time(created_at))),
        })
    })
}

pub(super) fn parked(
    connection: &Connection,
    after: Option<&ParkedKey>,
    limit: usize,
) -> rusqlite::Result<Vec<ParkedKey>> {
    let (parked_at, key) = (after.map(|after| millis(after.parked_at)), after.map(|after| &after.key[..]));
    let mut statement = connection.prepare_cached(include_str!("parked.sql"))?;
    let rows = statement.query_map(params![parked_at, key, count(limit)], |row| {
        Ok(ParkedKey {
            key: Bytes::from(row.get::<_, Vec<u8>>(0)?),
            row: row_id(row.get(1)?),
            event: EventId::from_bytes(row.get(2)?),
            topic: lossy(row.get_ref(3)?.as_bytes()?),
            reason: row.get(4)?,
            parked_at: time(row.get(5)?),
        })
    })?;
    rows.collect()
}

pub(super) fn find(connection: &Connection, id: EventId) -> rusqlite::Result<Option<(RowId, RowState, OutgoingEvent)>> {
    let find = include_str!("row_of_event.sql");
    let id: Option<i64> = connection.query_row(find, [&id.as_bytes()[..]], |row| row.get(0)).optional()?;
    let read = |stored: &Row<'_>| {
        let state = event::state(stored.get("state")?);
        let state = state.map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Integer, error.into()))?;
        Ok((row_id(stored.get("id")?), state, outgoing(stored)?.0))
    };
    id.map(|id| row(connection, id, read)).transpose()
}

pub(super) fn resume(
    connection: &Connection,
    key: &[u8],
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Option<usize>> {
    if execute(connection, include_str!("begin_resume.sql"), params![key, millis(now)])? == 0 {
        return Ok(None);
    }
    let opened = execute(connection, include_str!("reopen.sql"), params![key, count(limit)])?;
    if opened == 0 {
        execute(connection, include_str!("end_resume.sql"), [key])?;
        rewind(connection)?;
    }
    Ok(Some(opened))
}

pub(super) fn republish(
    connection: &Connection,
    published: &Range<Timestamp>,
    after: RowId,
    limit: usize,
) -> rusqlite::Result<Option<Reopened>> {
    let looked_at = include_str!("looked_at.sql");
    let last = connection.query_row(looked_at, params![stored(after), count(limit)], |row| row.get(0))?;
    let Some(last): Option<i64> = last else {
        return Ok(None);
    };
    // The time of a row is rounded down. So is the start, and the end is rounded up: no row is left out.
    let (since, until) = (millis(published.start), millis(Timestamp(published.end.0.saturating_add(999))));
    let rows = execute(connection, include_str!("republish.sql"), params![stored(after), last, since, until])?;
    if rows > 0 {
        rewind(connection)?;
    }
    Ok(Some(Reopened { last: row_id(last), rows }))
}

/// Makes relays read everything again.
fn rewind(connection: &Connection) -> rusqlite::Result<()> {
    execute(connection, include_str!("rewind.sql"), []).map(drop)
}

/// The smallest and the largest id.
pub(super) fn ids(connection: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    let ids = connection.query_row(include_str!("ids.sql"), [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(match ids {
        (Some(first), Some(last)) => Some((first, last)),
        _ => None,
    })
}

/// Rows of a range of ids that were published or dropped before this time.
pub(super) fn old(
    connection: &Connection,
    (first, last): (i64, i64),
    before: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(include_str!("old.sql"))?;
    let rows = statement.query_map(params![first, last, millis(before), count(limit)], |row| row.get(0))?;
    rows.collect()
}

/// Inserts a row, and returns the id of its event.
pub(super) fn insert(connection: &Connection, event: &OutgoingEvent) -> rusqlite::Result<()> {
    let headers = event.headers.iter().map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into()));
    let headers = serde_json::Value::Object(headers.collect()).to_string();
    let operation = event.operation.map(|operation| *operation.as_bytes());
    let parameters = params![
        event.id.as_bytes(),
        event.namespace,
        operation,
        event.number,
        event.ordering_key.as_deref(),
        bucket_of(&event.order()),
        event.topic,
        event.kind,
        event.source,
        event.content_type,
        headers,
        &event.payload[..],
    ];
    execute(connection, include_str!("../ledger/emit.sql"), parameters).map(drop)
}

/// 16 random bytes.
pub(super) fn random(connection: &Connection) -> rusqlite::Result<[u8; 16]> {
    connection.prepare_cached(include_str!("new_id.sql"))?.query_row([], |row| row.get(0))
}

fn stored(id: RowId) -> i64 {
    i64::try_from(id.0).unwrap_or(i64::MAX)
}

fn row_id(stored: i64) -> RowId {
    RowId(stored.unsigned_abs().into())
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.0 / 1_000).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> Timestamp {
    Timestamp(millis.max(0).unsigned_abs().saturating_mul(1_000))
}
