use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::broker::{DeadCursor, DeadLetter, DeadLetterId, KeptLetter, LetterChange, ListedLetter, SeenLetter};
use hapax_core::{Fingerprint, OperationId, Result, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::letter::{self, LATEST, LetterColumns, damaged};
use crate::postgres::pool::Parameter;

/// A letter as the parameters of the statement that writes it.
pub(super) struct WrittenLetter {
    columns: LetterColumns,
    id: Uuid,
    operation: Option<Uuid>,
    at: SystemTime,
    sent_at: Option<SystemTime>,
}

impl WrittenLetter {
    pub(super) fn of(letter: &DeadLetter) -> Self {
        let columns = LetterColumns::of(letter);
        Self {
            id: Uuid::from_bytes(columns.id),
            operation: columns.operation.map(Uuid::from_bytes),
            at: stored_time(letter.at),
            sent_at: letter.message.timestamp.map(stored_time),
            columns,
        }
    }

    /// The texts and numbers, then what holds bytes.
    pub(super) fn parameters<'l>(&'l self, bytes: &'l LetterBytes<'l>) -> [Parameter<'l>; 17] {
        let columns = &self.columns;
        [
            (&self.id, Type::UUID),
            (&columns.reason, Type::TEXT),
            (&columns.attempts, Type::INT8),
            (&columns.namespace, Type::TEXT),
            (&columns.source, Type::TEXT),
            (&self.operation, Type::UUID),
            (&columns.rule, Type::INT2),
            (&bytes.fingerprint, Type::BYTEA),
            (&self.at, Type::TIMESTAMPTZ),
            (&columns.origin, Type::TEXT),
            (&columns.partition, Type::INT8),
            (&columns.position, Type::INT8),
            (&bytes.position_id, Type::BYTEA),
            (&self.sent_at, Type::TIMESTAMPTZ),
            (&bytes.ordering_key, Type::BYTEA),
            (&columns.headers, Type::TEXT),
            (&bytes.payload, Type::BYTEA),
        ]
    }

    pub(super) fn bytes(&self) -> LetterBytes<'_> {
        LetterBytes {
            fingerprint: &self.columns.fingerprint,
            position_id: self.columns.position_id.as_deref(),
            ordering_key: self.columns.ordering_key.as_deref(),
            payload: &self.columns.payload,
        }
    }
}

/// The columns of a letter that the driver takes as slices.
pub(super) struct LetterBytes<'l> {
    fingerprint: &'l [u8],
    position_id: Option<&'l [u8]>,
    ordering_key: Option<&'l [u8]>,
    payload: &'l [u8],
}

pub(super) fn listed(row: &Row) -> Result<ListedLetter> {
    let (reason, attempts) = letter::listed(column(row, "reason")?, column(row, "attempts")?);
    Ok(ListedLetter {
        id: id(row)?,
        reason,
        attempts,
        namespace: column(row, "namespace")?,
        source: column(row, "source")?,
        operation: operation(row)?,
        at: time(column(row, "at")?),
        marked_at: marked_at(row)?,
        size: column::<i64>(row, "size")?.unsigned_abs(),
        seen: seen(row)?,
        cursor: DeadCursor::new(column::<i64>(row, "number")?.to_string()),
    })
}

pub(super) fn kept(row: &Row) -> Result<KeptLetter> {
    let fingerprint: &[u8] = column(row, "fingerprint")?;
    let bytes = |name| column::<Option<Vec<u8>>>(row, name).map(|bytes| bytes.map(Bytes::from));
    let micros = |time: SystemTime| self::time(time).0.cast_signed();
    let columns = LetterColumns {
        id: column::<Uuid>(row, "id")?.into_bytes(),
        reason: column(row, "reason")?,
        attempts: column(row, "attempts")?,
        namespace: column(row, "namespace")?,
        source: column(row, "source")?,
        operation: operation(row)?.map(|operation| *operation.as_bytes()),
        rule: column(row, "rule")?,
        fingerprint: <[u8; Fingerprint::LEN]>::try_from(fingerprint).map_err(|_| damaged())?,
        at: micros(column(row, "at")?),
        origin: column(row, "origin")?,
        partition: column(row, "partition")?,
        position: column(row, "position")?,
        position_id: bytes("position_id")?,
        sent_at: column::<Option<SystemTime>>(row, "sent_at")?.map(micros),
        ordering_key: bytes("okey")?,
        headers: column(row, "headers")?,
        payload: column::<Vec<u8>>(row, "payload")?.into(),
    };
    let seen = seen(row)?;
    Ok(KeptLetter { letter: columns.letter()?, marked_at: seen.marked_at, seen })
}

/// What a write to the letter names.
fn seen(row: &Row) -> Result<SeenLetter> {
    Ok(letter::seen(column(row, "number")?, time(column(row, "at")?), marked_at(row)?))
}

pub(super) fn marked_at(row: &Row) -> Result<Option<Timestamp>> {
    Ok(column::<Option<SystemTime>>(row, "marked_at")?.map(time))
}

/// The result of a write to a letter. Without a row, there is no such letter.
pub(super) fn change(row: Option<&Row>) -> Result<LetterChange> {
    let Some(row) = row else { return Ok(LetterChange::Missing) };
    let taken_until: Option<SystemTime> = column(row, "taken_until")?;
    Ok(match column(row, "change")? {
        "taken" => LetterChange::Taken(taken_until.map(time).ok_or_else(damaged)?),
        "stale" => LetterChange::Stale,
        _ => LetterChange::Yes,
    })
}

pub(super) fn ordering_key(row: &Row) -> Result<Bytes> {
    column::<Vec<u8>>(row, "okey").map(Bytes::from)
}

pub(super) fn id(row: &Row) -> Result<DeadLetterId> {
    Ok(DeadLetterId::from_bytes(column::<Uuid>(row, "id")?.into_bytes()))
}

fn operation(row: &Row) -> Result<Option<OperationId>> {
    let operation: Option<Uuid> = column(row, "operation")?;
    Ok(operation.map(|operation| OperationId::from_bytes(operation.into_bytes())))
}

fn column<'r, T: FromSql<'r>>(row: &'r Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(|error| damaged().caused_by(error))
}

fn time(stored: SystemTime) -> Timestamp {
    Timestamp(0).plus(stored.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn stored_time(time: Timestamp) -> SystemTime {
    // The server refuses times that are far behind this one.
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.min(LATEST).0)
}
