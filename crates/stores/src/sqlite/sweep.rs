//! Removes expired records. They count as absent anyway; without a sweep they would stay in the file.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::Result;
use hapax_core::runtime::Runtime;

use super::Threads;

/// How many rows one search of a sweep reads.
const WINDOW: usize = 4096;

/// How many records one sweep removes before the next one starts.
const STEP: usize = 1000;

/// Searches the table on the reader thread, one window at a time, so that no begin waits for the search.
pub(super) async fn sweep(threads: &Threads, limit: usize) -> Result<usize> {
    let mut swept = 0;
    while swept < limit {
        let from = threads.swept_to.load(Ordering::Acquire);
        let most = limit - swept;
        let window = threads.reader.run(move |step| step.find_expired(from, WINDOW, most)).await?;
        // The reader does not lock the rows, so `delete` checks again that each has expired.
        let (expired, next) = (window.expired, window.next);
        swept += threads.writer.run(move |step| step.delete(&expired)).await?;
        // At the end of the table, the next sweep starts at the first row.
        threads.swept_to.store(next.unwrap_or(0), Ordering::Release);
        if next.is_none() {
            break;
        }
    }
    Ok(swept)
}

/// Sweeps in this interval until the store is dropped.
pub(super) async fn sweep_regularly(threads: Weak<Threads>, runtime: Arc<dyn Runtime>, every: Duration) {
    loop {
        runtime.sleep(every).await;
        // Small steps, so that begins wait for none of them for long.
        loop {
            let Some(threads) = threads.upgrade() else { return };
            match sweep(&threads, STEP).await {
                Ok(STEP) => tracing::debug!("{STEP} expired records were removed from the SQLite file"),
                // The end of the table. Records that expire during the search wait for the next one.
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot remove expired records; the next try is in {every:?}");
                    break;
                }
            }
        }
    }
}
