//! What operators see of the records, and what is removed when it has expired.

use bytes::Bytes;
use hapax_core::store::{Chunk, Scan, ScanPosition};
use hapax_core::{ErrorKind, RecordKey, Result, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;

use super::answers::{Attributes, TableFailure};
use super::item::{bytes, integer, raw};
use super::records::RecordTable;
use super::request::{self, ScanRequest};

/// How many items a page of a sweep reads.
const PAGE: usize = 1000;

/// A page of a scan.
struct ScannedPage {
    items: Vec<Attributes>,
    /// The key behind which the next page begins. None at the end of the table.
    next: Option<Bytes>,
}

impl RecordTable {
    /// Reads a part of the table. Its order is that of DynamoDB.
    pub(super) async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        self.api.time().await?;
        let from = ask.position().map(|ScanPosition(key)| &key[..]);
        let request = ScanRequest { table: self.api.table(), limit: ask.limit(), from };
        let page = self.page(&request.of_records()).await?;
        let mut chunk = Chunk { next: page.next.map(ScanPosition), ..Chunk::default() };
        for item in page.items {
            let rk = RecordKey::from_bytes(bytes(&item, "k")?);
            match self.found(Some(item), &rk).await {
                Ok(Some(read)) => {
                    let seen = self.seen(Some(&read))?;
                    let idle = seen.now.since(read.stored.armed_at);
                    chunk.records.extend(ask.admit(rk, seen, idle));
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Damaged => chunk.damaged.push(rk),
                Err(error) => return Err(error),
            }
        }
        Ok(chunk)
    }

    /// Removes what has expired, parts of answers too. It reads the table to its end, from this position on, so it is
    /// for tables without a TTL. The next sweep goes on where this one stops. If there was nothing up to the end, it
    /// reads the part before the position, too: 0 means that nothing expired is left.
    pub(super) async fn sweep(&self, limit: usize, position: &Mutex<Option<Bytes>>) -> Result<usize> {
        let low = self.api.time().await?.earliest;
        let (mut from, mut removed) = (position.lock().clone(), 0);
        let mut is_from_start = from.is_none();
        loop {
            let request = ScanRequest { table: self.api.table(), limit: PAGE, from: from.as_deref() };
            let page = self.page(&request.of_expired(low)).await?;
            for item in &page.items {
                if removed >= limit {
                    return Ok(removed);
                }
                removed += usize::from(self.remove_expired(item).await?);
            }
            from = page.next;
            position.lock().clone_from(&from);
            let is_done = from.is_none() && (removed > 0 || is_from_start);
            if is_done || removed >= limit {
                return Ok(removed);
            }
            is_from_start |= from.is_none();
        }
    }

    /// Whether the item was removed. It is not if it was written again.
    async fn remove_expired(&self, item: &Attributes) -> Result<bool> {
        let condition = request::with_end(Timestamp(integer(item, "exp")?));
        let body = request::deletion(self.api.table(), &raw(item, "k")?, condition);
        match self.api.call("DeleteItem", &body).await {
            Ok(_) => Ok(true),
            Err(TableFailure::Condition(_)) => Ok(false),
            Err(TableFailure::Failed(error)) => Err(error),
        }
    }

    async fn page(&self, body: &Value) -> Result<ScannedPage> {
        let mut answer = self.api.call("Scan", body).await.map_err(TableFailure::into_error)?;
        let items = match answer.remove("Items") {
            Some(Value::Array(items)) => items,
            Some(_) | None => Vec::new(),
        };
        let items = items.into_iter().filter_map(|item| if let Value::Object(item) = item { Some(item) } else { None });
        let last = answer.get("LastEvaluatedKey").and_then(Value::as_object);
        Ok(ScannedPage { items: items.collect(), next: last.map(|key| raw(key, "k")).transpose()? })
    }
}
