use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::outbox::{OpenRow, OutgoingEvent, ParkedKey, RowId};
use hapax_core::{Error, ErrorKind, EventId, Result, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::event::StoredEventColumns;

/// An open row. None if the read found no row, and only tells how often relays were rewound.
pub(super) fn open_row(row: &Row) -> Result<Option<OpenRow>> {
    let Some(id) = column::<Option<i64>>(row, "id")? else {
        return Ok(None);
    };
    let bucket = u8::try_from(column::<i16>(row, "bucket")?).unwrap_or_default();
    let (is_parked, event) = (column(row, "is_parked")?, Arc::new(event(row)?));
    Ok(Some(OpenRow { id: RowId(id.unsigned_abs()), bucket, is_parked, event }))
}

pub(super) fn event(row: &Row) -> Result<OutgoingEvent> {
    let columns = StoredEventColumns {
        id: column::<Uuid>(row, "event_id")?.into_bytes(),
        namespace: column(row, "namespace")?,
        operation: column::<Option<Uuid>>(row, "operation")?.map(Uuid::into_bytes),
        number: column::<Option<i32>>(row, "n")?.map(|number| number.cast_unsigned().into()),
        topic: column(row, "topic")?,
        ordering_key: column(row, "okey")?,
        kind: column(row, "type")?,
        source: column(row, "source")?,
        content_type: column(row, "content_type")?,
        headers: column(row, "headers")?,
        payload: column(row, "payload")?,
        created_at: time(row, "created_at")?,
    };
    Ok(columns.into())
}

pub(super) fn parked_key(row: &Row) -> Result<ParkedKey> {
    Ok(ParkedKey {
        key: Bytes::from(column::<Vec<u8>>(row, "key")?),
        row: RowId(column::<i64>(row, "row_id")?.unsigned_abs()),
        event: EventId::from_bytes(column::<Uuid>(row, "event_id")?.into_bytes()),
        topic: column(row, "topic")?,
        reason: column(row, "reason")?,
        parked_at: time(row, "parked_at")?,
    })
}

pub(super) fn column<'r, T: FromSql<'r>>(row: &'r Row, name: &str) -> Result<T> {
    let damaged = |error| Error::new(ErrorKind::Damaged, "a row of the outbox cannot be decoded").caused_by(error);
    row.try_get(name).map_err(damaged)
}

fn time(row: &Row, name: &str) -> Result<Timestamp> {
    let stored: SystemTime = column(row, name)?;
    Ok(Timestamp(0).plus(stored.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
}

pub(super) fn stored_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
}
