//! What operators see of the records and remove from them.

use bytes::Bytes;
use hapax_core::machine::Observed;
use hapax_core::store::{Chunk, Scan, ScanPosition, Swapped};
use hapax_core::{Error, ErrorKind, RecordKey, Result};
use tokio_postgres::types::Type;

use super::Postgres;
use super::call_error::PostgresCallError;
use super::row;

/// Reads a window of the table, in the order of the record keys.
pub(super) async fn scan(store: &Postgres, ask: &Scan) -> Result<Chunk> {
    let after = ask.position().map_or(&[][..], |ScanPosition(bytes)| bytes);
    let limit = i64::try_from(ask.limit()).unwrap_or(i64::MAX);
    let rows = store.query(|statements| &statements.scan, &[(&after, Type::BYTEA), (&limit, Type::INT8)]).await?;
    let mut chunk = Chunk::default();
    for row in &rows {
        if row.get("is_standby") {
            return Err(Error::new(ErrorKind::NotApplied, "the server is a standby; use the URL of the primary"));
        }
        let rk = RecordKey::from_bytes(row::bytes(row, "rk")?);
        match row::stored_record(row, &rk) {
            Ok(stored) => {
                let now = row::time(row, "now")?;
                chunk.records.extend(stored.and_then(|stored| ask.admit_stored(rk, &stored, now)));
            }
            Err(_) => chunk.damaged.push(rk),
        }
        chunk.next = Some(ScanPosition(Bytes::copy_from_slice(rk.as_bytes())));
    }
    // Fewer rows than asked for: the table ends here.
    if rows.len() < ask.limit() {
        chunk.next = None;
    }
    Ok(chunk)
}

/// Removes the record if it is still the observed one. Its check covers all its fields, and its end moves with every
/// renewal.
pub(super) async fn purge(store: &Postgres, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
    let Some(record) = seen.live() else { return Ok(Swapped::Changed) };
    let (key, check, end) =
        (&rk.as_bytes()[..], &record.check(rk)[..], row::stored_time(seen.now.plus(seen.life_left)));
    let parameters = [(&key as _, Type::BYTEA), (&check as _, Type::BYTEA), (&end as _, Type::TIMESTAMPTZ)];
    let rows = store.query(|statements| &statements.purge, &parameters).await?;
    let is_removed: bool = rows[0].try_get("is_removed").map_err(PostgresCallError::Sent)?;
    Ok(if is_removed { Swapped::Yes } else { Swapped::Changed })
}
