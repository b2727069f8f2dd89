use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::outbox::{OpenRow, OutgoingEvent, ParkedKey, RowId};
use hapax_core::{BoxError, Error, ErrorKind, EventId, Result, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::event::{self, StoredEventColumns};

/// An open row. None if the read found no row, and only tells how often relays were rewound.
pub(super) fn open_row(row: &Row) -> Result<Option<OpenRow>> {
    let Some(id) = column::<Option<i64>>(row, "id")? else {
        return Ok(None);
    };
    let bucket = u8::try_from(column::<i16>(row, "bucket")?).unwrap_or_default();
    let is_parked = column(row, "is_parked")?;
    let (event, damage) = event(row)?;
    let republications = column::<i64>(row, "republications")?.unsigned_abs();
    let event = OutgoingEvent { republications, ..event };
    let id = RowId(id.unsigned_abs().into());
    Ok(Some(OpenRow { id, bucket, is_parked, damage, event: Arc::new(event) }))
}

/// The event, and why it cannot be published: the texts of a database without an encoding may not be UTF-8.
pub(super) fn event(row: &Row) -> Result<(OutgoingEvent, Option<String>)> {
    let mut damage = None;
    let mut text = |name: &str| -> Result<Option<String>> {
        let stored = column::<Option<StoredText>>(row, name)?;
        if stored.as_ref().is_some_and(|text| !text.is_utf8) {
            damage = Some(event::not_utf8(name));
        }
        Ok(stored.map(|text| text.text))
    };
    let columns = StoredEventColumns {
        id: column::<Uuid>(row, "event_id")?.into_bytes(),
        namespace: text("namespace")?.unwrap_or_default(),
        operation: column::<Option<Uuid>>(row, "operation")?.map(Uuid::into_bytes),
        number: column::<Option<i32>>(row, "n")?.map(|number| number.cast_unsigned().into()),
        topic: text("topic")?.unwrap_or_default(),
        ordering_key: column(row, "okey")?,
        kind: text("type")?,
        source: text("source")?,
        content_type: text("content_type")?,
        headers: text("headers")?.unwrap_or_default(),
        payload: column(row, "payload")?,
        created_at: time(row, "created_at")?,
    };
    Ok((columns.into(), damage))
}

/// A text, with a replacement for what is not UTF-8.
struct StoredText {
    text: String,
    is_utf8: bool,
}

impl<'r> FromSql<'r> for StoredText {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, BoxError> {
        Ok(Self { text: String::from_utf8_lossy(raw).into_owned(), is_utf8: std::str::from_utf8(raw).is_ok() })
    }

    fn accepts(kind: &Type) -> bool {
        <&str as FromSql<'_>>::accepts(kind)
    }
}

pub(super) fn parked_key(row: &Row) -> Result<ParkedKey> {
    Ok(ParkedKey {
        key: Bytes::from(column::<Vec<u8>>(row, "key")?),
        row: RowId(column::<i64>(row, "row_id")?.unsigned_abs().into()),
        event: EventId::from_bytes(column::<Uuid>(row, "event_id")?.into_bytes()),
        topic: column::<StoredText>(row, "topic")?.text,
        reason: column::<StoredText>(row, "reason")?.text,
        parked_at: time(row, "parked_at")?,
    })
}

pub(super) fn column<'r, T: FromSql<'r>>(row: &'r Row, name: &str) -> Result<T> {
    let damaged = |error| Error::new(ErrorKind::Damaged, "a row of the outbox cannot be decoded").caused_by(error);
    row.try_get(name).map_err(damaged)
}

pub(super) fn time(row: &Row, name: &str) -> Result<Timestamp> {
    let stored: SystemTime = column(row, name)?;
    Ok(Timestamp(0).plus(stored.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
}

pub(super) fn stored_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
}
