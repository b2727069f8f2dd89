//! What operators see of the records and remove from them.

use bytes::Bytes;
use hapax_core::machine::Observed;
use hapax_core::store::{Chunk, Scan, ScanPosition, Swapped, is_unchanged};
use hapax_core::{Error, ErrorKind, RecordKey};

use super::row;
use super::step::{StepContext, StepError};

impl StepContext<'_> {
    /// Reads a window of the table, in the order of the row ids.
    pub(super) fn scan(&self, ask: &Scan) -> Result<Chunk, StepError> {
        let after = ask.position().map_or(Ok(0), read_position).map_err(StepError::Record)?;
        let limit = i64::try_from(ask.limit()).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare_cached(include_str!("scan.sql"))?;
        let mut rows = statement.query((after, limit))?;
        let (mut chunk, mut last, mut seen) = (Chunk::default(), after, 0);
        while let Some(row) = rows.next()? {
            (last, seen) = (row.get("id")?, seen + 1);
            let rk = RecordKey::from_bytes(row.get("rk")?);
            match row::stored_record(row, &rk) {
                Ok(stored) => {
                    let record = stored.and_then(|stored| ask.admit_stored(rk, &stored, self.now));
                    chunk.records.extend(record);
                }
                Err(_) => chunk.damaged.push(rk),
            }
        }
        // Fewer rows than asked for: the table ends here.
        chunk.next = (seen == ask.limit()).then(|| ScanPosition(Bytes::copy_from_slice(&last.to_be_bytes())));
        Ok(chunk)
    }

    /// Removes the record if it is still the observed one. The mark is as large as every token that was written.
    pub(super) fn purge(&mut self, rk: &RecordKey, seen: &Observed) -> Result<Swapped, StepError> {
        if seen.live().is_none() || !is_unchanged(self.find(rk)?.0.as_ref(), seen, self.now) {
            return Ok(Swapped::Changed);
        }
        self.connection.prepare_cached(include_str!("purge.sql"))?.execute([rk.as_bytes()])?;
        Ok(Swapped::Yes)
    }
}

/// The row id after which a chunk begins.
fn read_position(ScanPosition(bytes): &ScanPosition) -> Result<i64, Error> {
    let bytes = <[u8; 8]>::try_from(&bytes[..]);
    bytes.map(i64::from_be_bytes).map_err(|_| Error::new(ErrorKind::Invalid, "this position is of another store"))
}
