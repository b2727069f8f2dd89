use bytes::Bytes;
use hapax_core::broker::{
    DeadCursor, DeadLetter, DeadLetterId, DeadReason, KeptLetter, LetterChange, LetterWord, ListedLetter, ListedReason,
    SeenLetter,
};
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
    let [(reason, is_reason), (namespace, is_namespace), (source, is_source)] =
        [text(row, 1)?, text(row, 3)?, text(row, 4)?];
    let (reason, attempts) = letter::listed(reason, row.get(2)?);
    let is_readable = is_reason && is_namespace && is_source;
    Ok(ListedLetter {
        id: DeadLetterId::from_bytes(row.get(0)?),
        reason: if is_readable { reason } else { ListedReason::Damaged },
        attempts,
        namespace,
        source,
        operation: row.get::<_, Option<[u8; 16]>>(5)?.map(OperationId::from_bytes),
        at: letter::time(row.get(6)?),
        marked_at: row.get::<_, Option<i64>>(7)?.map(letter::time),
        size: row.get::<_, i64>(8)?.unsigned_abs(),
        seen: letter::seen(row.get(9)?, letter::time(row.get(6)?), row.get::<_, Option<i64>>(7)?.map(letter::time)),
        cursor: DeadCursor::new(row.get::<_, i64>(9)?.to_string()),
    })
}

/// A text, and whether it is UTF-8.
fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<(String, bool)> {
    Ok(letter::readable_text(row.get_ref(column)?.as_bytes()?))
}

pub(super) fn find(connection: &Connection, id: DeadLetterId) -> rusqlite::Result<Option<Result<KeptLetter>>> {
    let mut statement = connection.prepare_cached(include_str!("find.sql"))?;
    statement.query_row([id.as_bytes()], kept).optional()
}

#[expect(clippy::unnecessary_wraps, reason = "rusqlite wants it")]
fn kept(row: &Row<'_>) -> rusqlite::Result<Result<KeptLetter>> {
    let letter = columns(row).map_err(|error| letter::damaged().caused_by(error)).and_then(|(columns, seen)| {
        let letter = columns.letter()?;
        Ok(KeptLetter { letter, marked_at: seen.marked_at, seen })
    });
    Ok(letter)
}

/// The columns of a letter, and what a write to it names.
fn columns(row: &Row<'_>) -> rusqlite::Result<(LetterColumns, SeenLetter)> {
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
    let marked_at = row.get::<_, Option<i64>>(7)?.map(letter::time);
    let seen = letter::seen(row.get(18)?, letter::time(columns.at), marked_at);
    Ok((columns, seen))
}

/// The state of a letter, which decides what may be written to it.
struct LetterState {
    seen: SeenLetter,
    reason: String,
    operation: Option<[u8; 16]>,
    namespace: String,
    taken_until: Option<Timestamp>,
}

impl LetterState {
    fn read(connection: &Connection, id: DeadLetterId) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(include_str!("state.sql"))?;
        let state = |row: &Row<'_>| {
            let marked_at = row.get::<_, Option<i64>>(1)?.map(letter::time);
            Ok(Self {
                seen: letter::seen(row.get(0)?, letter::time(row.get(6)?), marked_at),
                reason: text(row, 2)?.0,
                operation: row.get(3)?,
                namespace: text(row, 4)?.0,
                taken_until: row.get::<_, Option<i64>>(5)?.map(letter::time),
            })
        };
        statement.query_row([id.as_bytes()], state).optional()
    }

    /// Why nothing is written, if the operator saw something else or a worker has the letter.
    fn refuses(&self, seen: &SeenLetter, now: Timestamp) -> Option<LetterChange> {
        if *seen != self.seen {
            return Some(LetterChange::Stale);
        }
        self.taken_until.filter(|until| *until > now).map(LetterChange::Taken)
    }

    /// The reason under this word.
    fn reason_with(&self, word: Option<LetterWord>) -> &str {
        let is_replaced = |word: &LetterWord| word.replaces().iter().any(|reason| reason.as_str() == self.reason);
        word.filter(is_replaced).map_or(&self.reason, |word| word.reason().as_str())
    }
}

/// Marks a letter, with the word of an operator, and opens its operation in the ledger again.
pub(super) fn mark(
    connection: &Connection,
    id: DeadLetterId,
    (seen, word): (&SeenLetter, Option<LetterWord>),
    now: Timestamp,
) -> rusqlite::Result<LetterChange> {
    let Some(state) = LetterState::read(connection, id)? else { return Ok(LetterChange::Missing) };
    let (reason, marked_at) = (state.reason_with(word), state.seen.marked_at);
    if seen.written == state.seen.written && marked_at.is_some() && reason == state.reason {
        return Ok(LetterChange::Yes);
    }
    if let Some(refused) = state.refuses(seen, now) {
        return Ok(refused);
    }
    // Each change has a mark of its own.
    let mark = marked_at.map_or(now, |earlier| now.max(Timestamp(earlier.0 + 1)));
    let mut statement = connection.prepare_cached(include_str!("mark.sql"))?;
    statement.execute(params![id.as_bytes(), stored(mark), stored(now), reason])?;
    connection.prepare_cached(include_str!("reopen.sql"))?.execute(params![state.operation, state.namespace])?;
    Ok(LetterChange::Yes)
}

/// Uses up the word of an operator. Returns the new mark.
pub(super) fn use_up_word(
    connection: &Connection,
    (id, marked_at): (DeadLetterId, Timestamp),
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    let mut statement = connection.prepare_cached(include_str!("use_up.sql"))?;
    let (with, without) = (DeadReason::NotDone.as_str(), DeadReason::OutcomeUnknown.as_str());
    let parameters = params![id.as_bytes(), stored(marked_at), without, stored(now), with];
    statement.query_row(parameters, |row| row.get(0).map(letter::time)).optional()
}

/// Removes a letter for an operator.
pub(super) fn remove_seen(
    connection: &Connection,
    (id, seen): (DeadLetterId, &SeenLetter),
    now: Timestamp,
) -> rusqlite::Result<LetterChange> {
    let Some(state) = LetterState::read(connection, id)? else { return Ok(LetterChange::Missing) };
    if let Some(refused) = state.refuses(seen, now) {
        return Ok(refused);
    }
    remove(connection, id)?;
    Ok(LetterChange::Yes)
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
) -> rusqlite::Result<Vec<(DeadLetterId, Result<KeptLetter>)>> {
    let mut statement = connection.prepare_cached(include_str!("take.sql"))?;
    let mut taken = Vec::new();
    for id in ids {
        statement.execute(params![id.as_bytes(), stored(until)])?;
        taken.extend(find(connection, *id)?.map(|kept| (*id, kept)));
    }
    Ok(taken)
}

/// Frees letters only from a time on, and notes until when a worker has them.
pub(super) fn move_end(
    connection: &Connection,
    ids: &[DeadLetterId],
    (free_at, taken_until): (Timestamp, Option<Timestamp>),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("postpone.sql"))?;
    let (free_at, taken_until) = (stored(free_at), taken_until.map(stored));
    ids.iter().try_for_each(|id| statement.execute(params![id.as_bytes(), free_at, taken_until]).map(drop))
}

fn remove(connection: &Connection, id: DeadLetterId) -> rusqlite::Result<()> {
    connection.prepare_cached(include_str!("remove.sql"))?.execute([id.as_bytes()]).map(drop)
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
