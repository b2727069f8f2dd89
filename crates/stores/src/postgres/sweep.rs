//! Removes expired records. They count as absent anyway; without a sweep they would stay in the table.

use std::sync::atomic::{AtomicI64, Ordering};

use hapax_core::Result;
use tokio_postgres::types::Type;

use super::Postgres;
use super::call_error::PostgresCallError;

/// How many pages of 8 KiB one statement of a sweep reads: a few thousand records, so that no call waits for long.
const PAGES: i64 = 128;

/// The page at which the next sweep continues.
#[derive(Debug, Default)]
pub(super) struct SweepPosition(AtomicI64);

/// Searches the table in small steps, and skips records that another call has locked.
pub(super) async fn sweep(store: &Postgres, position: &SweepPosition, limit: usize) -> Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut swept = 0;
    while swept < limit {
        let (from, most) = (position.0.load(Ordering::Acquire), limit - swept);
        let parameters = [from, PAGES, most];
        let parameters: Vec<_> = parameters.iter().map(|number| (number as _, Type::INT8)).collect();
        let rows = store.query(|statements| &statements.sweep, &parameters).await?;
        let column = |name| rows[0].try_get::<_, i64>(name).map_err(PostgresCallError::Sent);
        let (removed, pages) = (column("removed")?, column("pages")?);
        swept += removed;
        if removed < most {
            let next = from + PAGES;
            // At the end of the table, the next sweep starts at the first page.
            position.0.store(if next < pages { next } else { 0 }, Ordering::Release);
            if next >= pages {
                break;
            }
        }
    }
    Ok(usize::try_from(swept).unwrap_or_default())
}
