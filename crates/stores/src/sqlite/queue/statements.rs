use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::Message;
use hapax_core::{EventId, Timestamp};
use rusqlite::{Connection, params};

use crate::chaos::Mutant;
use crate::headers;
use crate::sqlite::file_thread::{in_transaction, not_applied};

/// A message that was leased.
pub(super) struct Leased {
    pub(super) id: i64,
    pub(super) attempts: u32,
    pub(super) enqueued_at: Timestamp,
    pub(super) ordering_key: Option<Vec<u8>>,
    /// As text: a message whose headers are damaged must not keep the others back.
    pub(super) headers: String,
    pub(super) payload: Bytes,
}

/// What a lease of messages asks for.
pub(super) struct LeaseRequest<'q> {
    pub(super) queue: &'q str,
    pub(super) owner: [u8; 16],
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) now: Timestamp,
    pub(super) until: Timestamp,
}

/// What names a leased message in later statements. A new delivery of the message has another number of attempts.
#[derive(Clone, Copy)]
pub(super) struct LeaseKey {
    pub(super) id: i64,
    pub(super) attempts: u32,
    pub(super) owner: [u8; 16],
}

/// An event of a relay.
pub(super) struct EventToPut {
    pub(super) queue: String,
    pub(super) id: EventId,
    pub(super) republications: u64,
    pub(super) message: Message,
}

/// Puts an event in, unless the queue recognizes it. Returns whether it was put in.
pub(super) fn put_event(connection: &Connection, event: &EventToPut, window: Duration) -> rusqlite::Result<bool> {
    let republications = i64::try_from(event.republications).unwrap_or(i64::MAX);
    let mut note = connection.prepare_cached(include_str!("note_event.sql"))?;
    if note.execute(params![event.queue, event.id.as_bytes(), republications, whole_millis(window)])? == 0 {
        return Ok(false);
    }
    let enqueued = enqueue(connection, &event.queue, &event.message, Duration::ZERO);
    if enqueued.is_err() {
        // The transaction may go on without this event, which must not count as put in.
        let mut remove = connection.prepare_cached(include_str!("remove_event.sql"))?;
        remove.execute(params![event.queue, event.id.as_bytes(), republications])?;
    }
    enqueued.map(|_| true)
}

/// Forgets events that were put in longer ago than this, the oldest ones first.
pub(super) fn forget_events(connection: &Connection, window: Duration, limit: usize) -> rusqlite::Result<()> {
    let window = if Mutant::QueueForgetsEarly.is_on() { window / 2 } else { window };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.prepare_cached(include_str!("forget_events.sql"))?.execute([whole_millis(window), limit]).map(drop)
}

pub(super) fn enqueue(
    connection: &Connection,
    queue: &str,
    message: &Message,
    delay: Duration,
) -> rusqlite::Result<u64> {
    let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    let mut statement = connection.prepare_cached(include_str!("enqueue.sql"))?;
    statement.execute(params![
        queue,
        message.ordering_key.as_deref(),
        delay,
        headers::encode(&message.headers),
        &message.payload[..],
    ])?;
    Ok(connection.last_insert_rowid().cast_unsigned())
}

/// Leases the next messages that there is room for. Waits for no lock if there are none.
pub(super) fn lease(connection: &mut Connection, request: &LeaseRequest<'_>) -> hapax_core::Result<Vec<Leased>> {
    if find_ready(connection, request).map_err(not_applied)?.is_empty() {
        return Ok(Vec::new());
    }
    in_transaction(connection, |transaction| {
        // Another worker may have leased them meanwhile.
        let ready = find_ready(transaction, request)?;
        let mut statement = transaction.prepare_cached(include_str!("lease.sql"))?;
        let leased = ready.into_iter().map(|id| {
            statement.query_row(params![id, request.owner, millis(request.until)], |row| {
                Ok(Leased {
                    id,
                    attempts: row.get(0)?,
                    enqueued_at: Timestamp(row.get::<_, i64>(1)?.max(0).unsigned_abs() * 1_000),
                    ordering_key: row.get(2)?,
                    headers: row.get(3)?,
                    payload: row.get::<_, Vec<u8>>(4)?.into(),
                })
            })
        });
        leased.collect()
    })
}

fn find_ready(connection: &Connection, request: &LeaseRequest<'_>) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(include_str!("ready.sql"))?;
    let limit = i64::try_from(request.messages).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![request.queue, millis(request.now), limit])?;
    let (mut ready, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = rows.next()? {
        let size: i64 = row.get(1)?;
        bytes = bytes.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        // A single message may be larger than the room.
        if bytes > request.bytes && !ready.is_empty() {
            break;
        }
        ready.push(row.get(0)?);
    }
    Ok(ready)
}

/// Removes a message. Does nothing if another worker has it.
pub(super) fn acknowledge(connection: &Connection, lease: &LeaseKey) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("acknowledge.sql"))?;
    statement.execute(params![lease.id, lease.attempts, lease.owner]).map(drop)
}

/// Ends a lease. The message can be delivered again from then on.
pub(super) fn give_back(connection: &Connection, lease: &LeaseKey, visible_at: Timestamp) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("give_back.sql"))?;
    statement.execute(params![lease.id, lease.attempts, lease.owner, millis(visible_at)]).map(drop)
}

/// Moves the end of a lease to this time, never back.
pub(super) fn extend(connection: &Connection, lease: &LeaseKey, until: Timestamp) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("extend.sql"))?;
    statement.execute(params![lease.id, lease.attempts, lease.owner, millis(until)]).map(drop)
}

/// What distinguishes the queues of this file from those of other files.
pub(super) fn file(connection: &Connection) -> rusqlite::Result<u64> {
    let file: [u8; 8] = connection.query_row(include_str!("file.sql"), [], |row| row.get(0))?;
    Ok(u64::from_be_bytes(file))
}

/// The number of messages in the queue.
pub(super) fn count(connection: &Connection, queue: &str) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached(include_str!("count.sql"))?;
    statement.query_row([queue], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

fn whole_millis(window: Duration) -> i64 {
    i64::try_from(window.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// Rounded up: a message is delivered late rather than early.
fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.0.div_ceil(1_000)).unwrap_or(i64::MAX)
}
