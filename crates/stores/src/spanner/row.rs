//! A record as a row, and back.

use hapax_core::store::StoredRecord;
use hapax_core::{Record, RecordKey, Result};

use super::messages::{DeletedRows, KeySet, Mutation, MutationKind, SqlList, SqlValue, WrittenRows};
use super::values::columns;

/// The table of the records.
pub(super) const TABLE: &str = "hapax_record";

/// The columns, in the order in which they are written.
const COLUMNS: [&str; 4] = ["rk", "value", "armed_at", "expires_at"];

/// Reads the record of this key from its columns, without the key.
pub(super) fn stored_record(rk: &RecordKey, row: &[SqlValue]) -> Result<StoredRecord> {
    let [value, armed_at, expires_at] = columns::<3>(row)?;
    let record = Record::decode(rk, &value.as_bytes()?)?;
    Ok(StoredRecord { record, armed_at: armed_at.as_time()?, expires_at: expires_at.as_time()? })
}

/// Writes the record. Whether there is one may be known only inside of a transaction that has read it.
pub(super) fn write(rk: &RecordKey, stored: &StoredRecord) -> Mutation {
    Mutation { kind: Some(MutationKind::InsertOrUpdate(written(rk, stored))) }
}

/// Writes the record if there is no row with this key.
pub(super) fn insert(rk: &RecordKey, stored: &StoredRecord) -> Mutation {
    Mutation { kind: Some(MutationKind::Insert(written(rk, stored))) }
}

/// Removes the rows with these keys.
pub(super) fn remove<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Mutation {
    let keys = keys.map(|rk| SqlList { values: vec![SqlValue::bytes(rk)] }).collect();
    let rows = DeletedRows { table: TABLE.to_owned(), key_set: Some(KeySet { keys }) };
    Mutation { kind: Some(MutationKind::Delete(rows)) }
}

fn written(rk: &RecordKey, stored: &StoredRecord) -> WrittenRows {
    let values = vec![
        SqlValue::bytes(rk.as_bytes()),
        SqlValue::bytes(&stored.record.encode(rk)),
        SqlValue::time(stored.armed_at),
        SqlValue::time(stored.expires_at),
    ];
    let columns = COLUMNS.map(str::to_owned).to_vec();
    WrittenRows { table: TABLE.to_owned(), columns, values: vec![SqlList { values }] }
}
