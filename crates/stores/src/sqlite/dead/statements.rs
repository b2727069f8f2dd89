use bytes::Bytes;
use hapax_core::broker::{DeadCursor, DeadLetter, DeadLetterId, DeadReason, KeptLetter, ListedLetter};
use hapax_core::{OperationId, Result, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::letter::{self, LetterColumns};

/// Writes a letter. It replaces the one with its id.
pub(super) fn put(connection: &Connection, letter: &DeadLetter) -> rusqlite::Result<()> {
    let columns = LetterColumns::of(letter);
    remove(connection, letter.id)?;
    let mut statement = connection.prepare_cached(include_str!("put.sql"))?;
    statement.execute(params![
        columns.id,
        columns.reason,
        columns.attempts,
        columns.namespace,
        columns.source,
        columns.operation,
        columns.rule,
        columns.fingerprint,
        columns.at,
        columns.origin,
        columns.partition,
        columns.position,
        columns.position_id.as_deref(),
        columns.sent_at,
        columns.ordering_key.as_deref(),
        columns.headers,
        &columns.payload[..],
    ])?;
    Ok(())
}

pub(super) fn list(connection: &Connection, after: i64, limit: usize) -> rusqlite::Result<Vec<ListedLetter>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(include_str!("list.sql"))?;
    statement.query_map((after, limit), listed)?.collect()
}

fn listed(row: &Row<'_>) -> rusqlite::Result<ListedLetter> {
    let (reason, attempts) = letter::listed(row.get(1)?, row.get(2)?);
    Ok(ListedLetter {
        id: DeadLetterId::from_bytes(row.get(0)?),
        reason,
        attempts,
        namespace: row.get(3)?,
        source: row.get(4)?,
        operation: row.get::<_, Option<[u8; 16]>>(5)?.map(OperationId::from_bytes),
        at: letter::time(row.get(6)?),
        marked_at: row.get::<_, Option<i64>>(7)?.map(letter::time),
        size: row.get::<_, i64>(8)?.unsigned_abs(),
        cursor: DeadCursor::new(row.get::<_, i64>(9)?.to_string()),
    })
}

pub(super) fn find(connection: &Connection, id: DeadLetterId) -> rusqlite::Result<Option<Result<KeptLetter>>> {
    let mut statement = connection.prepare_cached(include_str!("find.sql"))?;
    statement.query_row([id.as_bytes()], kept).optional()
}

#[expect(clippy::unnecessary_wraps, reason = "rusqlite wants it")]
fn kept(row: &Row<'_>) -> rusqlite::Result<Result<KeptLetter>> {
    let letter = columns(row).map_err(|error| letter::damaged().caused_by(error)).and_then(|(columns, marked_at)| {
        let letter = columns.letter()?;
        Ok(KeptLetter { letter, marked_at })
    });
    Ok(letter)
}

/// The columns of a letter, and when it was marked.
fn columns(row: &Row<'_>) -> rusqlite::Result<(LetterColumns, Option<Timestamp>)> {
    let columns = LetterColumns {
        id: row.get(0)?,
        reason: row.get(1)?,
        attempts: row.get(2)?,
        namespace: row.get(3)?,
        source: row.get(4)?,
        operation: row.get(5)?,
        at: row.get(6)?,
        rule: row.get(8)?,
        fingerprint: row.get(9)?,
        origin: row.get(10)?,
        partition: row.get(11)?,
        position: row.get(12)?,
        position_id: row.get::<_, Option<Vec<u8>>>(13)?.map(Into::into),
        sent_at: row.get(14)?,
        ordering_key: row.get::<_, Option<Vec<u8>>>(15)?.map(Into::into),
        headers: row.get(16)?,
        payload: row.get::<_, Vec<u8>>(17)?.into(),
    };
    Ok((columns, row.get::<_, Option<i64>>(7)?.map(letter::time)))
}

/// Marks a letter, changes its reason if it has the first of the two, and opens its operation in the ledger again.
/// Returns whether there is such a letter.
pub(super) fn mark(
    connection: &Connection,
    (id, change): (DeadLetterId, Option<(DeadReason, DeadReason)>),
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let (from, to) = change.map(|(from, to)| (from.as_str(), to.as_str())).unzip();
    let mut statement = connection.prepare_cached(include_str!("mark.sql"))?;
    let parameters = params![id.as_bytes(), stored(now), from, to];
    let found = statement.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((operation, namespace)): Option<(Option<[u8; 16]>, String)> = found.optional()? else { return Ok(false) };
    connection.prepare_cached(include_str!("reopen.sql"))?.execute(params![operation, namespace])?;
    Ok(true)
}

/// The marked letters of a source that nobody has taken.
pub(super) fn marked(
    connection: &Connection,
    source: &str,
    (now, limit): (Timestamp, usize),
) -> rusqlite::Result<Vec<DeadLetterId>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(include_str!("marked.sql"))?;
    let ids =
        statement.query_map(params![source, stored(now), limit], |row| row.get(0).map(DeadLetterId::from_bytes))?;
    ids.collect()
}

pub(super) fn take(
    connection: &Connection,
    ids: &[DeadLetterId],
    until: Timestamp,
) -> rusqlite::Result<Vec<Result<KeptLetter>>> {
    let mut statement = connection.prepare_cached(include_str!("take.sql"))?;
    let mut taken = Vec::new();
    for id in ids {
        statement.execute(params![id.as_bytes(), stored(until)])?;
        taken.extend(find(connection, *id)?);
    }
    Ok(taken)
}

pub(super) fn postpone(connection: &Connection, ids: &[DeadLetterId], until: Timestamp) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("postpone.sql"))?;
    ids.iter().try_for_each(|id| statement.execute(params![id.as_bytes(), stored(until)]).map(drop))
}

/// Removes a letter. Returns whether there was one.
pub(super) fn remove(connection: &Connection, id: DeadLetterId) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached(include_str!("remove.sql"))?.execute([id.as_bytes()])? > 0)
}

/// Those of the ordering keys that have a letter of this source.
pub(super) fn keys_with_letters(
    connection: &Connection,
    source: &str,
    keys: Vec<Bytes>,
) -> rusqlite::Result<Vec<Bytes>> {
    let mut statement = connection.prepare_cached(include_str!("has_key.sql"))?;
    let mut found = Vec::new();
    for key in keys {
        if statement.exists(params![source, &key[..]])? {
            found.push(key);
        }
    }
    Ok(found)
}

/// Removes a letter that has this mark.
pub(super) fn finish(connection: &Connection, id: DeadLetterId, marked_at: Timestamp) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("finish.sql"))?;
    statement.execute(params![id.as_bytes(), stored(marked_at)]).map(drop)
}

fn stored(time: Timestamp) -> i64 {
    time.0.cast_signed()
}
