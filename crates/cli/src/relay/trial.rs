//! Whether the database of a relay takes writes. Its checks only read, and a full disk can be read.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::causes::in_words;
use crate::store::checks::StoreChecks;

/// How long the result of a trial counts. Everybody who can connect may ask for it.
const COUNTS_FOR: Duration = Duration::from_secs(5);

/// The last trial.
#[derive(Debug, Default)]
pub(super) struct WriteTrial {
    last: Mutex<Option<(Instant, Option<String>)>>,
}

impl WriteTrial {
    /// Why the database takes no record, if it takes none. Calls at the same time wait for one trial.
    ///
    /// # Cancel safety
    /// Safe to drop. The record of a trial lives for a minute.
    pub(super) async fn failure(&self, checks: &StoreChecks) -> Option<String> {
        let mut last = self.last.lock().await;
        if let Some((tried, failure)) = &*last
            && tried.elapsed() < COUNTS_FOR
        {
            return failure.clone();
        }
        let failure = checks.write_trial_record().await.err();
        let failure = failure.map(|error| format!("it takes no writes: {}", in_words(&error)));
        *last = Some((Instant::now(), failure.clone()));
        failure
    }
}
