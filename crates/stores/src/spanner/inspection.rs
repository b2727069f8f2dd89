//! Lists of the records for operators, and the removal of expired ones.

use bytes::Bytes;
use hapax_core::store::{Chunk, Scan, ScanPosition};
use hapax_core::{ErrorKind, RecordKey, Result, Timestamp};

use super::answers::SpannerFailure;
use super::api::SpannerApi;
use super::messages::{Selected, SqlList, TransactionSelector};
use super::records::SpannerRecords;
use super::row;
use super::transactions::TransactionEnd;
use super::values::{SqlStatement, columns};
use crate::errors::not_applied;

/// How many bytes of values a chunk of a scan reads, or one value. An answer of the service has ten million bytes at
/// most, and values in it are a third longer.
const CHUNK: i64 = 4 << 20;

/// The part of the table that a chunk reads.
struct ScanRange {
    after: Bytes,
    last: Bytes,
    /// Whether there is more behind it.
    has_more: bool,
}

impl SpannerRecords {
    /// Reads a part of the table, in the order of the keys.
    pub(super) async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        let _permit = self.api.admit().await?;
        let scanned = self.scan_once(ask).await;
        // The sessions have ended: the next one is new.
        let scanned = match scanned {
            Err(failure) if failure.may_repeat() => {
                self.api.forget_sessions();
                self.scan_once(ask).await
            }
            scanned => scanned,
        };
        scanned.map_err(SpannerFailure::into_error)
    }

    async fn scan_once(&self, ask: &Scan) -> Result<Chunk, SpannerFailure> {
        let mut session = self.api.session().await?;
        let after = ask.position().map(|ScanPosition(key)| key.clone()).unwrap_or_default();
        let limit = i64::try_from(ask.limit()).unwrap_or(i64::MAX);
        let sizes = SqlStatement::new(include_str!("records/sizes.sql")).bytes("after", &after).integer("n", limit);
        let answer = session.run(&sizes, Some(SpannerApi::snapshot())).await?;
        let range = range(after, &answer.rows, ask.limit()).map_err(SpannerFailure::Failed)?;
        let Some(range) = range else {
            session.give_back();
            return Ok(Chunk::default());
        };
        let statement = SqlStatement::new(include_str!("records/scan.sql"));
        let statement = statement.bytes("after", &range.after).bytes("last", &range.last);
        let snapshot = answer.transaction.map(|id| TransactionSelector { selected: Some(Selected::Id(id)) });
        let answer = session.run(&statement, snapshot).await?;
        session.give_back();
        let mut chunk = Chunk { next: range.has_more.then_some(ScanPosition(range.last)), ..Chunk::default() };
        for row in &answer.rows {
            self.add_to(&mut chunk, ask, row).map_err(SpannerFailure::Failed)?;
        }
        Ok(chunk)
    }

    fn add_to(&self, chunk: &mut Chunk, ask: &Scan, row: &SqlList) -> Result<()> {
        let [now, rk, record @ ..] = &row.values[..] else { return Err(not_applied("Spanner has left out columns")) };
        let rk = key(&rk.as_bytes()?)?;
        match row::stored_record(&rk, record) {
            Ok(stored) => chunk.records.extend(ask.admit_stored(rk, &stored, self.api.clock(now.as_time()?))),
            Err(error) if error.kind() == ErrorKind::Damaged => chunk.damaged.push(rk),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes records that have expired. It reads the table until it has found them.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize> {
        let _permit = self.api.admit().await?;
        let now = self.now().await?;
        let micros = i64::try_from(now.0).unwrap_or(i64::MAX);
        let search = SqlStatement::new(include_str!("records/find_expired.sql"));
        let search = search.integer("now", micros).integer("n", i64::try_from(limit).unwrap_or(i64::MAX));
        let keys = keys_of(&self.api.read(&search).await?)?;
        if keys.is_empty() {
            return Ok(0);
        }
        let statement = SqlStatement::new(include_str!("records/still_expired.sql"));
        let statement = statement.integer("now", micros).all_bytes("keys", &keys);
        // A begin may have replaced one since.
        self.api
            .transact(&statement, |rows| {
                let keys = keys_of(&rows)?;
                Ok(TransactionEnd::Write(vec![row::remove(keys.iter().map(|key| &key[..]))], keys.len()))
            })
            .await
    }

    async fn now(&self) -> Result<Timestamp> {
        let rows = self.api.read(&SqlStatement::new(include_str!("records/clock.sql"))).await?;
        let now = rows.first().map(|row| columns::<1>(&row.values)?[0].as_time()).transpose()?;
        now.map(|now| self.api.clock(now)).ok_or_else(|| not_applied("Spanner has not told its clock"))
    }
}

/// The keys of the first rows whose values fit into a chunk. None if there are no rows.
fn range(after: Bytes, rows: &[SqlList], limit: usize) -> Result<Option<ScanRange>> {
    let (mut bytes, mut last) = (0, None);
    for (count, row) in rows.iter().enumerate() {
        let [rk, length] = columns::<2>(&row.values)?;
        bytes += length.as_integer()?;
        if bytes > CHUNK && count > 0 {
            return Ok(last.map(|last| ScanRange { after, last, has_more: true }));
        }
        last = Some(rk.as_bytes()?);
    }
    Ok(last.map(|last| ScanRange { after, last, has_more: rows.len() >= limit }))
}

fn keys_of(rows: &[SqlList]) -> Result<Vec<Bytes>> {
    rows.iter().map(|row| columns::<1>(&row.values)?[0].as_bytes()).collect()
}

fn key(bytes: &[u8]) -> Result<RecordKey> {
    let key = <[u8; 16]>::try_from(bytes).map(RecordKey::from_bytes);
    key.map_err(|_| hapax_core::Error::new(ErrorKind::Damaged, "a record has a key that is none of ours"))
}
