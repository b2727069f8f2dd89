//! The place of a row among those of all buckets: the time of its commit, its number in the transaction, and its event.

use hapax_core::outbox::{EventRow, ReadStart, RowId};
use hapax_core::{EventId, Result, Timestamp};

use crate::spanner::messages::SqlValue;

/// The last microsecond of the year 9999, behind which Spanner has no time.
pub(super) const LAST_MICROSECOND: u64 = 253_402_300_799_999_999;

/// How many bits of a row id are the number in the transaction. A transaction of Spanner has fewer changes than that.
const NUMBER_BITS: u32 = 16;

/// How many bits of a row id are the beginning of the event id. Two rows that have the same time and the same number
/// differ there.
const EVENT_BITS: u32 = 48;

const EVENT_BYTES: usize = EVENT_BITS as usize / 8;

/// A row that a statement has found, with the columns of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowPlace {
    pub(super) created_at: Timestamp,
    pub(super) number: u64,
    pub(super) event: EventId,
    pub(super) bucket: u8,
}

impl RowPlace {
    /// Reads the columns bucket, time in microseconds, number and event.
    pub(super) fn read([bucket, created_at, number, event]: [&SqlValue; 4]) -> Result<Self> {
        Ok(Self {
            created_at: created_at.as_time()?,
            number: number.as_integer()?.unsigned_abs(),
            event: EventId::from_bytes(event.as_id()?),
            bucket: u8::try_from(bucket.as_integer()?).unwrap_or(u8::MAX),
        })
    }

    pub(super) fn id(&self) -> RowId {
        let number = self.number.min((1 << NUMBER_BITS) - 1);
        let event = self.event.as_bytes()[..EVENT_BYTES].iter().fold(0, |sum, byte| (sum << 8) | u128::from(*byte));
        RowId(
            (u128::from(self.created_at.0) << (NUMBER_BITS + EVENT_BITS)) | (u128::from(number) << EVENT_BITS) | event,
        )
    }

    /// Whether this is the row that is named.
    pub(super) fn is(&self, named: &EventRow) -> bool {
        self.event == named.event && self.id() == named.id
    }

    /// The columns of the key.
    pub(super) fn key(&self) -> [(&'static str, SqlValue); 4] {
        [
            ("bucket", SqlValue::integer(self.bucket.into())),
            ("created_at", SqlValue::time(self.created_at)),
            ("seq", SqlValue::integer(self.number.cast_signed())),
            ("event_id", SqlValue::bytes(self.event.as_bytes())),
        ]
    }
}

/// Where a statement begins to read: the time in microseconds, the number, and the first event that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceStart {
    pub(super) time: i64,
    pub(super) number: i64,
    pub(super) event: [u8; 16],
}

impl From<ReadStart> for PlaceStart {
    fn from(start: ReadStart) -> Self {
        let RowId(id) = start.row;
        let time = u64::try_from(id >> (NUMBER_BITS + EVENT_BITS)).unwrap_or(u64::MAX).min(LAST_MICROSECOND);
        let number = (id >> EVENT_BITS) & ((1 << NUMBER_BITS) - 1);
        let mut event = if start.is_behind { [0xff; 16] } else { [0; 16] };
        event[..EVENT_BYTES].copy_from_slice(&id.to_be_bytes()[16 - EVENT_BYTES..]);
        Self { time: i64::try_from(time).unwrap_or(i64::MAX), number: i64::try_from(number).unwrap_or(i64::MAX), event }
    }
}

/// The id behind all rows of transactions that have committed until this time.
pub(super) fn last_until(time: Timestamp) -> RowId {
    RowId((u128::from(time.0) << (NUMBER_BITS + EVENT_BITS)) | ((1 << (NUMBER_BITS + EVENT_BITS)) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(micros: u64, number: u64, event: u8) -> RowPlace {
        RowPlace { created_at: Timestamp(micros), number, event: EventId::from_bytes([event; 16]), bucket: 7 }
    }

    #[test]
    fn ids_have_the_order_of_commits_and_name_one_row() {
        let places =
            [place(1, 0, 9), place(1, 0, 10), place(1, 1, 0), place(2, 0, 0), place(1_800_000_000_000_000, 5, 1)];
        let ids: Vec<RowId> = places.iter().map(RowPlace::id).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        assert!(places[0].is(&EventRow { id: ids[0], event: places[0].event }));
        assert!(!places[0].is(&EventRow { id: ids[1], event: places[0].event }), "another time");
        assert!(!places[0].is(&EventRow { id: ids[0], event: places[1].event }), "another event");
        assert!(last_until(Timestamp(1)) > ids[2] && last_until(Timestamp(1)) < ids[3]);
    }

    #[test]
    fn a_read_begins_at_a_row_or_behind_it() {
        let row = place(1_800_000_000_000_000, 5, 3);
        let start = |start: ReadStart| {
            let PlaceStart { time, number, event } = PlaceStart::from(start);
            (time, number, event)
        };
        let event = row.event.as_bytes();
        let (time, number, first) = start(ReadStart::at(row.id()));
        assert_eq!((time, number), (1_800_000_000_000_000, 5));
        assert!(first <= *event && first > *place(0, 0, 2).event.as_bytes());
        let (_, _, behind) = start(ReadStart::behind(row.id()));
        assert!(behind > *event && behind < *place(0, 0, 4).event.as_bytes());
        assert_eq!(start(ReadStart::FIRST).0, 0);
        assert_eq!(start(ReadStart::behind(RowId(u128::MAX))).0, i64::try_from(LAST_MICROSECOND).unwrap());
    }
}
