//! The removal of expired records.

use std::sync::Arc;
use std::time::Duration;

use hapax::Inspect;

const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How many records one step removes: few enough that requests are not delayed.
const SWEEP_STEP: usize = 200;

/// Removes expired records in small steps until the process ends.
pub(crate) async fn sweep(inspect: Arc<dyn Inspect>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        loop {
            match inspect.sweep(SWEEP_STEP).await {
                Ok(SWEEP_STEP) => tracing::debug!("{SWEEP_STEP} expired records were removed"),
                // Records that expire during the search wait for the next one.
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(?error, "cannot remove expired records; the next try is in {SWEEP_EVERY:?}");
                    break;
                }
            }
        }
    }
}
