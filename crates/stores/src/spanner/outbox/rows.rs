//! Rows of the outbox as statements find them, and their changes.

use bytes::Bytes;
use hapax_core::outbox::{OutgoingEvent, ParkedKey, Rewinds};
use hapax_core::{EventId, Result};

pub(super) use hapax_core::outbox::RowState;

use super::place::RowPlace;
use crate::event::{self, StoredEventColumns};
use crate::spanner::messages::{Mutation, MutationKind, SqlList, SqlValue, WrittenRows};
use crate::spanner::values::columns;

const OUTBOX: &str = "hapax_outbox";

/// The open rows of a bucket, without their events.
pub(super) struct OpenBucket {
    pub(super) bucket: u8,
    pub(super) rewinds: Rewinds,
    pub(super) rows: Vec<FoundOpen>,
}

/// An open row without its event.
pub(super) struct FoundOpen {
    pub(super) place: RowPlace,
    /// Payload and headers in bytes.
    pub(super) size: usize,
    pub(super) is_parked: bool,
}

impl OpenBucket {
    pub(super) fn read(row: &SqlList) -> Result<Self> {
        let [bucket, openings, republications, rows] = columns::<4>(&row.values)?;
        let rows = rows.as_list()?.iter().map(|row| {
            let [created_at, number, event, size, is_parked] = columns::<5>(row.as_list()?)?;
            let place = RowPlace::read([bucket, created_at, number, event])?;
            let size = usize::try_from(size.as_integer()?).unwrap_or(usize::MAX);
            Ok(FoundOpen { place, size, is_parked: is_parked.as_flag()? })
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let bucket = u8::try_from(bucket.as_integer()?).unwrap_or(u8::MAX);
        Ok(Self { bucket, rewinds: rewinds([openings, republications])?, rows })
    }
}

/// How often relays were rewound.
pub(super) fn rewinds([openings, republications]: [&SqlValue; 2]) -> Result<Rewinds> {
    let count = |value: &SqlValue| value.as_integer().map(i64::unsigned_abs);
    Ok(Rewinds { openings: count(openings)?, republications: count(republications)? })
}

/// Reads the columns of `relay.sql`.
pub(super) fn read_rewinds(rows: &[SqlList]) -> Result<Rewinds> {
    let Some(row) = rows.first() else { return Ok(Rewinds::default()) };
    let [openings, republications] = columns::<2>(&row.values)?;
    rewinds([openings, republications])
}

/// An event with its row.
pub(super) struct EventInRow {
    pub(super) place: RowPlace,
    pub(super) state: RowState,
    pub(super) event: OutgoingEvent,
}

/// Reads the columns of `rows.sql`.
pub(super) fn stored_event(row: &SqlList) -> Result<EventInRow> {
    let [
        bucket,
        created_at,
        seq,
        event_id,
        namespace,
        operation,
        number,
        key,
        topic,
        kind,
        source,
        content_type,
        headers,
        payload,
        state,
    ] = columns::<15>(&row.values)?;
    let place = RowPlace::read([bucket, created_at, seq, event_id])?;
    let text = |value: &SqlValue| value.as_text().map(|text| text.map(str::to_owned));
    let stored = StoredEventColumns {
        id: *place.event.as_bytes(),
        namespace: text(namespace)?.unwrap_or_default(),
        operation: operation.as_text()?.map(|_| operation.as_id()).transpose()?,
        number: number.as_text()?.map(|_| number.as_integer()).transpose()?,
        topic: text(topic)?.unwrap_or_default(),
        ordering_key: key.as_text()?.map(|_| key.as_bytes()).transpose()?.map(Vec::from),
        kind: text(kind)?,
        source: text(source)?,
        content_type: text(content_type)?,
        headers: text(headers)?.unwrap_or_default(),
        payload: payload.as_bytes()?.into(),
        created_at: place.created_at,
    };
    Ok(EventInRow { place, state: row_state(state)?, event: stored.into() })
}

fn row_state(value: &SqlValue) -> Result<RowState> {
    event::state(i16::try_from(value.as_integer()?).unwrap_or(i16::MAX))
}

/// Reads the columns of `mark.sql`: the number of republications, and the rows that there are.
pub(super) fn marked_rows(rows: &[SqlList]) -> Result<(u64, Vec<(RowPlace, RowState)>)> {
    let (mut begun, mut found) = (0, Vec::new());
    for row in rows {
        let [republications, bucket, created_at, number, event, state] = columns::<6>(&row.values)?;
        begun = republications.as_integer()?.unsigned_abs();
        if bucket.as_text()?.is_some() {
            found.push((RowPlace::read([bucket, created_at, number, event])?, row_state(state)?));
        }
    }
    Ok((begun, found))
}

/// A row whose key is to be parked, or is.
pub(super) struct RefusedRow {
    pub(super) place: RowPlace,
    pub(super) state: RowState,
    pub(super) topic: String,
    /// The ordering key, or the id of the event.
    pub(super) key: Bytes,
    pub(super) is_parked: bool,
    pub(super) is_resumed: bool,
}

impl RefusedRow {
    /// Reads the columns of `park.sql`.
    pub(super) fn read(row: &SqlList) -> Result<Self> {
        let [bucket, created_at, number, event, state, topic, key, is_parked, is_resumed] = columns::<9>(&row.values)?;
        Ok(Self {
            place: RowPlace::read([bucket, created_at, number, event])?,
            state: row_state(state)?,
            topic: topic.as_text()?.unwrap_or_default().to_owned(),
            key: key.as_bytes()?,
            is_parked: is_parked.as_flag()?,
            is_resumed: is_resumed.as_flag()?,
        })
    }
}

/// Reads the columns of `parked.sql`.
pub(super) fn parked_key(row: &SqlList) -> Result<ParkedKey> {
    let [key, created_at, number, event, topic, reason, parked_at] = columns::<7>(&row.values)?;
    let bucket = SqlValue::integer(0);
    let place = RowPlace::read([&bucket, created_at, number, event])?;
    let text = |value: &SqlValue| value.as_text().map(|text| text.unwrap_or_default().to_owned());
    Ok(ParkedKey {
        key: key.as_bytes()?,
        row: place.id(),
        event: EventId::from_bytes(event.as_id()?),
        topic: text(topic)?,
        reason: text(reason)?,
        parked_at: parked_at.as_time()?,
    })
}

/// The change that parks a key because of this row.
pub(super) fn parked(row: &RefusedRow, reason: &str) -> Mutation {
    let columns = [
        ("okey", SqlValue::bytes(&row.key)),
        ("topic", SqlValue::text(row.topic.clone())),
        ("reason", SqlValue::text(reason.to_owned())),
        ("parked_at", SqlValue::commit_time()),
    ];
    Mutation { kind: Some(MutationKind::Insert(written("hapax_parked", row.place.key().into_iter().chain(columns)))) }
}

/// The change that makes an open row published.
pub(super) fn publish(place: &RowPlace) -> Mutation {
    end(place, RowState::Published)
}

/// The change that makes a row dropped.
pub(super) fn drop_row(place: &RowPlace) -> Mutation {
    end(place, RowState::Dropped)
}

fn end(place: &RowPlace, state: RowState) -> Mutation {
    update(place, state, SqlValue::commit_time())
}

/// The change that sets an open row aside.
pub(super) fn aside(row: &RefusedRow) -> Mutation {
    update(&row.place, RowState::Aside, SqlValue::null())
}

/// The change that opens a row again.
pub(super) fn open(place: &RowPlace) -> Mutation {
    update(place, RowState::Open, SqlValue::null())
}

fn update(place: &RowPlace, state: RowState, published_at: SqlValue) -> Mutation {
    let number = match state {
        RowState::Open => 0,
        RowState::Published => 1,
        RowState::Aside => 2,
        RowState::Dropped => 3,
    };
    let changed = [("state", SqlValue::integer(number)), ("published_at", published_at)];
    let columns = place.key().into_iter().chain(changed);
    Mutation { kind: Some(MutationKind::Update(written(OUTBOX, columns))) }
}

/// The change that notes how often relays were rewound.
pub(super) fn rewound(rewinds: Rewinds) -> Mutation {
    let count = |count: u64| SqlValue::integer(i64::try_from(count).unwrap_or(i64::MAX));
    let columns = [
        ("id", SqlValue::integer(1)),
        ("openings", count(rewinds.openings)),
        ("republications", count(rewinds.republications)),
    ];
    Mutation { kind: Some(MutationKind::InsertOrUpdate(written("hapax_relay", columns))) }
}

/// The change that notes that a key is being resumed.
pub(super) fn resumed(key: &[u8]) -> Mutation {
    let columns = [("okey", SqlValue::bytes(key)), ("resumed_at", SqlValue::commit_time())];
    Mutation { kind: Some(MutationKind::Update(written("hapax_parked", columns))) }
}

fn written(table: &str, columns: impl IntoIterator<Item = (&'static str, SqlValue)>) -> WrittenRows {
    let (columns, values) = columns.into_iter().map(|(name, value)| (name.to_owned(), value)).unzip();
    WrittenRows { table: table.to_owned(), columns, values: vec![SqlList { values }] }
}
